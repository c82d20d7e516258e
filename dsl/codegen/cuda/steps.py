"""What a program on a GPU does, one step after the other: launches, updates, control flow, calls of the host.

A step reads and binds values of a `Frame`. Steps hold what is known before a run; sizes, places and the numbers that the
host has come from the frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dsl.codegen.cuda.frame import Frame, Placed, Wrong
from dsl.codegen.cuda.grid import Geometry
from dsl.codegen.cuda.source import Argument
from dsl.ir.dims import Dim, DimLike
from dsl.ir.graph import Node, Value
from dsl.ir.interpret import apply_node
from dsl.ir.types import TensorType

__all__ = [
    "Alias", "Body", "Check", "Cond", "HostCall", "HostScalar", "Launch", "Loop", "Made", "Spread", "Step", "Update",
    "operand",
]  # fmt: skip


class Step(Protocol):
    """Something that a program does."""

    def run(self, frame: Frame) -> None:
        """Do it."""


@dataclass
class Body:
    """A region: its steps, each with the values that nobody needs after it."""

    params: tuple[Value, ...]
    results: tuple[Value, ...]
    steps: list[tuple[Step, tuple[Value, ...]]] = field(default_factory=list)
    sources: dict[Dim, Value] = field(default_factory=dict)
    unused: tuple[Value, ...] = ()  # params that no step reads
    own: frozenset[Dim] = (
        frozenset()
    )  # symbols that the params or operands give, whatever they are outside

    def run(self, outer: Frame, args: Sequence[Any]) -> list[Any]:
        """Run the steps and return the results; an arg that nothing else names may be overwritten."""
        known = {symbol: n for symbol, n in outer.sizes.items() if symbol not in self.own}
        frame = Frame(outer.context, self.sources, known)
        for param, arg in zip(self.params, args, strict=True):
            frame.bind(param, arg)
        for param in self.unused:
            frame.drop(param)
        for step, dying in self.steps:
            step.run(frame)
            for value in dying:
                frame.drop(value)
        found = [_result(frame, value) for value in self.results]
        frame.close()
        return found


def _result(frame: Frame, value: Value) -> Any:
    if value in frame.values:
        return frame.values[value]
    return frame.host(value) if not value.shape else frame.constant(value)


@dataclass(frozen=True)
class Launch:
    """A kernel, what it is passed, and how many blocks it has."""

    kernel: str
    arguments: Sequence[Argument]
    geometry: Geometry

    def run(self, frame: Frame) -> None:
        geometry = self.geometry
        frame.launch(self.kernel, geometry.grid, geometry.block, self.arguments)


@dataclass
class Made:
    """Launches that make new values: each in memory of its own, or in that of an operand that is not needed any more.

    `reuse` names operands that a value may overwrite; `scratch` is memory for the time of the step. `positive` are sizes
    that must not be 0.
    """

    values: tuple[Value, ...]
    launches: Sequence[Step]
    reuse: dict[Value, tuple[Value, ...]] = field(default_factory=dict)
    scratch: tuple[Value, ...] = ()
    positive: tuple[DimLike, ...] = ()
    looked_into: tuple[DimLike, ...] = ()  # sizes that must not be 0 if the `space` has points
    space: tuple[DimLike, ...] = ()

    def run(self, frame: Frame) -> None:
        if any(frame.size(n) == 0 for n in self.positive):
            raise Wrong
        if any(frame.size(n) == 0 for n in self.looked_into) and all(map(frame.size, self.space)):
            raise Wrong
        taken: set[Value] = set()
        for value in self.values:
            frame.bind(value, self._place(frame, value, taken))
        for value in self.scratch:
            frame.bind(value, frame.allocate(value))
        for launch in self.launches:
            launch.run(frame)
        for value in self.scratch:
            frame.drop(value)

    def _place(self, frame: Frame, value: Value, taken: set[Value]) -> Placed:
        for operand in self.reuse.get(value, ()):
            if operand not in taken and frame.is_free(operand):
                found: Placed = frame.find(operand)
                if found.shape == frame.shape(value):
                    taken.add(operand)
                    return found
        return frame.allocate(value)


@dataclass
class Update:
    """An array with a part written anew: in place if its old value is not needed, else in a copy."""

    node: Node
    launches: Sequence[Launch]
    dies: bool  # whether the old value is not needed, as far as this region knows
    fill: Sequence[Launch] = ()  # writes the old value, if it is not in memory
    scratch: tuple[Value, ...] = ()
    check: Callable[[Frame], None] = lambda frame: None

    def run(self, frame: Frame) -> None:
        x, (value,) = self.node.inputs[0], self.node.outputs
        self.check(frame)
        if self.fill:
            frame.bind(value, frame.allocate(value))
            for launch in self.fill:
                launch.run(frame)
        elif self.dies and frame.is_free(x):
            frame.bind(value, frame.find(x))
        else:
            frame.bind(value, copied(frame, frame.find(x), value))
        for scratch in self.scratch:
            frame.bind(scratch, frame.allocate(scratch))
        for launch in self.launches:
            launch.run(frame)
        for scratch in self.scratch:
            frame.drop(scratch)


def copied(frame: Frame, placed: Placed, value: Value) -> Placed:
    """Return a copy of an array in C order."""
    if placed.strides is not None:
        return frame.upload(frame.download(placed, value.dtype))
    made = frame.allocate(value)
    nbytes = math.prod(placed.shape) * value.dtype.itemsize
    if nbytes:
        frame.gpu.move(placed.buffer, placed.offset, made.buffer, 0, nbytes)
    return made


@dataclass(frozen=True)
class Alias:
    """The same memory in another shape."""

    node: Node

    def run(self, frame: Frame) -> None:
        (value,) = self.node.outputs
        found = frame.find(self.node.inputs[0])
        if found.strides is not None:
            found = copied(frame, found, self.node.inputs[0])
        frame.bind(value, Placed(found.buffer, frame.shape(value), found.offset))


@dataclass(frozen=True)
class Spread:
    """A broadcast of dims that may turn out to be 1."""

    node: Node

    def run(self, frame: Frame) -> None:
        from dsl.codegen.cuda.frame import contiguous

        (value,) = self.node.outputs
        found, shape = frame.find(self.node.inputs[0]), frame.shape(value)
        own = found.strides or contiguous(found.shape)
        extra = len(shape) - len(found.shape)
        strides = [0] * extra
        for size, wide, stride in zip(found.shape, shape[extra:], own, strict=True):
            if size not in (1, wide):
                raise Wrong
            strides.append(0 if size == 1 and wide != 1 else stride)
        frame.bind(value, Placed(found.buffer, shape, found.offset, tuple(strides)))


@dataclass(frozen=True)
class Check:
    """Something that sizes and numbers must fulfil."""

    holds: Callable[[Frame], bool]

    def run(self, frame: Frame) -> None:
        if not self.holds(frame):
            raise Wrong


@dataclass(frozen=True)
class HostScalar:
    """An op on numbers that the host has."""

    node: Node

    def run(self, frame: Frame) -> None:
        node = self.node
        if node.op.name == "dim_size":
            size = frame.size(node.inputs[0].shape[node.attrs["axis"]])
            frame.bind(node.outputs[0], np.int64(size))
            return
        try:
            found = apply_node(node, [frame.host(v) for v in node.inputs])
        except Exception as error:
            raise Wrong from error
        for value, thing in zip(node.outputs, found, strict=True):
            frame.bind(value, thing)


@dataclass(frozen=True)
class HostCall:
    """An op that has no form for the device: its operands come to the host, its results go back."""

    node: Node

    def run(self, frame: Frame) -> None:
        node = self.node
        try:
            found = apply_node(node, [frame.host(v) for v in node.inputs])
        except Exception as error:  # perhaps because a kernel before has met an error
            raise Wrong from error
        for value, thing in zip(node.outputs, found, strict=True):
            is_array = isinstance(value.type, TensorType) and bool(value.shape)
            frame.bind(value, frame.upload(thing) if is_array else thing)


# -- control flow -----------------------------------------------------------------------------------------------------


def _taken(frame: Frame, values: Sequence[Value], dying: Sequence[Value]) -> list[Any]:
    """Return operands of a region; those that die are named by the region alone from now on."""
    found = [operand(frame, v) for v in values]
    for value in dying:
        frame.drop(value)
    return found


def operand(frame: Frame, value: Value) -> Any:
    """Return an operand of a region: an array on the device, or a number or object of the host."""
    found = frame.values.get(value)
    if found is not None:
        return found
    is_array = isinstance(value.type, TensorType) and bool(value.shape)
    return frame.constant(value) if is_array else frame.host(value)


@dataclass(frozen=True)
class Cond:
    """One of two regions."""

    node: Node
    sides: tuple[Body, Body]
    dying: tuple[Value, ...]

    def run(self, frame: Frame) -> None:
        predicate = bool(frame.number(self.node.inputs[0]))
        args = _taken(frame, self.node.inputs[1:], self.dying)
        found = self.sides[0 if predicate else 1].run(frame, args)
        del args
        for value, thing in zip(self.node.outputs, found, strict=True):
            frame.bind(value, thing)


@dataclass(frozen=True)
class Loop:
    """A `while` or, without a test, a counted loop."""

    node: Node
    test: Body | None
    body: Body
    dying: tuple[Value, ...]

    def run(self, frame: Frame) -> None:
        node, count = self.node, self.node.attrs["carried"]
        if self.test is None:
            trips = int(frame.number(node.inputs[0]))
            operands = node.inputs[1:]
        else:
            trips, operands = -1, node.inputs
        args = _taken(frame, operands, self.dying)
        carried, fixed = args[:count], args[count:]
        del args
        for thing in fixed:
            if isinstance(thing, Placed):
                thing.buffer.users += 1
        trip = 0
        while trip != trips:
            if self.test is None:
                carried = self.body.run(frame, [np.int64(trip), *carried, *fixed])
            else:
                for thing in carried:
                    if isinstance(thing, Placed):
                        thing.buffer.users += 1  # the body needs it after the test
                (again,) = self.test.run(frame, [*carried, *fixed])
                for thing in carried:
                    if isinstance(thing, Placed):
                        thing.buffer.users -= 1
                if not bool(_read(frame, again)):
                    break
                carried = self.body.run(frame, [*carried, *fixed])
            trip += 1
        for thing in fixed:
            if isinstance(thing, Placed):
                thing.buffer.users -= 1
        for value, thing in zip(node.outputs, carried, strict=True):
            frame.bind(value, thing)


def _read(frame: Frame, thing: Any) -> Any:
    if not isinstance(thing, Placed):
        return thing
    return frame.gpu.download(thing.buffer, thing.offset, np.dtype(bool), 1)[0]
