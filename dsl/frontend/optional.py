"""Variables that hold None or a value, depending on traced conditions.

`best = None` before a loop and `best = (i, j)` in a branch of it make `best` a `TracedOptional`: a flag, and the leaves of the
value. `best is None` reads the flag; any other use reads the value and makes the program raise if there is none.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dsl.errors import UnsupportedError
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.traced import Kind, Traced, fresh, lift, read
from dsl.frontend.trees import Structure, flatten, unflatten
from dsl.ir.operators import BINARY
from dsl.ir.remote import Remote

__all__ = ["TracedOptional", "unwrap"]


class TracedOptional:
    """None or a tree of one structure. `present` is a traced or plain bool."""

    def __init__(self, structure: Structure, present: Any, leaves: list[Any]) -> None:
        self.structure, self.present, self.leaves = structure, present, leaves

    def dsl_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return (self.structure, *range(len(self.leaves))), (self.present, *self.leaves)

    @classmethod
    def dsl_unflatten(cls, keys: tuple[Any, ...], children: list[Any]) -> Any:
        """Put it together; of real values, which the caller gets, the value or None; of what is not here, what stands for it."""
        present, *leaves = children
        if isinstance(present, Remote):  # the value stands for both
            return next((leaf for leaf in leaves if isinstance(leaf, Remote)), present)
        if isinstance(present, np.ndarray) and present.ndim:
            return _of_all_items(present, keys[0], leaves)
        if any(isinstance(child, Traced) for child in children) or not isinstance(present, bool):
            return cls(keys[0], present, leaves)
        return unflatten(keys[0], leaves) if present else None

    def dsl_refill(self, other: TracedOptional) -> None:
        self.present, self.leaves = other.present, other.leaves

    def is_none(self) -> Any:
        """`x is None` as a traced bool."""
        return fresh(current_scope().emit("logical_not", read(lift(self.present))), Kind.PYTHON)

    def get(self, message: str = "has no value here", error: str = "TypeError") -> Any:
        """The value; the program raises if it is None."""
        attrs = {"message": f"'NoneType' object {message}", "error": error}
        current_scope().node("assert", (read(lift(self.present)),), attrs)
        return unflatten(self.structure, self.leaves)

    def change(self, apply: Callable[[Any], Any], message: str, error: str = "TypeError") -> Any:
        """Do something that may change the value, which keeps its structure; return what that returns."""
        value = self.get(message, error)
        result = apply(value)
        trace = current_trace()
        if trace is not None and id(value) in trace.made:
            trace.trees[id(value)] = (
                value  # it was made for this change, and is its attributes alone
            )
        leaves, structure = flatten(value)
        if structure != self.structure:
            raise UnsupportedError(
                f"this changes the structure of what may be None from {self.structure} to {structure}", location=here(),
                remedy="make it with its final structure, or start with an empty one in the place of None",
            )  # fmt: skip
        self.leaves = leaves
        return result

    def __getitem__(self, key: Any) -> Any:
        return self.get("is not subscriptable")[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith(
            ("__", "dsl_")
        ):  # a question about the class, which is no use of the value
            raise AttributeError(name)
        return getattr(self.get(f"has no attribute '{name}'", "AttributeError"), name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __len__(self) -> int:
        return len(self.get())

    def __bool__(self) -> bool:
        return bool(lift(self.present))


def _of_all_items(present: np.ndarray, structure: Structure, leaves: list[Any]) -> Any:
    """Return the values of a batch: None in the place of some of them has no array."""
    if present.all():
        return unflatten(structure, leaves)
    raise UnsupportedError(
        "a batched function returns None for some items and a value for others",
        remedy="return a number in the place of None, such as NaN, or a flag beside the value",
    )


def unwrap(x: Any) -> Any:
    """Return the value of an optional, and anything else as it is."""
    return x.get() if isinstance(x, TracedOptional) else x


def _unary(apply: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: apply(self.get())


def _binary(apply: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Any, Any], Any]:
    if reflected:
        return lambda self, other: apply(unwrap(other), self.get())
    return lambda self, other: apply(self.get(), unwrap(other))


for _name in BINARY:
    _apply = getattr(operator, f"__{_name}__")
    setattr(TracedOptional, f"__{_name}__", _binary(_apply, False))
    setattr(TracedOptional, f"__r{_name}__", _binary(_apply, True))
for _name in ["lt", "le", "gt", "ge", "eq", "ne"]:
    setattr(TracedOptional, f"__{_name}__", _binary(getattr(operator, _name), False))
for _name in ["neg", "pos", "abs", "invert"]:
    setattr(TracedOptional, f"__{_name}__", _unary(getattr(operator, _name)))
TracedOptional.__hash__ = object.__hash__  # type: ignore[method-assign]
