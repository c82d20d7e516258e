"""Counted loops of stencils: many trips on a few rows, then on the next.

A trip computes each row from a few rows around it, so rows that are in the cache can make several trips there. Each thread has a
share of the rows, and makes some trips on it, each on fewer rows than the one before: on those whose neighbours it has itself. It goes
through its share in bands, which lean: in each trip a band is as far up as the trip before knows. What is then missing at the cuts
between shares is made up for, trip by trip, each on more rows than the one before.

    trip 0   aaaaaabbbbbbcccccc|aaaaaabbbbbbcccccc      a, b, c: bands of two shares, one share beside the other
    trip 1   aaaaabbbbbbcccccc-|-aaaabbbbbbccccccc      -: the cut, after both
    trip 2   aaaabbbbbbcccccc--|--aabbbbbbcccccccc

In: a loop whose trips are maps (elementwise kernels, and updates of boxes) over rows of the arrays that it carries. Every map of
a trip is a stage; with `reach` rows that a stage looks up or down at most, a share loses `reach` rows with each stage, and a band
moves up by as many. Then no stage overwrites what a band or cut that comes later still reads: stage k of a cut reads rows within
`(k + 1) * reach` of it, which shares leave alone from stage k + 1 on, and likewise for bands. Each element is computed as in the
plain loop, from the same numbers, so results have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsl.codegen.accesses import ceil_div, walk
from dsl.codegen.arrays import Array
from dsl.codegen.describe import describe
from dsl.codegen.elements import Elements
from dsl.codegen.expressions import Affine, Expression, Pool, Var, identity_index
from dsl.codegen.kernels import KernelEmitter
from dsl.codegen.kernels.pieces import pieces
from dsl.codegen.llvm import Function, Operand, Value, Variable
from dsl.codegen.memory import Placed, Slot, contiguous_strides, nbytes, note_exchange
from dsl.codegen.places import boxes_around, boxes_of
from dsl.codegen.plan import Kernel, Root, Single, Stage, Statement, is_checked
from dsl.codegen.repeats import Loop
from dsl.codegen.scalars import emit_scalar
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.dims import DimLike, lower_bound, symbols_of
from dsl.ir.facts import is_array
from dsl.ir.registry import Trait
from dsl.ir.types import Shape

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["emit_trapezoids"]

_REACH = 16  # rows that a stage may look up or down
_STAGES = 12  # of a trip
_FEW = 256  # points that are not worth it
_TRIPS = (
    16  # made before the cuts, after which the program looks whether the user wants to interrupt it
)
_INDEPENDENT = 64  # the same where rows do not look at one another
_CUT = 16  # rows of a share for each that a cut may take up or down
_FIRST, _SECOND, _LAST = 24 << 10, 512 << 10, 4 << 20  # bytes of a band that caches hold
_SMALL = 40_000.0  # nanoseconds of some trips that are not worth a thread


def emit_trapezoids(loop: Loop, trips: Value, poll: Callable[[], None]) -> bool:
    """Emit the trips band by band of rows, if that can be; return whether it was done."""
    if not all(item.home is not None and not item.sizes for item in loop.carried):
        return False
    if any(node.regions for node in loop.body.nodes):
        return False
    inner = loop.enter(loop.body, (Value("0", "i64"),))
    trip = _Trip(loop, inner)
    if not trip.understood():
        return False
    trip.settle()
    first = next(s for s in trip.statements if not _is_size(s))
    inner.timed(first, lambda: _Shares(trip, trips, poll).emit())
    trip.report()
    return True


def _is_size(statement: Statement) -> bool:
    """Tell whether a statement is about sizes, which are the same in all trips."""
    if not isinstance(statement, Single):
        return False
    node = statement.node
    given = all(is_array(v) or v.node.op.name in ("dim_size", "const") for v in node.inputs)
    return node.op.name == "dim_size" or (statement.kind == "check" and given)


def _is_plain(node: ir.Node) -> bool:
    """Tell whether a node works on numbers alone, and cannot fail."""
    fails = node.op.has(Trait.CHECKED) or node.op.name in ("power", "assert")
    return not fails and not any(v.shape for v in (*node.inputs, *node.outputs))


# -- what a trip does -------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Room:
    """Memory for one array of a trip: a carried one's home, or more that the loop needs."""

    like: ir.Value
    slot: Slot | None = None
    copied: ir.Value | None = None  # what is in it at first, since no trip writes all of it

    @property
    def shape(self) -> Shape:
        return self.like.shape

    @property
    def size(self) -> DimLike:
        return nbytes(self.like.shape, self.like.dtype.itemsize)


