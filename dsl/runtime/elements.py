"""The elements of a queue: components with a dtype and a shape, packed for storing, stacked for a batch.

In: what a user enqueues: one array, a tuple of them, or a dict. Out of `pack`: a private copy of it, as one stored value or
a tuple of stored values, each of its component's dtype and shape. Rank-0 components are stored as NumPy scalars. Whatever
does not fit raises, naming the component. `unpack` and `unpack_many` go the other way.

An array must have the very dtype of its component; Python numbers and lists of them are converted where that loses no
kind (an int may become a float, a float no int). Components of dtype `str`, `bytes` and `object` hold one Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from dsl.errors import ConfigError, ShapeError, TypeRuleError
from dsl.ir.types import BFLOAT16, BY_NAME, DTYPES, dtype_name

__all__ = ["Component", "Layout", "make_layout"]

PartialShape = tuple[int | None, ...]
_OBJECTS = {np.dtype(object): object, np.dtype(str): str, np.dtype(bytes): bytes}
_KINDS = "biufc"  # a Python number may become one of a later kind; i and u count as one
_RANK = {kind: min(rank, 2) if kind in "iu" else rank for rank, kind in enumerate(_KINDS, 1)}


@dataclass(frozen=True)
class Component:
    """One array of every element: what messages call it, its dtype, and its shape; None where any will do."""

    label: str
    dtype: np.dtype
    shape: PartialShape | None

    def __str__(self) -> str:
        dims = (
            "..."
            if self.shape is None
            else ", ".join("?" if d is None else str(d) for d in self.shape)
        )
        return f"{_dtype_text(self.dtype)}[{dims}]"

    # --- In --------------------------------------------------------------------------------------

    def converter(self) -> Callable[[Any], Any]:
        """Return a function that checks and copies one array. Numbers, the common case, take a short way."""
        if self.dtype in _OBJECTS:
            return self._check_object
        if self.shape != ():
            return self._copy
        kind, weak = self.dtype.type, _python_numbers(self.dtype)

        def number(value: Any) -> Any:
            if type(value) is kind:
                return value
            return kind(value) if type(value) in weak else self._copy(value)

        return number

    def _check_object(self, value: Any) -> Any:
        if not isinstance(value, _OBJECTS[self.dtype]):
            raise TypeRuleError(f"{self.label} is {self}, got {type(value).__name__}")
        return value

    def _copy(self, value: Any) -> Any:
        found = self._array(value)
        if not self._fits(found.shape):
            raise ShapeError(f"{self.label} is {self}, got {_type_text(found)}")
        return np.array(found, self.dtype, order="C")[()]

    def split(self, batch: Any, own: bool) -> list[Any]:
        """Return the rows of a batch, checked and copied; if `own`, each with memory of its own."""
        if self.dtype in _OBJECTS:
            return [self._check_object(value) for value in batch]
        found = self._array(batch)
        if not found.ndim or not self._fits(found.shape[1:]):
            raise ShapeError(
                f"{self.label} is {self}, and enqueue_many got {_type_text(found)}",
                remedy=f"give a batch: the shape of {self.label} with the number of elements in front",
            )
        copied = found if found.ndim == 1 or own else np.array(found, self.dtype, order="C")
        return [row.copy("C") for row in copied] if own and found.ndim > 1 else list(copied)

    def _array(self, value: Any) -> np.ndarray:
        """Return a value as an array of the component's dtype, perhaps itself."""
        if not hasattr(value, "dtype"):
            return self._from_python(value)
        found = np.asarray(value)
        if found.dtype.newbyteorder("=") != self.dtype:
            self._refuse_dtype(found, f"convert it: `.astype({_spelling(self.dtype)})`")
        return np.asarray(found, self.dtype)

    def _from_python(self, value: Any) -> np.ndarray:
        try:
            natural = np.asarray(value)
            if natural.size and _rank(natural.dtype) > _rank(self.dtype):
                self._refuse_dtype(natural, "convert it first")
            return np.asarray(value, self.dtype)
        except OverflowError as error:
            raise TypeRuleError(f"{self.label} is {self}: {error}") from None
        except ValueError as error:
            raise ShapeError(f"{self.label} is {self}, got what is no array: {error}") from None

    def _refuse_dtype(self, found: np.ndarray, remedy: str) -> NoReturn:
        raise TypeRuleError(f"{self.label} is {self}, got {_type_text(found)}", remedy=remedy)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if self.shape is None or shape == self.shape:
            return True
        return len(shape) == len(self.shape) and all(
            want is None or want == got for want, got in zip(self.shape, shape)
        )

    # --- Out -------------------------------------------------------------------------------------

    def stack(self, values: Sequence[Any]) -> np.ndarray:
        """Return a batch; where shapes differ, each is filled up with zeros to the largest."""
        if self.dtype in _OBJECTS:
            return _stack_objects(values, self.dtype)
        if self.shape == ():
            return np.array(values, self.dtype)
        if self.shape and None not in self.shape and values:
            return _join(values, (len(values), *values[0].shape), self.dtype)
        shapes = {value.shape for value in values}
        if len(shapes) == 1:
            return _join(values, (len(values), *shapes.pop()), self.dtype)
        return self._pad(values, [max(dims) for dims in zip(*shapes)])

    def _pad(self, values: Sequence[Any], dims: list[int]) -> np.ndarray:
        batch = np.zeros((len(values), *(dims or self._least())), self.dtype)
        for row, value in zip(batch, values):
            row[tuple(map(slice, value.shape))] = value
        return batch

    def _least(self) -> list[int]:
        return [dim or 0 for dim in self.shape or ()]


