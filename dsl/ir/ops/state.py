"""Effects: printing and assertions.

An effect happens in program order with the others on its resource, and exactly as often as the program comes by.
Values are formatted by Python's `str.format`, arrays as NumPy prints them and rank-0 values as NumPy scalars.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

import numpy as np

from dsl.errors import TypeRuleError
from dsl.ir.ops.rules import ANY, BOOLS, Attrs, Inputs, operands, refuse, require_rank
from dsl.ir.registry import Trait, op

EFFECT, CHECKED = Trait.EFFECT, Trait.CHECKED


def _check_values(name: str, values: Inputs) -> None:
    operands(name, values, **{f"value{k}": ANY for k in range(len(values))})


def _formatted(template: str, values: tuple[np.ndarray, ...]) -> str:
    return template.format(*(np.asarray(value)[()] for value in values))


def _check_template(name: str, template: str, values: Inputs) -> None:
    """Refuse a template that asks for more values than there are, before the program runs."""
    try:
        template.format(*(_Anything() for _ in values))
    except (IndexError, KeyError, ValueError) as error:
        raise TypeRuleError(
            f"{name}: {template!r} does not fit {len(values)} values: {error}"
        ) from None


class _Anything:
    """A value that accepts every format."""

    def __format__(self, spec: str) -> str:
        return ""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, key: object) -> _Anything:
        return self


def _print_type(inputs: Inputs, attrs: Attrs) -> tuple[()]:
    _check_values("print", inputs)
    _check_template("print", attrs["template"], inputs)
    return ()


def _print(*values: np.ndarray, template: str, end: str) -> tuple[()]:
    sys.stdout.write(_formatted(template, values) + end)
    return ()


def _assert_type(inputs: Inputs, attrs: Attrs) -> tuple[()]:
    (pred,) = operands("assert", inputs[:1], pred=BOOLS)
    require_rank("assert", "pred", pred, 0)
    _check_values("assert", inputs[1:])
    _check_template("assert", attrs["message"], inputs[1:])
    if _exception(attrs["error"]) is None:
        refuse("assert", "error", "the name of a known exception", repr(attrs["error"]))
    return ()


# Exceptions that are not built in, by the name under which programs raise them.
_errors: dict[str, type[BaseException]] = {"LinAlgError": np.linalg.LinAlgError}


def known_error(error: type[BaseException]) -> str:
    """Return a name for an exception class that `assert` nodes can raise."""
    name: str = error.__name__
    if getattr(builtins, name, None) is not error:
        _errors[name] = error
    return name


def _exception(name: str) -> type[BaseException] | None:
    found: Any = _errors.get(name) or getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _assert(pred: np.ndarray, *values: np.ndarray, message: str, error: str) -> tuple[()]:
    if not pred:
        raise (_exception(error) or AssertionError)(_formatted(message, values))
    return ()


op("print", "*values ->", doc="Write `template` formatted with the values, and `end`, to stdout.",
   type=_print_type, numpy=_print, traits={EFFECT}, resource="print")  # fmt: skip
op("assert", "pred, *values ->", doc="Raise the built-in `error` with `message` unless pred is true.",
   type=_assert_type, numpy=_assert, traits={EFFECT, CHECKED}, resource="assert")  # fmt: skip
