"""Emits updates: writing into part of an array, in place where nobody needs the old value.

An assignment between overlapping parts of one array behaves as if the right side were computed first: either it is, into
memory of its own, or, if most of the array is written, the whole result goes into new memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dsl.codegen import elementwise
from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar
from dsl.codegen.elements import Elements, gathered_index
from dsl.codegen.evaluate import Evaluator, unchecked, wrap_index
from dsl.codegen.expressions import Affine, Pool, Var, given, identity_index, walk
from dsl.codegen.kernels.vectors import WideLoops
from dsl.codegen.library.call import product
from dsl.codegen.library.points import MERGES
from dsl.codegen.library.routines import call_routine
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.memory import Placed, Slot, nbytes
from dsl.codegen.overlap import clashes
from dsl.codegen.places import surround
from dsl.codegen.plan import is_checked
from dsl.codegen.report import ErrorSite
from dsl.codegen.scalars import check_box, check_start, checked_index
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike
from dsl.ir.types import Shape, size_of

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["emit_update"]

Index = tuple[Affine, ...]
Offset = Callable[[Index], Index]


def emit_update(region: Region, node: ir.Node) -> None:
    if node in region.within:
        update_within(region, node)
    elif node.op.name == "update_slice":
        update_slice(region, node)
    elif node.op.name == "scatter" and any(i.shape for i in node.inputs[2:]):
        scatter(region, node)
    elif node.inputs[0].shape:
        write(region, node, node, place_of(region, node))
    else:
        scatter_number(region, node)


def update_within(region: Region, outer: ir.Node) -> None:
    """An update of a part, perhaps of a part, that is put back: one write into the array."""
    node, offset = outer, _itself
    while node in region.within:
        inside = region.within[node]
        offset = partial(_through, offset, partial(_through, place_of(region, node), inside.moved))
        node = inside.node
    if node.op.name == "scatter" and any(i.shape for i in node.inputs[2:]):
        scatter(region, node, outer, offset)
    else:
        write(region, outer, node, partial(_through, offset, place_of(region, node)))


def _itself(index: Index) -> Index:
    return index


def _through(outer: Offset, inner: Offset, index: Index) -> Index:
    return outer(inner(index))


def place_of(region: Region, node: ir.Node) -> Offset:
    """Check where an update writes; return the place in its array of an element of what is written."""
    return _PLACES[node.op.name](region, node)


def box(region: Region, node: ir.Node) -> Offset:
    x, v = node.inputs[:2]
    start, step = node.attrs["start"], node.attrs["step"]
    check_box(region, node, x.shape, start, v.shape, step)
    return lambda index: tuple(i.scaled(s).plus(a) for i, a, s in zip(index, start, step))


def run(region: Region, node: ir.Node) -> Offset:
    x, v, start = node.inputs[:3]
    axis, step = node.attrs["axis"], node.attrs.get("step", 1)
    check_start(region, node, start, v.shape, x.shape)
    first = given(region.register(start), start)

    def offset(index: Index) -> Index:
        return (*index[:axis], index[axis].scaled(step).plus(first), *index[axis + 1 :])

    return offset


def pick(region: Region, node: ir.Node) -> Offset:
    x, _, *indices = node.inputs
    places = dict(zip(node.attrs["axes"], checked_index(region, node, x, indices)))

    def offset(index: Index) -> Index:
        rest = iter(index)
        return tuple(places[k] if k in places else next(rest) for k in range(len(x.shape)))

    return offset


_PLACES: dict[str, Callable[[Region, ir.Node], Offset]] = {
    "update_slice": box,
    "update_dynamic_slice": run,
    "scatter": pick,
}


def write(region: Region, outer: ir.Node, node: ir.Node, offset: Offset) -> None:
    """Write what `node` puts into a part to `offset` in the array of `outer`."""
    x, v = outer.inputs[0], node.inputs[1]
    merges = node.attrs.get("mode", "update") != "update"
    reads = x in region.placed and region.may_overwrite(x) and clashes(region, v, x, offset)
    if v.shape and reads:
        v = saved(region, v)
    placed = updated_place(region, outer, disturbed=False)
    if v.shape and not reads and merges and may_fail(region, v):
        v = saved(region, v)
    if v.shape and not merges:
        region.map_to(v, placed.array, v.shape, offset)
        return
    variables = tuple(Var(d) for d in v.shape)
    index = identity_index(variables)
    e = Elements(Pool(), region.in_memory).at(v, index)
    evaluator = Evaluator(region.fn, region, {}, [{}], unchecked)

    def body(points: tuple[Operand, ...]) -> None:
        with evaluator.scope():
            evaluator.points.update(zip(variables, points))
            address = evaluator.address(placed.array, offset(index))
            store_merged(region, node, x.dtype, address, evaluator.value(e))

    region.loops(v.shape, body)


def updated_place(region: Region, node: ir.Node, *, disturbed: bool) -> Placed:
    """Return the memory in which an update happens: the operand's own if it dies here, else a copy."""
    x, (value,) = node.inputs[0], node.outputs
    if not disturbed and x in region.placed and region.may_overwrite(x):
        placed = region.placed[x]
        region.program.report.in_place.append((node.op.name, node.loc))
        region.bind(value, placed)
        return placed
    made = region.new_place(value)
    region.copy_value(x, made, "an update whose old value is still needed", node)
    region.bind(value, made)
    return made


