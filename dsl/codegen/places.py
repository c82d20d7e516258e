"""Emits nodes that only say where elements are: reshapes and broadcasts of memory, arrays put together from parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dsl.codegen.arrays import Array
from dsl.codegen.elements import Elements
from dsl.codegen.expressions import Affine, Pool, Var, identity_index
from dsl.codegen.kernels import KernelEmitter
from dsl.codegen.llvm import Operand
from dsl.codegen.memory import Placed, contiguous_strides, nbytes
from dsl.codegen.plan import Kernel, Root, Stage
from dsl.codegen.report import ErrorSite
from dsl.codegen.standins import StandIn
from dsl.codegen.within import grows
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import Shape, size_of

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = [
    "boxes_around",
    "boxes_of",
    "contiguous_copy",
    "emit_alias",
    "emit_pieces",
    "emit_room",
    "emit_spread",
    "surround",
]

_LINE = 64  # bytes that come from memory and go there together
_TOGETHER = 8  # parts that one kernel writes

Place = tuple[DimLike, ...]
Box = tuple[
    ir.Value, Shape, Place, Place
]  # what is in it, its sizes, its first points there and here


def emit_room(region: Region, node: ir.Node) -> None:
    """Memory for an array whose elements will all be written before any is read."""
    (value,) = node.outputs
    region.bind(value, region.new_place(value))


def emit_spread(region: Region, node: ir.Node) -> None:
    """A broadcast of dims that may turn out to be 1: the stride is then 0."""
    (value,) = node.outputs
    fn, source = region.fn, region.place_of(node.inputs[0])
    extra = len(value.shape) - len(source.array.dims)
    strides: list[Operand] = [0] * extra
    for own, wide, stride in zip(node.inputs[0].shape, value.shape[extra:], source.array.strides):
        size, wanted = region.dim(own), region.dim(wide)
        if own == wide:
            strides.append(stride)
            continue
        single = fn.compare("eq", size, 1)
        fits = fn.either(single, fn.compare("eq", size, wanted))
        region.program.fail(fn, fn.invert(fits), ErrorSite("broadcast", node), size, wanted)
        strides.append(fn.select(single, 0, stride))
    dims = tuple(region.dim(d) for d in value.shape)
    array = Array(value.dtype, source.array.pointer, dims, tuple(strides))
    region.bind(value, Placed(source.slot, array, contiguous=False))


def emit_alias(region: Region, node: ir.Node) -> None:
    """A reshape of an array in C order is the same memory."""
    (value,) = node.outputs
    source = region.place_of(node.inputs[0])
    if not source.contiguous:
        source = contiguous_copy(region, node.inputs[0], source)
    dims = tuple(region.dim(d) for d in value.shape)
    array = Array(
        value.dtype,
        source.array.pointer,
        dims,
        contiguous_strides(region.fn, value.shape, region.dim),
    )
    region.bind(value, Placed(source.slot, array))


def contiguous_copy(region: Region, value: ir.Value, source: Placed) -> Placed:
    slot = region.program.allocate(
        nbytes(value.shape, value.dtype.itemsize), region, "copy in C order"
    )
    made = region.in_slot(slot, value)
    region.copy(
        source.array, made.array, value.shape, "an array that is not in C order", value.node.loc
    )
    return made


def emit_pieces(region: Region, node: ir.Node) -> None:
    """Concatenate and pad: each part is a kernel of its own, without a test per element."""
    (value,) = node.outputs
    if grows(node) and _can_grow(region, node):
        _grow(region, node)
        return
    placed = region.new_place(value)
    write_pieces(region, node, placed.array)
    region.bind(value, placed)


def _can_grow(region: Region, node: ir.Node) -> bool:
    """Tell whether an array is at the beginning of memory that is its own and may grow."""
    x = node.inputs[0]
    placed = region.placed.get(x)
    wanted = region.wanted.get(node.outputs[0])
    return (
        placed is not None
        and placed.slot.kind == "dynamic"
        and placed.contiguous
        and region.may_overwrite(x)
        and wanted in (None, placed.slot)
    )


def _grow(region: Region, node: ir.Node) -> None:
    """Put the further parts behind the first one, where that is: a list that grows is copied when its memory is full."""
    x, (value,) = node.inputs[0], node.outputs
    slot = region.placed[x].slot
    held, size = (region.dim(nbytes(v.shape, v.dtype.itemsize)) for v in (x, value))
    region.program.grow(slot, held, size)
    region.placed[x] = region.in_slot(slot, x)
    placed = region.in_slot(slot, value)
    for part, space, first, place in boxes_of(node, region.in_memory):
        if part is not x:
            _write_box(region, part, placed.array, space, first, place)
    region.program.report.in_place.append((node.op.name, node.loc))
    region.bind(value, placed)


def write_pieces(region: Region, node: ir.Node, target: Array) -> None:
    """Write the parts of an array into a target."""
    boxes = boxes_of(node, region.in_memory)
    axis = node.attrs["axis"] if node.op.name == "concatenate" else None
    groups = ([box] for box in boxes) if axis is None else _side_by_side(axis, boxes)
    for group in groups:
        if len(group) == 1:
            _write_box(region, group[0][0], target, *group[0][1:])
            continue
        space = group[0][1]
        shift = partial(_shift, len(space))
        region.map_all_to([(x, shift(a), shift(b)) for x, _, a, b in group], target, space)


def _side_by_side(axis: int, boxes: Iterable[Box]) -> Iterator[list[Box]]:
    """Group boxes that alternate in the same lines of memory, as the columns of `stack(..., axis=-1)` do.

    Each line would come from memory and go there once for every part. Those of a group have one size.
    """

    def around(box: Box) -> tuple[Any, ...]:
        x, space, *_ = box
        return bool(x.shape), len(space) > axis and (space[:axis], space[axis + 1 :])

    for (is_array, _), alike in groupby(boxes, around):
        found = list(alike)
        if len({box[1] for box in found}) > 1 and axis == len(found[0][1]) - 1:
            found = _columns(found)
        short = is_array and all(map(partial(_is_short, axis), found))
        step = _TOGETHER if short and len({box[1] for box in found}) == 1 else 1
        yield from (found[k : k + step] for k in range(0, len(found), step))


def _columns(boxes: list[Box]) -> list[Box]:
    """Return boxes of one column each, if these have few."""
    widths = [box[1][-1] if isinstance(box[1][-1], int) else _TOGETHER + 1 for box in boxes]
    if sum(widths) > _TOGETHER:
        return boxes
    return [
        (x, (*space[:-1], 1), (*first[:-1], first[-1] + k), (*place[:-1], place[-1] + k))
        for (x, space, first, place), width in zip(boxes, widths)
        for k in range(width)
    ]


def _is_short(axis: int, box: Box) -> bool:
    """Tell whether a box has but part of a line before that of the next one begins."""
    run = size_of(box[1][axis:])
    return isinstance(run, int) and run * box[0].dtype.itemsize <= _LINE


def _write_box(
    region: Region, x: ir.Value, target: Array, space: Shape, first: Place, place: Place
) -> None:
    if x.shape:
        region.map_to(x, target, space, _shift(len(space), place))
    else:
        fill_box(region, x, target, space, first, place)


def boxes_of(
    node: ir.Node, in_memory: Callable[[ir.Value], bool], at: Place | None = None
) -> Iterator[Box]:
    """Yield the boxes of which an array is put together, itself in a box that begins at `at`."""
    at = at or (0,) * len(node.outputs[0].shape)
    if node.op.name == "concatenate":
        axis: int = node.attrs["axis"]
        for x in node.inputs:
            yield from _boxes(x, in_memory, at)
            at = (*at[:axis], at[axis] + x.shape[axis], *at[axis + 1 :])
        return
    x, filler = node.inputs[:2]
    low = node.attrs["low"]
    for space, first in boxes_around(node.outputs[0].shape, low, x.shape):
        yield filler, space, first, _sum(at, first)
    yield from _boxes(x, in_memory, _sum(at, low))


def _boxes(x: ir.Value, in_memory: Callable[[ir.Value], bool], at: Place) -> Iterator[Box]:
    """One part: a box, or the boxes of one that is itself put together and has no memory of its own."""
    if x.node.op.name in ("concatenate", "pad") and not in_memory(x):
        yield from boxes_of(x.node, in_memory, at)
    else:
        yield x, x.shape, (0,) * len(x.shape), at


def _sum(a: Place, b: Place) -> Place:
    return tuple(i + k for i, k in zip(a, b, strict=True))


def surround(
    region: Region, whole: ir.Value, filler: ir.Value, target: Array, low: Place, size: Shape
) -> None:
    """Store what `filler` has, a whole array or one number, everywhere outside a box of `whole`."""
    for space, first in boxes_around(whole.shape, low, size):
        fill_box(region, filler, target, space, first, first)


def boxes_around(shape: Shape, low: Place, size: Shape) -> Iterator[tuple[Shape, Place]]:
    """Yield the sizes and first points of boxes that together are everything outside one."""
    for axis, d in enumerate(shape):
        end = low[axis] + size[axis]
        for start, count in ((0, low[axis]), (end, d - end)):
            if isinstance(count, int) and count == 0:
                continue
            space = (*size[:axis], count, *shape[axis + 1 :])
            yield space, (*low[:axis], start, *(0 for _ in shape[axis + 1 :]))


def fill_box(
    region: Region, filler: ir.Value, target: Array, space: Shape, first: Place, place: Place
) -> None:
    """Store the elements of `filler` from `first` on, from `place` on."""
    if any(isinstance(d, int) and d <= 0 for d in space):
        return
    variables = tuple(Var(d, f"i{k}") for k, d in enumerate(space))
    pool = Pool()
    elements = Elements(pool, region.in_memory)
    index = identity_index(variables)
    read = _shift(len(space), first)(index) if filler.shape else ()
    kernel = Kernel(variables, pool, elements)
    root = Root(
        filler.node, StandIn(filler), elements.at(filler, read), _shift(len(space), place)(index)
    )
    kernel.stages = [Stage(False, [root])]
    KernelEmitter(region, kernel, {root.value: target}).emit()


def _shift(rank: int, by: Place) -> Callable[[tuple[Affine, ...]], tuple[Affine, ...]]:
    return lambda index: tuple(i.plus(s) for i, s in zip(index, by, strict=True))
