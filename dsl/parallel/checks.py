"""What trainers and tables are made with: mistakes are named where the object is made, not at its first step."""

from __future__ import annotations

import operator
from typing import Any

from dsl.errors import ConfigError
from dsl.frontend.scopes import here
from dsl.optim.optimizer import Optimizer

__all__ = ["check_loss", "check_optimizer", "checked_count"]


def check_loss(what: str, loss: Any) -> None:
    """Raise unless `loss` is a function; the order of arguments is easily taken for another."""
    if isinstance(loss, Optimizer) or not callable(loss):
        raise ConfigError(
            f"{what}: loss must be a function of the parameters and a batch, got {_shown(loss)}",
            location=here(), remedy=f"write {what}(loss, optimizer, …)",
        )  # fmt: skip


def check_optimizer(what: str, optimizer: Any) -> None:
    """Raise unless `optimizer` is one of `dsl.optim`, or of a class derived from it."""
    if not isinstance(optimizer, Optimizer):
        remedy = (
            "call it: `dsl.optim.SGD(0.1)`" if _is_class(optimizer) else "pass one of `dsl.optim`"
        )
        raise ConfigError(
            f"{what}: optimizer must be an optimiser, got {_shown(optimizer)}",
            location=here(), remedy=remedy,
        )  # fmt: skip


def checked_count(what: str, name: str, number: Any, least: int = 1) -> int:
    """Return a whole number that is not too small."""
    try:
        found = operator.index(number)
    except TypeError:
        found = least - 1
    if found < least:
        raise ConfigError(
            f"{what}: {name} must be a whole number, {least} or more, got {_shown(number)}",
            location=here(),
        )
    return found


def _is_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Optimizer)


def _shown(value: Any) -> str:
    if _is_class(value):
        return f"the class {value.__name__}"
    return repr(value) if isinstance(value, int | float | str) else f"a {type(value).__name__}"
