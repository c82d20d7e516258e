"""Products whose rows fit in a few registers, for float32 and float64, written out in the program.

A row of the result is a sum of multiples of rows of the right operand. Several rows are summed side by side, so that each
row of the right operand is read once for them. Each element is one sum, from first to last, whatever is done side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dsl.codegen.arrays import register_type
from dsl.codegen.library.routines import at
from dsl.codegen.library.vectors import (
    constant,
    intrinsic,
    load_some,
    mask_type,
    splat,
    store_some,
    vector,
)
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.vector_unit import register_bytes

__all__ = ["emit_rows", "fits"]

_REGISTERS = 3  # of a row, at most
_SUMS = 12  # registers that are summed side by side
_UNROLLED = 64  # steps of such sums that are written out
_GATHERED = 8  # elements of a row that do not lie together, and are read one by one
_PACKED = 8  # rows, at least, for which the right operand is copied
_BYTES = 1 << 14  # of the right operand, which is read again for other rows

Strides = tuple[Operand, Operand]


class _Piece(NamedTuple):
    """Some neighbours of a row: where they start, their vector, and how many of its elements they are."""

    start: int
    type: str
    size: int


def fits(dtype: np.dtype, m: Operand, n: Operand, k: Operand, column: Operand) -> bool:
    """Tell whether rows of n elements, `column` apart, are in registers, and k of them near: m rows are to be made."""
    if dtype.kind != "f" or not isinstance(n, int) or not isinstance(k, int) or not n or not k:
        return False
    if isinstance(m, int) and m < _PACKED and not _is_one(column) and n > _GATHERED:
        return False
    near = n * k * dtype.itemsize <= _BYTES
    return near and n * dtype.itemsize <= _REGISTERS * register_bytes()


def emit_rows(
    fn: Function, dtype: np.dtype, m: Operand, n: int, k: int, a: Value, a_strides: Strides, b: Value, b_strides: Strides,
    c: Value,
) -> None:  # fmt: skip
    """Emit `c[m, n] = a[m, k] @ b[k, n]`; strides are in elements, c is in C order."""
    pieces = list(_pieces(dtype, n))
    several = max(_SUMS // len(pieces), 1)
    once = isinstance(m, int) and m <= several
    if not _is_one(b_strides[1]) and (not once or n > _GATHERED):
        b, b_strides = _packed(fn, dtype, n, k, b, b_strides), (n, 1)

    def rows(first: Operand, count: int) -> None:
        left = at(fn, dtype, a, fn.mul(first, a_strides[0]))
        row = at(fn, dtype, c, fn.mul(first, n))
        _some_rows(fn, dtype, pieces, count, k, left, a_strides, b, b_strides, row, n)

    if isinstance(m, int):
        _known_rows(fn, m, several, rows)
        return
    whole = fn.sub(m, fn.binary("srem", m, several))
    for start, stop, count in ((0, whole, several), (whole, m, 1)):
        with fn.loop(start, stop, count, as_written=True) as first:
            rows(first, count)


def _known_rows(fn: Function, m: int, several: int, rows: Callable[[Operand, int], None]) -> None:
    whole = m - m % several
    if m > several:
        with fn.loop(0, whole, several, as_written=True) as first:
            rows(first, several)
    else:
        whole = 0
    if m > whole:
        rows(whole, m - whole)


def _is_one(stride: Operand) -> bool:
    return isinstance(stride, int) and stride == 1


def _packed(fn: Function, dtype: np.dtype, n: int, k: int, b: Value, strides: Strides) -> Value:
    """Return a copy of the right operand with rows that lie together."""
    kind = register_type(dtype)
    copy = fn.alloca(n * k * dtype.itemsize)
    with fn.loop(0, k, as_written=True) as l, fn.loop(0, n, as_written=True) as j:
        place = fn.add(fn.mul(l, strides[0]), fn.mul(j, strides[1]))
        found = fn.load(kind, at(fn, dtype, b, place))
        fn.store(found, at(fn, dtype, copy, fn.add(fn.mul(l, n), j)))
    return copy


def _pieces(dtype: np.dtype, n: int) -> Iterator[_Piece]:
    kind, width = register_type(dtype), register_bytes() // dtype.itemsize
    for start in range(0, n, width):
        count = min(width, n - start)
        yield _Piece(start, vector(kind, 1 << (count - 1).bit_length()), count)


def _some_rows(
    fn: Function, dtype: np.dtype, pieces: Sequence[_Piece], rows: int, k: int, a: Value, a_strides: Strides,
    b: Value, b_strides: Strides, c: Value, n: int,
) -> None:  # fmt: skip
    sums = [
        [fn.variable(piece.type, constant(0.0, piece.type)) for piece in pieces]
        for _ in range(rows)
    ]

    def step(l: Operand) -> None:
        below = at(fn, dtype, b, fn.mul(l, b_strides[0]))
        right = [_load(fn, dtype, below, b_strides[1], piece) for piece in pieces]
        for i, row in enumerate(sums):
            place = fn.add(fn.mul(i, a_strides[0]), fn.mul(l, a_strides[1]))
            left = fn.load(register_type(dtype), at(fn, dtype, a, place))
            for piece, vectors, total in zip(pieces, right, row):
                spread = splat(fn, left, piece.type)
                total.set(intrinsic(fn, "llvm.fma", spread, vectors, total.get()))

    if k * rows * len(pieces) <= _UNROLLED:
        for place in range(k):
            step(place)
    else:
        with fn.loop(0, k, as_written=True) as l:
            step(l)
    for i, row in enumerate(sums):
        for piece, total in zip(pieces, row):
            _store(fn, dtype, total.get(), at(fn, dtype, c, i * n), piece)


def _load(fn: Function, dtype: np.dtype, row: Value, stride: Operand, piece: _Piece) -> Value:
    if not _is_one(stride):
        return _gathered(fn, dtype, row, stride, piece)
    place, mask = at(fn, dtype, row, piece.start), _mask(piece)
    if mask is None:
        return fn.load(piece.type, place, align=dtype.itemsize)
    return load_some(fn, piece.type, place, mask, dtype.itemsize)


def _gathered(fn: Function, dtype: np.dtype, row: Value, stride: Operand, piece: _Piece) -> Value:
    found = constant(0.0, piece.type)
    for j in range(piece.size):
        place = at(fn, dtype, row, fn.mul(piece.start + j, stride))
        one = fn.load(register_type(dtype), place)
        text = f"insertelement {found.type} {found.text}, {one.type} {one.text}, i64 {j}"
        found = fn.define(found.type, text)
    return found


def _store(fn: Function, dtype: np.dtype, value: Value, row: Value, piece: _Piece) -> None:
    place, mask = at(fn, dtype, row, piece.start), _mask(piece)
    if mask is None:
        fn.store(value, place, align=dtype.itemsize)
    else:
        store_some(fn, value, place, mask, dtype.itemsize)


def _mask(piece: _Piece) -> Value | None:
    """Return which elements of a vector a piece has; None for all."""
    type = mask_type(piece.type)
    width = int(type[1:].split(" ")[0])
    if piece.size == width:
        return None
    bits = ", ".join(f"i1 {int(place < piece.size)}" for place in range(width))
    return Value(f"<{bits}>", type)