def update_slice(region: Region, node: ir.Node) -> None:
    x, v = node.inputs[:2]
    start, step = node.attrs["start"], node.attrs["step"]
    offset = box(region, node)
    in_place = x in region.placed and region.may_overwrite(x)
    if in_place and clashes(region, v, x, offset):
        if large_share(region, v, x) and all(s == 1 for s in step) and region.placed[x].contiguous:
            in_place = False
        else:
            v = saved(region, v)
    if in_place:
        placed = updated_place(region, node, disturbed=False)
        region.map_to(v, placed.array, v.shape, offset)
        return
    (value,) = node.outputs
    slots = len(region.program.slots)
    made = region.new_place(value)
    if all(s == 1 for s in step):
        is_new = len(region.program.slots) > slots
        lacks = region.loop.lacks_rest(value, made.slot) if region.loop and is_new else None
        with contextlib.nullcontext() if lacks is None else region.fn.if_(lacks):
            surround(region, value, x, made.array, start, v.shape)
    else:
        region.copy_value(x, made, "an update whose old value is still needed", node)
    region.map_to(v, made.array, v.shape, offset)
    region.bind(value, made)


def large_share(region: Region, v: ir.Value, x: ir.Value) -> bool:
    """Tell whether it is cheaper to write all of x anew than to compute v aside first."""
    a = nbytes(v.shape, 1)
    b = nbytes(x.shape, 1)
    return not isinstance(a, int) or not isinstance(b, int) or 2 * a >= b


def may_fail(region: Region, v: ir.Value) -> bool:
    """Tell whether computing v may fail, which only kernels look for."""
    e = Elements(Pool(), region.in_memory).at(v, identity_index(Var(d) for d in v.shape))
    return region.checks and any(map(is_checked, walk(e)))


def saved(region: Region, v: ir.Value) -> ir.Value:
    """Compute a value into memory of its own, and return a stand-in for it, to be read before any other memory is asked for."""
    slot = region.program.allocate(
        nbytes(v.shape, v.dtype.itemsize), region, "an overlapping assignment"
    )
    made = region.in_slot(slot, v)
    region.map_to(v, made.array, v.shape, lambda i: i)
    stand_in: ir.Value = StandIn(None, v.type)
    region.placed[stand_in] = made
    region.program.release(slot)
    return stand_in


