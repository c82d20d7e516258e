"""Counted loops whose body is one elementwise kernel: all trips on one block of points, then on the next.

Each point of the carried arrays depends on that point alone, so trips and points may change places. A block stays in the
first cache for many trips; a pass over whole arrays for each trip waits for memory. The trips are cut into shares, after
each of which the program looks whether the user wants to interrupt it.

Often a mask tells which points go on: `z = where(inside, z * z + c, z); count += inside`. Where it is false nothing
changes, so it is false in all later trips, and a block without a point that goes on is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from dsl.codegen.accesses import walk
from dsl.codegen.arrays import Array
from dsl.codegen.expressions import Expression
from dsl.codegen.kernels import KernelEmitter
from dsl.codegen.llvm import Value, Variable
from dsl.codegen.memory import Slot
from dsl.codegen.plan import Kernel, is_checked
from dsl.ir import graph as ir

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["Loop", "emit_repeats"]

_FEW = 256  # points that are not worth it


class Carried(Protocol):
    """A carried value of a loop."""

    @property
    def param(self) -> ir.Value: ...

    @property
    def result(self) -> ir.Value: ...

    @property
    def home(self) -> Slot | None: ...

    @property
    def sizes(self) -> Mapping[int, Variable]: ...


class Loop(Protocol):
    """A loop that has begun: its carried values are at home."""

    @property
    def body(self) -> ir.Graph: ...

    @property
    def node(self) -> ir.Node: ...

    @property
    def carried(self) -> Sequence[Carried]: ...

    def enter(self, graph: ir.Graph, first: tuple[Value, ...]) -> Region: ...


def emit_repeats(loop: Loop, trips: Value, poll: Callable[[], None]) -> bool:
    """Emit the trips block by block, if that can be; return whether it was done."""
    if not all(_stays(item) for item in loop.carried):
        return False
    inner = loop.enter(loop.body, (Value("0", "i64"),))
    kernel = _only_kernel(inner)
    if kernel is None or not _is_pointwise(kernel, loop):
        return False
    stores: dict[ir.Value, Array] = {}
    for item in loop.carried:
        assert item.home is not None
        placed = inner.in_slot(item.home, item.result)
        inner.bind(item.result, placed)
        stores[item.result] = placed.array
    emitter = KernelEmitter(inner, kernel, stores)
    if not emitter.is_flat(_FEW):
        return False
    number = loop.body.params[0]
    moving = _moving(kernel, loop, number)
    inner.timed(
        kernel,
        lambda: emitter.repeat(trips, lambda trip: inner.set_register(number, trip), poll, moving),
    )
    report = inner.program.report
    report.in_place.extend((root.node.op.name, root.node.loc) for root in kernel.roots)
    inner.mark = len(report.lines)
    inner.note(kernel, inner.names)
    return True


def _stays(item: Carried) -> bool:
    """Tell whether a carried value is an array of fixed size in memory of our own."""
    return item.home is not None and item.home.kind == "block" and not item.sizes


def _only_kernel(inner: Region) -> Kernel | None:
    """Return the kernel that a body consists of."""
    if any(node.regions for node in inner.graph.nodes):
        return None
    statements = inner.planned().statements
    if len(statements) != 1 or not isinstance(statements[0], Kernel):
        return None
    return statements[0]


def _is_pointwise(kernel: Kernel, loop: Loop) -> bool:
    """Tell whether each point is computed from the same point of the carried arrays, and everything that is, is carried."""
    results = [item.result for item in loop.carried]
    params = {item.param for item in loop.carried}
    if kernel.inner or len(set(results)) < len(results) or set(results) != set(kernel.writes):
        return False
    return all(
        root.value.shape == kernel.space
        and not any(is_checked(e) for e in walk(root.expression))
        and all(
            e.index == root.index
            for e in walk(root.expression)
            if e.kind == "load" and (e.value in params or e.value in kernel.writes)
        )
        for root in kernel.roots
    )


def _moving(kernel: Kernel, loop: Loop, number: ir.Value) -> Expression | None:
    """Return the mask without which a point stays as it is for ever, if there is one."""
    params = {item.result: item.param for item in loop.carried}
    if any(e.value is number for root in kernel.roots for e in walk(root.expression)):
        return None
    masks = {_mask(root.expression, params[root.value]) for root in kernel.roots}
    return masks.pop() if len(masks) == 1 else None


def _mask(e: Expression, own: ir.Value) -> Expression | None:
    """Return the mask of `where(mask, new, own)`, or of `own + mask` for integers."""
    name = e.node.op.name if e.node is not None else ""
    if name == "where" and e.args[2].value is own:
        return e.args[0]
    if name == "add" and e.dtype.kind in "iu" and e.args[0].value is own:
        cast = e.args[1]
        if cast.node is not None and cast.node.op.name == "cast" and cast.args[0].dtype.kind == "b":
            return cast.args[0]
    return None
