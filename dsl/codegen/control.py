"""Emits structured control flow: branches, loops, and how arrays pass in and out of them.

Every array result of a branch has one home, a slot that both sides leave it in: the memory of an operand that a side
passes on or updates in place, if that operand dies there, else a slot of its own. Every carried array of a loop has a
home too; a body that leaves the next value in another slot of the same size exchanges the two slots' memory at the end of
the trip, and copies where that cannot be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dsl.codegen.frame import STATUS
from dsl.codegen.llvm import Value, Variable, read
from dsl.codegen.memory import Placed, Slot, nbytes
from dsl.codegen.places import contiguous_copy
from dsl.codegen.plan import UPDATES
from dsl.codegen.ranges import Linear, Ranges
from dsl.codegen.repeats import emit_repeats
from dsl.ir import graph as ir
from dsl.ir.dims import Dim, symbols_of
from dsl.ir.types import TensorType

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["emit_control"]

_POLL = 1 << 16  # trips between looks at the clock, for the keyboard
_STEP = 1 << 20  # a counter with smaller steps than this wraps round in no loop that ends


def emit_control(region: Region, node: ir.Node) -> None:
    """Emit a `cond`, `while` or `scan`."""
    region.program.module.is_long = True
    {"cond": _cond, "while": _while, "scan": _scan}[node.op.name](region, node)


def _is_array(value: ir.Value) -> bool:
    return isinstance(value.type, TensorType) and bool(value.type.shape)


def home_of(graph: ir.Graph, result: ir.Value) -> int | None:
    """Return the number of the param that a result is an updated form of, or None."""
    params = {p: k for k, p in enumerate(graph.params)}
    seen = 0
    while result not in params:
        node = result.node
        seen += 1
        if node.op.name in UPDATES:
            result = node.inputs[0]
        elif node.op.name in ("while", "scan"):
            result = node.inputs[result.index + (node.op.name == "scan")]
        elif node.op.name == "cond":
            inner = home_of(node.regions[0], node.regions[0].results[result.index])
            if inner is None:
                inner = home_of(node.regions[1], node.regions[1].results[result.index])
            if inner is None:
                return None
            result = node.inputs[1 + inner]
        else:
            return None
        if seen > 1000:
            return None
    return params[result]


# -- cond -------------------------------------------------------------------------------------------------------------


def _cond(region: Region, node: ir.Node) -> None:
    fn = region.fn
    operands = node.inputs[1:]
    given = [_take(region, v) for v in operands]
    scalars = {v: region.scalar_variables(v.dtype) for v in node.outputs if not v.shape}
    homes = _homes(region, node, operands)
    sizes = _varying(region, node)
    predicate = region.register(node.inputs[0])
    assert isinstance(predicate, Value)
    before = _Memory(region)

    def side(graph: ir.Graph) -> Any:
        def emit() -> None:
            before.restore()
            inner = _enter(region, graph, given)
            _tell(region, inner, graph.params, operands)
            inner.ranges.facts = _facts_if(region, node.inputs[0], graph is node.regions[0])
            for k, value in enumerate(node.outputs):
                home = homes.get(value)
                if home is not None:
                    inner.wanted.setdefault(graph.results[k], home)
            inner.run()
            _leave(region, inner, node, graph, homes, scalars, sizes)

        return emit

    fn.if_else(predicate, side(node.regions[0]), side(node.regions[1]))
    before.restore()
    before.absorb()
    for value in operands:
        if _is_array(value) and region.dies(value):
            region.drop(value)
    for value, variables in scalars.items():
        region.registers[value] = read(variables)
    for value, home in homes.items():
        _bind_result(region, value, home, sizes)


def _tell(
    region: Region, inner: Region, params: Sequence[ir.Value], operands: Sequence[ir.Value]
) -> None:
    """Let a region know what is known about the integers it is given."""
    inner.ranges = Ranges(region.ranges)
    for param, operand in zip(params, operands, strict=True):
        if _is_integer(operand):
            inner.ranges.forms[param] = region.ranges.form(operand)


def _is_integer(value: ir.Value) -> bool:
    return isinstance(value.type, TensorType) and not value.shape and value.dtype.kind in "iu"


def _facts_if(region: Region, predicate: ir.Value, holds: bool) -> Any:
    """The facts that hold on one side of a branch."""
    side = Ranges(region.ranges)
    side.forms = region.ranges.forms
    side.assume_condition(predicate, holds)
    return side.facts


def _homes(region: Region, node: ir.Node, operands: tuple[ir.Value, ...]) -> dict[ir.Value, Slot]:
    """Choose the slot in which each array result is left."""
    homes: dict[ir.Value, Slot] = {}
    for k, value in enumerate(node.outputs):
        if not _is_array(value):
            continue
        slot = None
        for graph in node.regions:
            place = home_of(graph, graph.results[k])
            if place is None:
                continue
            operand = operands[place]
            placed = region.placed.get(operand)
            if (
                placed is not None and placed.contiguous and operand.type == value.type
                and region.may_overwrite(operand) and placed.slot not in homes.values()
            ):  # fmt: skip
                slot = placed.slot
                break
        homes[value] = slot or _fresh(region, value)
    return homes


def _fresh(region: Region, value: ir.Value) -> Slot:
    size = nbytes(value.shape, value.dtype.itemsize)
    try:
        known = set(symbols_of(size)) <= set(region.symbols)
    except TypeError:
        known = False
    if known or isinstance(size, int):
        return region.program.allocate(size, region, f"result of {value.node.op.name}")
    return region.program.dynamic(1, f"result of {value.node.op.name}")


def _varying(region: Region, node: ir.Node) -> dict[tuple[ir.Value, int], Variable]:
    """Variables for the dims of results that are known only when a side has run."""
    made: dict[tuple[ir.Value, int], Variable] = {}
    for value in node.outputs:
        if _is_array(value):
            for axis, dim in enumerate(value.shape):
                if isinstance(dim, Dim) and not set(symbols_of(dim)) <= set(region.symbols):
                    made[value, axis] = region.fn.variable("i64")
    return made


def _leave(
    outer: Region, inner: Region, node: ir.Node, graph: ir.Graph, homes: dict[ir.Value, Slot],
    scalars: dict[ir.Value, tuple[Variable, ...]], sizes: dict[tuple[ir.Value, int], Variable],
) -> None:  # fmt: skip
    """Put a side's results where the code after it expects them."""
    results = dict(zip(node.outputs, graph.results, strict=True))
    outer.assign(scalars, {v: inner.register(results[v]) for v in scalars})
    moves = []
    for value, home in homes.items():
        result = results[value]
        source = _settled(inner, result)
        for (owner, axis), variable in sizes.items():
            if owner is value:
                variable.set(inner.dim(result.shape[axis]))
        if source.slot is home and source.contiguous:
            continue
        if home.kind == "dynamic":
            inner.program.ensure(home, inner.dim(nbytes(result.shape, result.dtype.itemsize)))
        moves.append((source, inner.in_slot(home, result), result))
    inner.copy_together(moves)


