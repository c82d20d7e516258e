"""Fetches the next row into the cache while the present one is computed.

A row that is swept several times comes from memory in its first sweep only, so that memory rests in the others; and where the
result goes must be read before it can be written. Processors foresee neither: they look ahead within a row. So after the
first sweep the next row is asked for, and before the last one the memory that its result goes to. Measured on a Zen 3, that gains up
to a fifth for rows of a few kilobytes, swept three times, of arrays that the near caches do not hold, and nothing or less elsewhere. On
a Zen 4, whose registers have 64 bytes, it costs a tenth, so there nothing is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsl.codegen.accesses import stride_of, walk
from dsl.codegen.arrays import Array
from dsl.codegen.evaluate import Evaluator
from dsl.codegen.expressions import Affine
from dsl.codegen.kernels.nests import Nests
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.plan import Stage
from dsl.codegen.vector_unit import register_bytes

__all__ = ["Ahead"]

_LINE = 64  # bytes of a cache line; where they are longer, some are asked for twice
_ROW = (
    1 << 10,
    1 << 12,
)  # bytes of a row: shorter ones are foreseen, longer ones push the present row out
_SWEEPS = 3  # of a row, at least
_FORESEEING = 64  # bytes of the registers of processors that do without
_HELD = 1 << 20  # bytes of an array that a cache near the processor may hold
_ARRAYS = 4  # that are asked for, at most


@dataclass(frozen=True)
class _Row:
    """The rows of an array: an index into it, the elements from one row to the next, and the bytes of one to fetch."""

    array: Array
    index: tuple[Affine, ...]
    stride: Operand
    size: Operand


class Ahead:
    """What to fetch during the rows of a kernel, whose swept axes are one loop."""

    def __init__(self, emitter: Nests, fn: Function, swept: list[list[int]]) -> None:
        self.emitter, self.swept = emitter, swept
        sweeps = [k for k, stage in enumerate(emitter.kernel.stages) if not stage.per_row]
        self.first, self.last = (sweeps[0], sweeps[-1]) if sweeps else (0, 0)
        self.read: list[_Row] = []
        self.written: list[_Row] = []
        plain = emitter.lane_axis is None and bool(emitter.kept) and len(swept) == 1
        if plain and len(sweeps) >= _SWEEPS and register_bytes() < _FORESEEING:
            stages = [emitter.kernel.stages[k] for k in sweeps]
            self.read = self._rows(fn, self._reads(stages))
            self.written = self._rows(fn, self._writes(stages[-1]))

    def before(self, number: int, evaluator: Evaluator) -> None:
        """Ask for what is to be written next, before the last sweep."""
        if number == self.last:
            self._fetch(evaluator, self.written, writing=True)

    def after(self, number: int, evaluator: Evaluator) -> None:
        """Ask for what is to be read next, after the first sweep."""
        if number == self.first:
            self._fetch(evaluator, self.read, writing=False)

    def _reads(self, stages: list[Stage]) -> Iterable[tuple[Array, tuple[Affine, ...]]]:
        emitter, seen = self.emitter, set()
        for stage in stages:
            for root in stage.roots:
                for e in walk(root.expression):
                    if e.kind == "load" and e.value not in emitter.roots and e.value not in seen:
                        seen.add(e.value)
                        yield emitter.array_of(e), e.index

    def _writes(self, stage: Stage) -> Iterable[tuple[Array, tuple[Affine, ...]]]:
        for root in stage.roots:
            if root.value in self.emitter.stores:
                yield self.emitter.stores[root.value], root.index

    def _rows(
        self, fn: Function, accesses: Iterable[tuple[Array, tuple[Affine, ...]]]
    ) -> list[_Row]:
        """Choose the accesses that go through dense rows, another one in each row."""
        variables, host = self.emitter.kernel.variables, self.emitter.host
        inner, outer = variables[self.swept[0][-1]], variables[self.emitter.kept[-1]]
        count = self.emitter.extent(fn, self.swept[0])
        rows = self.emitter.extent(fn, self.emitter.kept)
        found = []
        for array, index in accesses:
            stride = stride_of(index, array, outer)
            if stride_of(index, array, inner) != 1 or stride is None or stride == 0:
                continue
            size = _worthwhile(fn, fn.mul(count, array.dtype.itemsize), rows)
            if size != 0:
                found.append(_Row(array, index, host.dim(stride), size))
        return found[:_ARRAYS]

    def _fetch(self, evaluator: Evaluator, rows: list[_Row], *, writing: bool) -> None:
        fn = evaluator.fn
        for row in rows:
            with evaluator.scope():
                self.emitter.place(evaluator, self.swept[0], 0)
                here = evaluator.address(row.array, row.index)
            for k in self.swept[0]:
                del evaluator.points[self.emitter.kernel.variables[k]]
            following = fn.gep(here, fn.mul(row.stride, row.array.dtype.itemsize))
            told = self.emitter.plain()
            with fn.loop(0, row.size, _LINE, metadata=told, as_written=True) as at:
                how = [Value(str(number), "i32") for number in (int(writing), 3, 1)]
                fn.call("void", "llvm.prefetch.p0", fn.gep(following, at), *how)


def _worthwhile(fn: Function, size: Operand, rows: Operand) -> Operand:
    """Return the size of a row in bytes, or 0 if it or all rows together have no size for which this helps."""
    if isinstance(size, int) and isinstance(rows, int):
        return size if _ROW[0] <= size <= _ROW[1] and size * rows > _HELD else 0
    fits = fn.both(fn.compare("sle", _ROW[0], size), fn.compare("sle", size, _ROW[1]))
    large = fn.compare("sgt", fn.mul(size, rows), _HELD)
    return fn.select(fn.both(fits, large), size, 0)
