"""Fetches elements that index arrays point to from the last cache, some points before they are needed.

Processors foresee what lies in a row, not where data points to: a loop over such elements waits for each that is far, or for as many as
fit into its window. So with each point, the element of one further on is asked for. On a Zen 4 that takes a quarter off the time of
moving single elements of an array that only the last cache holds, and more where others use that cache as well. It takes longer where
a near cache holds the array, and where none does: there memory itself is what limits. What computes gains more by vectors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from dsl.codegen.accesses import walk
from dsl.codegen.evaluate import Evaluator, unchecked
from dsl.codegen.expressions import Expression, Var
from dsl.codegen.kernels.vectors import VectorLoops
from dsl.codegen.llvm import Operand, Value
from dsl.ir.types import size_of

__all__ = ["Scattered"]

_AHEAD = 64  # points: that many elements can be on their way
_FEW = 1024  # points of a loop that is over before it gains
_FAR = (
    1 << 23,
    1 << 25,
)  # bytes of an array that only the last cache holds: more than these, less than those
_SIMPLE = frozenset(("load", "checked", "const", "index", "register", "given"))


class Scattered(VectorLoops):
    """Loops that read where data points to."""

    def loops_ahead(
        self, evaluator: Evaluator, group: Sequence[int], ends: tuple[Operand, Operand], loads: list[Expression]
    ) -> Iterator[Value]:  # fmt: skip
        """Open a loop over points whose elements have been asked for that asks for others, and one over the last; yield where each is.

        Wrong indices are found when it is their turn. Lanes read neighbours: what the first is told to fetch serves all.
        """
        fn, (low, high) = evaluator.fn, ends
        middle = fn.maximum(low, fn.sub(high, _AHEAD))
        with fn.loop(low, middle, metadata=self.plain(), as_written=True) as at, evaluator.scope():
            looking = dataclasses.replace(
                evaluator, on_bad=unchecked, points=dict(evaluator.points)
            )
            self.place(looking, group, fn.add(at, _AHEAD))
            told = [Value(str(number), "i32") for number in (0, 3, 1)]  # to read, to keep, data
            with looking.scope(), self.in_lane(looking, self.lanes[0]):
                for e in loads:
                    address = looking.address(self.array_of(e), e.index)
                    fn.call("void", "llvm.prefetch.p0", address, *told)
            yield at
        with fn.loop(middle, high, metadata=self.plain(), as_written=True) as at, evaluator.scope():
            yield at

    def pointed_to(self, group: Sequence[int], points: Operand) -> list[Expression]:
        """Return the loads from large arrays at places that data tells, another one at each point, if all is but moved."""
        roots = self.kernel.stages[self.current].roots if self.inner else self.kernel.roots
        parts = dict.fromkeys(e for root in roots for e in walk(root.expression))
        few = isinstance(points, int) and points < _FEW
        if few or self.module.device or any(e.kind == "op" for e in parts):
            return []
        var = self.kernel.variables[group[-1]]
        return [e for e in parts if self.is_scattered(e, var)]

    def is_scattered(self, e: Expression, var: Var) -> bool:
        if e.kind != "load" or self.is_own(e):
            return False
        pointers = [item for affine in e.index for item, _ in affine.extra if var in item.vars]
        parts = [part for item in pointers for part in walk(item)]
        if not pointers or not all(p.kind in _SIMPLE and not self.is_own(p) for p in parts):
            return False
        assert e.value is not None
        size = size_of(e.value.shape)
        return isinstance(size, int) and _FAR[0] < size * e.dtype.itemsize < _FAR[1]