def _settled(inner: Region, value: ir.Value) -> Placed:
    """Return where a result is; a splat constant is written out first."""
    from dsl.codegen.elements import splat

    if value in inner.placed:
        return inner.placed[value]
    if splat(value) is not None:
        made = inner.new_place(value)
        inner.map_to(value, made.array, value.shape, lambda i: i)
        return made
    return inner.place_of(value)


def _bind_result(
    region: Region, value: ir.Value, home: Slot, sizes: dict[tuple[ir.Value, int], Variable]
) -> None:
    for (owner, axis), variable in sizes.items():
        dim = value.shape[axis] if owner is value else None
        if owner is value and isinstance(dim, Dim) and symbols_of(dim) == [dim]:
            region.symbols[dim] = variable.get()
    if home in region.program.free:
        region.program.free.remove(home)
    region.bind(value, region.in_slot(home, value))


# -- loops ------------------------------------------------------------------------------------------------------------


class _Carried:
    """One carried value of a loop: a variable for a scalar, a home and perhaps dims for an array."""

    def __init__(
        self, region: Region, initial: ir.Value, param: ir.Value, result: ir.Value, in_place: bool
    ) -> None:
        self.initial, self.param, self.result = initial, param, result
        self.variables: tuple[Variable, ...] = ()
        self.home: Slot | None = None
        self.sizes: dict[int, Variable] = {}
        self.in_place = in_place