def scatter(
    region: Region, node: ir.Node, outer: ir.Node | None = None, offset: Offset = _itself
) -> None:
    """Write to where index arrays say in a part of the array of `outer`, by itself in all of its own."""
    own, v, *indices = node.inputs
    line = line_of(region, indices)
    if outer is None and line is None and has_many_points(region, node):
        scatter_many(region, node)
        return
    outer = outer or node
    fits = line.fits(region.fn, region.dim(own.shape[node.attrs["axes"][0]])) if line else None
    with contextlib.nullcontext() if fits is None else region.fn.if_(region.fn.invert(fits)):
        for i, axis in zip(indices, node.attrs["axes"]):  # one index may stand for several axes
            check_indices(region, node, i, own.shape[axis], axis, v)
    placed, v = place_to_write(region, outer, v, indices)
    elements = Elements(Pool(), region.in_memory)
    stores = _Stores(region, node, placed, v, elements)

    def anywhere(points: tuple[Operand, ...]) -> Index:
        return offset(gathered_index(elements, node, own, indices, stores.index))

    def along(line: _Line) -> None:
        axes, place = node.attrs["axes"], region.fn.variable("i64")
        place.set(line.first)

        def next_place(points: tuple[Operand, ...]) -> Index:
            rest, here = iter(stores.index[1:]), place.get()
            place.set(region.fn.add(here, line.step))
            return offset(
                tuple(given(here) if k in axes else next(rest) for k in range(len(own.shape)))
            )

        stores.emit(1, next_place)

    rank = max(len(i.shape) for i in indices)
    if line is None or fits is None:
        stores.emit(rank, anywhere)
    else:
        region.fn.if_else(fits, partial(along, line), partial(stores.emit, 1, anywhere))


def place_to_write(
    region: Region, node: ir.Node, v: ir.Value, indices: Sequence[ir.Value]
) -> tuple[Placed, ir.Value]:
    """Return the memory in which a scatter happens, which none of its indices is read from, and what is written.

    That is computed before, if it reads that memory or may fail.
    """
    x = node.inputs[0]
    in_place = x in region.placed and region.may_overwrite(x)
    disturbed = in_place and any(clashes(region, i, x, None) for i in indices)
    reads = in_place and not disturbed and clashes(region, v, x, None)
    if reads:
        v = saved(region, v)
    placed = updated_place(region, node, disturbed=disturbed)
    return placed, saved(region, v) if not reads and may_fail(region, v) else v


_MANY = 1 << 15  # elements for which a routine is called


def has_many_points(region: Region, node: ir.Node) -> bool:
    """Tell whether a scatter is one of many elements into a row, for which there is a routine."""
    x, v, index = node.inputs[:3]
    placed = region.placed.get(x)
    if len(x.shape) != 1 or v.shape != index.shape or index.dtype != np.int64:
        return False
    if placed is not None and region.may_overwrite(x) and not placed.contiguous:
        return False
    size = size_of(v.shape)
    if isinstance(size, int):
        return size >= _MANY
    return not region.program.depth


def scatter_many(region: Region, node: ir.Node) -> None:
    """Call the routine that writes many elements."""
    fn, (x, v, source) = region.fn, node.inputs
    held: list[Slot] = []
    index = in_order(region, source, held)
    at_once = region.checks and stays_hidden(region, node)
    if region.checks and not at_once:
        pointers = (index.pointer, product(fn, index.dims), region.dim(x.shape[0]))
        first = call_routine(fn, "wrong_index", index.dtype, *pointers, result="i64")
        refuse(region, node, index, first)
    placed, v = place_to_write(region, node, v, [source])
    region.program.module.is_long = True
    first = write_many(region, node, placed.array, index, v, held)
    if at_once:
        refuse(region, node, index, first)
    for slot in held:
        region.program.release(slot)


def stays_hidden(region: Region, node: ir.Node) -> bool:
    """Tell whether elements may be written until an index is found to be wrong, since nobody will see them."""
    x = node.inputs[0]
    if x not in region.placed or not region.may_overwrite(x):
        return True
    slot = region.placed[x].slot
    return slot.kind == "block" and not slot.exchanged and not slot.lent


