"""The tables of a graph for the scheduling core, laid out by `dsl.codegen.cpu.token_layout`.

In: the units of a graph and their programs. Out: a `Plan`, whose `words` hold everything that does not change: records of
frames, units, outputs and readers that point to one another, and the words of constants. Words are written with
addresses relative to the start, which are made absolute at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dsl.codegen.cpu import token_layout as layout
from dsl.codegen.cpu.token_layout import Kind
from dsl.errors import UnsupportedError
from dsl.executor.frames import Frames, StaticFrame
from dsl.executor.programs import Program, Programs
from dsl.executor.programs import layout as program_layout
from dsl.executor.units import Unit, is_preset, make_units
from dsl.ir.checks.frames import most_iterations
from dsl.ir.devices import DeviceName
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import TensorType

__all__ = ["Handed", "Plan", "Slot", "make_plan"]

_MOVES = {
    "switch": Kind.SWITCH, "merge": Kind.MERGE, "loop_merge": Kind.PASS, "loop_cond": Kind.PASS, "exit": Kind.EXIT,
    "next_iteration": Kind.NEXT, "identity": Kind.PASS, "stop_gradient": Kind.PASS,
}  # fmt: skip


@dataclass(frozen=True)
class Slot:
    """Where the words of a value are: so many words after the start of something."""

    type: TensorType
    word: int


@dataclass(frozen=True)
class Handed:
    """A unit for Python: where its inputs and outputs are in its iteration, and the graph to interpret, if that is it."""

    unit: Unit
    slots: int
    inputs: list[Slot]
    outputs: list[Slot]
    program: Program | None


@dataclass
class Plan:
    """The tables of a graph. Places in feeds and fetches are words from the start of those areas of a run."""

    graph: Graph
    units: list[Unit]
    words: np.ndarray
    address: int
    frames: list[StaticFrame]
    params: list[Slot]
    feeds: np.ndarray  # with the constants in place
    fetches: dict[Value, Slot]
    fetch_words: int
    handed: dict[int, Handed]  # by the address of the unit
    by_address: dict[int, Unit]
    programs: dict[Unit, Program]


def token_words(type: TensorType) -> int:
    """How many words a token takes where a program's frame has it."""
    return 1 + 2 * type.rank if type.rank else 2


def owner_word(type: TensorType) -> int:
    """Which word of a token has the owner; 0 if there is none."""
    return 1 + type.rank if type.rank else 0


def make_plan(
    graph: Graph, *, cluster: bool, parallel_iterations: int, timed: bool = False,
    gpu: DeviceName | None = None,
) -> Plan:  # fmt: skip
    """Group, compile and lay out a flat graph; `timed`, with programs that measure themselves, or for a GPU."""
    frames = Frames(graph)
    units = make_units(graph, frames, cluster)
    programs = Programs(timed=timed, gpu=gpu)
    return _Tables(graph, frames, units, parallel_iterations, programs).make()


@dataclass
class _Placed:
    """A unit with the places of its state, inputs and results in an iteration."""

    unit: Unit
    kind: int
    state: int
    slots: int
    inputs: list[Slot]  # from the start of the iteration
    outputs: list[Slot]  # from `slots`
    program: Program | None = None
    index: int = 0


@dataclass
class _Area:
    """The layout of a frame: words of an iteration, and of what an instance stores."""

    number: int
    words: int = layout.Iteration.SIZE
    placed: list[_Placed] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    invariants: list[_Placed] = field(default_factory=list)
    nexts: list[_Placed] = field(default_factory=list)
    exits: int = 0
    widest: int = 2  # of the tokens that an instance stores


