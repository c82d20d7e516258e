"""Fetches elements that index arrays point to into the cache, some points before they are needed.

Processors foresee what lies in a row, not where data points to: a loop over such elements waits for each that no cache has, or for
as many as fit into its window. So while a stretch of points is computed, those of the next are asked for. On a Zen 4, elements of arrays
that the near caches do not hold come in half of the time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from dsl.codegen.accesses import walk
from dsl.codegen.evaluate import Evaluator, unchecked
from dsl.codegen.expressions import Expression, Var
from dsl.codegen.kernels.vectors import VectorLoops
from dsl.codegen.llvm import Operand, Value
from dsl.codegen.plan import Root
from dsl.ir.types import size_of

__all__ = ["Scattered"]

_STRETCH = 64  # points: that many elements can be on their way
_FEW = 1024  # points of a loop that is over before it gains
_HELD = 1 << 20  # bytes of an array that a cache near the processor may hold
_SIMPLE = frozenset(("load", "checked", "const", "index", "register", "given"))


class Scattered(VectorLoops):
    """Loops that read where data points to."""

    def stretches_ahead(
        self, evaluator: Evaluator, group: Sequence[int], ends: tuple[Operand, Operand]
    ) -> Iterator[tuple[tuple[Operand, Operand], bool]]:
        """Yield the ends of the stretches of a loop, in a loop of their own where elements are fetched; else those of the loop.

        Also whether elements are but moved: one by one, which takes less time than they take to come.
        """
        fn, (low, high) = evaluator.fn, ends
        loads = [] if fn.module.device else self.pointed_to(self.kernel.variables[group[-1]])
        extent = fn.sub(high, low)
        if not loads or (isinstance(extent, int) and extent < _FEW):
            yield ends, False
            return
        with (
            fn.loop(low, high, _STRETCH, metadata=self.plain(), as_written=True) as start,
            evaluator.scope(),
        ):
            stop = fn.minimum(fn.add(start, _STRETCH), high)
            self.ask_for(evaluator, group, loads, (stop, fn.minimum(fn.add(stop, _STRETCH), high)))  # fmt: skip
            yield (start, stop), self.moves()

    def ask_for(
        self, evaluator: Evaluator, group: Sequence[int], loads: list[Expression], ends: tuple[Operand, Operand]
    ) -> None:  # fmt: skip
        """Ask for the elements at some points. Wrong indices are none of its business."""
        fn = evaluator.fn
        told = [Value(str(number), "i32") for number in (0, 3, 1)]  # to read, to keep, data
        looking = dataclasses.replace(evaluator, on_bad=unchecked)
        with fn.loop(*ends, metadata=self.plain(), as_written=True) as at, looking.scope():
            for k in group[:-1]:
                looking.points[self.kernel.variables[k]] = 0
            looking.points[self.kernel.variables[group[-1]]] = at
            for e in loads:
                fn.call("void", "llvm.prefetch.p0", looking.address(self.array_of(e), e.index), *told)  # fmt: skip

    def moves(self) -> bool:
        """Tell whether nothing is computed of elements."""
        return all(e.kind != "op" for root in self.parts() for e in walk(root.expression))

    def parts(self) -> Iterable[Root]:
        return self.kernel.stages[self.current].roots if self.inner else self.kernel.roots

    def pointed_to(self, var: Var) -> list[Expression]:
        """Return the loads from large arrays at places that data tells, another one at each point."""
        found = {e: None for root in self.parts() for e in walk(root.expression) if self.is_scattered(e, var)}  # fmt: skip
        return list(found)

    def is_scattered(self, e: Expression, var: Var) -> bool:
        if e.kind != "load" or self.is_own(e):
            return False
        pointers = [item for affine in e.index for item, _ in affine.extra if var in item.vars]
        parts = [part for item in pointers for part in walk(item)]
        if not pointers or not all(p.kind in _SIMPLE and not self.is_own(p) for p in parts):
            return False
        assert e.value is not None
        size = size_of(e.value.shape)
        return not isinstance(size, int) or size * e.dtype.itemsize > _HELD
