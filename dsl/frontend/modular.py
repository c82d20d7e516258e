"""`pow` of three whole numbers that the data decides: by squarings, each taken modulo the third number."""

from __future__ import annotations

from typing import Any

from dsl.frontend.scopes import current_scope
from dsl.frontend.traced import Traced, read
from dsl.frontend.verbs import while_loop

__all__ = ["modular_power"]

# The largest modulus of which the product of two rests has 63 bits.
_MOST = 3037000500


def modular_power(base: Any, exponent: Any, modulus: Any) -> Any:
    """Return `base**exponent % modulus` of Python's numbers, exactly."""
    _require(modulus != 0, "pow() 3rd argument cannot be 0")
    _require(exponent >= 0, "pow() with a modulus takes no negative exponent in compiled code")
    _require(
        abs(modulus) <= _MOST, f"pow() takes a modulus of at most {_MOST} in compiled code", "OverflowError"
    )  # fmt: skip

    def squared(carry: Any) -> Any:
        power, left, product = carry
        factor = 1 + (left & 1) * (power - 1)
        return power * power % modulus, left >> 1, product * factor % modulus

    start = (base % modulus, exponent, 1 % modulus)
    return while_loop(lambda carry: carry[1] > 0, squared, start)[2]


def _require(flag: Any, message: str, error: str = "ValueError") -> None:
    """Raise now or, where the data decides, when the program runs."""
    if isinstance(flag, Traced):
        current_scope().node("assert", (read(flag),), {"message": message, "error": error})
    elif not flag:
        raise {"ValueError": ValueError, "OverflowError": OverflowError}[error](message)