@dataclass(eq=False)
class _Map:
    """A kernel of a trip; `first` is the row of its first points, `rows` how many it has, None for one that has no axis of rows."""

    kernel: Kernel
    stage: int
    first: DimLike
    rows: DimLike | None
    targets: dict[ir.Value, ir.Value]  # of roots, what is stored
    statement: int


class _Trip:
    """The maps of a trip, where their arrays are, and how these change places at its end."""

    def __init__(self, loop: Loop, inner: Region) -> None:
        self.loop, self.inner = loop, inner
        plan = inner.planned()
        self.statements, self.within = plan.statements, plan.within
        self.homes = [_Room(item.param, item.home) for item in loop.carried]
        self.rooms = {item.param: room for item, room in zip(loop.carried, self.homes)}
        self.extra: list[_Room] = []
        self.maps: list[_Map] = []
        self.stages = self.reach = 0
        self.exchange: dict[_Room, _Room] = {}
        self.in_place: list[ir.Node] = []
        self.scalars: list[ir.Node] = []
        self.last: dict[ir.Value, int] = {}
        self.now = 0  # the statement that is looked at

    def understood(self) -> bool:
        """Tell whether trips can be made band by band of rows, and find out how."""
        for k, statement in enumerate(self.statements):
            self.last.update(dict.fromkeys(statement.reads, k))
        self.last.update(dict.fromkeys(self.loop.body.results, len(self.statements)))
        if self.within or not all(self.take(s) for self.now, s in enumerate(self.statements)):
            return False
        return bool(
            0 < self.stages <= _STAGES and self.change_places() and self.is_large()
            and self.knows_sizes() and all(self.can_allocate(room) for room in self.extra)
        )  # fmt: skip

    def knows_sizes(self) -> bool:
        """Tell whether the arrays of the loop tell all sizes."""
        sizes = [d for m in self.maps for d in (*m.kernel.space, m.first)]
        return set(symbols_of(*sizes)) <= set(self.inner.symbols)

    def take(self, statement: Statement) -> bool:
        if isinstance(statement, Kernel):
            return self.take_kernel(statement)
        if statement.kind == "update":
            return self.take_update(statement.node)
        if statement.kind == "pieces":
            return self.take_pieces(statement.node)
        if statement.kind == "scalar" and not _is_size(statement):
            self.scalars.append(statement.node)
            return _is_plain(statement.node)
        return _is_size(statement)

    def take_kernel(self, kernel: Kernel) -> bool:
        if kernel.inner or any(r.reduce or r.value.shape != kernel.space for r in kernel.roots):
            return False
        stored = [root for root in kernel.roots if self.last.get(root.value, -1) > self.now]
        for root in stored:
            self.rooms[root.value] = self.room_for(kernel, root)
        return self.add(kernel, {root.value: root.value for root in stored})

    def room_for(self, kernel: Kernel, root: Root) -> _Room:
        """The memory of an operand that dies here and is read just where the root is written, or other memory."""
        taken = [self.rooms[r.value] for r in kernel.roots if r.value in self.rooms]
        own = [item.param for item in self.loop.carried if item.result is root.value]
        for value in (*own, *kernel.reads):
            room = self.rooms.get(value)
            if (
                room is not None and room not in taken and room.shape == root.value.shape
                and value.dtype == root.value.dtype and self.dies(room)
                and self.reads_only(kernel, room, root.index)
            ):  # fmt: skip
                self.in_place.append(root.node)
                return room
        return self.new_room(root.value)

    def take_update(self, node: ir.Node) -> bool:
        """An update of a box: where it is if nobody needs the old value, else in other memory."""
        if node.op.name != "update_slice" or any(s != 1 for s in node.attrs["step"]):
            return False
        x, v = node.inputs[:2]
        start, (value,) = node.attrs["start"], node.outputs
        if not v.shape or any(isinstance(d, int) and d <= 0 for d in v.shape):
            return False
        kernel = self.map_of(v, v.shape, start)
        (root,) = kernel.roots
        room = self.rooms.get(x)
        if room is not None and self.dies(room) and self.reads_only(kernel, room, root.index):
            self.rooms[value] = room
            self.in_place.append(node)
            return self.add(kernel, {root.value: value})
        self.rooms[value] = made = self.new_room(value)
        if self.is_alone(x, value):
            made.copied = x
            return self.add(kernel, {root.value: value})
        around = boxes_around(value.shape, start, v.shape)
        return self.add_all(
            [*(self.map_of(x, space, at, at) for space, at in around), kernel], value
        )

    def take_pieces(self, node: ir.Node) -> bool:
        """An array that is put together from others."""
        (value,) = node.outputs
        parts = [
            self.map_of(x, space, place, first)
            for x, space, first, place in boxes_of(node, self.is_in_memory)
            if not any(isinstance(d, int) and d <= 0 for d in space)
        ]
        self.rooms[value] = self.new_room(value)
        return self.add_all(parts, value)

    def add_all(self, kernels: Sequence[Kernel], value: ir.Value) -> bool:
        """Add the kernels that together write an array, as one stage."""
        return all(
            self.add(part, {next(part.roots).value: value}, more=part is not kernels[-1])
            for part in kernels
        )

    def is_in_memory(self, value: ir.Value) -> bool:
        return value in self.rooms or self.inner.in_memory(value)

    def is_alone(self, x: ir.Value, value: ir.Value) -> bool:
        """Tell whether an update is all that happens to a carried array: what it leaves as it is stays so in all trips."""
        return any(item.param is x and item.result is value for item in self.loop.carried)

    def map_of(
        self, v: ir.Value, space: Shape, start: Sequence[DimLike], shift: Sequence[DimLike] = ()
    ) -> Kernel:
        """A kernel that stores the elements of v, from `shift` on, from `start` on."""
        variables = tuple(Var(d, f"i{k}") for k, d in enumerate(space))
        pool, index = Pool(), identity_index(variables)
        elements = Elements(pool, self.is_in_memory)
        place = tuple(i.plus(s) for i, s in zip(index, start))
        read = tuple(i.plus(s) for i, s in zip(index, shift)) if shift else index
        read = read if v.shape else ()
        kernel = Kernel(variables, pool, elements)
        kernel.stages = [Stage(False, [Root(v.node, StandIn(v), elements.at(v, read), place)])]
        return kernel

    def dies(self, room: _Room) -> bool:
        """Tell whether nothing in a room is read after this statement."""
        return all(
            self.last.get(v, -1) <= self.now for v, other in self.rooms.items() if other is room
        )

    def reads_only(self, kernel: Kernel, room: _Room, index: tuple[Affine, ...]) -> bool:
        """Tell whether a kernel reads from a room only what it overwrites at the same point, or never overwrites."""
        return all(
            e.index == index or _are_apart(e.index, index)
            for e in self.loads(kernel)
            if e.value is not None and self.rooms.get(e.value) is room
        )

    @staticmethod
    def loads(kernel: Kernel) -> Iterator[Expression]:
        for root in kernel.roots:
            yield from (e for e in walk(root.expression) if e.kind == "load")

    def new_room(self, value: ir.Value) -> _Room:
        made = _Room(value)
        self.extra.append(made)
        return made

    def add(self, kernel: Kernel, targets: dict[ir.Value, ir.Value], *, more: bool = False) -> bool:
        """Add a kernel, cut where it asks where it is; `more` of a stage are to follow."""
        own = {root.value for root in kernel.roots}
        for piece in pieces(kernel):
            if any(is_checked(e) for root in piece.roots for e in walk(root.expression)):
                return False
            if not self.place(piece, targets, own):
                return False
        self.stages += not more
        return True

    def place(self, kernel: Kernel, targets: dict[ir.Value, ir.Value], own: set[ir.Value]) -> bool:
        """Find the rows that a kernel writes, and how far from them it reads."""
        rows = {root.index[0] for root in kernel.roots if root.value in targets}
        if len(rows) != 1:
            return False
        (row,) = rows
        along = bool(row.terms)
        if row.extra or (along and row.terms != ((kernel.variables[0], 1),)):
            return False
        for e in self.loads(kernel):
            if e.value not in self.rooms or e.value in own:
                continue
            gap = e.index[0].offset - row.offset
            moves = any(along and kernel.variables[0] in i.vars for i in e.index[1:])
            if (
                e.index[0].extra
                or e.index[0].terms != row.terms
                or moves
                or not isinstance(gap, int)
            ):
                return False
            self.reach = max(self.reach, abs(gap))
        rows_here = kernel.space[0] if along else None
        self.maps.append(_Map(kernel, self.stages, row.offset, rows_here, targets, self.now))
        return self.reach <= _REACH

    def change_places(self) -> bool:
        """Find out where carried arrays are after a trip; memory that is given up takes the place of what was taken."""
        results = [item.result for item in self.loop.carried]
        if not all(result in self.rooms for result in results):
            return False
        ends = [self.rooms[result] for result in results]
        if len(set(ends)) < len(ends) or any(a.size != b.size for a, b in zip(self.homes, ends)):
            return False
        wanted = {home: end for home, end in zip(self.homes, ends) if home is not end}
        self.exchange = dict(wanted)
        for home in wanted:
            if home not in wanted.values():
                end = home
                while end in wanted:
                    end = wanted[end]
                self.exchange[end] = home
        # What a room was filled with is there in all trips only if it changes places with the array that it is of.
        return all(
            self.exchange.get(room) is self.rooms[room.copied]
            and self.exchange.get(self.rooms[room.copied]) is room
            for room in self.extra
            if room.copied is not None
        )

    def is_large(self) -> bool:
        points = [nbytes(m.kernel.space, 1) for m in self.maps]
        return any(not isinstance(n, int) or n >= _FEW for n in points)

    def can_allocate(self, room: _Room) -> bool:
        return set(symbols_of(room.size)) <= self.inner.program.entry_symbols

    def settle(self) -> None:
        """Give each room memory."""
        inner, program = self.inner, self.inner.program
        for room in self.extra:
            note = "update_slice" if room.copied is not None else room.like.node.op.name
            room.slot = program.allocate(room.size, inner, note)
        exchange = [(room.slot, other.slot) for room, other in self.exchange.items()]
        note_exchange({one: other for one, other in exchange if one and other})
        written = {self.rooms[value] for m in self.maps for value in m.targets.values()}
        if any(r.slot is not None and r.slot.kind == "param" for r in written | {*self.exchange}):
            program.note_write()
        for room in self.extra:
            if room.copied is not None:
                assert room.slot is not None
                target = inner.in_slot(room.slot, room.like)
                why = "for what an update leaves as it is, as two memories take turns"
                inner.copy_value(room.copied, target, why, self.loop.node)

    def report(self) -> None:
        inner, report = self.inner, self.inner.program.report
        report.in_place.extend((node.op.name, node.loc) for node in self.in_place)
        inner.mark = len(report.lines)
        report.lines.append("trips by bands of rows:")
        for k, statement in enumerate(self.statements):
            if _is_size(statement) or (
                isinstance(statement, Single) and statement.kind == "scalar"
            ):
                continue
            inner.mark = len(report.lines)
            if isinstance(statement, Single):
                for m in self.maps:
                    report.lines.extend(
                        describe(m.kernel, inner.names, {}) if m.statement == k else ()
                    )
            inner.note(statement, inner.names)