class _Tables:
    def __init__(
        self, graph: Graph, frames: Frames, units: list[Unit], parallel_iterations: int,
        programs: Programs,
    ) -> None:  # fmt: skip
        self.graph, self.frames, self.units = graph, frames, units
        self.parallel = parallel_iterations
        self.programs = programs
        self.areas = {f: _Area(k) for k, f in enumerate(frames.all.values())}
        self.placed: dict[Unit, _Placed] = {}
        self.words: list[int] = []
        self.relative: list[int] = []  # words that are addresses in the table
        self.readers: dict[Value, list[tuple[_Placed, int]]] = {}
        self.waiters: dict[Unit, list[_Placed]] = {}
        self.at: dict[Unit, int] = {}
        self.homes: dict[Node, Unit] = {}  # of constants that wait for something
        self.fetches: dict[Value, Slot] = {}
        self.fetch_words = 1

    def make(self) -> Plan:
        for unit in self.units:
            self.place(unit)
        self.place_fetches()
        for placed in self.placed.values():
            self.note_readers(placed)
        plan = self.reserve(layout.Plan.SIZE)
        frames = self.reserve(layout.Frame.SIZE * len(self.areas))
        for placed in self.placed.values():
            self.at[placed.unit] = self.reserve(layout.Unit.SIZE)
        for placed in self.placed.values():
            self.write_unit(placed, frames)
        for area in self.areas.values():
            self.write_frame(area, frames)
        presets, count, params, feeds = self.write_presets()
        sources = [
            self.at[p.unit] for p in self.placed.values() if not p.inputs and not p.unit.waits
        ]
        self.put(
            plan, FRAME=frames, FRAMES=len(self.areas), PRESETS=presets, PRESET_COUNT=count,
            SOURCES=self.write_list(sources, True), SOURCE_COUNT=len(sources),
            FETCHES=len(self.fetches), record=layout.Plan,
        )  # fmt: skip
        words, address = self.finish()
        by_address = {address + 8 * place: unit for unit, place in self.at.items()}
        return Plan(
            self.graph, self.units, words, address, list(self.areas), params, feeds, self.fetches,
            self.fetch_words, self.handed(address), by_address,
            {p.unit: p.program for p in self.placed.values() if p.program is not None},
        )  # fmt: skip

    # -- places ----------------------------------------------------------------------------------------------------

    def place(self, unit: Unit) -> None:
        """Give a unit its words in the iterations of its frame."""
        area = self.areas[unit.frame]
        kind, program = self.kind(unit)
        slots = area.words + 1
        inputs: list[Slot] = []
        outputs: list[Slot] = []
        words = 0
        if program is not None:
            placing = program_layout(program.graph)
            inputs = [
                Slot(v.tensor, slots + p.word)
                for v, p in zip(unit.inputs, placing.params, strict=True)
            ]
            outputs = [Slot(unit.outputs[k].tensor, place.word) for place, k in placing.results]
            words = placing.words
        else:
            shared = kind == Kind.MERGE
            for value in unit.inputs:
                inputs.append(Slot(_tensor(value), slots + (0 if shared else words)))
                needed = token_words(_tensor(value))
                words = max(words, needed) if shared else words + needed
            for value in unit.outputs:
                outputs.append(Slot(_tensor(value), words if kind >= Kind.HANDED else 0))
                words += token_words(_tensor(value)) if kind >= Kind.HANDED else 0
        placed = _Placed(unit, kind, area.words, slots, inputs, outputs, program)
        self.placed[unit] = placed
        if kind == Kind.CONSTANT:
            self.homes[unit.node] = unit
        area.placed.append(placed)
        area.words = slots + words
        places = {slot.word + owner_word(slot.type) for slot in inputs if slot.type.rank}
        area.owners.extend(sorted(places))
        self.place_stored(placed)

    def place_stored(self, placed: _Placed) -> None:
        """Note what the instances of a frame have to store."""
        kind, unit = placed.kind, placed.unit
        if kind == Kind.INVARIANT:
            area = self.areas[self.frames.after(unit.node)]
            area.invariants.append(placed)
        elif kind == Kind.NEXT:
            area = self.areas[unit.frame]
            area.nexts.append(placed)
        else:
            self.areas[unit.frame].exits += kind == Kind.EXIT
            return
        area.widest = max(area.widest, token_words(placed.inputs[0].type))

    def kind(self, unit: Unit) -> tuple[int, Program | None]:
        node = unit.node
        name = node.op.name
        if unit.is_program:
            if not unit.outputs and not _has_effect(unit):
                return Kind.CONSTANT, None
            program = self.programs.make(unit)
            return (Kind.HANDED if program.native is None else Kind.PROGRAM), program
        if name == "const":
            return Kind.CONSTANT, None
        if name in ("send", "recv"):
            return Kind.ALWAYS_HANDED, None
        if name == "enter":
            return (Kind.INVARIANT if node.attrs.get("invariant") else Kind.ENTER), None
        return _MOVES.get(name, Kind.HANDED), None

    def place_fetches(self) -> None:
        """Make room for the results of the graph that are in the root frame; others never come."""
        for value in self.graph.results:
            if value not in self.fetches and self.frames.where(value) is self.frames.root:
                self.fetches[value] = Slot(_tensor(value), self.fetch_words + 1)
                self.fetch_words += 1 + token_words(_tensor(value))

    def note_readers(self, placed: _Placed) -> None:
        unit = placed.unit
        for value, slot in zip(unit.inputs, placed.inputs, strict=True):
            self.readers.setdefault(value, []).append((placed, slot.word))
        for source in unit.waits:
            self.waiters.setdefault(source, []).append(placed)
        back = self.graph.back.get(unit.node)
        if back is not None:
            self.readers.setdefault(back, []).append((placed, placed.inputs[0].word))

    # -- records ---------------------------------------------------------------------------------------------------

    def write_unit(self, placed: _Placed, frames: int) -> None:
        unit, program = placed.unit, placed.program
        owners = [slot.word + owner_word(slot.type) for slot in placed.inputs if slot.type.rank]
        if placed.kind == Kind.MERGE:
            owners = owners[:1]
        waiters = self.waiters.get(unit, [])
        native = program.native if program is not None else None
        callback = program.callback if program is not None else None
        self.put(
            self.at[unit], record=layout.Unit, KIND=placed.kind, STATE=placed.state, INITIAL=_initial(placed),
            SLOTS=placed.slots, OWNERS=self.write_list(owners), OWNER_COUNT=len(owners),
            OUTPUTS=self.write_outputs(list(zip(unit.outputs, placed.outputs, strict=True))),
            OUTPUT_COUNT=len(unit.outputs), WAITERS=self.write_readers([(w, 0) for w in waiters]),
            WAITER_COUNT=len(waiters), INDEX=self.index(placed),
            FRAME=frames + layout.Frame.SIZE * self.areas[self.frames.after(unit.node)].number,
            PROGRAM=native.address if native is not None else 0,
            IS_LONG=int(native.spec.release_gil) if native is not None else 0,
            CALLBACK=id(callback) if callback is not None else 0,
        )  # fmt: skip

    def index(self, placed: _Placed) -> int:
        """Return what `INDEX` means for a kind: where a switch has its predicate, where a token is stored."""
        kind, unit = placed.kind, placed.unit
        if kind == Kind.SWITCH:
            return placed.inputs[1].word - placed.slots
        if kind == Kind.INVARIANT:
            return self.areas[self.frames.after(unit.node)].invariants.index(placed)
        if kind == Kind.NEXT:
            area = self.areas[unit.frame]
            return len(area.invariants) + area.nexts.index(placed)
        return 0

    def write_outputs(self, outputs: Sequence[tuple[Value, Slot]]) -> int:
        start = self.reserve(layout.Output.SIZE * len(outputs))
        for k, (value, slot) in enumerate(outputs):
            readers = self.readers.get(value, [])
            fetch = self.fetches.get(value)
            self.put(
                start + k * layout.Output.SIZE, record=layout.Output, SOURCE=slot.word,
                OWNER=owner_word(slot.type), READERS=self.write_readers(readers), READER_COUNT=len(readers),
                FETCH=0 if fetch is None else fetch.word - 1,
            )  # fmt: skip
        return start

    def write_readers(self, readers: Sequence[tuple[_Placed, int]]) -> int:
        start = self.reserve(layout.Reader.SIZE * len(readers))
        for k, (placed, place) in enumerate(readers):
            self.put(
                start + k * layout.Reader.SIZE, record=layout.Reader, UNIT=self.at[placed.unit],
                STATE=placed.state, IS_MERGE=int(placed.kind == Kind.MERGE), PLACE=place,
            )  # fmt: skip
        return start

    def write_frame(self, area: _Area, frames: int) -> None:
        frame = list(self.areas)[area.number]
        stored = len(area.invariants) + len(area.nexts)
        width = 2 + area.widest
        self.put(
            frames + layout.Frame.SIZE * area.number, record=layout.Frame, NUMBER=area.number, WORDS=area.words,
            INSTANCE_WORDS=layout.Instance.SIZE + stored * width + area.exits, ENTERS=len(frame.enters),
            UNITS=self.write_list([self.at[p.unit] for p in area.placed], True), UNIT_COUNT=len(area.placed),
            OWNERS=self.write_list(area.owners), OWNER_COUNT=len(area.owners), INVARIANTS=len(area.invariants),
            PARKED=len(area.nexts), TOKEN_WORDS=width, PARALLEL=most_iterations(frame.enters, self.parallel),
        )  # fmt: skip

    def write_presets(self) -> tuple[int, int, list[Slot], np.ndarray]:
        """Write records for params and constants that are there from the beginning, and the words of constants."""
        feeds: list[int] = []
        outputs: list[tuple[Value, Slot]] = []
        for value in self.graph.params:
            outputs.append((value, Slot(_tensor(value), len(feeds))))
            feeds += [0] * token_words(_tensor(value))
        params = [slot for _, slot in outputs]
        self.write_constants(outputs, feeds)
        start = self.reserve(layout.Unit.SIZE * len(outputs))
        for k, pair in enumerate(outputs):
            place = start + k * layout.Unit.SIZE
            self.put(place, record=layout.Unit, OUTPUTS=self.write_outputs([pair]), OUTPUT_COUNT=1)
        return start, len(outputs), params, np.array(feeds or [0], np.int64)

    def write_constants(self, outputs: list[tuple[Value, Slot]], feeds: list[int]) -> None:
        """Add the words of constants, presets to the outputs; others are told where their words are."""
        for node in self.graph.nodes:
            if node.op.name != "const":
                continue
            value, home = node.output, self.homes.get(node)
            if home is not None:
                self.words[self.at[home] + layout.Unit.INDEX] = len(feeds)
            elif is_preset(node) and (value in self.readers or value in self.fetches):
                outputs.append((value, Slot(_tensor(value), len(feeds))))
            else:
                continue
            feeds += self.constant_words(node)

    def constant_words(self, node: Node) -> list[int]:
        array = node.attrs["value"].array  # in C order, and lives as long as the graph
        if not array.ndim:
            padded = array.tobytes().ljust(16, b"\0")
            return [int.from_bytes(padded[k : k + 8], "little", signed=True) for k in (0, 8)]
        return [array.ctypes.data, *array.shape, *([0] * array.ndim)]

    # -- words -----------------------------------------------------------------------------------------------------

    def reserve(self, count: int) -> int:
        start = len(self.words)
        self.words.extend([0] * count)
        return start

    def put(self, start: int, *, record: type, **fields: int) -> None:
        for name, value in fields.items():
            place = start + getattr(record, name)
            self.words[place] = value
            if name in _ADDRESSES:
                self.relative.append(place)

    def write_list(self, items: list[int], addresses: bool = False) -> int:
        start = self.reserve(len(items))
        self.words[start:] = items
        if addresses:
            self.relative.extend(range(start, start + len(items)))
        return start

    def finish(self) -> tuple[np.ndarray, int]:
        words = np.array(self.words, np.int64)
        address = words.ctypes.data
        words[self.relative] = address + 8 * words[self.relative]
        return words, address

    def handed(self, address: int) -> dict[int, Handed]:
        found = {}
        for placed in self.placed.values():
            if placed.kind in (Kind.HANDED, Kind.ALWAYS_HANDED):
                place = address + 8 * self.at[placed.unit]
                outputs = [Slot(s.type, placed.slots + s.word) for s in placed.outputs]
                found[place] = Handed(
                    placed.unit, placed.slots, placed.inputs, outputs, placed.program
                )
        return found


_ADDRESSES = frozenset(
    ("FRAME", "PRESETS", "SOURCES", "UNITS", "OWNERS", "OUTPUTS", "WAITERS", "READERS", "UNIT")
)


def _initial(placed: _Placed) -> int:
    data, controls = len(placed.inputs), len(placed.unit.waits)
    if max(data, controls) > layout.COUNT:
        raise UnsupportedError(f"a node with more than {layout.COUNT} inputs")
    return data + controls * layout.CONTROL


def _has_effect(unit: Unit) -> bool:
    return any(n.op.has(Trait.EFFECT) or any(r.effects for r in n.regions) for n in unit.nodes)


def _tensor(value: Value) -> TensorType:
    if not isinstance(value.type, TensorType):
        raise UnsupportedError(f"the executor runs tensors, not values of type {value.type}")
    return value.type
