"""Kernels that read along one axis and write along another: tile by tile, so that both sides use whole lines of the caches.

What is read across a tile is turned round first, in registers: into a copy from which the kernel reads from element to element, or, if the
kernel does nothing else, to where it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from dsl.codegen.accesses import ceil_div, stride_of, walk
from dsl.codegen.arrays import Array, Scalar, load_scalar
from dsl.codegen.evaluate import Evaluator
from dsl.codegen.expressions import Expression
from dsl.codegen.kernels.far_stores import LINE, are_far, past_caches
from dsl.codegen.kernels.nests import Nests
from dsl.codegen.library.lanes import word_dtype
from dsl.codegen.library.routines import call_routine
from dsl.codegen.library.turning import side as block_side
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.vector_unit import last_cache_bytes, register_bytes
from dsl.ir.dims import DimLike

__all__ = ["Tiles"]

_SIDE, _OF_BYTES = 32, 64  # elements along each side of a tile, and of one of bytes
_MOST = 4  # arrays that are turned round: their copies stay in the first cache
_FAR = (
    1 << 24
)  # bytes of a result that is written past the caches, if the last one does not hold it
_SIMPLE = frozenset(("load", "op", "const", "register", "index"))


class Ends(NamedTuple):
    """The rows and columns of a tile."""

    top: Operand
    bottom: Operand
    left: Operand
    right: Operand


class Tiles(Nests):
    """Loops over tiles."""

    def tiled_axis(self, groups: list[list[int]]) -> int | None:
        """Return the loop along which some array is read contiguously while another one is written so, or None."""
        if len(groups) < 2 or self.elements_of(groups) < 4096:
            return None
        for k, group in enumerate(groups[:-1]):
            if any(self.is_across(e, group, groups[-1]) for e in self.operands()):
                return k
        return None

    def operands(self) -> Iterator[Expression]:
        """Yield what the kernel reads of arrays that it does not compute."""
        for root in self.kernel.roots:
            for e in walk(root.expression):
                if e.kind == "load" and e.value not in self.roots:
                    yield e

    def is_across(self, e: Expression, across: list[int], along: list[int]) -> bool:
        """Tell whether a load goes from element to element along one loop, or back, and by a longer step along the last."""
        array, variables = self.array_of(e), self.kernel.variables
        near = stride_of(e.index, array, variables[across[-1]])
        return near in (1, -1) and stride_of(e.index, array, variables[along[-1]]) not in (
            None,
            0,
            1,
        )

    def tiled(self, groups: list[list[int]], tile: int, store: Any, each: float) -> None:
        """Read and write in square tiles."""
        outer = [g for k, g in enumerate(groups[:-1]) if k != tile]
        across, along = groups[tile], groups[-1]
        host, turned = self.host.fn, self.turnable(across, along)
        side = _OF_BYTES if all(e.dtype.itemsize == 1 for e in self.operands()) else _SIDE
        high, wide = self.extent(host, across), self.extent(host, along)
        bands = ceil_div(host, high, side)
        far = self.is_far_copy(across, along, turned)
        rest: Operand = 1
        for g in outer:
            rest = host.mul(rest, self.extent(host, g))

        def band(fn: Function, lo: Operand, hi: Operand) -> None:
            evaluator = self.own_fetch(self.evaluator(fn))
            emit = self.tile_emitter(evaluator, across, along, turned, side, store, far)
            with (
                past_caches(self, fn) if far else nullcontext(),
                fn.loop(lo, hi) as at,
                evaluator.scope(),
            ):
                row = fn.binary("urem", at, bands)
                self.unflatten(evaluator, outer, fn.binary("udiv", at, bands)) if outer else None
                top = fn.mul(row, side)
                bottom = fn.minimum(fn.add(top, side), high)
                with fn.loop(0, wide, side) as left, evaluator.scope():
                    emit(Ends(top, bottom, left, fn.minimum(fn.add(left, side), wide)))

        self.parallel(host.mul(bands, rest), each * 2 * side, band, [along])

    def tile_emitter(
        self, evaluator: Evaluator, across: list[int], along: list[int], turned: list[Expression], side: int,
        store: Any, far: bool,
    ) -> Callable[[Ends], None]:  # fmt: skip
        """Return what emits one tile."""
        pitch = self.straight(across, along, turned)
        if pitch is not None:
            stem = "turn_far" if far else "turn"
            return partial(self.turn_tile, evaluator, across, along, turned[0], pitch, stem)
        rooms = {e: evaluator.fn.alloca(side * side * e.dtype.itemsize, 64) for e in turned}
        return partial(self.one_tile, evaluator, across, along, rooms, side, store)

    def turnable(self, across: list[int], along: list[int]) -> list[Expression]:
        """Return the loads that can be made for whole tiles: of elements that are surely there, whatever is computed of them."""
        everything = [e for root in self.kernel.roots for e in walk(root.expression)]
        if any(e.kind not in _SIMPLE for e in everything) or self.module.device or self.checks:
            return []
        smallest = min(map(self.elements_of, ([across], [along])))
        found = [
            e
            for e in dict.fromkeys(self.operands())
            if self.is_across(e, across, along)
            and not any(i.extra for i in e.index)
            and smallest >= block_side(e.dtype.itemsize)
        ]
        return found if len(found) <= _MOST else []

    def straight(
        self, across: list[int], along: list[int], turned: list[Expression]
    ) -> DimLike | None:
        """Return the elements from row to row of the result if all that the kernel does is turn an array round."""
        root, *others = self.kernel.roots
        target = self.stores.get(root.value)
        if others or target is None or [root.expression] != turned:
            return None
        variables = self.kernel.variables
        if stride_of(root.index, target, variables[along[-1]]) != 1:
            return None
        found: DimLike | None = stride_of(root.index, target, variables[across[-1]])
        return found

    def is_far_copy(self, across: list[int], along: list[int], turned: list[Expression]) -> bool:
        """Tell whether rows of a result are written past the caches, by whole lines: new memory starts with one."""
        pitch, (root, *_) = self.straight(across, along, turned), self.kernel.roots
        if not isinstance(pitch, int) or pitch * root.value.dtype.itemsize % LINE:
            return False
        if len(root.value.shape) != 2:
            return False
        return register_bytes() == LINE and are_far(self, [root], max(_FAR, last_cache_bytes()))

    def turn_tile(
        self, evaluator: Evaluator, across: list[int], along: list[int], e: Expression, pitch: DimLike, stem: str,
        ends: Ends,
    ) -> None:  # fmt: skip
        """Turn a tile to where it is written."""
        (root,), fn = self.kernel.roots, evaluator.fn
        self.place(evaluator, across, ends.top)
        self.place(evaluator, along, ends.left)
        target = evaluator.address(self.stores[root.value], root.index)
        apart = fn.mul(self.host.dim(pitch), e.dtype.itemsize)
        self.turn_load(evaluator, across, along, e, (target, apart), ends, stem)

    def turn_load(
        self, evaluator: Evaluator, across: list[int], along: list[int], e: Expression,
        target: tuple[Value, Operand], ends: Ends, stem: str = "turn",
    ) -> None:  # fmt: skip
        """Call the routine that turns what a load reads in a tile; what is read from the last to the first is written so, too."""
        fn, array, variables = evaluator.fn, self.array_of(e), self.kernel.variables
        step = stride_of(e.index, array, variables[along[-1]])
        bytes_apart = fn.mul(self.host.dim(step), e.dtype.itemsize)
        rows, columns = fn.sub(ends.bottom, ends.top), fn.sub(ends.right, ends.left)
        pointer, pitch = target
        back = stride_of(e.index, array, variables[across[-1]]) == -1
        self.place(evaluator, across, fn.sub(ends.bottom, 1) if back else ends.top)
        self.place(evaluator, along, ends.left)
        source = evaluator.address(array, e.index)
        if back:
            pointer, pitch = fn.gep(pointer, fn.mul(fn.sub(rows, 1), pitch)), fn.mul(pitch, -1)
        kind = word_dtype(e.dtype)
        call_routine(fn, stem, kind, source, bytes_apart, pointer, pitch, rows, columns)
        for k in along:
            del evaluator.points[variables[k]]

    def one_tile(
        self, evaluator: Evaluator, across: list[int], along: list[int], rooms: dict[Expression, Value], side: int,
        store: Any, ends: Ends,
    ) -> None:  # fmt: skip
        """Compute a tile, row by row, from copies of what it reads across."""
        fn, fetch = evaluator.fn, evaluator.fetch
        expressions = [root.expression for root in self.kernel.roots]
        last = self.kernel.variables[along[-1]]
        copies: dict[Expression, Array] = {}
        for e, room in rooms.items():
            self.turn_load(evaluator, across, along, e, (room, side * e.dtype.itemsize), ends)
            copies[e] = Array(e.dtype, room, (side, side), (side, 1))
            self.turned[e.value, e.index] = last, copies[e]

        def read(e: Expression) -> Scalar | None:
            if e not in copies:
                return fetch(e)
            i, j = (evaluator.points[self.kernel.variables[k]] for k in (across[-1], along[-1]))
            place = copies[e].address(fn, (fn.sub(i, ends.top), fn.sub(j, ends.left)))
            return load_scalar(fn, e.dtype, place, evaluator.metadata)

        evaluator.fetch = read
        with fn.loop(ends.top, ends.bottom) as i, evaluator.scope():
            self.place(evaluator, across, i)
            first = ends.left, ends.right
            self.nest(evaluator, [along], store(evaluator), hoist=expressions, first=first)
        evaluator.fetch = fetch
        for e in copies:
            del self.turned[e.value, e.index]

    def own_fetch(self, evaluator: Evaluator) -> Evaluator:
        """Loads of what this kernel computes at the same point are registers."""

        def fetch(e: Expression) -> Scalar | None:
            root = self.root_of(e)
            return evaluator.value(root.expression) if root is not None else None

        evaluator.fetch = fetch
        return evaluator
