"""The library: NumPy functions on traced values, by name and by NumPy function object.

`@implements("name")` registers the traced meaning of a function of `dsl.numpy`, `dsl.linalg`, `dsl.fft`, `dsl.random` or
`dsl.nn`. If NumPy has a function of that name, calls of it on traced values, from `__array_function__` or from converted
code, come here. What users import are the public functions made by `public(...)`: inside a trace they call the traced
meaning; outside they call NumPy's own function, or trace and run where NumPy has none.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dsl.errors import UnsupportedError
from dsl.frontend.deques import BoundedDeque
from dsl.frontend.lists import TracedList
from dsl.frontend.scopes import current_trace, here
from dsl.frontend.traced import _FUNCTIONS, _UFUNCS, Traced
from dsl.frontend.trees import attributes_of

__all__ = [
    "CREATORS",
    "NAMESPACES",
    "has_traced",
    "has_traced_fields",
    "implementation",
    "implements",
    "public",
    "unsupported",
]

F = TypeVar("F", bound=Callable[..., Any])

# Namespace ("numpy", "linalg", "fft", "random", "nn") -> function name -> traced meaning.
NAMESPACES: dict[str, dict[str, Callable[..., Any]]] = {}
# NumPy function object -> traced meaning.
IMPLEMENTATIONS: dict[Any, Callable[..., Any]] = {}
# NumPy functions that make arrays from nothing; inside a trace they are traced whatever their arguments.
CREATORS: set[Any] = set()
# Set by the compiler: run a traced meaning on real arrays at once.
RUN_EAGERLY: list[Callable[..., Any]] = []

_SOURCES: dict[str, tuple[Any, ...]] = {
    "numpy": (np,),
    "linalg": (np.linalg,),
    "fft": (np.fft,),
    "random": (),
    "nn": (),
}


def implements(*names: str, namespace: str = "numpy", creates: bool = False) -> Callable[[F], F]:
    """Register a traced meaning under `names`; the first is its own, the others are NumPy's aliases."""

    def register(fn: F) -> F:
        table = NAMESPACES.setdefault(namespace, {})
        for name in names:
            table[name] = fn
            if namespace == "numpy":
                _FUNCTIONS[name] = fn
            for source in _SOURCES[namespace]:
                original = getattr(source, name, None)
                if original is not None:
                    IMPLEMENTATIONS[original] = fn
                    if creates:
                        CREATORS.add(original)
        return fn

    return register


def implementation(function: Any) -> Callable[..., Any] | None:
    """Return the traced meaning of a NumPy function object, or None."""
    try:
        return IMPLEMENTATIONS.get(function)
    except TypeError:
        return None


def unsupported(function: Any) -> UnsupportedError:
    """Return the error for a NumPy function without a traced meaning, naming the nearest that has one."""
    name = getattr(function, "__name__", str(function))
    known = [n for table in NAMESPACES.values() for n in table]
    close = difflib.get_close_matches(name, known, 1)
    remedy = (
        f"the nearest supported function is `{close[0]}`"
        if close
        else "write it with supported functions"
    )
    module = (getattr(function, "__module__", None) or "numpy").split(".")[0]
    return UnsupportedError(
        f"{module}.{name} is not supported on traced values", location=here(), remedy=remedy
    )


def call_function(function: Any, args: Any, kwargs: Any) -> Any:
    """`__array_function__`."""
    found = implementation(function)
    if found is None:
        raise unsupported(function)
    return found(*args, **kwargs)


_UFUNCS["function"] = call_function


def has_traced(x: Any) -> bool:
    """Tell whether a traced value, or a traced list, is in nested tuples, lists and dicts."""
    if isinstance(x, (Traced, TracedList)):
        return True
    if isinstance(x, (tuple, list, BoundedDeque)):
        return any(map(has_traced, x))
    return isinstance(x, dict) and any(map(has_traced, x.values()))


def has_traced_fields(item: Any) -> bool:
    """Tell whether an object of a dataclass holds traced values."""
    return hasattr(type(item), "__dataclass_fields__") and has_traced(attributes_of(item))


def _contents(x: Any) -> Any:
    """Return nested tuples and lists with the contents of the variables in them."""
    if type(x) in (tuple, list):
        return type(x)(map(_contents, x))
    return x.dsl_traced() if hasattr(type(x), "dsl_traced") else x


def public(namespace: str, name: str) -> Callable[..., Any]:
    """Return the function that users call as `dsl.<namespace>.<name>`."""
    traced = NAMESPACES[namespace][name]
    originals = [getattr(s, name) for s in _SOURCES[namespace] if callable(getattr(s, name, None))]
    eager = originals[0] if originals else None

    @functools.wraps(traced)
    def call(*args: Any, **kwargs: Any) -> Any:
        if current_trace() is not None or has_traced(args) or has_traced(kwargs):
            return traced(*_contents(args), **{k: _contents(x) for k, x in kwargs.items()})
        if eager is not None:
            return eager(*args, **kwargs)
        return RUN_EAGERLY[0](traced, args, kwargs)

    call.__name__ = call.__qualname__ = name
    call.dsl_traced = traced  # type: ignore[attr-defined]
    return call
