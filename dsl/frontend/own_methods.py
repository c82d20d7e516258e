"""How objects of the user's classes say whether they are true, and how they are written, and what `with` does.

The methods that say so are converted; Python would call them as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from dsl.frontend.calls import BUILTINS, call
from dsl.frontend.leaves import TRUTH
from dsl.frontend.library import has_traced_fields
from dsl.frontend.scopes import current_trace
from dsl.frontend.text import FORMATS, TEXTS, TracedText
from dsl.frontend.traced import Traced
from dsl.frontend.user_code import is_generated_method, own_method

__all__ = ["entered"]


def _own_truth(test: Any) -> Callable[[], Any] | None:
    for name in ("__bool__", "__len__"):
        own = own_method(test, name)
        if own is not None:
            return functools.partial(call, own, test)
        if hasattr(type(test), name):
            return None
    return None


TRUTH[0] = _own_truth


def _own_text(value: Any, by_repr: bool) -> Callable[[], Any] | None:
    if current_trace() is None or isinstance(value, (Traced, TracedText)):
        return None
    for name in ("__repr__",) if by_repr else ("__str__", "__repr__"):
        found = getattr(type(value), name)
        if name == "__repr__" and has_traced_fields(value) and is_generated_method(found):
            return lambda: _fields_text(value)
        own = own_method(value, name)
        if own is not None and not is_generated_method(own):
            return functools.partial(call, own, value)
        if found is not object.__str__:
            return None
    return None


def _fields_text(value: Any) -> Any:
    fields = [f.name for f in dataclasses.fields(value) if f.repr]
    parts = [p for n in fields for p in (", ", f"{n}=", (getattr(value, n), "", ord("r")))]
    return TracedText.join((f"{type(value).__qualname__}(", *parts[1:], ")"))


TEXTS[0] = _own_text


def _own_format(value: Any, spec: Any) -> Callable[[], Any] | None:
    own = own_method(value, "__format__") if current_trace() is not None else None
    return functools.partial(call, own, value, spec) if own is not None else None


FORMATS[0] = _own_format


def _managed(function: Any, *args: Any) -> Any:
    """What a function that `contextlib.contextmanager` decorates returns: its generator is converted."""
    return _MANAGER(functools.partial(call, function), *args)


_MANAGER: Any = contextlib._GeneratorContextManager
BUILTINS[_MANAGER] = _managed


class _Entered:
    """What `with` takes for an object of the user's."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __enter__(self) -> Any:
        return call(type(self.held).__enter__, self.held)

    def __exit__(self, *error: Any) -> Any:
        return call(type(self.held).__exit__, self.held, *error)


def entered(held: Any) -> Any:
    """Return the context manager of a `with` statement."""
    is_own = any(own_method(held, name) for name in ("__enter__", "__exit__"))
    return _Entered(held) if is_own and current_trace() is not None else held