def _are_apart(one: tuple[Affine, ...], other: tuple[Affine, ...]) -> bool:
    """Tell whether two boxes surely have no element in common."""
    return any(_is_past(a, b) or _is_past(b, a) for a, b in zip(one, other, strict=True))


def _is_past(a: Affine, b: Affine) -> bool:
    """Tell whether all places of an index come after all of another."""
    if a.extra or b.extra or any(scale < 0 for _, scale in (*a.terms, *b.terms)):
        return False
    end = b.offset + 1
    for var, scale in b.terms:
        end = end + (var.extent - 1) * scale
    gap = lower_bound(a.offset - end)
    return gap is not None and gap >= 0


# -- the trips --------------------------------------------------------------------------------------------------------


Edge = tuple[Operand, Operand]  # a row, and by how many it moves with each stage


class _Shares:
    """Emits the trips of a loop."""

    def __init__(self, trip: _Trip, trips: Value, poll: Callable[[], None]) -> None:
        self.trip, self.trips, self.poll = trip, trips, poll
        self.inner, self.host = trip.inner, trip.inner.fn
        self.all = [*trip.homes, *trip.extra]
        self.slope = trip.reach
        self.rows: Operand = 0
        self.shares: Operand = 1
        self.band: Operand = 1
        self.most: Operand = _INDEPENDENT
        self.done: Operand = 0
        self.steps: Operand = 0
        self.pointers: dict[_Room, Value] = {}
        self.cuts: Value | None = None  # whether it is the cuts' turn

    def emit(self) -> None:
        host = self.host
        before, host.lanes = host.lanes, ()
        emitters = [KernelEmitter(self.inner, m.kernel, {}) for m in self.trip.maps]
        self.measure(alone=self.is_small(emitters))
        with host.loop(0, ceil_div(host, self.trips, self.most), as_written=True) as turn:
            for statement in self.trip.statements:
                if _is_size(statement):
                    self.inner.statement(statement)
            self.done = host.mul(turn, self.most)
            self.steps = host.minimum(self.most, host.sub(self.trips, self.done))
            self.pointers = {room: self.variable(room).get() for room in self.all}
            self.turn(emitters)
            with host.loop(0, self.steps, as_written=True):
                self.change_places({room: self.variable(room) for room in self.all})
            self.poll()
        host.lanes = before

    @staticmethod
    def variable(room: _Room) -> Variable:
        assert room.slot is not None
        return room.slot.variable

    def change_places(self, variables: dict[_Room, Variable]) -> None:
        found = {room: variables[other].get() for room, other in self.trip.exchange.items()}
        for room, pointer in found.items():
            variables[room].set(pointer)

    # -- sizes -------------------------------------------------------------------------------------------------------

    def measure(self, *, alone: bool) -> None:
        """Choose how many shares there are, how many trips they make before the cuts, and how many rows a band has."""
        host, dim = self.host, self.inner.dim
        for length in dict.fromkeys(room.shape[0] for room in self.all):
            self.rows = host.maximum(self.rows, dim(length))
        lost = max(1, self.slope * self.trip.stages)  # rows by which a cut grows with each trip
        row = host.maximum(dim(self.row_bytes()), 1)
        first, second, last = (self.divide(size, row) for size in (_FIRST, _SECOND, _LAST))
        if not alone:
            room = host.maximum(self.divide(self.rows, 4 * lost), 1)
            self.shares = host.minimum(host.call("i64", "dsl_threads"), room)
        if self.slope:
            trips = self.divide(self.divide(self.rows, _CUT * lost), self.shares)
            trips = host.minimum(host.minimum(trips, self.divide(last, 2 * lost)), _TRIPS)
            self.most = host.maximum(trips, 1)
        lean = host.mul(self.most, lost if self.slope else 0)
        self.band = self.larger(first, lean, self.larger(second, lean, 4 * lost))

    def larger(self, rows: Operand, lean: Operand, otherwise: Operand) -> Operand:
        """Return how many rows a band has if a cache holds so many rows, of which a band moves over some; not if it is most."""
        host = self.host
        rest, least = host.sub(rows, lean), host.maximum(lean, 4)
        if isinstance(rest, int) and isinstance(least, int):
            return rest if rest >= least else otherwise
        return host.select(host.compare("sge", rest, least), rest, otherwise)

    def divide(self, a: Operand, b: Operand) -> Operand:
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return self.host.binary("sdiv", a, b)

    def row_bytes(self) -> DimLike:
        """Return the bytes of a row of all arrays that a trip goes through."""
        reads = [e.value for m in self.trip.maps for e in self.trip.loads(m.kernel)]
        fixed = [v for v in dict.fromkeys(reads) if v is not None and v not in self.trip.rooms]
        rooms = [room.like for room in self.all]
        total: DimLike = 0
        for value in (*rooms, *(v for v in fixed if v.shape[:1] == rooms[0].shape[:1])):
            total = total + nbytes(value.shape[1:], value.dtype.itemsize)
        return total

    @staticmethod
    def cost(emitters: Sequence[KernelEmitter]) -> float:
        """Return a rough number of nanoseconds for one trip."""
        return sum(
            e.cost(e.kernel.stages) * e.elements_of([range(len(e.kernel.space))]) for e in emitters
        )

    def is_small(self, emitters: Sequence[KernelEmitter]) -> bool:
        known = all(isinstance(d, int) for m in self.trip.maps for d in m.kernel.space)
        return known and self.cost(emitters) * _TRIPS < _SMALL

    # -- shares and cuts ---------------------------------------------------------------------------------------------

    def turn(self, emitters: Sequence[KernelEmitter]) -> None:
        """Emit some trips: the shares, then the cuts between them, by one piece of code which asks whether it is at the cuts."""
        host = self.host
        self.place(self.pointers)
        each = self.cost(emitters) * self.guess() / 2
        if self.shares == 1:
            self.share(host, 0, 1)
        elif not self.slope:
            emitters[0].parallel(self.shares, each, self.share)
        else:
            with host.loop(0, 2, as_written=True) as phase:
                self.cuts = host.compare("ne", phase, 0)
                emitters[0].parallel(host.sub(self.shares, phase), each, self.share)

    def guess(self) -> int:
        """Return about how many trips there are before the cuts."""
        if isinstance(self.most, int):
            return self.most
        rows = self.rows if isinstance(self.rows, int) else 256
        return max(1, min(_TRIPS, rows // (2 * _CUT * self.slope * self.trip.stages)))

    def place(self, pointers: Mapping[_Room, Value]) -> None:
        """Let the arrays of a trip be where pointers say."""
        for value, room in self.trip.rooms.items():
            assert room.slot is not None
            dims = tuple(self.inner.dim(d) for d in value.shape)
            strides = contiguous_strides(self.host, value.shape, self.inner.dim)
            array = Array(value.dtype, pointers[room], dims, strides)
            self.inner.placed[value] = Placed(room.slot, array)

    def share(self, fn: Function, low: Operand, high: Operand) -> None:
        """Emit shares, or cuts: bands from the top to the bottom."""
        number = self.trip.loop.body.params[0]
        variables = {room: fn.variable("ptr") for room in self.all}
        with fn.loop(low, high, as_written=True) as at:
            top, bottom = self.edges(fn, at)
            height = fn.sub(bottom[0], top[0])
            bands = fn.maximum(ceil_div(fn, height, self.use(fn, self.band)), 1)
            with fn.loop(0, bands, as_written=True) as k:
                for room, variable in variables.items():
                    variable.set(fn.use(self.pointers[room]))
                ends = self.band_of(fn, k, bands, top[0])
                with fn.loop(0, self.use(fn, self.steps), as_written=True) as step:
                    trip = fn.add(self.use(fn, self.done), step)
                    self.inner.set_register(number, fn.as_value(trip, "i64"))
                    self.place({room: variable.get() for room, variable in variables.items()})
                    self.numbers(fn)
                    for m in self.trip.maps:
                        stage = fn.add(fn.mul(step, self.trip.stages), m.stage)
                        self.rows_of(fn, m, stage, (top, bottom), ends)
                    self.change_places(variables)

    def numbers(self, fn: Function) -> None:
        """Emit what a trip computes of numbers, its own among them."""
        before, self.inner.fn = self.inner.fn, fn
        for node in self.trip.scalars:
            emit_scalar(self.inner, node)
        self.inner.fn = before

    def edges(self, fn: Function, at: Operand) -> tuple[Edge, Edge]:
        """Return where a share, or a cut, starts and ends."""
        shares, rows = self.use(fn, self.shares), self.use(fn, self.rows)
        if self.cuts is None and self.slope:
            return (0, 0), (rows, 0)
        here, after = (self.cut(fn, place) for place in (at, fn.add(at, 1)))
        if self.cuts is None:
            return (here, 0), (after, 0)
        is_first = fn.compare("eq", at, 0)
        is_last = fn.compare("eq", fn.add(at, 1), shares)
        cuts = fn.use(self.cuts)
        rise = fn.select(cuts, -self.slope, fn.select(is_first, 0, self.slope))
        fall = fn.select(cuts, self.slope, fn.select(is_last, 0, -self.slope))
        return (fn.select(cuts, after, here), rise), (after, fall)

    def cut(self, fn: Function, at: Operand) -> Operand:
        """The first row of a share."""
        shares, rows = self.use(fn, self.shares), self.use(fn, self.rows)
        if all(isinstance(x, int) for x in (at, shares, rows)):
            return at * rows // shares  # type: ignore[operator]
        return fn.binary("udiv", fn.mul(at, rows), shares)

    def band_of(self, fn: Function, k: Operand, bands: Operand, top: Operand) -> tuple[Edge, Edge]:
        """Return where a band starts and ends; the first one starts above all rows, and the last ends below them."""
        far = 1 << 40
        band = self.use(fn, self.band)
        low = fn.add(top, fn.mul(k, band))
        is_last = fn.compare("eq", fn.add(k, 1), bands)
        start = fn.select(fn.compare("eq", k, 0), -far, low)
        return (start, -self.slope), (fn.select(is_last, far, fn.add(low, band)), -self.slope)

    @staticmethod
    def use(fn: Function, operand: Operand) -> Operand:
        return fn.use(operand) if isinstance(operand, Value) else operand

    def rows_of(
        self, fn: Function, m: _Map, stage: Operand, share: tuple[Edge, Edge], band: tuple[Edge, Edge]
    ) -> None:  # fmt: skip
        """Emit those rows of a map that a stage of a band has."""
        first = self.use(fn, self.inner.dim(m.first))

        def place(edge: Edge) -> Operand:
            return fn.sub(fn.add(edge[0], fn.mul(stage, edge[1])), first)

        low = fn.maximum(place(share[0]), place(band[0]))
        high = fn.minimum(place(share[1]), place(band[1]))
        stores = {root: self.inner.placed[value].array for root, value in m.targets.items()}
        emitter = KernelEmitter(self.inner, m.kernel, stores)
        if m.rows is None:
            inside = fn.both(fn.compare("sle", low, 0), fn.compare("sgt", high, 0))
            with fn.if_(inside):
                emitter.some_rows(fn, None)
            return
        # A band that has none of the rows is empty, not less: loops by vectors count down from its end.
        low = fn.maximum(low, 0)
        high = fn.maximum(fn.minimum(high, self.use(fn, self.inner.dim(m.rows))), low)
        emitter.some_rows(fn, (low, high))
