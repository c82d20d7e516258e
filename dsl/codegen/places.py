"""Emits nodes that only say where elements are: reshapes and broadcasts of memory, arrays put together from parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsl.codegen.arrays import Array
from dsl.codegen.elements import Elements
from dsl.codegen.expressions import Affine, Pool, Var, identity_index
from dsl.codegen.kernels import KernelEmitter
from dsl.codegen.llvm import Operand
from dsl.codegen.memory import Placed, contiguous_strides, nbytes
from dsl.codegen.plan import Kernel, Root, Stage
from dsl.codegen.report import ErrorSite
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import Shape

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["contiguous_copy", "emit_alias", "emit_pieces", "emit_spread", "surround"]


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
    placed = region.new_place(value)
    write_pieces(region, node, placed.array, {})
    region.bind(value, placed)


def write_pieces(region: Region, node: ir.Node, target: Array, at: dict[int, DimLike]) -> None:
    """Write the parts of an array into the box of a target that begins at `at`."""
    (value,) = node.outputs
    if node.op.name == "concatenate":
        axis: int = node.attrs["axis"]
        start: DimLike = at.get(axis, 0)
        for x in node.inputs:
            write_piece(region, x, target, {**at, axis: start})
            start = start + x.shape[axis]
        return
    x, filler = node.inputs[:2]
    low = dict(enumerate(node.attrs["low"]))
    surround(region, value, filler, target, low, x.shape, at)
    write_piece(region, x, target, {k: at.get(k, 0) + low[k] for k in low})


def write_piece(region: Region, x: ir.Value, target: Array, at: dict[int, DimLike]) -> None:
    """Write one part: a kernel, or the parts of one that is itself put together and has no memory of its own."""
    if x.node.op.name in ("concatenate", "pad") and not region.in_memory(x):
        write_pieces(region, x.node, target, at)
    else:
        region.map_to(x, target, x.shape, _shift(len(x.shape), at))


def surround(
    region: Region,
    whole: ir.Value,
    filler: ir.Value,
    target: Array,
    low: dict[int, DimLike],
    size: Shape,
    at: dict[int, DimLike] | None = None,
) -> None:
    """Store what `filler` has, a whole array or one number, everywhere outside a box of `whole`.

    The target holds `whole` from the point `at` on.
    """
    done: dict[int, tuple[DimLike, DimLike]] = {}
    for axis in range(len(whole.shape)):
        end = low[axis] + size[axis]
        for start, count in ((0, low[axis]), (end, whole.shape[axis] - end)):
            if isinstance(count, int) and count == 0:
                continue
            space = [done[k][1] if k in done else d for k, d in enumerate(whole.shape)]
            space[axis] = count
            shift: dict[int, DimLike] = {k: v[0] for k, v in done.items()}
            shift[axis] = start
            fill_box(region, filler, target, tuple(space), shift, at or {})
        done[axis] = (low[axis], size[axis])


def fill_box(
    region: Region,
    filler: ir.Value,
    target: Array,
    space: Shape,
    shift: dict[int, DimLike],
    at: dict[int, DimLike],
) -> None:
    """Store the elements of `filler` from `shift` on."""
    if any(isinstance(d, int) and d <= 0 for d in space):
        return
    variables = tuple(Var(d, f"i{k}") for k, d in enumerate(space))
    pool = Pool()
    elements = Elements(pool, region.in_memory)
    index = _shift(len(space), shift)(identity_index(variables))
    expression = elements.at(filler, index if filler.shape else ())
    kernel = Kernel(variables, pool, elements)
    place = _shift(len(space), at)(index)
    root = Root(filler.node, StandIn(filler), expression, place)
    kernel.stages = [Stage(False, [root])]
    KernelEmitter(region, kernel, {root.value: target}).emit()


def _shift(rank: int, by: dict[int, DimLike]) -> Callable[[tuple[Affine, ...]], tuple[Affine, ...]]:
    return lambda index: tuple(i.plus(by.get(k, 0)) for k, i in enumerate(index))
