"""Emits nodes on registers, elements of arrays, and the checks that are left for when the program runs."""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dsl.codegen import elementwise
from dsl.codegen.elementwise.integer_division import divide_by_natural, divide_naturals
from dsl.codegen.evaluate import wrap_index
from dsl.codegen.expressions import Affine
from dsl.codegen.expressions import given as at_register
from dsl.codegen.llvm import Operand, Value
from dsl.codegen.plan import REDUCTIONS
from dsl.codegen.report import ErrorSite
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike, lower_bound
from dsl.ir.facts import depends
from dsl.ir.types import I64, Shape, size_of

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = [
    "check_box",
    "check_span",
    "check_start",
    "checked_index",
    "emit_check",
    "emit_scalar",
    "placed",
]


def emit_scalar(region: Region, node: ir.Node) -> None:
    """Emit a node whose operands and results are registers, or an element of an array."""
    _SPECIAL.get(node.op.name, emit_elementwise)(region, node)


def emit_elementwise(region: Region, node: ir.Node) -> None:
    """Emit an elementwise op on registers."""
    args = [region.register(v) for v in node.inputs]
    inputs, outputs = [v.dtype for v in node.inputs], [v.dtype for v in node.outputs]

    def check(bad: Value, kind: str, *number: Value) -> None:
        region.program.fail(region.fn, bad, ErrorSite(kind, node), *number)

    with region.fn.one_by_one(region.program.serial and not region.fn.module.device):
        found = elementwise.emit(
            region.fn, node.op.name, node.attrs, inputs, outputs, args, check, scalar=True
        )
    for value, scalar in zip(node.outputs, found, strict=True):
        region.registers[value] = scalar


def identity(region: Region, node: ir.Node) -> None:
    region.registers[node.outputs[0]] = region.register(node.inputs[0])


def dim_size(region: Region, node: ir.Node) -> None:
    size = region.dim(node.inputs[0].shape[node.attrs["axis"]])
    region.registers[node.outputs[0]] = region.fn.as_value(size, "i64")


def reshape(region: Region, node: ir.Node) -> None:
    if not node.inputs[0].shape:
        region.registers[node.outputs[0]] = region.register(node.inputs[0])
        return
    e = region.element(node.inputs[0], tuple(Affine() for _ in node.inputs[0].shape))
    region.registers[node.outputs[0]] = region.evaluate(e)


def gather(region: Region, node: ir.Node) -> None:
    """An element of an array: bounds are checked at once."""
    x, *indices = node.inputs
    if not node.attrs["axes"]:
        region.registers[node.outputs[0]] = region.register(x)
        return
    if not all(region.ranges.is_small(region.ranges.form(i)) for i in indices):
        region.fn.module.far |= _bytes(x) > _NEAR
    index = checked_index(region, node, x, indices)
    region.registers[node.outputs[0]] = region.evaluate(region.element(x, index))


_NEAR = 1 << 20  # bytes of an array that a core's own cache holds


def _bytes(x: ir.Value) -> int:
    """Return the bytes of an array; of a size that is known at run time, as if it were one."""
    return math.prod(d for d in x.shape if isinstance(d, int)) * x.dtype.itemsize


def checked_index(
    region: Region, node: ir.Node, x: ir.Value, indices: Sequence[ir.Value]
) -> tuple[Affine, ...]:
    """Check indices of rank 0 now; returns them as an index over the axes, in order."""
    placed = region.placed.get(x)
    if placed is not None and region.program.depth and len(indices) == len(x.shape):
        at = tuple(map(region.ranges.form, indices))
        region.program.touched.note(placed.slot, at, writes=node.op.name == "scatter")
    return tuple(
        wrapped(region, node, source, axis, x.shape[axis])
        for source, axis in zip(indices, node.attrs["axes"])
    )


