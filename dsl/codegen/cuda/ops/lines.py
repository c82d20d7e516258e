"""The lines of an array along an axis, and how threads share them.

A team of threads (`dsl.codegen.cuda.teams`) takes a line: along one that is contiguous its threads are neighbours; along
another axis a thread takes a line by itself, and its neighbours take the neighbouring lines. Long lines, while there are
few, are cut into chunks, each for a team; what that means for the result is the kernel's business.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar
from dsl.codegen.cuda.grid import BLOCK, Geometry, ceil_div
from dsl.codegen.cuda.source import Layouts, Source
from dsl.codegen.cuda.teams import WARP, Team, power_of_two
from dsl.codegen.llvm import Operand, Value
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import Shape, size_of

__all__ = [
    "Lines", "Spot", "choose_team", "chunks_of", "flat", "geometry_of", "is_along", "offset", "spot_of", "stack_axes",
    "thread_number", "vector_of",
]  # fmt: skip

_WARP_LINE = 1024  # points of a line that a warp sweeps alone, at most
_FEW_BLOCKS = 128
_FEW_LINES = 8192  # fewer threads leave a GPU idle
_CHUNK = 8192  # points of a chunk for a block, at least
_SHORT_CHUNK = 128  # for a thread
_VECTOR = 16  # bytes that a thread reads at once
_MOST = 4  # points that a thread takes at a time


class Lines:
    """The lines of an array along an axis: `count` of them, each of `length` elements that are `step` apart."""

    def __init__(self, source: Source, value: ir.Value, axis: int, *, made: bool = False) -> None:
        self.fn, self.value = source.fn, value
        self.array = source.place(value) if made else source.array(value)
        self.length, self.step = source.dim(value.shape[axis]), self.array.strides[axis]
        self.axes = _other_axes(source, value, self.array, axis)

    def start(self, line: Operand) -> Operand:
        """Return where a line begins, in elements."""
        return offset(self, self.axes, line)

    def address(self, start: Operand, i: Operand) -> Value:
        return flat(self.array, self.fn.add(start, self.fn.mul(i, self.step)), self)

    def load(self, start: Operand, i: Operand) -> Scalar:
        return load_scalar(self.fn, self.value.dtype, self.address(start, i))

    def store(self, start: Operand, i: Operand, scalar: Scalar) -> None:
        store_scalar(self.fn, self.value.dtype, scalar, self.address(start, i))


def flat(array: Array, place: Operand, owner: Source | Lines) -> Value:
    """Return the address of an element so many elements after the first."""
    return Array(array.dtype, array.pointer, (0,), (1,)).address(owner.fn, (place,))


def thread_number(source: Source) -> Value:
    """Return the number of a thread in the whole grid, of blocks of the usual size."""
    fn = source.fn
    place = fn.add(fn.mul(source.index("ctaid.x"), BLOCK), source.index("tid.x"))
    return fn.as_value(place, "i64")


def offset(owner: Source | Lines, axes: list[tuple[Operand, Operand]], number: Operand) -> Operand:
    """Return where the point of a space with a number is: axes are sizes and strides."""
    fn = owner.fn
    place: Operand = 0
    for k, (size, stride) in enumerate(reversed(axes)):
        own = number
        if k < len(axes) - 1:
            own, number = fn.binary("urem", number, size), fn.binary("udiv", number, size)
        place = fn.add(place, fn.mul(own, stride))
    return place


def _other_axes(
    source: Source, value: ir.Value, array: Array, axis: int
) -> list[tuple[Operand, Operand]]:
    """Return sizes and strides of the axes but one; those of an array in C order are but two."""
    if source.layouts.strided(value):
        pairs = list(zip(array.dims, array.strides, strict=True))
        return pairs[:axis] + pairs[axis + 1 :]
    outer, n, inner = _around(value.shape, axis)
    found = [(outer, n * inner), (inner, 1)]
    return [(source.dim(d), source.dim(s)) for d, s in found if not (isinstance(d, int) and d == 1)]


def _around(shape: Shape, axis: int) -> tuple[DimLike, DimLike, DimLike]:
    return size_of(shape[:axis]), shape[axis], size_of(shape[axis + 1 :])


def stack_axes(
    source: Source, batch: Shape, value: ir.Value, array: Array, core: int
) -> list[tuple[Operand, Operand]]:
    """Return the sizes of a stack and the strides of an operand along it, whose last `core` axes are not of the stack.

    An axis along which the operand is broadcast has the stride 0.
    """
    fn, own = source.fn, value.shape[: max(0, len(value.shape) - core)]
    missing = len(batch) - len(own)
    found: list[tuple[Operand, Operand]] = []
    for k, size in enumerate(batch):
        stride: Operand = 0
        if k >= missing:
            dim, stride = own[k - missing], array.strides[k - missing]
            if isinstance(dim, int):
                stride = 0 if dim == 1 else stride
            elif dim != size:
                stride = fn.select(fn.compare("eq", source.dim(dim), 1), 0, stride)
        found.append((source.dim(size), stride))
    return found


# -- who does what ----------------------------------------------------------------------------------------------------


def is_along(shape: Shape, axis: int) -> bool:
    """Tell whether the elements of a line are neighbours in an array in C order."""
    inner = size_of(shape[axis + 1 :])
    return isinstance(inner, int) and inner == 1


def vector_of(layouts: Layouts, value: ir.Value, axis: int) -> int:
    """Return how many neighbouring points a thread reads at once: only whole vectors, and of long lines."""
    length, size = value.shape[axis], min(_MOST, max(1, _VECTOR // value.dtype.itemsize))
    if not isinstance(length, int) or layouts.strided(value) or not is_along(value.shape, axis):
        return 1
    return size if length % size == 0 and length >= WARP * size else 1


def choose_team(count: DimLike, length: DimLike, along: bool, vector: int = 1) -> Team:
    """Choose how lines are swept; threads take `vector` neighbouring points at a time."""
    if not along:
        return Team(1, BLOCK, False, chunk=_short_chunk(count, length))
    if not isinstance(length, int):
        few = isinstance(count, int) and count < _FEW_BLOCKS // 2
        return Team(BLOCK, 1, True, vector, chunk=2 * _CHUNK if few else None)
    if length <= _WARP_LINE:
        threads = min(WARP, power_of_two(-(-length // vector)))
        return Team(threads, max(1, 128 // threads), True, vector)
    chunk = None
    if isinstance(count, int) and length >= 2 * _CHUNK and count < _FEW_BLOCKS:
        tile = BLOCK * vector
        chunk = -(-max(_CHUNK, -(-length // 1024)) // tile) * tile
    return Team(BLOCK, 1, True, vector, chunk=chunk)


def _short_chunk(count: DimLike, length: DimLike) -> int | None:
    if not isinstance(count, int) or count >= _FEW_LINES:
        return None
    if not isinstance(length, int):
        return 2 * _SHORT_CHUNK
    return max(_SHORT_CHUNK, -(-length // 1024)) if length >= 2 * _SHORT_CHUNK else None


def chunks_of(team: Team, length: DimLike) -> DimLike:
    """Return into how many chunks a line is cut."""
    if team.chunk is None:
        return 1
    assert isinstance(team.chunk, int)
    return ceil_div(length, team.chunk)


def geometry_of(team: Team, count: DimLike, length: DimLike) -> Geometry:
    """Return the launch in which each chunk of each line has a team."""
    return Geometry((ceil_div(count * chunks_of(team, length), team.rows), 1), team.block)


@dataclass(frozen=True)
class Spot:
    """What a thread takes: a chunk of a line, which is from `low` to `high`; it is the `member` of its team."""

    line: Operand
    chunk: Operand
    member: Value
    inside: Value  # whether there is such a line: what others compute is not stored
    low: Operand
    high: Operand


def spot_of(source: Source, team: Team, count: DimLike, length: DimLike) -> Spot:
    """Emit which chunk of which line a thread's team has; teams that are too many take the last one again."""
    fn, thread, block = source.fn, source.index("tid.x"), source.index("ctaid.x")
    chunks, units = chunks_of(team, length), source.dim(count * chunks_of(team, length))
    member = fn.binary("and", thread, team.threads - 1)
    slot = thread if team.threads == 1 else fn.binary("udiv", thread, team.threads)
    unit = fn.add(fn.mul(block, team.rows), slot)
    inside = fn.compare("slt", unit, units)
    unit = fn.minimum(unit, fn.sub(units, 1))
    if isinstance(chunks, int) and chunks == 1:
        return Spot(unit, 0, member, inside, 0, source.dim(length))
    assert isinstance(team.chunk, int)
    if team.along:
        many = source.dim(chunks)
        line, chunk = fn.binary("udiv", unit, many), fn.binary("urem", unit, many)
    else:  # neighbours take neighbouring lines
        many = source.dim(count)
        line, chunk = fn.binary("urem", unit, many), fn.binary("udiv", unit, many)
    low = fn.mul(chunk, team.chunk)
    high = fn.minimum(fn.add(low, team.chunk), source.dim(length))
    return Spot(line, chunk, member, inside, low, high)
