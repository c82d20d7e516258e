"""Programs, and loops of programs, that are recorded once and issued again: a CUDA graph on a GPU, a list on the emulator.

What a program launches depends on the shapes of its arguments, on the numbers that the host has, and on what the host reads
from the device. `why_not` finds programs that do the last; the others launch the same whenever shapes and numbers are the
same. The first such call runs as usual, which loads kernels and constants. The second one writes to a `Tape`, on which
nothing runs, and the tape is recorded by `gpu.capture`. From then on arguments are copied to where the recording reads
them, it is launched, and its results are copied from where it leaves them.

All memory of a recording lives as long as it. Threads and streams share one: each use begins after the one before.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dsl.codegen.cuda.device import Buffer, Gpu, Part, Recorder
from dsl.codegen.cuda.frame import Context, Frame, Placed
from dsl.codegen.cuda.ops.nonzero import Counted
from dsl.codegen.cuda.steps import (
    Body,
    Check,
    Cond,
    HostCall,
    HostScalar,
    Loop,
    Step,
    Update,
    operand,
)  # fmt: skip
from dsl.config import config
from dsl.errors import DeviceError
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.registry import Trait
from dsl.ir.types import TensorType
from dsl.logs import log

__all__ = ["Recorded", "Recording", "Recordings", "Tape", "record_loops", "why_not", "why_not_body"]

_MOST = 4  # recordings of one program: each has memory of its own
_SEEN = 64  # combinations of shapes and numbers that are remembered
_LONGEST = 20_000  # launches and moves of a recording
# A launch from Python takes some ten microseconds, in which a GPU copies some megabytes. Nobody has measured either here.
_WORTH = 1 << 20  # bytes that may be copied in and out for each launch

OnHost = Callable[[Value], bool]


# -- what can be recorded ---------------------------------------------------------------------------------------------


def why_not(graph: Graph, body: Body, on_host: OnHost) -> str:
    """Return why a program cannot be recorded, or nothing. What this does not see, the tape refuses."""
    if not all(isinstance(p.type, TensorType) for p in graph.params):
        return "an argument is no array"
    return why_not_body(body, on_host)


def why_not_body(body: Body, on_host: OnHost) -> str:
    return next(_reasons(body, on_host), "")


def _reasons(body: Body, on_host: OnHost) -> Iterator[str]:
    for source in body.sources.values():
        if not on_host(source):
            yield f"the host reads a size, which `{source.node.op.name}` computes"
    for step, _ in body.steps:
        yield from _of_step(step, on_host)


def _of_step(step: Step, on_host: OnHost) -> Iterator[str]:
    if isinstance(step, HostCall):
        yield f"`{step.node.op.name}` runs on the host"
    elif isinstance(step, Counted):
        yield f"the host reads how many elements `{step.values[0].node.op.name}` finds"
    elif isinstance(step, HostScalar):
        yield from _of_number(step.node, on_host)
    elif isinstance(step, Cond):
        if not on_host(step.node.inputs[0]):
            yield "the host reads which side of a branch is taken"
        for side in step.sides:
            yield from _reasons(side, on_host)
    elif isinstance(step, Recorded):
        yield from _of_step(step.loop, on_host)
    elif isinstance(step, Loop):
        yield from _of_loop(step, on_host)
    elif isinstance(step, Update):
        yield from _of_start(step.node, on_host)
    elif isinstance(step, Check):
        for node in getattr(step.holds, "args", ()):
            yield from _of_start(node, on_host)


def _of_number(node: Node, on_host: OnHost) -> Iterator[str]:
    if node.op.has(Trait.EFFECT):
        yield f"`{node.op.name}` acts each time"
    if node.op.name != "dim_size" and not all(map(on_host, node.inputs)):
        yield f"the host reads an operand of `{node.op.name}`"


def _of_loop(loop: Loop, on_host: OnHost) -> Iterator[str]:
    if not all(isinstance(v.type, TensorType) for v in (*loop.node.inputs, *loop.node.outputs)):
        yield "a loop carries what is no array"
    if loop.test is None:
        if not on_host(loop.node.inputs[0]):
            yield "the host reads how many trips a loop makes"
    else:
        if not on_host(loop.test.results[0]):
            yield "the host reads when a `while` ends"
        yield from _reasons(loop.test, on_host)
    yield from _reasons(loop.body, on_host)


_STARTS = {"dynamic_slice": 1, "update_dynamic_slice": 2}  # the operand that says where


def _of_start(node: Node, on_host: OnHost) -> Iterator[str]:
    where = _STARTS.get(node.op.name)
    if where is not None and not on_host(node.inputs[where]):
        yield f"the host reads where a `{node.op.name}` begins"


# -- writing it down --------------------------------------------------------------------------------------------------


class RefusedError(Exception):
    """Something cannot be part of a recording."""


class Tape:
    """A GPU on which nothing runs: launches and moves are written down, and memory is lent again within the recording.

    What is uploaded is a constant of the recording, which starts by copying it to its place.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.name, self.target = gpu, gpu.name, gpu.target
        self.calls: list[Callable[[], None]] = []
        self.blocks: list[Buffer] = []
        self._free: dict[int, deque[Buffer]] = {}

    def allocate(self, nbytes: int) -> Buffer:
        size = -(-max(nbytes, 1) // 16) * 16
        free = self._free.setdefault(size, deque())
        block = free.pop() if free else self.block(size)
        lent = Buffer(block.pointer, nbytes)
        weakref.finalize(lent, free.append, block).atexit = False
        return lent

    def block(self, size: int) -> Buffer:
        """Return memory that nothing else in the recording has."""
        self.blocks.append(self.gpu.allocate(size))
        return self.blocks[-1]

    def upload(self, array: np.ndarray, buffer: Buffer, offset: int = 0) -> None:
        constant = self.block(array.nbytes)
        self.gpu.upload(array, constant)
        self.move(constant, 0, buffer, offset, array.nbytes)

    def download(self, buffer: Buffer, offset: int, dtype: np.dtype, count: int) -> np.ndarray:
        raise RefusedError("the host reads what a kernel computes")

    def download_all(self, parts: Sequence[Part]) -> list[np.ndarray]:
        raise RefusedError("the host reads what a kernel computes")

    def move(self, source: Buffer, start: int, target: Buffer, offset: int, nbytes: int) -> None:
        self._write(partial(self.gpu.move, _plain(source), start, _plain(target), offset, nbytes))

    def launch(
        self, ptx: str, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int],
        args: Sequence[Any], shared: int = 0,
    ) -> None:  # fmt: skip
        self._write(partial(self.gpu.launch, ptx, kernel, grid, block, list(args), shared))

    def _write(self, call: Callable[[], None]) -> None:
        if len(self.calls) >= _LONGEST:
            raise RefusedError(f"it has more than {_LONGEST:,} launches")
        self.calls.append(call)

    def synchronize(self) -> None:
        """Nothing is under way."""

    def mark(self) -> Any:
        raise RefusedError("another stream is waited for")

    def follow(self, mark: Any) -> None:
        raise RefusedError("another stream is waited for")

    def capture(self) -> Recorder:
        raise RefusedError("it is recorded already")

    def is_own(self, array: Any) -> bool:
        return self.gpu.is_own(array)

    def take(self, array: Any) -> Any:
        return self.gpu.take(array)

    def give(self, buffer: Buffer, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
        raise RefusedError("memory is handed out as an array")

    def free_memory(self) -> tuple[int, int]:
        return self.gpu.free_memory()


def _plain(buffer: Buffer) -> Buffer:
    """The same memory, without a claim to it: the tape has that."""
    return Buffer(buffer.pointer, buffer.nbytes)


class _Taped(Context):
    """What a recording has once. Its flag comes with a value from before the first launch."""

    live = False

    def __init__(self, tape: Tape, constants: dict[Value, Placed], ptx: str) -> None:
        super().__init__(tape, constants, ptx)
        self.tape = tape

    @property
    def flag(self) -> Buffer:
        self._flag = self._flag or self.tape.block(8)
        return self._flag


# -- recordings -------------------------------------------------------------------------------------------------------


@dataclass
class Recording:
    """Something that was recorded, the places of its arguments, None for numbers, and those of its results."""

    graph: Recorder
    tape: Tape
    context: Context
    inputs: list[Placed | None]
    params: Sequence[Value]
    results: list[Any]
    outputs: Sequence[Value]
    flag: Buffer | None
    mark: Any  # the end of the last use
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def copied(self) -> int:
        """The bytes that each use copies."""
        return sum(
            _span(thing, value.dtype)
            for things, values in ((self.inputs, self.params), (self.results, self.outputs))
            for thing, value in zip(things, values, strict=True)
            if isinstance(thing, Placed)
        )

    def run(self, frame: Frame, args: Sequence[Any]) -> list[Any]:
        """Issue it with these arguments, and return the results in memory of their own."""
        gpu = frame.gpu
        with self.lock:
            gpu.follow(self.mark)
            for place, value, arg in zip(self.inputs, self.params, args, strict=True):
                if place is not None:
                    _put(gpu, arg, place, value.dtype)
            self._launch(frame)
            found = [
                _copied(gpu, thing, value) if isinstance(thing, Placed) else thing
                for thing, value in zip(self.results, self.outputs, strict=True)
            ]
            self.mark = gpu.mark()
        return found

    def _launch(self, frame: Frame) -> None:
        gpu, name = frame.gpu, f"recording of {len(self.tape.calls)}"
        if self.flag is not None:
            gpu.move(frame.context.flag, 0, self.flag, 0, 8)
        with frame.context.told("kernel", name):
            self.graph.launch()
        if self.flag is not None:
            gpu.move(self.flag, 0, frame.context.flag, 0, 8)


def _span(placed: Placed, dtype: np.dtype) -> int:
    """The bytes from the first element of an array to its last."""
    return placed.part(dtype).length * dtype.itemsize


def _put(gpu: Gpu, arg: Any, place: Placed, dtype: np.dtype) -> None:
    nbytes = _span(place, dtype)
    if not nbytes:
        return
    if isinstance(arg, Placed):
        gpu.move(arg.buffer, arg.offset, place.buffer, place.offset, nbytes)
    else:
        gpu.upload(np.array(arg, dtype, order="C", copy=None), place.buffer, place.offset)


def _copied(gpu: Gpu, placed: Placed, value: Value) -> Placed:
    nbytes = _span(placed, value.dtype)
    made = Placed(gpu.allocate(nbytes), placed.shape, 0, placed.strides)
    if nbytes:
        gpu.move(placed.buffer, placed.offset, made.buffer, 0, nbytes)
    return made


Run = Callable[[Frame, list[Any]], list[Any]]


class Recordings:
    """What was recorded of one program or loop: `run` runs its steps and returns what `outputs` are.

    `number` tells which rank-0 arguments are numbers of the host; those that are on the device never are.
    """

    def __init__(
        self, run: Run, params: Sequence[Value], outputs: Sequence[Value], number: OnHost, refused: str = "",
    ) -> None:  # fmt: skip
        self.runs, self.params, self.outputs, self.number = run, params, outputs, number
        self.refused = refused  # why there is none, for good
        self._known: dict[Any, Recording | None] = {}
        self._lock = threading.Lock()

    def find(self, frame: Frame, args: Sequence[Any]) -> Recording | None:
        """Return the recording for a call, made now if it is the second of its kind; None if it runs as usual."""
        if self.refused or config.cuda_graphs != "on" or not frame.context.live:
            return None
        key = self._key(frame, args)
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                return found
            if key not in self._known:
                if len(self._known) < _SEEN:
                    self._known[key] = None
                return None
            if sum(r is not None for r in self._known.values()) >= _MOST:
                return None
            self._known[key] = self._record(frame, args)
            return self._known[key]

    def _key(self, frame: Frame, args: Sequence[Any]) -> Any:
        parts = [self._part(value, arg) for value, arg in zip(self.params, args, strict=True)]
        return frame.gpu, frozenset(frame.sizes.items()), tuple(parts)

    def _part(self, value: Value, arg: Any) -> Any:
        if isinstance(arg, Placed):
            return arg.shape, arg.strides
        if not self._is_number(value, arg):
            return np.shape(arg)
        number = np.asarray(arg)
        return number.dtype, number.tobytes()

    def _is_number(self, value: Value, arg: Any) -> bool:
        return not isinstance(arg, Placed) and not value.shape and self.number(value)

    def _record(self, frame: Frame, args: Sequence[Any]) -> Recording | None:
        try:
            made = self._taped(frame, args)
        except (RefusedError, DeviceError) as error:
            self.refused = str(error)
        else:
            if made.copied <= _WORTH * len(made.tape.calls):
                return made
            self.refused = "copying its arguments and results costs more than its launches"
        log("placement", "not recorded as a CUDA graph: %s", self.refused)
        return None

    def _taped(self, outer: Frame, args: Sequence[Any]) -> Recording:
        """Write to a tape what the steps do, and record the tape."""
        tape, known = Tape(outer.gpu), dict(outer.context.constants)
        context = _Taped(tape, known, outer.context.ptx)
        frame = Frame(context, outer.sources, outer.sizes)
        inputs = [self._place(tape, v, a) for v, a in zip(self.params, args, strict=True)]
        passed = [arg if place is None else place for place, arg in zip(inputs, args, strict=True)]
        results = self.runs(frame, passed)
        with outer.gpu.capture() as graph:
            for call in tape.calls:
                call()
        return Recording(
            graph, tape, context, inputs, self.params, results, self.outputs, context._flag,
            outer.gpu.mark(),  # the tape's constants are there
        )  # fmt: skip

    def _place(self, tape: Tape, value: Value, arg: Any) -> Placed | None:
        """Return where a recording has an argument."""
        if self._is_number(value, arg):
            return None
        placed = arg if isinstance(arg, Placed) else Placed(Buffer(0, 0), np.shape(arg))
        buffer = tape.allocate(_span(placed, value.dtype))
        return Placed(buffer, placed.shape, 0, placed.strides)


# -- loops ------------------------------------------------------------------------------------------------------------


def record_loops(body: Body, on_host: OnHost) -> int:
    """Let loops be recorded that can be, in a program that cannot; return how many."""
    count = 0
    for k, (step, dying) in enumerate(body.steps):
        if isinstance(step, Loop) and not next(_of_loop(step, on_host), ""):
            body.steps[k] = Recorded(step), dying
            count += 1
        elif isinstance(step, Loop):
            inner = [step.body] if step.test is None else [step.test, step.body]
            count += sum(record_loops(region, on_host) for region in inner)
        elif isinstance(step, Cond):
            count += sum(record_loops(side, on_host) for side in step.sides)
    return count


class Recorded:
    """A loop that is recorded by itself, when it comes with the same shapes and numbers again."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.inputs = tuple(dict.fromkeys(loop.node.inputs))
        self.recordings = Recordings(self._run, self.inputs, loop.node.outputs, lambda value: True)

    def run(self, frame: Frame) -> None:
        if config.cuda_graphs != "on":
            self.loop.run(frame)
            return
        args = [operand(frame, value) for value in self.inputs]
        recording = self.recordings.find(frame, args)
        if recording is None:
            del args
            self.loop.run(frame)
            return
        found = recording.run(frame, args)
        for value in self.loop.dying:
            frame.drop(value)
        for value, thing in zip(self.loop.node.outputs, found, strict=True):
            frame.bind(value, thing)

    def _run(self, frame: Frame, args: list[Any]) -> list[Any]:
        """Run in a frame of its own."""
        for value, arg in zip(self.inputs, args, strict=True):
            frame.bind(value, arg)
        del args
        self.loop.run(frame)
        return [frame.values[value] for value in self.loop.node.outputs]
