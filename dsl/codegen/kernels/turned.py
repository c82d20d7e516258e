"""Copies of what a kernel would read in long steps, the other way round, so that vectors read it from element to element.

What is read for each point of the loops around, as the coordinates of points are for all pairs of them, is copied once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from dsl.codegen.accesses import stride_of, walk
from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar
from dsl.codegen.evaluate import Evaluator, unchecked
from dsl.codegen.expressions import Expression, Var
from dsl.codegen.kernels.nests import Nests
from dsl.codegen.llvm import Function
from dsl.codegen.memory import nbytes
from dsl.codegen.plan import Stage

__all__ = ["ACROSS", "LONGEST", "OUTER", "Turned"]

LONGEST = 16  # elements of an axis that is unrolled
ACROSS = 16  # elements of the axis along which vectors go, at least
OUTER = 8.0  # points of the loops around that share a copy, at least


class Turned(Nests):
    """Reads of a few elements, `along` a short axis that is unrolled, at each place of one `across` which vectors go."""

    def loads(self, stage: Stage) -> Iterable[Expression]:
        """Yield what a stage reads from memory."""
        for root in stage.roots:
            for e in walk(root.expression):
                if e.kind == "load" and not self.is_own(e):
                    yield e

    def is_near(self, e: Expression, across: Var) -> bool:
        """Tell whether a load goes from element to element, or stays."""
        return stride_of(e.index, self.array_of(e), across) in (0, 1)

    @staticmethod
    def can_turn(e: Expression, along: Var, across: Var) -> bool:
        """Tell whether what is loaded depends on the two axes alone."""
        return not any(i.extra for i in e.index) and e.vars <= {along, across}

    def turn(self, fn: Function, along: Var, across: Var) -> Callable[[], None]:
        """Copy what is read in long steps; return what gives the memory back."""
        to_release: list[Callable[[], None]] = []
        for e in [e for stage in self.kernel.stages for e in self.loads(stage)]:
            if self.is_near(e, across) or (e.value, e.index) in self.turned:
                continue
            size = nbytes((along.extent, across.extent), e.dtype.itemsize)
            pointer, release = self.host.borrow(size, "rows turned round")
            to_release.append(release)
            length, count = self.host.dim(along.extent), self.host.dim(across.extent)
            target = Array(e.dtype, pointer, (length, count), (count, 1))
            self.turned[e.value, e.index] = across, target
            self._copy(fn, e, target, along, across)

        def release_all() -> None:
            for release in to_release:
                release()

        return release_all

    def _copy(self, fn: Function, e: Expression, target: Array, along: Var, across: Var) -> None:
        length, count = target.dims
        evaluator = Evaluator(fn, self.host, {}, [{}], unchecked)
        loop = partial(fn.loop, 0, metadata=self.plain(), as_written=True)
        with loop(count) as j, loop(length) as k, evaluator.scope():
            evaluator.points.update({across: j, along: k})
            value = load_scalar(fn, e.dtype, evaluator.address(self.array_of(e), e.index))
            store_scalar(fn, e.dtype, value, target.address(fn, (k, j)))

    def turned_fetch(self, evaluator: Evaluator, along: Var, e: Expression) -> Scalar | None:
        """Return an element of a copy, or None for what has none."""
        found: Any = self.turned.get((e.value, e.index))
        if found is None:
            return None
        across, copy = found
        place = (evaluator.points[along], evaluator.points[across])
        address = copy.address(evaluator.fn, place)
        return load_scalar(evaluator.fn, e.dtype, address, evaluator.metadata)
