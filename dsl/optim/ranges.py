"""The numbers of optimisers and schedules: which each may be, checked where it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from dsl.errors import ConfigError
from dsl.frontend.scopes import here
from dsl.frontend.traced import Traced

__all__ = ["check_number", "check_numbers"]

_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        (
            "learning_rate", "momentum", "epsilon", "l1", "l2", "l2_shrinkage", "weight_decay", "rate", "decay_rate",
            "end_rate", "start", "power", "alpha", "then", "values", "max_norm",
        ),
        ("at least 0", lambda x: x >= 0),
    ),
    **dict.fromkeys(("decay", "rho"), ("between 0 and 1", lambda x: 0 <= x <= 1)),
    **dict.fromkeys(("beta1", "beta2"), ("at least 0 and below 1", lambda x: 0 <= x < 1)),
    **dict.fromkeys(("initial_accumulator_value", "decay_steps"), ("above 0", lambda x: x > 0)),
    "steps": ("a whole number above 0", lambda x: x > 0 and x == x // 1),
    "boundaries": ("numbers", lambda x: True),
    "learning_rate_power": ("at most 0", lambda x: x <= 0),
}  # fmt: skip
_SCHEDULES = ("learning_rate", "then")  # which may be functions of the step


def check_numbers(owner: Any) -> None:
    """Make NumPy's numbers in the fields of a dataclass Python's, and refuse those that are out of range."""
    for item in fields(owner):
        value = getattr(owner, item.name)
        if isinstance(value, (np.floating, np.integer)):
            value = value.item()
            object.__setattr__(owner, item.name, value)
        check_number(type(owner).__name__, item.name, value, _order(owner))


def check_number(owner: str, name: str, value: Any, remedy: str = "") -> None:
    """Refuse a value that the field of a name may not have; of a traced one nothing is known."""
    if isinstance(value, Traced) or (name in _SCHEDULES and _is_function(value)):
        return
    wanted, holds = _RANGES.get(name, ("True or False", lambda x: isinstance(x, bool)))
    if not isinstance(value, (int, float)) or not holds(value):
        text = f"{owner}: {name} must be {wanted}, got {value!r}"
        raise ConfigError(text, location=here(), remedy=remedy)


def _is_function(x: Any) -> bool:
    return callable(x) and not isinstance(x, type)  # `SGD(linear_warmup)` lacks the numbers


def _order(owner: Any) -> str:
    names = ", ".join(item.name for item in fields(owner) if not item.kw_only)
    return f"the order of arguments is {type(owner).__name__}({names})"
