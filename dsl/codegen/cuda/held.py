"""What all rows of a kernel share: a gain, a bias, a mask. A block reads it once and goes through many rows with it.

Held are the largest expressions that read memory and depend on the place in a row alone, so that arithmetic on them is done
once too. They are in shared memory: all teams of a block use them, and registers are left to the rows. A row that is longer
than the memory is held from its start on as far as that goes; the rest is read again for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dsl.codegen.accesses import walk
from dsl.codegen.cuda.ops.vectors import load_vector, store_vector
from dsl.codegen.cuda.source import Source
from dsl.codegen.evaluate import Evaluator
from dsl.codegen.expressions import Expression, Var
from dsl.codegen.llvm import Operand, Value
from dsl.codegen.plan import Kernel
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import size_of

__all__ = ["Held", "Holding", "loads_of", "plan_holding", "rows_wanted", "shared_by_rows"]

_BYTES = 32 << 10  # that a block holds at most: half of what a multiprocessor of sm_75 has
_BLOCK_BYTES = 48 << 10  # of shared memory that a block can have without asking for more
_BYTES_UNKNOWN = 16 << 10  # the same if rows may turn out to be short
_SMALL = 32  # what is held is read for so many times as many bytes of rows
_MOST_ROWS = 256


def shared_by_rows(kernel: Kernel, swept: frozenset[Var]) -> list[Expression]:
    """Return the largest expressions that read memory and depend on the place in a row alone."""
    own = {root.value for root in kernel.roots}
    found: dict[Expression, None] = {}
    pending = [root.expression for root in kernel.roots]
    seen: set[Expression] = set()
    while pending:
        e = pending.pop()
        if e in seen:
            continue
        seen.add(e)
        if e.vars and e.vars <= swept and _reads(e, own):
            found[e] = None
            continue
        pending.extend(e.args)
        pending.extend(item for affine in e.index for item, _ in affine.extra)
    return list(found)


def _reads(e: Expression, own: set[ir.Value]) -> bool:
    loads = [item.value for item in walk(e) if item.kind == "load"]
    return bool(loads) and own.isdisjoint(loads)


def loads_of(
    expressions: Iterable[Expression], held: Iterable[Expression] = ()
) -> dict[Expression, None]:
    """Return the loads of expressions, those aside that are only for what is held."""
    found: dict[Expression, None] = {}
    pending, seen = list(reversed(list(expressions))), set(held)
    while pending:
        e = pending.pop()
        if e in seen:
            continue
        seen.add(e)
        if e.kind == "load":
            found[e] = None
        pending.extend(e.args)
        pending.extend(item for affine in e.index for item, _ in affine.extra)
    return found


def rows_wanted(
    kernel: Kernel, held: Sequence[Expression], stored: Iterable[ir.Value], swept: frozenset[Var]
) -> int:
    """Return for how many rows a block should read what it holds, so that it is little next to the rows."""
    once = sum(e.dtype.itemsize for e in loads_of(held))
    roots = [root.expression for root in kernel.roots]
    own = {root.value for root in kernel.roots}
    read = [e for e in loads_of(roots, held) if e.vars & swept and e.value not in own]
    kept = set(stored)
    written = [root.value for root in kernel.roots if root.value in kept and not root.reduce]
    each = sum(e.dtype.itemsize for e in read) + sum(v.dtype.itemsize for v in written)
    return min(_MOST_ROWS, -(-_SMALL * once // max(1, each)))


@dataclass(frozen=True)
class Holding:
    """Expressions to be held, each over groups of axes; `reach` is how far into the rows, if not to their end."""

    groups: dict[Expression, tuple[tuple[int, ...], ...]]
    reach: int | None = None


def plan_holding(
    kernel: Kernel, found: Sequence[Expression], swept: Sequence[Sequence[int]], width: int, taken: int
) -> Holding | None:  # fmt: skip
    """Choose what fits beside the shared memory that is taken.

    A row that does not fit is held as far as whole steps of a team go, which take `width` places.
    """
    variables = kernel.variables
    groups = {
        e: tuple(tuple(g) for g in swept if any(variables[k] in e.vars for k in g)) for e in found
    }
    size: DimLike = 0
    for e in found:
        size = size + _count(kernel, groups[e]) * e.dtype.itemsize
    room = min(_BYTES if isinstance(size, int) else _BYTES_UNKNOWN, _BLOCK_BYTES - taken)
    if isinstance(size, int) and size <= room:
        return Holding(groups) if size else None
    if len(swept) > 1:
        return None
    reach = room // sum(e.dtype.itemsize for e in found) // width * width
    return Holding(groups, reach) if reach > 0 else None


def _count(kernel: Kernel, groups: Iterable[Sequence[int]]) -> DimLike:
    return size_of(tuple(kernel.variables[k].extent for g in groups for k in g))


class Held:
    """What a block holds, while its code is emitted."""

    def __init__(self, source: Source, kernel: Kernel, holding: Holding) -> None:
        self.source, self.kernel, self.holding = source, kernel, holding
        self.places: dict[Expression, Value] = {}
        for e, groups in holding.groups.items():
            count = holding.reach or _count(kernel, groups)
            assert isinstance(count, int)
            self.places[e] = source.shared(count * e.dtype.itemsize)

    @property
    def reach(self) -> int | None:
        return self.holding.reach

    def fill(
        self, block: int, vector: int,
        at: Callable[[Sequence[Sequence[int]], Operand], Evaluator],
    ) -> None:  # fmt: skip
        """Let all threads of the block read and compute what is held, some neighbouring places each, and wait for it."""
        fn, thread = self.source.fn, self.source.index("tid.x")
        for groups in dict.fromkeys(self.holding.groups.values()):
            mine = [e for e, g in self.holding.groups.items() if g == groups]
            extent = _count(self.kernel, groups)
            width = vector if isinstance(extent, int) and extent % vector == 0 else 1
            count = self.source.dim(extent)
            if self.holding.reach is not None:
                count = fn.minimum(count, self.holding.reach)
            with fn.loop(fn.mul(thread, width), count, block * width) as first:
                made = [at(groups, fn.add(first, k)) for k in range(width)]
                values = [[evaluator.value(e) for evaluator in made] for e in mine]
                for e, found in zip(mine, values, strict=True):
                    store_vector(fn, e.dtype, self._address(e, first), found)
        self.source.barrier()

    def take(self, evaluators: Sequence[Evaluator], expressions: Iterable[Expression]) -> None:
        """Give evaluators of neighbouring points what is held for them and in the expressions."""
        fn, last = self.source.fn, len(self.kernel.variables) - 1
        for e in self._used(expressions):
            moves = any(last in group for group in self.holding.groups[e])
            address = self._address(e, self._place(e, evaluators[0]))
            found = load_vector(fn, e.dtype, address, len(evaluators) if moves else 1)
            for k, evaluator in enumerate(evaluators):
                evaluator.scopes[-1][e] = found[k if moves else 0]

    def _used(self, expressions: Iterable[Expression]) -> list[Expression]:
        """Return what is held and in expressions, or in values of the row that they need."""
        made = {root.value: root.expression for root in self.kernel.roots if not root.reduce}
        pending, seen = list(expressions), set()
        while pending:
            for e in walk(pending.pop()):
                if e not in seen and e.kind == "load" and e.value in made:
                    pending.append(made[e.value])
                seen.add(e)
        return [e for e in self.places if e in seen]

    def _place(self, e: Expression, evaluator: Evaluator) -> Operand:
        fn = self.source.fn
        at: Operand = 0
        for group in self.holding.groups[e]:
            extent = self.source.dim(_count(self.kernel, [group]))
            here = evaluator.points[self.kernel.variables[group[-1]]]
            at = fn.add(fn.mul(at, extent), here)
        return at

    def _address(self, e: Expression, at: Operand) -> Value:
        return self.source.fn.gep(self.places[e], self.source.fn.mul(at, e.dtype.itemsize))
