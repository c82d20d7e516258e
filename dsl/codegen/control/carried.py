"""The values that a loop carries, and the memory they take.

Every carried array has a home; a body that leaves the next value in another slot of the same size exchanges the two slots'
memory at the end of the trip, and copies where that cannot be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsl.codegen.control.brief import counts_bits
from dsl.codegen.control.invariants import MOST_STEP, Invariants
from dsl.codegen.control.passing import Memory, home_of, is_integer, lend, settled
from dsl.codegen.control.records import is_kept, rare_side
from dsl.codegen.control.weights import weight
from dsl.codegen.llvm import Operand, Value, Variable, read
from dsl.codegen.memory import Placed, Slot, nbytes, note_exchange
from dsl.codegen.overwritten import is_overwritten
from dsl.codegen.places import contiguous_copy
from dsl.codegen.ranges import Linear, Ranges
from dsl.ir import graph as ir
from dsl.ir.dims import Dim, symbols_of
from dsl.ir.facts import constant_of, depends, is_array

if TYPE_CHECKING:
    from dsl.codegen.region import Region

__all__ = ["Carried", "Loop"]

_FEW = 64  # trips of a loop that LLVM may unroll
_SUMS = frozenset((
    "add", "subtract", "multiply", "bitwise_and", "bitwise_or", "bitwise_xor", "maximum", "minimum",
))  # fmt: skip
"""By which LLVM combines integers of many trips at once."""
_ORDERS = frozenset(("less", "less_equal", "greater", "greater_equal"))


class Carried:
    """One carried value of a loop: a variable for a scalar, a home and perhaps dims for an array."""

    def __init__(
        self, initial: ir.Value, param: ir.Value, result: ir.Value, in_place: bool
    ) -> None:
        self.initial, self.param, self.result = initial, param, result
        self.variables: tuple[Variable, ...] = ()
        self.home: Slot | None = None
        self.sizes: dict[int, Variable] = {}
        self.in_place = in_place
        self.lacks: Variable | None = (
            None  # whether memory for the next value lacks what an update leaves as it is
        )
        self.rest: tuple[Slot, int] | None = (
            None  # where it is, and how often the home had been taken then
        )

    @property
    def is_updated(self) -> bool:
        """Whether the next value is this one with a part of it overwritten, always the same part."""
        node = self.result.node
        return node.op.name == "update_slice" and node.inputs[0] is self.param


class Loop:
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
            in_place = is_array(param) and home_of(self.body, result) == own
            self.carried.append(Carried(initial, param, result, in_place))
        self.outputs = node.outputs
        self.facts: Any = {}
        self.counts: dict[Carried, list[bool]] = {}  # whether each trip adds to a number, or takes
        self.forms = self.bounds(node)

    def begin(self) -> None:
        region, fn = self.region, self.region.fn
        self.fixed = [lend(region, v) for v in self.invariants]
        for item in self.carried:
            if not is_array(item.initial):
                item.variables = region.scalar_variables(item.initial.dtype)
                region.assign({0: item.variables}, {0: region.register(item.initial)})
                continue
            item.home = self.home(item)
            for axis, dim in enumerate(item.param.shape):
                if (isinstance(dim, Dim) and dim != item.initial.shape[axis]) or (
                    item.home.kind == "dynamic" and isinstance(dim, Dim)
                ):
                    item.sizes[axis] = fn.variable("i64", region.dim(item.initial.shape[axis]))
            if item.is_updated:
                item.lacks = fn.variable("i1", Value("true", "i1"))
        self.memory = Memory(region)
        self.before = region.program.writes, region.program.failures

    def home(self, item: Carried) -> Slot:
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
            fits = {"block": not varies, "param": item.in_place and not varies, "dynamic": True}
            if fits[placed.slot.kind]:
                placed.slot.users.discard(value)
                placed.slot.users.add(item.param)
                return placed.slot
        size = nbytes(value.shape, value.dtype.itemsize)
        if varies:
            slot = region.program.dynamic(region.bytes(size), "a carried array")
        else:
            slot = region.program.allocate(size, region, "a carried array")
        slot.users.add(item.param)
        if not is_overwritten(value, [self.node]):
            why = "the first value of a loop's array, which is read elsewhere too"
            region.copy_value(value, region.in_slot(slot, value), why, self.node)
        return slot

    def enter(self, graph: ir.Graph, first: tuple[Value, ...]) -> Region:
        """Start a trip, or the loop's test: params stand for the carried values and the invariants."""
        region = self.region
        self.memory.restore()
        for item in self.carried:
            if item.home is not None:
                item.home.users = set()
                region.program.take(item.home)
        is_body = graph is self.body
        given: list[Any] = list(first)
        for item in self.carried:
            if item.home is None:
                given.append(read(item.variables))
            else:
                given.append((item, is_body))
        given.extend(self.fixed)
        inner = region.inner(graph)
        inner.loop = self if is_body else None
        inner.ranges = self.known(graph)
        for param, value in zip(graph.params, given, strict=True):
            self.learn(inner, param, value)
        for param, value in zip(graph.params, given, strict=True):
            self.bind(inner, param, value)
        return inner

    def known(self, graph: ir.Graph) -> Ranges:
        """Return what is known about integers: invariants stay, and what only grows is never below its start."""
        outer = self.region.ranges
        inner = Ranges(outer)
        inner.facts.update(self.facts)
        params = graph.params[self.skip if graph is self.body else 0 :]
        for item, param in zip(self.carried, params):
            if is_integer(param):
                inner.forms[param] = self.forms[item]
        for param, operand in zip(params[len(self.carried) :], self.invariants, strict=True):
            if is_integer(operand):
                inner.forms[param] = outer.form(operand)
        return inner

    def bounds(self, node: ir.Node) -> dict[Carried, Linear]:
        """What is known of carried integers in all trips."""
        steps = self.steps()
        known = {k: steps[item] for k, item in enumerate(self.carried) if item in steps}
        found = Invariants(node, self.region.ranges, known).find()
        return {self.carried[k]: form for k, form in found.items()}

    def steps(self) -> dict[Carried, Linear]:
        """Bounds of carried integers which no trip makes smaller, or none larger, by little at a time."""
        probe = Ranges()
        found = {}
        for item in self.carried:
            if not is_integer(item.param):
                continue
            change = probe.form(item.result) - probe.form(item.param)
            start = self.region.ranges.form(item.initial)
            steady = probe.is_natural(change + MOST_STEP) and probe.is_natural(
                Linear((), MOST_STEP) - change
            )
            low = [start] if steady and probe.is_natural(change) else []
            high = [start] if steady and probe.is_natural(change.times(-1)) else []
            self.counts[item] = [steady and probe.is_natural(change.times(s) + -1) for s in (1, -1)]
            small = steady and self.region.ranges.is_small(start)
            found[item] = self.region.ranges.new(low, high, small=small)
        return found

    def clock(self, ranges: Ranges) -> Carried | None:
        """Return a number that each trip brings nearer to where the test, of which the ranges know that it holds, ends the loop."""
        own = {atom for form in self.forms.values() for atom, _ in form.terms}
        for item, (rises, falls) in self.counts.items():
            ((atom, _),) = self.forms[item].terms
            lows, highs = ranges.facts.get(atom, ([], []))
            ends = [*(highs if rises else ()), *(lows if falls else ())]
            if any(own.isdisjoint(a for a, _ in end.terms) for end in ends):
                return item
        return None

    def is_serial(self, by_vectors: bool = False) -> bool:
        """Tell whether LLVM's passes over loops have nothing to do here: trips wait for one another.

        A loop around others is not vectorised, nor one whose trips cannot be counted. Loops of few trips are unrolled. Where
        elements of arrays are read or written, that is so of long loops at the top alone: others gain by what is moved out of them.
        Beside kernels and loops that are written by vectors, which say for themselves what they need, nothing else counts.
        """
        if counts_bits(self.node):
            return False
        inside = [n for graph in self.node.regions for n in graph.walk()]
        loops = any(n.op.name in ("while", "scan") for n in self.body.nodes)
        if any(is_array(v) for v in (*self.node.inputs, *(o for n in inside for o in n.outputs))):
            weights = {weight(n) for n in inside if n.op.name not in ("while", "scan")}
            if weights == {0} and not by_vectors:
                top = not loops and not self.region.program.depth
                return top and self.is_counted() and self.waits()
            return weights <= {0, 2}
        return loops or not self.is_counted() or self.waits()

    def may_be_vectorised(self) -> bool:
        """Tell whether LLVM may make several trips at once: not those that contain loops, or may end with an exception."""
        ends = any(n.op.name in ("while", "scan", "assert") for n in self.body.walk())
        return not ends and self.is_counted() and not self.waits()

    def waits(self) -> bool:
        """Tell whether a trip needs a number of the trip before in a way that keeps LLVM from vectorising, and trips are many."""
        trips = self.node.inputs[0].node
        few = len(self.node.regions) == 1 and trips.op.name == "const"
        if few and int(trips.attrs["value"].array) <= _FEW:
            return False
        return any(self.is_chain(item) for item in self.carried if not is_array(item.param))

    def is_chain(self, item: Carried) -> bool:
        """Tell whether a number comes of its last value otherwise than as a sum of integers, say, or the best so far."""
        if not depends(item.result, item.param) or rare_side(self, item.result.node) is not None:
            return False
        if item.param.dtype.kind in "fc":
            return not self.region.fn.module.fastmath
        if _is_chosen(item):
            return False
        others = [v for v in item.result.node.inputs if v is not item.param]
        sums = item.result.node.op.name in _SUMS and len(others) == 1
        return not sums or depends(others[0], item.param)

    def is_masked(self) -> bool:
        """Tell whether each trip cuts a whole number off to some bits, of which the last trip's cut alone is needed."""
        return any(
            item.result.node.op.name == "bitwise_and"
            and not _is_product_of_words(item.result.node)
            and depends(item.result, item.param)
            for item in self.carried
            if is_integer(item.param)
        )

    def is_counted(self) -> bool:
        """Tell whether a number to which each trip adds a constant ends the loop."""
        if len(self.node.regions) == 1:  # a scan
            return True
        test, probe = self.node.regions[0], Ranges()
        read = {value for node in test.nodes for value in node.inputs}
        return any(
            not (probe.form(item.result) - probe.form(item.param)).terms
            for item, param in zip(self.carried, test.params)
            if param in read and is_integer(item.param)
        )

    def number_of(self, value: ir.Value | None, plus: int) -> Operand:
        """Return an integer that a param of the body stands for in all trips, if there is one, and a constant."""
        if value is None:
            return plus
        place = self.body.params.index(value) - self.skip - len(self.carried)
        found = self.region.register(self.invariants[place])
        assert isinstance(found, Value)
        return self.region.fn.add(found, plus)

    def learn(self, inner: Region, param: ir.Value, value: Any) -> None:
        """Let a region know the sizes that its params tell."""
        if isinstance(value, Placed):
            inner.bind_symbols(param.shape, value.array.dims)
        elif isinstance(value, tuple) and isinstance(value[0], Carried):
            item = value[0]
            inner.bind_symbols(
                param.shape,
                [
                    item.sizes[axis].get() if axis in item.sizes else self.region.dim(dim)
                    for axis, dim in enumerate(item.initial.shape)
                ],
            )

    def bind(self, inner: Region, param: ir.Value, value: Any) -> None:
        if isinstance(value, tuple) and isinstance(value[0], Carried):
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
        region = self.region
        scalars = {k: item.variables for k, item in enumerate(self.carried) if item.home is None}
        values = {k: inner.register(self.carried[k].result) for k in scalars}
        arrays = [item for item in self.carried if item.home is not None]
        sources = {item: settled(inner, item.result) for item in arrays}
        sizes = {
            (item, axis): inner.dim(item.result.shape[axis])
            for item in arrays
            for axis in item.sizes
        }
        exchange, moves = self.sort(inner, arrays, sources)
        self.note_rest(arrays, exchange)
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
        note_exchange(exchange)
        for slot in exchange:
            self.memory.hold(slot)
            if slot.kind == "param":
                region.program.note_write()

    def lacks_rest(self, value: ir.Value, slot: Slot) -> Value | None:
        """Return whether new memory for a carried array's next value lacks what an update leaves as it is; None if it always does.

        Two memories take turns: after the first trip, the next value's had the one before, which has that part as well.
        """
        item = next((i for i in self.carried if i.result is value and i.lacks is not None), None)
        dims = (*value.shape, *value.node.inputs[1].shape, *value.node.attrs["start"])
        if item is None or item.sizes or not set(symbols_of(*dims)) <= set(self.region.symbols):
            return None
        assert item.home is not None
        assert item.lacks is not None
        item.rest = slot, item.home.taken
        return item.lacks.get()

    def note_rest(self, arrays: list[Carried], exchange: dict[Slot, Slot]) -> None:
        """From the second trip on nothing is lacking, if two memories take turns and nothing else was in the old one meanwhile."""
        for item in arrays:
            if item.rest is None or item.lacks is None or item.home is None:
                continue
            slot, taken = item.rest
            turns = exchange.get(item.home) is slot and exchange.get(slot) is item.home
            if turns and item.home.taken == taken:
                item.lacks.set(Value("false", "i1"))

    def sort(
        self, inner: Region, arrays: list[Carried], sources: dict[Carried, Placed]
    ) -> tuple[dict[Slot, Slot], list[tuple[Placed, Placed, ir.Value]]]:
        """Decide which slots exchange memory and which values are copied."""
        homes = {item.home for item in arrays if item.home is not None}
        for slot in homes:  # what is saved on the way must not go to where something else belongs
            inner.program.take(slot)
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
        inner: Region, slot: Slot, arrays: list[Carried], sources: dict[Carried, Placed]
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
                self.tell(item, output)
                continue
            item.home.users = set()
            region.program.take(item.home)
            axes = sorted(item.sizes)
            region.bind_symbols(
                tuple(output.shape[a] for a in axes), [item.sizes[a].get() for a in axes]
            )
        for item, output in zip(self.carried, self.outputs, strict=True):
            if item.home is not None:
                region.bind(output, region.in_slot(item.home, output))

    def tell(self, item: Carried, output: ir.Value) -> None:
        """Let what comes after know the bounds of an integer, which the last trip keeps to as well."""
        if item in self.forms:
            ((atom, _),) = self.forms[item].terms
            ranges = self.region.ranges
            ranges.forms[output] = ranges.new(atom.low, atom.high, small=atom.small)


