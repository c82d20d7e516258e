"""Fetches what loops over elements that index arrays point to will need: the indices themselves, and elements that are far.

Processors foresee what lies in a row, but no longer where data points to other places meanwhile: the indices, too, come late then. They are
asked for some hundred points ahead, a strip at a time, which takes a fifth to a half off the time of reading millions of elements, wherever
these are. A loop over elements that are far waits for each, or for as many as fit into the processor's window: those of the next strip are
asked for, which takes a third off where memory alone holds them, and a tenth where the last cache does, if they are but moved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from dsl.codegen.accesses import walk
from dsl.codegen.evaluate import Evaluator, unchecked
from dsl.codegen.expressions import Expression, Var
from dsl.codegen.kernels.far_stores import LINE
from dsl.codegen.kernels.vectors import VectorLoops
from dsl.codegen.llvm import Operand, Value
from dsl.ir.types import size_of

__all__ = ["Scattered"]

_FURTHER = 512  # points: how far ahead indices are asked for
_STRIP = 128  # points whose indices are asked for together
_FEW = 1 << 15  # points whose indices a near cache holds
_FAR = 1 << 25  # bytes of an array that no cache holds
_NOT_NEAR = 3 << 22  # bytes of one that no near cache holds
_ONCE, _AGAIN = 0, 3  # how long to keep what is fetched
_SIMPLE = frozenset(("load", "checked", "const", "index", "register", "given"))


class Scattered(VectorLoops):
    """Loops that read where data points to."""

    def strips(
        self, evaluator: Evaluator, group: Sequence[int], ends: tuple[Operand, Operand], loads: list[Expression]
    ) -> Iterator[tuple[Operand, Operand]]:  # fmt: skip
        """Open a loop over strips of points that asks for what later ones need; yield the ends of each.

        Wrong indices are found when it is their turn. Lanes read neighbours: what the first is told to fetch serves all.
        """
        fn, (low, high) = evaluator.fn, ends
        if not loads:
            yield ends
            return
        far = [e for e in loads if is_larger(e, _NOT_NEAR if self.but_moves() else _FAR)]
        with fn.loop(low, high, _STRIP, as_written=True) as at, evaluator.scope():
            for e in self.indices_of(loads):
                for k in range(0, _STRIP, LINE // e.dtype.itemsize):
                    self.ask_for(evaluator, group, [e], fn.add(at, _FURTHER + k), _ONCE)
            stop = fn.minimum(fn.add(at, _STRIP), high)
            if far:
                then = fn.minimum(fn.add(stop, _STRIP), high)
                with fn.loop(stop, then, metadata=self.plain(), as_written=True) as later:
                    self.ask_for(evaluator, group, far, later, _AGAIN)
            yield at, stop

    def ask_for(
        self, evaluator: Evaluator, group: Sequence[int], loads: list[Expression], at: Operand, keep: int
    ) -> None:  # fmt: skip
        """Fetch what is loaded at a point."""
        fn = evaluator.fn
        looking = dataclasses.replace(evaluator, on_bad=unchecked, points=dict(evaluator.points))
        told = [Value(str(number), "i32") for number in (0, keep, 1)]  # to read, to keep, data
        if loads:
            self.place(looking, group, at)
        with looking.scope(), self.in_lane(looking, self.lanes[0]):
            for e in loads:
                address = looking.address(self.array_of(e), e.index)
                fn.call("void", "llvm.prefetch.p0", address, *told)

    @staticmethod
    def indices_of(loads: list[Expression]) -> list[Expression]:
        """Return the loads of the indices that loads need, if what tells where these are needs none: addresses may be past the end."""
        pointers = [item for e in loads for affine in e.index for item, _ in affine.extra]
        parts = dict.fromkeys(part for item in pointers for part in walk(item))
        return [e for e in parts if e.kind == "load" and not any(i.extra for i in e.index)]

    def pointed_to(self, group: Sequence[int], points: Operand) -> list[Expression]:
        """Return the loads at places that data tells, another one at each point, if points are many."""
        few = isinstance(points, int) and points < _FEW
        if few or self.module.device:
            return []
        var = self.kernel.variables[group[-1]]
        return [e for e in self.parts() if self.is_scattered(e, var)]

    def but_moves(self) -> bool:
        """Tell whether nothing is computed."""
        return not any(e.kind == "op" for e in self.parts())

    def parts(self) -> dict[Expression, None]:
        """Return what is computed and loaded here."""
        roots = self.kernel.stages[self.current].roots if self.inner else self.kernel.roots
        return dict.fromkeys(e for root in roots for e in walk(root.expression))

    def is_scattered(self, e: Expression, var: Var) -> bool:
        if e.kind != "load" or self.is_own(e):
            return False
        pointers = [item for affine in e.index for item, _ in affine.extra if var in item.vars]
        parts = [part for item in pointers for part in walk(item)]
        return bool(pointers) and all(p.kind in _SIMPLE and not self.is_own(p) for p in parts)


def is_larger(e: Expression, least: int) -> bool:
    """Tell whether what is loaded is of an array of more bytes than these."""
    assert e.value is not None
    size = size_of(e.value.shape)
    return isinstance(size, int) and size * e.dtype.itemsize > least