def in_order(region: Region, value: ir.Value, held: list[Slot]) -> Array:
    """Return a value in C order, computed into memory if it is not there: that of a slot which the caller gives back."""
    if region.in_memory(value) and region.place_of(value).contiguous:
        return region.array(value)
    size = nbytes(value.shape, value.dtype.itemsize)
    held.append(region.program.allocate(size, region, "indices or values of a scatter"))
    made = region.in_slot(held[-1], value)
    region.map_to(value, made.array, value.shape, _itself)
    return made.array


def refuse(region: Region, node: ir.Node, index: Array, first: Value) -> None:
    """Fail for the index of a point, if there is such a point."""
    fn = region.fn
    with fn.if_(fn.compare("sge", first, 0), unlikely=True):
        number = fn.load("i64", fn.gep(index.pointer, first, "i64"))
        size = region.dim(node.inputs[0].shape[0])
        region.program.stop(fn, ErrorSite("index", node, 0), number, size)


def write_many(
    region: Region, node: ir.Node, x: Array, index: Array, v: ir.Value, held: list[Slot]
) -> Value:
    """Write elements; return the number of the first point whose index is wrong, or -1."""
    fn = region.fn
    e = Elements(Pool(), region.in_memory).at(v, identity_index(Var(d) for d in v.shape))
    if e.vars:
        source, step = in_order(region, v, held).pointer, 1
    else:
        source, step = fn.alloca(x.dtype.itemsize), 0
        store_scalar(fn, x.dtype, Evaluator(fn, region, {}, [{}], unchecked).value(e), source)
    pointers, sizes = (x.pointer, index.pointer, source), (x.dims[0], product(fn, index.dims))
    stem = f"scatter_{node.attrs['mode']}"
    return call_routine(fn, stem, x.dtype, *pointers, *sizes, step, result="i64")


@dataclass
class _Stores:
    """Emits the loops of a scatter: where each element, or part, goes is told point by point."""

    region: Region
    node: ir.Node
    placed: Placed
    v: ir.Value
    elements: Elements

    def __post_init__(self) -> None:
        self.variables = tuple(Var(d) for d in self.v.shape)
        self.index = identity_index(self.variables)
        self.source = self.elements.at(self.v, self.index)

    def emit(self, rank: int, target_of: Callable[[tuple[Operand, ...]], Index]) -> None:
        """Emit loops over the first axes, those of the index, for each point of which one place is written."""
        evaluator = Evaluator(self.region.fn, self.region, {}, [{}], unchecked)

        def place(points: tuple[Operand, ...]) -> None:
            """One place in the array: an element, or a part of which all elements are different ones."""
            evaluator.points.update(zip(self.variables, points))
            with evaluator.scope():
                target = target_of(points)
                for affine in target:
                    for item, _ in affine.extra:
                        evaluator.compute(item)
                self.part(evaluator, target, points)

        self.region.loops(self.v.shape[:rank], place, as_written=True)

    def part(self, evaluator: Evaluator, target: Index, points: tuple[Operand, ...]) -> None:
        region, k = self.region, len(points)
        if k < len(self.variables):
            loop = region.fn.module.independent() if k == len(self.variables) - 1 else ("", "")
            with region.fn.loop(0, region.dim(self.v.shape[k]), metadata=loop[0]) as at:
                evaluator.points[self.variables[k]] = at
                evaluator.metadata = loop[1]
                self.part(evaluator, target, (*points, at))
            return
        array = self.placed.array
        with evaluator.scope():
            address, value = evaluator.address(array, target), evaluator.value(self.source)
            store_merged(region, self.node, array.dtype, address, value, evaluator.metadata)


class _Line(NamedTuple):
    """An index that goes on in even steps."""

    first: Value
    step: Value
    length: Operand

    def fits(self, fn: Function, size: Operand) -> Value:
        """Return whether all places surely are in an axis, counted from its start: both ends are, and nothing wraps round."""
        last = fn.add(self.first, fn.mul(fn.sub(self.length, 1), self.step))
        inside = fn.both(fn.compare("ult", self.first, size), fn.compare("ult", last, size))
        short = fn.compare("ult", fn.add(self.step, 1 << 31), 1 << 32)
        return fn.both(inside, fn.both(short, fn.compare("ult", self.length, 1 << 31)))