def _alike(one: Slot, other: Slot) -> bool:
    """Tell whether two slots may exchange their memory: blocks of one size, or such as grow."""
    if one.kind == "dynamic" or other.kind == "dynamic":
        return one.kind == other.kind
    return {one.kind, other.kind} <= {"block", "param"} and one.size == other.size


def _is_chosen(item: Carried) -> bool:
    """Tell whether a branch keeps a number, and else adds to it or takes the one it was compared to: `if x[i] > best: best = x[i]`."""
    node, own = item.result.node, item.param
    if node.op.name != "cond" or any(depends(v, own) for v in node.inputs[1:] if v is not own):
        return False
    changes = [side for side in node.regions if not is_kept(node, side, item)]
    if len(changes) != 1:
        return False
    if depends(node.inputs[0], own):
        test = node.inputs[0].node
        others = [v for v in test.inputs if v is not own]
        return test.op.name in _ORDERS and len(others) == 1 and not depends(others[0], own)
    (side,) = changes
    return _is_sum_of(
        side.results[item.result.index],
        [param for param, v in zip(side.params, node.inputs[1:]) if v is own],
    )


def _is_sum_of(value: ir.Value, params: list[ir.Value]) -> bool:
    """Tell if a number is one of a branch's params and something else, combined as LLVM does of many trips, or has none of them."""
    if not any(depends(value, param) for param in params):
        return True
    others = [v for v in value.node.inputs if v not in params]
    free = not any(depends(v, param) for v in others for param in params)
    return value.node.op.name in _SUMS and len(others) == 1 and free


def _is_product_of_words(node: ir.Node) -> bool:
    """Tell whether a product is cut off to 32 bits: a multiplication of 32 bits does it along the way."""
    cut, mask = node.inputs
    known = constant_of(mask)
    return cut.node.op.name == "multiply" and known is not None and int(known) == 0xFFFFFFFF
