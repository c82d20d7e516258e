"""Shared parts of type rules: what an operand may be, and how shapes fit.

A rule starts with `operands(...)`, which checks the number, kind and dtype of its inputs, and ends with a type. A
mistake in dtype or rank raises `TypeRuleError`, one in sizes `ShapeError` in NumPy's own words. A size that is
symbolic is refused only when it cannot fit whatever the symbols are; what remains is checked when the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from dsl.errors import InternalError, ShapeError, TypeRuleError
from dsl.ir.dims import DimLike
from dsl.ir.types import (
    DTYPES,
    I64,
    Shape,
    TensorType,
    dtype_name,
    is_complex,
    is_float,
    is_inexact,
    is_integer,
)

__all__ = [
    "ANY", "BITS", "BOOLS", "COMPLEXES", "FLOATS", "I64S", "INEXACTS", "INTEGERS", "NUMBERS",
    "Attrs", "Domain", "Inputs", "check_axis", "check_dtype", "differ", "exactly", "merge_dims",
    "operands", "refuse", "require_rank", "require_same_dtype", "require_same_shape", "same_as",
    "shape_text",
]  # fmt: skip

Inputs = tuple[Any, ...]
Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class Domain:
    """A set of dtypes with the words that error messages use for it."""

    words: str
    dtypes: frozenset[np.dtype]


def _domain(words: str, holds: Callable[[np.dtype], bool]) -> Domain:
    return Domain(words, frozenset(filter(holds, DTYPES)))


ANY = _domain("an array", lambda dtype: True)
BOOLS = _domain("bool", lambda dtype: dtype.kind == "b")
INTEGERS = _domain("of integer dtype", is_integer)
BITS = _domain("of integer or bool dtype", lambda dtype: dtype.kind in "biu")
FLOATS = _domain("of real floating dtype", is_float)
COMPLEXES = _domain("of complex dtype", is_complex)
INEXACTS = _domain("of floating or complex dtype", is_inexact)
NUMBERS = _domain("of numeric dtype", lambda dtype: dtype.kind != "b")


def exactly(dtype: np.dtype) -> Domain:
    """Return the domain of one dtype."""
    return Domain(f"of dtype {dtype_name(dtype)}", frozenset({dtype}))


I64S = exactly(I64)


def refuse(op: str, operand: str, expected: str, got: object) -> NoReturn:
    """Raise the `TypeRuleError` for an operand or attribute that an op does not take."""
    raise TypeRuleError(f"{op}: {operand} must be {expected}, got {got}")


def operands(op: str, inputs: Inputs, **domains: Domain) -> tuple[TensorType, ...]:
    """Return the inputs after checking that there is one in each named domain."""
    if len(inputs) != len(domains):
        names = ", ".join(domains) or "none"
        raise TypeRuleError(f"{op}: expected {len(domains)} operands ({names}), got {len(inputs)}")
    for (name, domain), type in zip(domains.items(), inputs):
        if not isinstance(type, TensorType) or type.dtype not in domain.dtypes:
            refuse(op, name, domain.words, type)
    return inputs


def require_rank(op: str, operand: str, type: TensorType, rank: int) -> None:
    """Refuse an operand of another rank."""
    if type.rank != rank:
        refuse(op, operand, f"of rank {rank}", type)


def require_same_dtype(op: str, **types: TensorType) -> None:
    """Refuse operands whose dtype is not that of the first."""
    (name, first), *others = types.items()
    for other, type in others:
        if type.dtype != first.dtype:
            refuse(op, other, f"{dtype_name(first.dtype)} as {name} is", type)


def check_axis(op: str, axis: Any, type: TensorType) -> int:
    """Return a normalised axis of `type`; the frontend has refused the user's bad ones already."""
    if not isinstance(axis, int) or not 0 <= axis < type.rank:
        raise InternalError(f"{op}: axis {axis!r} is not a normalised axis of {type}")
    return axis


def check_dtype(op: str, dtype: Any) -> np.dtype:
    """Return a supported dtype given as an attribute."""
    if not isinstance(dtype, np.dtype) or dtype not in ANY.dtypes:
        refuse(op, "dtype", "a supported np.dtype", repr(dtype))
    return dtype


def differ(a: DimLike, b: DimLike) -> bool:
    """Tell whether two dims differ whatever their symbols are."""
    gap = a - b
    return isinstance(gap, int) and gap != 0


def merge_dims(a: DimLike, b: DimLike) -> DimLike:
    """Return the better known of two dims that are equal when the program runs."""
    return b if isinstance(b, int) else a


def require_same_shape(op: str, operand: str, expected: Shape, got: Shape) -> None:
    """Refuse a shape that cannot be the expected one."""
    if len(expected) != len(got) or any(map(differ, expected, got)):
        raise ShapeError(
            f"{op}: {operand} must have shape {shape_text(expected)}, got {shape_text(got)}"
        )


def same_as(op: str, domain: Domain) -> Callable[[Inputs, Attrs], TensorType]:
    """Return the rule of an op on one operand whose result is of the same type."""
    return lambda inputs, attrs: operands(op, inputs, x=domain)[0]


def shape_text(shape: Shape) -> str:
    """Return a shape as NumPy's messages spell it: `(2,3)`, `(4,)`."""
    return f"({','.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