def line_of(region: Region, indices: Sequence[ir.Value]) -> _Line | None:
    """Return the index of a scatter if the plan found that it goes on in even steps, and so did not put it into memory."""
    index = indices[0]
    if len(indices) > 1 or region.in_memory(index):
        return None
    variables = tuple(Var(d) for d in index.shape)
    e = Elements(Pool(), region.in_memory).at(index, identity_index(variables))
    found = []
    for k in (0, 1):
        evaluator = Evaluator(region.fn, region, dict.fromkeys(variables, k), [{}], unchecked)
        number = evaluator.value(e)
        assert isinstance(number, Value)
        found.append(number)
    step = region.fn.binary("sub", found[1], found[0])
    return _Line(found[0], step, region.dim(index.shape[0]))


def check_indices(
    region: Region, node: ir.Node, index: ir.Value, size: DimLike, axis: int, v: ir.Value
) -> None:
    """Check all indices before anything is written."""
    variables = tuple(Var(d) for d in index.shape)
    evaluator = Evaluator(region.fn, region, {}, [{}], unchecked)
    e = Elements(Pool(), region.in_memory).at(index, identity_index(variables))
    bad = region.fn.variable("i1")
    bad.set(Value("false", "i1"))

    def look(report: bool) -> Callable[[tuple[Operand, ...]], None]:
        def body(points: tuple[Operand, ...]) -> None:
            with evaluator.scope():
                evaluator.points.update(zip(variables, points))
                given = evaluator.value(e)
                assert isinstance(given, Value)
                _, wrong = wrap_index(region.fn, given, index.dtype, region.dim(size))
                if report:
                    wide = region.fn.convert(
                        "sext" if index.dtype.kind == "i" else "zext", given, "i64"
                    )
                    region.program.fail(
                        region.fn, wrong, ErrorSite("index", node, axis), wide, region.dim(size)
                    )
                else:
                    bad.set(region.fn.either(bad.get(), wrong))

        return body

    look_at_all(region, index.shape, look(False))
    wrong = bad.get()
    if index.shape != v.shape[: len(index.shape)] or any(not isinstance(d, int) for d in v.shape):
        total: Operand = 1
        for d in v.shape:
            total = region.fn.mul(total, region.dim(d))
        wrong = region.fn.both(wrong, region.fn.compare("ne", total, 0)) if index.shape else wrong
    with region.fn.if_(wrong, unlikely=True):
        region.loops(index.shape, look(True), as_written=True)


def look_at_all(region: Region, shape: Shape, body: Callable[[tuple[Operand, ...]], None]) -> None:
    """Loop over all points, the last axis by vectors if that can be."""
    loops = WideLoops(region.fn.module)

    def row(points: tuple[Operand, ...]) -> None:
        loops.by_vectors(region.fn, (0, region.dim(shape[-1])), lambda at: body((*points, at)))

    region.loops(shape[:-1], row, as_written=True) if shape else body(())


def store_merged(
    region: Region,
    node: ir.Node,
    dtype: np.dtype,
    address: Value,
    value: Scalar,
    metadata: str = "",
) -> None:
    """Store an element by a scatter's mode."""
    mode = node.attrs.get("mode", "update")
    if mode != "update":
        old = load_scalar(region.fn, dtype, address, metadata)
        value = elementwise.combine(region.fn, MERGES[mode], dtype, old, value, reassociate=False)
    store_scalar(region.fn, dtype, value, address, metadata)


def scatter_number(region: Region, node: ir.Node) -> None:
    """A scatter into a number, which is in a register."""
    x, v = node.inputs[:2]
    value, mode = region.register(v), node.attrs["mode"]
    if mode != "update":
        value = elementwise.combine(
            region.fn, MERGES[mode], x.dtype, region.register(x), value, reassociate=False
        )
    region.registers[node.outputs[0]] = value
