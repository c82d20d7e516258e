"""Fitting a checkpoint to a tree: entry by entry, by name, with one message for all that does not fit.

An array fits an array of the same dtype and shape. A number of Python fits one of the same type, or a float an int; it also fits an
array of rank 0 of its kind, so that a step that was counted as `0, 1, 2` is found again after it became one of NumPy's numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dsl.checkpoints.tree import plain_value, value_of
from dsl.errors import CheckpointError
from dsl.ir.types import BFLOAT16, BY_NAME

__all__ = ["Spec", "check_fit", "converted", "saved_specs"]

_SHORT = {dtype: name for name, dtype in BY_NAME.items()}
_OF_KIND: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
_LENIENT = "pass strict=False to keep the tree's own values for what is missing and to leave out what is extra"
_ADAPT = "change the tree, or restore without `like` and convert the arrays"


class Spec(NamedTuple):
    """What an entry is: an array of a dtype and a shape, or, if `shape` is None, a value of a Python type."""

    type: Any
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"Python {self.type.__name__}"
        return f"{_SHORT.get(self.type, self.type)}[{', '.join(map(str, self.shape))}]"


def saved_specs(found: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Spec]:
    """Return what each described entry of a file is; `arrays` are records or arrays by name."""
    return {name: _saved_spec(entry, arrays) for name, entry in found.items()}


def _saved_spec(entry: Mapping[str, Any], arrays: Mapping[str, Any]) -> Spec:
    if "array" not in entry:
        return Spec(type(plain_value(entry, {})), None)
    record = arrays[entry["array"]]
    return Spec(record.dtype, tuple(record.shape))


def wanted_spec(leaf: Any) -> Spec:
    """Return what a leaf of a tree asks for; anything with a dtype and a shape asks for an array."""
    if not (hasattr(leaf, "dtype") and hasattr(leaf, "shape")):
        leaf = value_of(leaf)
    if not (hasattr(leaf, "dtype") and hasattr(leaf, "shape")):
        return Spec(type(leaf), None)
    return Spec(_dtype(leaf), tuple(leaf.shape))


def _dtype(leaf: Any) -> np.dtype:
    try:
        dtype: np.dtype = np.dtype(leaf.dtype)
    except TypeError:  # another library's own dtypes
        dtype = np.asarray(leaf).dtype
    native: np.dtype = dtype.newbyteorder("=")
    own = np.dtype(
        native.type
    )  # NumPy's own object, which calls of compiled functions take at once
    return own if own == native else native


def fits(saved: Spec, wanted: Spec) -> bool:
    """Return whether a saved entry can take the place of a leaf."""
    if saved == wanted:
        return True
    if saved.shape is None and wanted.shape is None:
        return saved.type is int and wanted.type is float
    if saved.shape is not None and wanted.shape is not None:
        return False
    return _as_python(saved) == _as_python(wanted)


def _as_python(spec: Spec) -> Spec:
    """Return the Python type of an array of rank 0."""
    if spec.shape != ():
        return spec
    kind = "f" if spec.type == BFLOAT16 else spec.type.kind
    return Spec(_OF_KIND.get(kind), None)


def check_fit(
    path: str, saved: Mapping[str, Spec], leaves: Mapping[str, Any], strict: bool
) -> None:
    """Raise one error that lists every entry that is missing, extra or of another type."""
    wanted = {name: wanted_spec(leaf) for name, leaf in leaves.items()}
    wrong = _wrong(saved, wanted)
    lines = [*_absent(saved, wanted), *wrong] if strict else wrong
    if lines:
        text = "".join(f"\n  {line}" for line in lines)
        remedy = _ADAPT if wrong else _LENIENT
        raise CheckpointError(f"{path} does not fit the tree:{text}", remedy=remedy)


def _absent(saved: Mapping[str, Spec], wanted: Mapping[str, Spec]) -> list[str]:
    missing = [f"missing: {name}, {wanted[name]}" for name in wanted if name not in saved]
    extra = [f"extra: {name}, {saved[name]}" for name in saved if name not in wanted]
    return missing + extra


def _wrong(saved: Mapping[str, Spec], wanted: Mapping[str, Spec]) -> list[str]:
    both = [name for name in wanted if name in saved and not fits(saved[name], wanted[name])]
    return [_difference(name, saved[name], wanted[name]) for name in both]


def _difference(name: str, saved: Spec, wanted: Spec) -> str:
    arrays = saved.shape is not None and wanted.shape is not None
    what = "shape" if arrays and saved.shape != wanted.shape else "type"
    return f"wrong {what}: {name} is {saved} in the file, {wanted} in the tree"


def converted(name: str, value: Any, leaf: Any) -> Any:
    """Return a value that fits a leaf in the form of that leaf."""
    wanted = wanted_spec(leaf)
    if wanted.shape is None:
        return wanted.type(value)
    try:
        array = np.asarray(value, wanted.type)
    except OverflowError as error:
        raise CheckpointError(f"{name}: {value} is not in the range of {wanted}") from error
    return array[()] if isinstance(leaf, np.generic) else array
