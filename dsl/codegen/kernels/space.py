"""What a kernel is, before any loop of it: its roots, the axes it sweeps and keeps, how long and how dear they are.

Neighbouring axes over which every access runs through memory in one stride are merged into one loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from dsl.codegen import elementwise
from dsl.codegen.accesses import stride_of, walk
from dsl.codegen.arrays import Array, Scalar
from dsl.codegen.elementwise.reals import MATH
from dsl.codegen.evaluate import Evaluator, Host
from dsl.codegen.expressions import Affine, Expression, Var
from dsl.codegen.llvm import Function, Operand, Value, Variable
from dsl.codegen.plan import Kernel, Root, Stage, is_checked, reads_of
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import size_of

__all__ = ["KernelHost", "Space"]

_LANES = 8  # points of a last axis that is unrolled
_FEW = 3  # elementary functions of a loop that works on four vectors at once


class KernelHost(Host, Protocol):
    """What a kernel asks its program."""

    fn: Function

    @property
    def apart(self) -> bool: ...

    def set_register(self, value: ir.Value, scalar: Scalar) -> None: ...

    def borrow(self, size: DimLike, note: str) -> tuple[Value, Callable[[], None]]: ...

    def lacks_memory(self) -> None: ...

    def is_new(self, value: ir.Value, read: Iterable[ir.Value]) -> bool: ...

    def fail_expression(
        self, fn: Function, bad: Value, expression: Expression, number: Value
    ) -> None: ...


class Space:
    """The iteration space of one kernel. `stores` holds the memory of roots that others read; the other roots stay inside."""

    def __init__(self, host: KernelHost, kernel: Kernel, stores: dict[ir.Value, Array]) -> None:
        self.host, self.kernel, self.stores = host, kernel, stores
        self.module = host.fn.module
        self.roots = {root.value: root for root in kernel.roots}
        self.inner = kernel.inner or frozenset()
        self.kept = [k for k in range(len(kernel.variables)) if k not in self.inner]
        ops = [e for r in kernel.roots for e in walk(r.expression)]
        self.checks = any(is_checked(e) for e in ops)
        deep = {e for e in ops if e.node is not None and e.node.op.name in MATH}
        self.side_by_side = 1 if not deep else 4 if len(deep) <= _FEW else 2
        self.flag: Value | None = None
        self.bad: dict[Function, Variable] = {}
        self.current = 0  # the stage that is emitted
        self.group = ""  # of all memory accesses, if every loop's iterations are independent
        self.turned: dict[
            tuple[Any, Any], tuple[Var, Array]
        ] = {}  # loads that read a copy, along which axis
        self.lane: int | None = None
        self.lanes: list[int | None] = [None]
        self.lane_axis = self.short_axis()
        if self.lane_axis is not None:
            self.kept.remove(self.lane_axis)
            self.lanes = list(range(self.kernel.variables[self.lane_axis].extent))  # type: ignore[arg-type]

    def short_axis(self) -> int | None:
        """Return the last axis if it is kept and so short that it is better unrolled: three coordinates, say."""
        last = len(self.kernel.variables) - 1
        if not self.inner or last in self.inner or self.keeps_rows():
            return None
        extent = self.kernel.variables[last].extent
        short = isinstance(extent, int) and extent <= _LANES
        return last if short and len(self.last_kept()) == 1 else None

    @contextlib.contextmanager
    def in_lane(self, evaluator: Evaluator, lane: int | None) -> Iterator[None]:
        """Be at one point of the unrolled axis."""
        if self.lane_axis is None or lane is None:
            yield
            return
        var = self.kernel.variables[self.lane_axis]
        with evaluator.scope():
            self.lane = evaluator.points[var] = lane
            yield
        del evaluator.points[var]
        self.lane = None

    def last_kept(self) -> list[int]:
        """Return the last axis, which is kept, and those before it that are merged with it: one loop goes through all."""
        kept = [k for k in range(len(self.kernel.variables)) if k not in self.inner]
        return kept[-1:] if self.keeps_rows() else self.merged(kept)[-1]

    def keeps_rows(self) -> bool:
        """Tell whether some value is kept for a row while later stages read it."""
        return any(
            not root.reduce and root.value not in self.stores and not self.kernel.stages[root.stage].per_row
            and self.read_later(root)
            for root in self.kernel.roots
        )  # fmt: skip

    def read_later(self, root: Root) -> bool:
        """Tell whether a stage after the root's own reads it."""
        return any(
            e.value is root.value
            for other in self.kernel.roots
            if other.stage > root.stage
            for e in reads_of(other.expression)
        )

    def is_split(self) -> bool:
        return not self.kept and len(self.kernel.stages) == 1

    def root_of(self, e: Expression) -> Root | None:
        """Return the root of the kernel that an expression reads, or None."""
        return None if e.value is None else self.roots.get(e.value)

    def array_of(self, e: Expression) -> Array:
        """Return the array that a load reads."""
        assert e.value is not None
        return self.host.array(e.value)

    def is_own(self, e: Expression) -> bool:
        return e.value in self.roots

    # -- sizes and costs ---------------------------------------------------------------------------------------------

    def extent(self, fn: Function, group: Sequence[int]) -> Operand:
        total: DimLike = 1
        for k in group:
            total = total * self.kernel.variables[k].extent
        found = self.host.dim(total)
        return fn.use(found) if isinstance(found, Value) else found

    def elements_of(self, groups: Sequence[Sequence[int]]) -> float:
        """Return how many points groups have, a guess for symbolic ones."""
        total = 1.0
        for group in groups:
            for k in group:
                extent = self.kernel.variables[k].extent
                total *= extent if isinstance(extent, int) else 256.0
        return total

    def flat_prefix(self, groups: list[list[int]]) -> int:
        """Return how many leading loops to flatten so that there is enough to share among threads."""
        total = 1
        for k, group in enumerate(groups):
            extent = size_of(tuple(self.kernel.variables[a].extent for a in group))
            if not isinstance(extent, int):
                return k + 1
            total *= extent
            if total >= 64:
                return k + 1
        return len(groups)

    def cost(self, stages: Iterable[Stage]) -> float:
        """Return a rough number of nanoseconds for one point."""
        total = 0.0
        for stage in stages:
            # In order: a sum of floats in another one may round to another number, and the text is a key.
            for e in dict.fromkeys(e for root in stage.roots for e in walk(root.expression)):
                total += 0.25 if e.kind == "load" else 0.08
                if e.kind == "op" and e.node is not None:
                    total += elementwise.cost(e.node.op.name, [a.dtype for a in e.args])
        return total + 0.1

    def step(self, index: tuple[Affine, ...], value: Any, var: Var) -> Any:
        """Return by how many elements an access moves with a variable, or None if that is not known."""
        if (value, index) in self.turned:
            return int(self.turned[value, index][0] is var)
        if value in self.stores:
            return stride_of(index, self.stores[value], var)
        if value not in self.roots:
            return stride_of(index, self.host.array(value), var)
        last = index[-1] if index else Affine()
        own = sum(scale for v, scale in last.terms if v is var)
        return own if all(var not in i.vars for i in index[:-1]) else None

    # -- merging axes ------------------------------------------------------------------------------------------------

    def place(self, evaluator: Evaluator, group: Sequence[int], at: Operand) -> None:
        """Put merged axes at a position: the last one carries it, see `merged`."""
        for k in group[:-1]:
            evaluator.points[self.kernel.variables[k]] = 0
        evaluator.points[self.kernel.variables[group[-1]]] = at

    def merged(self, axes: Sequence[int]) -> list[list[int]]:
        """Group neighbouring axes over which every access runs through memory in one stride.

        Axes of one element go with any, in front: the last axis of a group is the one that counts.
        """
        single = [k for k in axes if self.is_single(k)]
        groups: list[list[int]] = []
        accesses = list(self.accesses())
        for k in axes:
            if k in single:
                continue
            before = groups[-1][-1] if groups else -1
            near = groups and all(map(self.is_single, range(before + 1, k)))
            if near and all(self.merges(a, before, k) for a in accesses):
                groups[-1].append(k)
            else:
                groups.append([k])
        if single:
            groups[:1] = [[*single, *(groups[0] if groups else [])]]
        return groups

    def is_single(self, k: int) -> bool:
        """Tell whether an axis surely has one element."""
        return bool(self.kernel.variables[k].extent == 1)

    def accesses(self) -> Iterable[tuple[tuple[Affine, ...], Array | None]]:
        """Yield every index that depends on loop variables, with the array that it goes into."""
        for root in self.kernel.roots:
            array = self.stores.get(root.value)
            if array is not None:
                yield root.index, array
            for e in walk(root.expression):
                if e.kind == "load":
                    own = e.value in self.roots and e.value not in self.stores
                    yield e.index, None if own else self.array_of(e)
                elif e.index:
                    yield e.index, None

    def merges(self, access: tuple[tuple[Affine, ...], Array | None], a: int, b: int) -> bool:
        index, array = access
        va, vb = self.kernel.variables[a], self.kernel.variables[b]
        if array is None:
            root_like = all(len(i.terms) <= 1 and not i.extra for i in index)
            uses = [i for i in index if va in i.vars or vb in i.vars]
            return not uses or (root_like and self._identity_pair(index, va, vb))
        if any(v in item.vars for i in index for item, _ in i.extra for v in (va, vb)):
            return False
        sa, sb = stride_of(index, array, va), stride_of(index, array, vb)
        if sa is None or sb is None:
            return False
        return bool(sa == sb * vb.extent)

    @staticmethod
    def _identity_pair(index: tuple[Affine, ...], va: Var, vb: Var) -> bool:
        """An index into a value that the kernel itself computes and keeps: both axes or none, as they are."""
        plain = [i.terms[0] for i in index if len(i.terms) == 1 and i.offset == 0]
        return (va, 1) in plain and (vb, 1) in plain