def wrapped(region: Region, node: ir.Node, source: ir.Value, axis: int, size: DimLike) -> Affine:
    """Return an index counted from the end if it is negative; what is surely in range is not looked at."""
    fn, dtype, given = region.fn, source.dtype, region.register(source)
    assert isinstance(given, Value)
    wide = fn.convert("sext" if dtype.kind == "i" else "zext", given, "i64")
    form, count = region.ranges.form(source), region.ranges.size(size)
    natural = region.ranges.is_natural(form)
    below = region.ranges.is_natural(count - form + -1)
    if natural and (below or not region.program.checks):
        return at_register(wide, source)
    if not natural and not region.program.checks:
        return at_register(wrap_index(fn, given, dtype, region.dim(size))[0], source, True)
    exact = region.ranges.is_exact(form)
    offset = region.offsets.get((source, size))
    place = region.ranges.checked.get((form, count))
    if place is None:
        if offset is not None:
            place = fn.binary("add", wide, offset)
        else:
            place = placed(region, node, axis, wide, region.dim(size), natural=natural)
        region.ranges.checked[form, count] = place
    elif place.owner is not fn:
        place = wide if natural else wrap_index(fn, given, dtype, region.dim(size))[0]
    if exact and (natural or region.ranges.is_natural(form + count)):
        region.ranges.assume(count - form + -1)  # it has been checked: what follows may rely on it
    return at_register(place, source, not natural)


def placed(
    region: Region, node: ir.Node, axis: int, given: Value, size: Operand, *, natural: bool = False
) -> Value:
    """Return an index for an axis counted from the start, or stop, unless it has been looked before whether to stop."""
    if (node, axis) not in region.program.safe:
        return in_bounds(region, ErrorSite("index", node, axis), given, size, natural)
    return given if natural else wrap_index(region.fn, given, I64, size)[0]


def in_bounds(region: Region, site: ErrorSite, given: Value, size: Operand, natural: bool) -> Value:
    """Return an index that is below a size, counted from the end if it is negative, or stop: one comparison tells most."""
    fn = region.fn
    if natural:
        region.program.fail(fn, fn.compare("uge", given, size), site, given, size)
        return given
    place = fn.variable("i64", given)
    with fn.if_(fn.compare("uge", given, size), unlikely=True):
        wrapped = fn.binary("add", given, size)
        region.program.fail(fn, fn.compare("uge", wrapped, size), site, given, size)
        place.set(wrapped)
    return place.get()


def division(region: Region, node: ir.Node) -> None:
    """A quotient or remainder of integers: a divisor that is surely positive is not looked at, nor the sign of what surely has none."""
    x, y = node.inputs
    forms = [region.ranges.form(v) for v in (x, y)]
    known = all(map(region.ranges.is_exact, forms)) and x.dtype.kind == "i" and not x.shape
    if not (known and region.ranges.is_natural(forms[1] + -1)):
        emit_elementwise(region, node)
        return
    a, b = region.register(x), region.register(y)
    assert isinstance(a, Value)
    assert isinstance(b, Value)
    divide = divide_naturals if region.ranges.is_natural(forms[0]) else divide_by_natural
    found = dict(zip(("floor_divide", "remainder"), divide(region.fn, x.dtype, a, b)))
    names = found if node.op.name == "divmod" else (node.op.name,)
    for value, name in zip(node.outputs, names, strict=True):
        region.registers[value] = found[name]


def cast(region: Region, node: ir.Node) -> None:
    """Another dtype; a float that becomes an index is cut off by the CPU's instruction, where that knows what NumPy does out of range."""
    (x,), (y,) = node.inputs, node.outputs
    name = _CUTS.get((x.dtype.str, y.dtype.str))
    if name is None or not _has_cuts() or not _tells_place(region.graph, y):
        emit_elementwise(region, node)
        return
    fn, given = region.fn, region.register(x)
    assert isinstance(given, Value)
    wide = f"<{16 // x.dtype.itemsize} x {given.type}>"
    vector = fn.define(wide, f"insertelement {wide} poison, {given.type} {fn.use(given).text}, i64 0")  # fmt: skip
    region.registers[y] = fn.call("i64", name, vector)


def _tells_place(graph: ir.Graph, number: ir.Value) -> bool:
    """Tell whether an index follows from a number, in a branch or loop of the graph too."""
    for node in graph.nodes:
        if node.op.name in ("gather", "scatter"):
            indices = node.inputs[1 if node.op.name == "gather" else 2 :]
            if any(depends(v, number) for v in indices):
                return True
        for region in node.regions:
            given = node.inputs[len(node.inputs) - len(region.params) :]
            pairs = zip(region.params, given, strict=True)
            if any(_tells_place(region, param) for param, v in pairs if depends(v, number)):
                return True
    return False


_CUTS = {("<f8", "<i8"): "llvm.x86.sse2.cvttsd2si64", ("<f4", "<i8"): "llvm.x86.sse.cvttss2si64"}


