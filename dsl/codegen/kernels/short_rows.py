"""Kernels that reduce a last axis of a few elements: vectors go along the axis before it, and the short one is unrolled.

Distances between all pairs of points are such: `((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=2)`. Along the axis of `y`'s points
memory is read in long steps, so what does not depend on the loops around is copied first, the other way round: once, for all of them.
"""

from __future__ import annotations

from functools import partial

from dsl.codegen import elementwise
from dsl.codegen.accesses import start_value, stride_of, walk
from dsl.codegen.arrays import Scalar, store_scalar
from dsl.codegen.evaluate import Evaluator, literal
from dsl.codegen.expressions import Expression, Var
from dsl.codegen.kernels.rows import Results, Rows
from dsl.codegen.kernels.turned import ACROSS, LONGEST, OUTER
from dsl.codegen.llvm import Function, Operand
from dsl.codegen.plan import Root, Stage

__all__ = ["ShortRows"]


class ShortRows(Rows):
    """Many short rows at once."""

    @property
    def along(self) -> Var:
        """The variable of the short axis."""
        return self.kernel.variables[-1]

    @property
    def across(self) -> Var:
        """The variable of the axis before."""
        return self.kernel.variables[self.kept[-1]]

    def has_short_rows(self) -> bool:
        """Tell whether rows are so short, and so many, that vectors better go across them."""
        last = len(self.kernel.variables) - 1
        if self.inner != {last} or len(self.kept) < 2 or self.kept[-1] != last - 1 or self.checks:
            return False
        length, count = self.along.extent, self.across.extent
        if not isinstance(length, int) or not 2 <= length <= LONGEST:
            return False
        if isinstance(count, int) and count < ACROSS:
            return False
        enough = self.elements_of([[k] for k in self.kept[:-1]]) >= OUTER
        return enough and not self.keeps_rows() and all(map(self.goes_across, self.kernel.stages))

    def goes_across(self, stage: Stage) -> bool:
        """Tell whether a stage reduces alone or is done once for each row, and reads and writes what vectors can."""
        roots = stage.roots
        if not stage.per_row and not all(root.reduce for root in roots):
            return False
        written = (
            stride_of(r.index, self.stores[r.value], self.across)
            for r in roots
            if r.value in self.stores
        )
        everything = [e for root in roots for e in walk(root.expression)]
        return (
            all(step == 1 for step in written)
            and all(e.dtype.kind != "c" for e in everything)
            and all(
                self.is_near(e, self.across) or self.can_turn(e, self.along, self.across)
                for e in self.loads(stage)
            )
        )

    def short_rows(self) -> None:
        host = self.host.fn
        release = self.turn(host, self.along, self.across)
        outer = [[k] for k in self.kept[:-1]]
        count = self.extent(host, self.kept[:-1])

        def body(fn: Function, lo: Operand, hi: Operand) -> None:
            evaluator = self.evaluator(fn)
            results: Results = {}
            evaluator.fetch = partial(self.short_fetch, evaluator, results)
            with fn.loop(lo, hi, as_written=True) as at, evaluator.scope():
                self.unflatten(evaluator, outer, at)
                self.across_rows(evaluator, results)

        inner = [[k] for k in (self.kept[-1], *self.inner)]
        self.parallel(count, self.cost(self.kernel.stages), body, inner)
        release()

    def across_rows(self, evaluator: Evaluator, results: Results) -> None:
        """All rows that are one behind the other, by vectors."""
        ends = 0, self.extent(evaluator.fn, self.kept[-1:])
        plain = self.independent(self.group, ends[1])
        loops = self.vector_loops(evaluator, self.across, ends, self.group, plain, dense=True)
        for at in loops:
            evaluator.points[self.across] = at
            self.short_row(evaluator, results)
        del evaluator.points[self.across]

    def short_row(self, evaluator: Evaluator, results: Results) -> None:
        """All stages of one row, which is unrolled."""
        results.clear()
        for number, stage in enumerate(self.kernel.stages):
            self.current = number
            if stage.per_row:
                self.finish_rows(evaluator, stage.roots, None, results)
                continue
            for root, total in self.totals(evaluator, stage).items():
                results[root.value, None] = total
                if root.value in self.stores:
                    address = evaluator.address(self.stores[root.value], root.index)
                    store_scalar(evaluator.fn, root.value.dtype, total, address, evaluator.metadata)

    def totals(self, evaluator: Evaluator, stage: Stage) -> dict[Root, Scalar]:
        """Reduce a row, from the first element to the last."""
        totals: dict[Root, Scalar] = {}
        length = self.along.extent
        assert isinstance(length, int)
        for k in range(length):
            with evaluator.scope():
                evaluator.points[self.along] = k
                for root in stage.roots:
                    name, dtype = root.node.op.name, root.value.dtype
                    before = totals.get(root) or literal(start_value(name, dtype), dtype)
                    value = evaluator.value(root.expression)
                    totals[root] = elementwise.combine(
                        evaluator.fn, name, dtype, before, value, reassociate=False
                    )
        del evaluator.points[self.along]
        return totals

    def short_fetch(self, evaluator: Evaluator, results: Results, e: Expression) -> Scalar | None:
        """Return a value of this kernel, or one of a copy, or None for others."""
        copied = self.turned_fetch(evaluator, self.along, e)
        return self.row_fetch(evaluator, results, {}, e) if copied is None else copied