def _while(region: Region, node: ir.Node) -> None:
    test, body = node.regions
    loop = _Loop(region, node, node.inputs, 0)
    fn = region.fn
    head, inside, after = fn.label("while"), fn.label("do"), fn.label("done")
    every = _poll_every(body)
    left = fn.variable("i64", every)  # counted down: one instruction, which sets the flag too
    loop.begin()
    fn.start(head)
    inner = loop.enter(test, ())
    inner.run()
    inner.ranges.assume_condition(test.results[0])
    loop.facts = inner.ranges.facts
    predicate = inner.register(test.results[0])
    assert isinstance(predicate, Value)
    loop.memory.absorb_from(inner)
    fn.branch_if(predicate, inside, after)
    fn.start(inside)
    inner = loop.enter(body, ())
    inner.run()
    loop.next(inner, body)
    if every == 1:
        _poll(region)
    else:
        left.set(fn.binary("sub", left.get(), 1))
        with fn.if_(fn.compare("eq", left.get(), 0), unlikely=True):
            _poll(region)
            left.set(every)
    fn.branch(head)
    fn.continue_in(after)
    loop.end()


def _poll(region: Region) -> None:
    """Look whether the user wants to interrupt."""
    fn = region.fn
    stop = fn.call("i32", "dsl_poll")
    with fn.if_(fn.compare("ne", stop, 0), unlikely=True):
        region.program.status.set(STATUS.PYTHON)
        fn.branch(region.program.exit)


def _scan(region: Region, node: ir.Node) -> None:
    (body,) = node.regions
    fn = region.fn
    trips = region.register(node.inputs[0])
    assert isinstance(trips, Value)
    loop = _Loop(region, node, node.inputs[1:], 1)
    loop.begin()
    if emit_repeats(loop, trips, lambda: _poll(region)):
        loop.end()
        return
    every = _poll_every(body)
    poll = every > 1 and not _is_short(node)
    start = fn.variable("i64", 0)
    if poll:
        chunk_head, chunk_body, after = fn.label("chunks"), fn.label("chunk"), fn.label("done")
        fn.start(chunk_head)
        fn.branch_if(fn.compare("slt", start.get(), trips), chunk_body, after)
        fn.start(chunk_body)
        low = start.get()
        high = fn.minimum(fn.add(low, every), trips)
    else:
        low, high = Value("0", "i64"), trips
    with fn.loop(low, high) as trip:
        inner = loop.enter(body, (trip,))
        loop.count(inner, node.inputs[0])
        inner.run()
        loop.next(inner, body)
        if every == 1:
            _poll(region)
    if poll:
        start.set(high)
        with fn.if_(fn.compare("slt", high, trips)):
            _poll(region)
        once = region.program.module.metadata('!{!"llvm.loop.unroll.disable"}')
        keep = region.program.module.metadata(f"distinct !{{%self, {once}}}")
        fn.branch(chunk_head, f", !llvm.loop {keep}")
        fn.continue_in(after)
    loop.end()


def _is_zero(value: ir.Value) -> bool:
    return value.node.op.name == "const" and int(value.node.attrs["value"].array) == 0


def _poll_every(body: ir.Graph) -> int:
    """Return after how many trips to look: scalar code makes many in the time that looking takes, kernels do not."""
    weights = [_weight(node) for node in body.walk()]
    return {0: _POLL, 1: 64, 2: 1}[max(weights, default=0)]


def _weight(node: ir.Node) -> int:
    """0 for scalar code and branches, 1 for loops, 2 for what goes through arrays."""
    if node.op.name in ("while", "scan"):
        return 1
    if node.regions or node.op.name in _LIGHT:
        return 0
    return 2 if any(map(_is_array, (*node.inputs, *node.outputs))) else 0


_LIGHT = frozenset(("const", "gather", "scatter", "dim_size"))


def _is_short(node: ir.Node) -> bool:
    """Tell whether a counted loop surely makes few trips."""
    trips = node.inputs[0].node
    return trips.op.name == "const" and int(trips.attrs["value"].array) <= _POLL


