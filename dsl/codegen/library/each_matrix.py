"""What routines for stacks of small matrices have in common: a lane of the vectors for each matrix.

A call of LAPACK for each matrix takes many times as long as its arithmetic. Here each lane of the vectors has a matrix of
its own, from loading to storing; sizes are known when a routine is made. What is left over at the end of a stack is done
together with some that have been done before, and the matrices of a stack that fills no register are done one by one. Lanes
do not know of each other, so the bits are the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from dsl.codegen.library.elimination import Arithmetic, Rows
from dsl.codegen.library.matrix_lanes import MatrixLanes
from dsl.codegen.library.routines import parallel
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.vector_unit import register_bytes

__all__ = [
    "MOST",
    "are_few",
    "checked",
    "each_matrix",
    "flat",
    "lanes_of",
    "rows_of",
    "singular_in",
    "stem",
]

MOST = 8
"""The rows of the largest matrices that have routines here, and the columns of right sides."""

_WORK = 1 << 16  # multiplications that are worth a thread
Body = Callable[[Function, int, Value], None]


def stem(
    name: str, rows: int, columns: int = 0, *, turned: bool = False, alone: bool = False
) -> str:
    """Return the stem of a routine: `turned` for systems whose matrices are in Fortran's order, `alone` for few."""
    sizes = f"{rows}x{columns}" if columns else f"{rows}"
    return f"{name}{'_turned' if turned else ''}{sizes}{'_alone' if alone else ''}"


def are_few(count: Operand) -> bool:
    """Tell whether matrices surely do not fill a register."""
    return isinstance(count, int) and count < register_bytes() // 8


def each_matrix(f: Function, count: Value, work: int, body: Body, *, alone: bool) -> None:
    """Emit `body(fn, width, first)` for all matrices: by so many as a register holds, or one by one if they are fewer.

    With `alone` they are surely fewer, and compiling the routine takes a fraction of the time.
    """
    width = register_bytes() // 8

    def many() -> None:
        blocks = f.binary("sdiv", f.add(count, width - 1), width)
        with parallel(f, blocks, max(1, _WORK // (work * width))) as (part, lo, hi):
            last = part.sub(count, width)
            with part.loop(lo, hi) as block:
                body(part, width, part.as_value(part.minimum(part.mul(block, width), last), "i64"))

    def few() -> None:
        with f.loop(0, count) as index:
            body(f, 1, index)

    if alone:
        few()
    else:
        f.if_else(f.compare("sge", count, width), many, few)


@contextlib.contextmanager
def checked(f: Function) -> Iterator[Callable[[Arithmetic, Value], None]]:
    """Return from a routine whether what the block is given was true of any matrix."""
    wrong = f.alloca(8)
    f.store(f.as_value(0, "i64"), wrong)

    def note(x: Arithmetic, mask: Value) -> None:
        with x.fn.if_(x.any(mask), unlikely=True):
            x.fn.store(x.fn.as_value(1, "i64"), wrong)

    yield note
    f.ret(f.compare("ne", f.load("i64", wrong), 0))


def lanes_of(fn: Function, dtype: np.dtype, width: int) -> tuple[MatrixLanes, Arithmetic]:
    lanes = MatrixLanes(fn, dtype, width)
    return lanes, Arithmetic(fn, lanes.of("double"), dtype.itemsize == 8)


def rows_of(values: list[Value], columns: int, *, turned: bool = False) -> Rows:
    if turned:
        return [values[k::columns] for k in range(columns)]
    return [values[k : k + columns] for k in range(0, len(values), columns)]


def flat(rows: Rows) -> list[Value]:
    return [value for row in rows for value in row]


def singular_in(x: Arithmetic, pivots: list[Value]) -> Value:
    found = x.is_zero(pivots[0])
    for pivot in pivots[1:]:
        found = x.fn.either(found, x.is_zero(pivot))
    return found