@functools.cache
def _has_cuts() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def broadcast_dim(region: Region, node: ir.Node) -> None:
    fn = region.fn
    a, b = (region.register(v) for v in node.inputs[:2])
    assert isinstance(a, Value)
    assert isinstance(b, Value)
    one = fn.compare("eq", a, 1)
    fits = fn.either(fn.either(one, fn.compare("eq", b, 1)), fn.compare("eq", a, b))
    region.program.fail(fn, fn.invert(fits), ErrorSite("broadcast", node), a, b)
    region.registers[node.outputs[0]] = fn.select(one, b, a)


def emit_check(region: Region, node: ir.Node) -> None:
    """What symbolic sizes leave to be checked when the program runs."""
    _CHECKS[node.op.name](region, node)


def check_dynamic_slice(region: Region, node: ir.Node) -> None:
    x, start = node.inputs[:2]
    check_start(region, node, start, node.outputs[0].shape, x.shape)


def check_start(region: Region, node: ir.Node, start: ir.Value, part: Shape, whole: Shape) -> None:
    """Check that a span which begins at a number in a register lies within its axis."""
    axis, step = node.attrs["axis"], node.attrs.get("step", 1)
    count, size = part[axis], whole[axis]
    first = region.register(start)
    assert isinstance(first, Value)
    form = region.ranges.form(start)
    last = form + (region.ranges.size(count) + -1).times(step)
    wide = region.ranges.size(size)
    if all(region.ranges.is_natural(n) for end in (form, last) for n in (end, wide - end + -1)):
        return
    check_span(region, node, first, region.dim(count), step, size, axis)


def check_reshape(region: Region, node: ir.Node) -> None:
    fn = region.fn
    have = fn.as_value(region.dim(size_of(node.inputs[0].shape)), "i64")
    want = fn.as_value(region.dim(size_of(node.outputs[0].shape)), "i64")
    dims = [region.dim(d) for d in node.outputs[0].shape]
    site = ErrorSite("reshape", node, len(dims))
    region.program.fail(fn, fn.compare("ne", have, want), site, have, *dims[:5])


def check_slice(region: Region, node: ir.Node) -> None:
    check_box(
        region,
        node,
        node.inputs[0].shape,
        node.attrs["start"],
        node.attrs["size"],
        node.attrs["step"],
    )


def check_box(
    region: Region, node: ir.Node, shape: Shape, start: Shape, size: Shape, step: Sequence[int]
) -> None:
    for axis, (dim, first, count, by) in enumerate(zip(shape, start, size, step)):
        if all(isinstance(d, int) for d in (dim, first, count)):
            continue
        if _spans(dim, first, count, by):
            continue
        check_span(
            region,
            node,
            region.fn.as_value(region.dim(first), "i64"),
            region.dim(count),
            by,
            dim,
            axis,
        )


def check_span(
    region: Region, node: ir.Node, first: Value, count: Operand, step: int, size: DimLike, axis: int
) -> None:
    fn = region.fn
    last = fn.add(first, fn.mul(fn.sub(count, 1), step))
    wide = region.dim(size)
    some = fn.compare("sgt", count, 0) if not isinstance(count, int) else None
    if isinstance(count, int) and count <= 0:
        return
    for end in (first, last):
        bad = fn.compare("uge", end, wide)
        if some is not None:
            bad = fn.both(bad, some)
        region.program.fail(fn, bad, ErrorSite("index", node, axis), end, wide)


def _spans(dim: DimLike, first: DimLike, count: DimLike, step: int) -> bool:
    """Tell whether a span surely lies within its axis."""
    last = first + (count - 1) * step
    low, high = (first, last) if step >= 0 else (last, first)
    return all(
        (lower_bound(d) or 0) >= 0 and lower_bound(d) is not None for d in (low, dim - 1 - high)
    )


_SPECIAL: dict[str, Callable[[Region, ir.Node], None]] = {
    "identity": identity,
    "full": identity,
    "slice": identity,
    "transpose": identity,
    "broadcast_to": identity,
    **dict.fromkeys(REDUCTIONS, identity),
    "dim_size": dim_size,
    "reshape": reshape,
    "gather": gather,
    "broadcast_dim": broadcast_dim,
    "cast": cast,
    **dict.fromkeys(("floor_divide", "remainder", "divmod"), division),
}
_CHECKS: dict[str, Callable[[Region, ir.Node], None]] = {
    "dynamic_slice": check_dynamic_slice,
    "reshape": check_reshape,
    "slice": check_slice,
}