class _Loop:
    """The carried values of a loop and the memory they take."""

    def __init__(
        self, region: Region, node: ir.Node, operands: tuple[ir.Value, ...], skip: int
    ) -> None:
        self.region, self.node, self.skip = region, node, skip
        count = node.attrs["carried"]
        self.body = node.regions[-1]
        self.invariants = operands[count:]
        params = self.body.params[skip : skip + count]
        self.carried = []
        for initial, param, result in zip(operands[:count], params, self.body.results, strict=True):
            own = self.body.params.index(param)
            in_place = _is_array(param) and home_of(self.body, result) == own
            self.carried.append(_Carried(region, initial, param, result, in_place))
        self.outputs = node.outputs
        self.facts: Any = {}
        self.forms = self.steps()

    def begin(self) -> None:
        region, fn = self.region, self.region.fn
        self.fixed = [_lend(region, v) for v in self.invariants]
        for item in self.carried:
            if not _is_array(item.initial):
                item.variables = region.scalar_variables(item.initial.dtype)
                region.assign({0: item.variables}, {0: region.register(item.initial)})
                continue
            item.home = self.home(item)
            for axis, dim in enumerate(item.param.shape):
                if (isinstance(dim, Dim) and dim != item.initial.shape[axis]) or (
                    item.home.kind == "dynamic" and isinstance(dim, Dim)
                ):
                    item.sizes[axis] = fn.variable("i64", region.dim(item.initial.shape[axis]))
        self.memory = _Memory(region)
        self.before = region.program.writes, region.program.failures

    def home(self, item: _Carried) -> Slot:
        """The initial value's own memory if it dies here, else a copy."""
        region = self.region
        value = item.initial
        placed = region.placed.get(value)
        taken: set[Slot | None] = {c.home for c in self.carried}
        taken |= {p.slot for p in self.fixed if isinstance(p, Placed)}
        varies = (
            any(isinstance(d, Dim) for d in item.param.shape) and item.param.shape != value.shape
        )
        free = placed is not None and region.may_overwrite(value) and placed.contiguous
        if placed is not None and free and placed.slot not in taken:
            fits = {"block": not varies, "param": item.in_place, "dynamic": True}
            if fits[placed.slot.kind]:
                placed.slot.users.discard(value)
                placed.slot.users.add(item.param)
                return placed.slot
        size = nbytes(value.shape, value.dtype.itemsize)
        if varies:
            slot = region.program.dynamic(region.dim(size), "a carried array")
        else:
            slot = region.program.allocate(size, region, "a carried array")
        slot.users.add(item.param)
        target = region.in_slot(slot, value)
        region.copy_value(
            value,
            target,
            "the first value of a loop's array, which is read elsewhere too",
            self.node,
        )
        return slot

    def enter(self, graph: ir.Graph, first: tuple[Value, ...]) -> Region:
        """Start a trip, or the loop's test: params stand for the carried values and the invariants."""
        region = self.region
        self.memory.restore()
        for item in self.carried:
            if item.home is not None:
                item.home.users = set()
                if item.home in region.program.free:
                    region.program.free.remove(item.home)
        is_body = graph is self.body
        given: list[Any] = list(first)
        for item in self.carried:
            if item.home is None:
                given.append(read(item.variables))
            else:
                given.append((item, is_body))
        given.extend(self.fixed)
        inner = type(region)(region.program, graph, region.symbols)
        self.inform(inner, graph)
        for param, value in zip(graph.params, given, strict=True):
            self.learn(inner, param, value)
        for param, value in zip(graph.params, given, strict=True):
            self.bind(inner, param, value)
        return inner

    def inform(self, inner: Region, graph: ir.Graph) -> None:
        """Pass on what is known about integers: invariants stay, and what only grows is never below its start."""
        outer = self.region.ranges
        inner.ranges = Ranges(outer)
        inner.ranges.facts.update(self.facts)
        params = graph.params[self.skip if graph is self.body else 0 :]
        for item, param in zip(self.carried, params):
            if _is_integer(param):
                inner.ranges.forms[param] = self.forms[item]
        for param, operand in zip(params[len(self.carried) :], self.invariants, strict=True):
            if _is_integer(operand):
                inner.ranges.forms[param] = outer.form(operand)

    def steps(self) -> dict[_Carried, Linear]:
        """Bounds of carried integers to which each trip adds a constant."""
        probe = Ranges()
        found = {}
        for item in self.carried:
            if not _is_integer(item.param):
                continue
            change = probe.form(item.result) - probe.form(item.param)
            start = self.region.ranges.form(item.initial)
            steady = not change.terms and abs(change.constant) < _STEP
            low = [start] if steady and change.constant >= 0 else []
            high = [start] if steady and change.constant <= 0 else []
            small = steady and self.region.ranges.is_small(start)
            found[item] = self.region.ranges.new(low, high, small=small)
        return found

    def count(self, inner: Region, trips: ir.Value) -> None:
        """A trip number is at least 0 and below the trips; `maximum(n, 0)` trips are n if there are any."""
        form = self.region.ranges.form(trips)
        node = trips.node
        if node.op.name == "maximum" and any(_is_zero(v) for v in node.inputs):
            form = self.region.ranges.form(next(v for v in node.inputs if not _is_zero(v)))
        high = []
        if inner.ranges.is_exact(form):
            inner.ranges.assume(form + -1)
            high = [form + -1]
        inner.ranges.forms[self.body.params[0]] = inner.ranges.new([Linear()], high, small=True)

    def learn(self, inner: Region, param: ir.Value, value: Any) -> None:
        """Let a region know the sizes that its params tell."""
        if isinstance(value, Placed):
            inner.bind_symbols(param.shape, value.array.dims)
        elif isinstance(value, tuple) and isinstance(value[0], _Carried):
            item = value[0]
            inner.bind_symbols(
                param.shape,
                [
                    item.sizes[axis].get() if axis in item.sizes else self.region.dim(dim)
                    for axis, dim in enumerate(item.initial.shape)
                ],
            )

    def bind(self, inner: Region, param: ir.Value, value: Any) -> None:
        if isinstance(value, tuple) and isinstance(value[0], _Carried):
            item, owned = value
            placed = inner.in_slot(item.home, param)
            inner.bind(param, placed)
            if not owned:
                item.home.users.add(item.param)  # the test may not write it
        elif isinstance(value, Placed):
            inner.placed[param] = value
        else:
            inner.registers[param] = value

    def next(self, inner: Region, body: ir.Graph) -> None:
        """Make a trip's results the carried values of the next."""
        region, fn = self.region, self.region.fn
        scalars = {k: item.variables for k, item in enumerate(self.carried) if item.home is None}
        values = {k: inner.register(self.carried[k].result) for k in scalars}
        arrays = [item for item in self.carried if item.home is not None]
        sources = {item: _settled(inner, item.result) for item in arrays}
        sizes = {
            (item, axis): inner.dim(item.result.shape[axis])
            for item in arrays
            for axis in item.sizes
        }
        exchange, moves = self.sort(inner, arrays, sources)
        inner.copy_together(moves)
        pointers = {slot: source.variable.get() for slot, source in exchange.items()}
        room = {
            slot: source.capacity.get()
            for slot, source in exchange.items()
            if source.capacity is not None
        }
        for slot, pointer in pointers.items():
            slot.variable.set(pointer)
        for slot, capacity in room.items():
            assert slot.capacity is not None
            slot.capacity.set(capacity)
        for (item, axis), size in sizes.items():
            item.sizes[axis].set(size)
        region.assign(scalars, values)
        for slot in exchange:
            self.memory.hold(slot)
            slot.exchanged = True
            if slot.kind == "param":
                region.program.note_write()
        self.memory.absorb_from(inner)
        _ = fn

    def sort(
        self, inner: Region, arrays: list[_Carried], sources: dict[_Carried, Placed]
    ) -> tuple[dict[Slot, Slot], list[tuple[Placed, Placed, ir.Value]]]:
        """Decide which slots exchange memory and which values are copied."""
        homes = {item.home for item in arrays}
        for slot in homes:  # what is saved on the way must not go to where something else belongs
            if slot in inner.program.free:
                inner.program.free.remove(slot)
        wanted: dict[Slot, Slot] = {}
        moved = []
        for item in arrays:
            source, home = sources[item], item.home
            assert home is not None
            if source.slot is home and source.contiguous:
                continue
            movable = (
                source.contiguous and _alike(source.slot, home)
                and source.slot not in wanted.values() and item.result in inner.placed
                and self.is_whole(inner, source.slot, arrays, sources)
                and (source.slot in homes or not self.memory.users.get(source.slot))
            )  # fmt: skip
            if movable:
                wanted[home] = source.slot
                continue
            if home.kind == "dynamic" and source.slot in homes:
                source = contiguous_copy(inner, item.result, source)
            moved.append((source, home, item.result))
        moves = []
        for source, home, result in moved:
            if home.kind == "dynamic":
                inner.program.ensure(home, inner.dim(nbytes(result.shape, result.dtype.itemsize)))
            moves.append((source, inner.in_slot(home, result), result))
        while True:
            busy = {target.slot for _, target, _ in moves} | {source.slot for source, _, _ in moves}
            clash = next(
                (home for home, slot in wanted.items() if slot in busy or home in busy), None
            )
            if clash is None:
                break
            del wanted[clash]
            item = next(i for i in arrays if i.home is clash)
            moves.append((sources[item], inner.in_slot(clash, item.result), item.result))
        full = dict(wanted)
        for home in wanted:
            if home not in wanted.values():  # what it gives up goes to the end of its chain
                end = home
                while end in wanted:
                    end = wanted[end]
                full[end] = home
        return full, moves

    @staticmethod
    def is_whole(
        inner: Region, slot: Slot, arrays: list[_Carried], sources: dict[_Carried, Placed]
    ) -> bool:
        """Tell whether only one carried value comes from a slot."""
        return sum(sources[item].slot is slot for item in arrays) == 1

    def end(self) -> None:
        region = self.region
        writes, failures = self.before
        if region.program.writes > writes and region.program.failures > failures:
            region.program.spoils = True  # a trip may fail after another one has written
        self.memory.finish()
        for item, output in zip(self.carried, self.outputs, strict=True):
            if item.home is None:
                region.registers[output] = read(item.variables)
                continue
            item.home.users = set()
            if item.home in region.program.free:
                region.program.free.remove(item.home)
            axes = sorted(item.sizes)
            region.bind_symbols(
                tuple(output.shape[a] for a in axes), [item.sizes[a].get() for a in axes]
            )
        for item, output in zip(self.carried, self.outputs, strict=True):
            if item.home is not None:
                region.bind(output, region.in_slot(item.home, output))


