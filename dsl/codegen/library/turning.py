"""Turns a matrix round: what lies along rows is written along columns, square blocks of elements in registers.

`turn(x, step, y, pitch, rows, columns)` writes rows of y whose elements are the columns of x; `step` and `pitch` are the bytes
from row to row of x and y. `turn_far` does so past the caches: whole blocks have whole lines, so y and its pitch must be multiples of one.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dsl.codegen.library.routines import routine
from dsl.codegen.library.vectors import shuffle, vector
from dsl.codegen.llvm import Function, Module, Value
from dsl.codegen.vector_unit import register_bytes

__all__ = ["side"]


def side(size: int) -> int:
    """Return how many elements of a size a block has along each side.

    Small elements are interleaved in registers of 16 bytes, for which every CPU has instructions.
    """
    return 16 // size if size < 4 else max(1, register_bytes() // size)


def _build(past: bool, module: Module, symbol: str, dtype: np.dtype) -> None:
    names = [("ptr", "x"), ("i64", "step"), ("ptr", "y"), ("i64", "pitch")]
    f = module.function(symbol, "void", [*names, ("i64", "rows"), ("i64", "columns")])
    x, step, y, pitch, rows, columns = f.params
    size, many = dtype.itemsize, side(dtype.itemsize)
    high, wide = (f.binary("and", extent, -many) for extent in (rows, columns))

    def places(i: Value, j: Value) -> tuple[Value, Value]:
        source = f.gep(x, f.add(f.mul(j, step), f.mul(i, size)))
        return source, f.gep(y, f.add(f.mul(i, pitch), f.mul(j, size)))

    def element(i: Value, j: Value) -> None:
        source, target = places(i, j)
        f.store(f.load(f"i{8 * size}", source, align=1), target, align=1)

    marks = f", !nontemporal {module.metadata('!{i32 1}')}" if past else ""
    with f.loop(0, high, many) as i:
        with f.loop(0, wide, many) as j:
            _block(f, size, *places(i, j), step, pitch, marks)
        with f.loop(wide, columns) as j, f.loop(0, many) as k:
            element(f.binary("add", i, k), j)
    with f.loop(high, rows) as i, f.loop(0, columns) as j:
        element(i, j)
    f.ret()


routine("turn")(partial(_build, False))
routine("turn_far")(partial(_build, True))


def _block(
    f: Function, size: int, x: Value, y: Value, step: Value, pitch: Value, marks: str
) -> None:
    """Turn a square block: load its rows, exchange elements between registers, store its columns."""
    many, each = side(size), max(1, size // 8)  # words of an element
    kind = vector(f"i{8 * size // each}", many * each)
    loaded = [f.load(kind, f.gep(x, f.mul(step, k)), align=1) for k in range(many)]
    turned = _interleaved(f, loaded) if size < 4 else _exchanged(f, loaded, each)
    for k, row in enumerate(turned):
        align = many * size if marks else 1
        f.store(row, f.gep(y, f.mul(pitch, k)), align=align, metadata=marks)


def _interleaved(f: Function, rows: list[Value]) -> list[Value]:
    """Interleave rows that are half of all apart, again and again: each time one bit of the place becomes one of the row."""
    many = len(rows)
    for _ in range(many.bit_length() - 1):
        pairs = zip(rows[: many // 2], rows[many // 2 :])
        rows = [
            shuffle(f, a, b, [half + k // 2 + many * (k % 2) for k in range(many)])
            for a, b in pairs
            for half in (0, many // 2)
        ]
    return rows


def _exchanged(f: Function, rows: list[Value], each: int) -> list[Value]:
    """Exchange what is off the diagonal in blocks of two, four, … rows."""
    many, rows = len(rows), list(rows)
    distance = 1
    while distance < many:
        for i in (i for i in range(many) if not i & distance):
            a, b = rows[i], rows[i + distance]
            for row, own in ((i, True), (i + distance, False)):
                rows[row] = shuffle(f, a, b, _exchange(many, each, distance, own))
        distance *= 2
    return rows


def _exchange(many: int, each: int, distance: int, first: bool) -> list[int]:
    """Return which words of two rows, one behind the other, the first or second of them has after an exchange."""
    places = []
    for k in range(many):
        own = bool(k & distance) != first  # it stays in its row
        here = k if own else (k + distance if not first else k - distance)
        of_second = own != first
        places += [(here + many * of_second) * each + word for word in range(each)]
    return places