def _join(values: Sequence[Any], shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return arrays of one shape, at least one, one behind the other in memory."""
    if dtype == BFLOAT16 or values[0].nbytes > 1024:
        return np.concatenate(values).reshape(shape)
    return np.ndarray(
        shape, dtype, bytearray().join(values)
    )  # 40 ns for each, where NumPy needs 250


def _stack_objects(values: Sequence[Any], dtype: np.dtype) -> np.ndarray:
    if dtype != np.dtype(object):
        return np.array(values, dtype)
    batch = np.empty(len(values), object)
    for k, value in enumerate(values):
        batch[k] = value
    return batch


def _python_numbers(dtype: np.dtype) -> tuple[type, ...]:
    """Return the Python types whose every value a dtype can hold, so that converting needs no check."""
    return {"f": (float,), "c": (complex, float), "b": (bool,)}.get(dtype.kind, ())


def _rank(dtype: np.dtype) -> int:
    return _RANK.get("f" if dtype == BFLOAT16 else dtype.kind, 9)


def _dtype_text(dtype: np.dtype) -> str:
    return dtype_name(dtype) if dtype in DTYPES else dtype.type.__name__.rstrip("_")


def _type_text(found: np.ndarray) -> str:
    return f"{_dtype_text(found.dtype.newbyteorder('='))}[{', '.join(map(str, found.shape))}]"


def _spelling(dtype: np.dtype) -> str:
    return f"ml_dtypes.{dtype.name}" if dtype == BFLOAT16 else f"np.{dtype.name}"


# --- Elements of several components --------------------------------------------------------------


class Layout:
    """How the components of an element are held: alone (`keys` is None), in a tuple, or in a dict."""

    def __init__(self, components: Sequence[Component], keys: Sequence[Any] | None) -> None:
        self.components, self.keys = tuple(components), None if keys is None else tuple(keys)
        self.is_dict = self.keys is not None and self.keys != tuple(range(len(self.keys)))
        self._convert = [component.converter() for component in components]
        self.pack = self._pack if self.keys is not None else self._convert[0]

    def __str__(self) -> str:
        if self.keys is None:
            return str(self.components[0])
        names = [f"{key}: " if self.is_dict else "" for key in self.keys]
        return f"({', '.join(n + str(c) for n, c in zip(names, self.components))})"

    def _pack(self, element: Any) -> Any:
        """Return a checked copy of an element, as it is stored."""
        return tuple([convert(part) for convert, part in zip(self._convert, self._parts(element))])

    def pack_many(self, batch: Any, own: bool) -> list[Any]:
        """Return the elements of a batch, checked and copied."""
        if self.keys is None:
            return self.components[0].split(batch, own)
        columns = [c.split(part, own) for c, part in zip(self.components, self._parts(batch))]
        lengths = {c.label: len(column) for c, column in zip(self.components, columns)}
        if len(set(lengths.values())) > 1:
            listing = ", ".join(f"{label} has {length}" for label, length in lengths.items())
            raise ShapeError(f"the components of a batch differ in length: {listing}")
        return list(zip(*columns))

    def _parts(self, element: Any) -> Sequence[Any]:
        if self.is_dict:
            return self._entries(element)
        if not isinstance(element, tuple | list) or len(element) != len(self.components):
            got = (
                f"{type(element).__name__} of {len(element)}"
                if isinstance(element, tuple | list)
                else type(element).__name__
            )
            raise TypeRuleError(
                f"an element is a tuple of {len(self.components)} components {self}, got {got}",
                remedy="put the components into a tuple, `(x,)` for one; a queue of single values is made with a dtype, not a list of them",
            )
        return element

    def _entries(self, element: Any) -> Sequence[Any]:
        keys = self.keys or ()
        if not isinstance(element, Mapping):
            raise TypeRuleError(f"an element is a dict {self}, got {type(element).__name__}")
        if element.keys() != set(keys):
            missing, extra = (
                [k for k in keys if k not in element],
                [k for k in element if k not in keys],
            )
            raise TypeRuleError(
                f"an element is a dict {self}: missing {missing}, not expected {extra}"
            )
        return [element[key] for key in keys]

    def unpack(self, stored: Any) -> Any:
        """Return an element as the user gets it."""
        return dict(zip(self.keys or (), stored)) if self.is_dict else stored

    def unpack_first(self, stored: list[Any]) -> Any:
        return self.unpack(stored[0])

    def unpack_many(self, stored: list[Any]) -> Any:
        """Return a batch as the user gets it."""
        if self.keys is None:
            return self.components[0].stack(stored)
        columns = list(zip(*stored)) or [()] * len(self.components)
        return self.unpack(tuple(c.stack(column) for c, column in zip(self.components, columns)))


def make_layout(owner: str, dtypes: Any, shapes: Any, names: Sequence[str] | None) -> Layout:
    """Return the layout that the arguments of a queue's constructor ask for."""
    if isinstance(dtypes, Mapping):
        names, dtypes = tuple(dtypes), tuple(dtypes.values())
        shapes = [shapes.get(name) for name in names] if isinstance(shapes, Mapping) else shapes
    if not isinstance(dtypes, tuple | list):
        if names is not None:
            raise ConfigError(f"{owner}: names need a list of dtypes, got {dtypes!r}")
        return Layout([_component(owner, "the element", dtypes, shapes)], None)
    keys = tuple(range(len(dtypes))) if names is None else tuple(names)
    shapes = [None] * len(dtypes) if shapes is None else shapes
    if not dtypes or len(shapes) != len(dtypes) or len(set(keys)) != len(dtypes):
        counts = f"{len(dtypes)} dtypes, {len(shapes)} shapes, {len(set(keys))} names"
        raise ConfigError(
            f"{owner}: dtypes, shapes and names must be as many, and at least one; got {counts}"
        )
    parts = zip(keys, dtypes, shapes)
    return Layout([_component(owner, f"component {k!r}", d, s) for k, d, s in parts], keys)


def _component(owner: str, label: str, dtype: Any, shape: Any) -> Component:
    found = np.dtype(dtype)
    if found not in DTYPES and found not in _OBJECTS:
        known = ", ".join([*BY_NAME, "str", "bytes", "object"])
        raise TypeRuleError(f"{owner}: {label} cannot be {found}; the dtypes are {known}")
    if found in _OBJECTS and shape not in (None, (), []):
        raise ConfigError(
            f"{owner}: {label} of dtype {_dtype_text(found)} has shape (), got {shape!r}"
        )
    return Component(
        f"{label} of {owner}", found, () if found in _OBJECTS else _shape(owner, label, shape)
    )


def _shape(owner: str, label: str, shape: Any) -> PartialShape | None:
    if shape is None:
        return None
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(dim is None or (isinstance(dim, int) and dim >= 0) for dim in dims):
        raise ConfigError(
            f"{owner}: the shape of {label} must be sizes, or None for any, got {shape!r}"
        )
    return dims