def _alike(one: Slot, other: Slot) -> bool:
    """Tell whether two slots may exchange their memory: blocks of one size, or such as grow."""
    if one.kind == "dynamic" or other.kind == "dynamic":
        return one.kind == other.kind
    return {one.kind, other.kind} <= {"block", "param"} and one.size == other.size


# -- operands and memory --------------------------------------------------------------------------------------------------


def _take(region: Region, value: ir.Value) -> Any:
    """An operand for a branch: a scalar, or an array with the right to overwrite it if it dies here."""
    return _lend(region, value)


def _lend(region: Region, value: ir.Value) -> Any:
    if not isinstance(value.type, TensorType):
        return None
    if not value.shape:
        return region.register(value)
    from dsl.codegen.elements import splat

    if splat(value) is not None and value not in region.placed:
        return region.place_constant(value)
    return region.place_of(value)


def _enter(region: Region, graph: ir.Graph, given: list[Any]) -> Region:
    """Start a branch: an operand that dies with it may be overwritten by the last param that stands for it."""
    inner = type(region)(region.program, graph, region.symbols)
    operands = region_operands(region)
    for param, value in zip(graph.params, given, strict=True):
        if not isinstance(value, Placed):
            inner.registers[param] = value
            continue
        inner.bind_symbols(param.shape, value.array.dims)
        inner.placed[param] = value
    for param, value in zip(graph.params, given, strict=True):
        if isinstance(value, Placed):
            outer = {v for v in value.slot.users if v in operands and region.dies(v)}
            if value.slot.users and value.slot.users <= outer:
                value.slot.users = {param}
            else:
                value.slot.users.add(param)
    return inner


def region_operands(region: Region) -> set[ir.Value]:
    """The values that the current statement reads."""
    return {v for v, k in region.last.items() if k == region.now}


class _Memory:
    """The state of all slots at some point of the emission, to return to for the other side of a branch."""

    def __init__(self, region: Region) -> None:
        self.program = region.program
        self.free = list(self.program.free)
        self.users = {slot: set(slot.users) for slot in self.program.slots}
        self.held: list[Slot] = []

    def restore(self) -> None:
        """Slots made since are free."""
        made = [s for s in self.program.slots if s not in self.users]
        for slot in made:
            slot.users = set()
        for slot, users in self.users.items():
            slot.users = set(users)
        self.program.free = [
            s for s in self.free + made if s not in self.held and s.kind != "param"
        ]

    def absorb(self) -> None:
        """Nothing to keep: both sides ended with everything but the homes free."""

    def absorb_from(self, inner: Region) -> None:
        return None

    def hold(self, slot: Slot) -> None:
        """A slot that exchanges its memory on each trip belongs to the loop while it runs."""
        if slot not in self.held:
            self.held.append(slot)

    def finish(self) -> None:
        self.held.clear()
        self.restore()
