"""The functions of `math` and `cmath` on traced numbers: they compute with doubles, and raise where Python's do."""

from __future__ import annotations

import cmath
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.frontend.array_likes import as_array
from dsl.frontend.builtin_functions import sum_of, to_float, to_int, type_of
from dsl.frontend.calls import BUILTINS
from dsl.frontend.library import has_traced
from dsl.frontend.scopes import current_scope
from dsl.frontend.traced import _FUNCTIONS, Kind, Traced, cast, fresh, lift, read
from dsl.frontend.ufuncs import special_function
from dsl.ir.signs import Sign, sign_of

__all__: list[str] = []

_DOMAINS: dict[str, Callable[[Any], Any]] = {
    "sqrt": lambda x: ~(x < 0), "log": lambda x: ~(x <= 0), "log2": lambda x: ~(x <= 0), "log10": lambda x: ~(x <= 0),
    "log1p": lambda x: ~(x <= -1), "asin": lambda x: ~(np.absolute(x) > 1), "acos": lambda x: ~(np.absolute(x) > 1),
    "acosh": lambda x: ~(x < 1), "atanh": lambda x: ~(np.absolute(x) >= 1), "isqrt": lambda x: x >= 0,
}  # fmt: skip

# From which sign on numbers surely are in the domain.
_INSIDE = {
    "sqrt": Sign.NOT_BELOW, "log": Sign.POSITIVE, "log2": Sign.POSITIVE, "log10": Sign.POSITIVE, "log1p": Sign.NOT_BELOW,
}  # fmt: skip


def _check_domain(name: str, x: Any) -> None:
    """Where `math` raises and NumPy gives NaN, the program raises; it does not ask for what is known."""
    if name in _DOMAINS and isinstance(x, Traced) and sign_of(read(x)) < _INSIDE.get(name, np.inf):
        inside = read(_DOMAINS[name](fresh(read(x), Kind.SCALAR)))
        current_scope().node(
            "assert", (inside,), {"message": "math domain error", "error": "ValueError"}
        )


def _as_index(x: Any) -> Any:
    """Return an operand that `math` takes as a Python integer."""
    if isinstance(x, Traced) and x.dtype.kind not in "biu":
        raise TypeError(f"'{type_of(x).__name__}' object cannot be interpreted as an integer")
    return to_int(x)


def _as_number(x: Any) -> Any:
    """Return an operand that `math` rounds: a Python integer or float."""
    whole = isinstance(x, Traced) and x.dtype.kind in "biu"
    return _as_index(x) if whole else to_float(x)


def _math(name: str, ufunc: Callable[..., Any], *takes: Callable[[Any], Any]) -> None:
    """Let a function of `math` be traced as one of what `takes` makes of each operand, the last of all that follow."""
    plain = getattr(math, name)

    def apply(*args: Any) -> Any:
        if not has_traced(args):
            return plain(*args)
        kinds = itertools.chain(takes, itertools.repeat(takes[-1] if takes else to_float))
        numbers = [as_kind(x) for as_kind, x in zip(kinds, args)]
        _check_domain(name, numbers[0])
        return fresh(read(lift(ufunc(*numbers))), Kind.PYTHON)

    BUILTINS[plain] = apply


for _name in (
    "sqrt", "exp", "expm1", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "fabs", "copysign", "degrees",
    "radians", "isnan", "isinf", "isfinite", "cbrt", "exp2",
):  # fmt: skip
    _math(_name, getattr(np, _name))
for _name, _target in {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "pow": np.power, "fmod": np.fmod,
}.items():  # fmt: skip
    _math(_name, _target)
for _name, _target in {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}.items():
    _math(_name, lambda x, f=_target: lift(f(x)).astype(np.int64), _as_number)
_math("log", lambda x, base=None: np.log(x) if base is None else np.log(x) / np.log(base))
for _name in ("erf", "erfc", "lgamma"):
    _math(_name, functools.partial(special_function, _name))
_math("gcd", lambda *numbers: functools.reduce(np.gcd, numbers), _as_index)
_math("lcm", lambda *numbers: functools.reduce(np.lcm, numbers), _as_index)
_math("hypot", lambda *sides: functools.reduce(np.hypot, sides, 0.0))
_math("ldexp", np.ldexp, to_float, _as_index)
_math("nextafter", np.nextafter)


def _isqrt(n: Any) -> Any:
    """The root of an integer: that of the nearest double may be one too large or too small."""
    root = np.floor(np.sqrt(n)).astype(np.int64)
    root = root - (root > n // np.maximum(root, 1))
    return root + (root + 1 <= n // (root + 1))


_math("isqrt", _isqrt, _as_index)


def _isclose(a: Any, b: Any, *, rel_tol: float = 1e-09, abs_tol: float = 0.0) -> Any:
    if not has_traced((a, b, rel_tol, abs_tol)):
        return math.isclose(a, b, rel_tol=rel_tol, abs_tol=abs_tol)
    a, b = lift(to_float(a)), lift(to_float(b))
    largest = np.maximum(np.absolute(a), np.absolute(b))
    near = np.absolute(a - b) <= np.maximum(rel_tol * largest, abs_tol)
    return fresh(read((a == b) | (near & np.isfinite(largest))), Kind.PYTHON)


def _dist(p: Any, q: Any) -> Any:
    if not has_traced((p, q)):
        return math.dist(p, q)
    apart = _FUNCTIONS["asarray"](p, float) - _FUNCTIONS["asarray"](q, float)
    return fresh(read(np.sqrt(_FUNCTIONS["sum"](apart * apart))), Kind.PYTHON)


def _fsum(items: Any) -> Any:
    items = as_array(items)
    if not (isinstance(items, Traced) or has_traced(items := list(items))):
        return math.fsum(items)
    return fresh(cast(read(lift(sum_of(items, 0.0))), np.dtype(float)), Kind.PYTHON)


def _cmath(name: str, ufunc: Callable[..., Any]) -> None:
    plain = getattr(cmath, name)

    def apply(*args: Any) -> Any:
        if not has_traced(args):
            return plain(*args)
        result = ufunc(*(lift(x).astype(np.complex128) for x in args))
        return fresh(read(lift(result)), Kind.PYTHON)

    BUILTINS[plain] = apply


for _name in (
    "sqrt", "exp", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh", "isnan", "isinf", "isfinite",
):  # fmt: skip
    _cmath(_name, getattr(np, _name))
_cmath("log", lambda x, base=None: np.log(x) if base is None else np.log(x) / np.log(base))
_cmath("phase", lambda x: _FUNCTIONS["angle"](x))
BUILTINS.update({math.isclose: _isclose, math.dist: _dist, math.fsum: _fsum})
