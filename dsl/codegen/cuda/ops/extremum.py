"""The index of the first largest or smallest element along an axis.

Elements are compared by their keys (`dsl.codegen.library.keys`), NaNs being beyond all others; of equal ones the first
wins. Complex numbers are compared as they are. Of lines that are cut, the first kernel notes the winner of each chunk,
the second chooses among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsl.codegen.accesses import start_value
from dsl.codegen.arrays import Scalar, load_scalar
from dsl.codegen.cuda.frame import Frame, Wrong
from dsl.codegen.cuda.ops.folds import Fold, State, fold_line
from dsl.codegen.cuda.ops.lines import (
    Lines,
    choose_team,
    chunks_of,
    flat,
    geometry_of,
    is_along,
    spot_of,
    vector_of,
)
from dsl.codegen.cuda.steps import Launch, Made, Step
from dsl.codegen.cuda.teams import Team
from dsl.codegen.elementwise.comparisons import compare, is_nan
from dsl.codegen.evaluate import literal, select_scalar
from dsl.codegen.library.keys import load_key
from dsl.codegen.llvm import Function, Operand, Value
from dsl.codegen.standins import StandIn
from dsl.ir import graph as ir
from dsl.ir.types import I64, TensorType, size_of

if TYPE_CHECKING:
    from dsl.codegen.cuda.lower import Lowering

__all__ = ["LOWERINGS"]

_LAST = np.iinfo(np.int64).max


class _Extremum(Made):
    """Launches that need an element in each line."""

    def run(self, frame: Frame) -> None:
        (value,) = self.values
        (x,), axis = value.node.inputs, value.node.attrs["axis"]
        if frame.size(x.shape[axis]) == 0 and frame.size(size_of(value.shape)):
            raise Wrong
        super().run(frame)


def _lower(lowering: Lowering, node: ir.Node) -> Step:
    (x,), (value,), axis = node.inputs, node.outputs, node.attrs["axis"]
    count, length = size_of(value.shape), x.shape[axis]
    vector = vector_of(lowering.layouts, x, axis)
    team = choose_team(count, length, is_along(x.shape, axis), vector)
    if team.chunk is None:
        return _Extremum((value,), [_kernel(lowering, node, team, value, None)])
    parts = StandIn(None, TensorType(I64, (count, chunks_of(team, length))))
    last = choose_team(count, parts.shape[1], True)
    last = Team(last.threads, last.rows, True)
    launches = [
        _kernel(lowering, node, team, parts, None),
        _kernel(lowering, node, last, value, parts),
    ]
    return _Extremum((value,), launches, scratch=(parts,))


def _kernel(
    lowering: Lowering, node: ir.Node, team: Team, target: ir.Value, among: ir.Value | None
) -> Launch:
    """Emit a kernel that finds the winner of each chunk: of all elements, or of those at some indices."""
    source, name = lowering.source(node.op.name), node.op.name
    (x,), axis = node.inputs, node.attrs["axis"]
    count = size_of(node.outputs[0].shape)
    length = x.shape[axis] if among is None else among.shape[1]
    out = source.place(target)
    spot = spot_of(source, team, count, length)
    lines = Lines(source, x, axis)
    start = lines.start(spot.line)
    order = _Order(source.fn, x.dtype, name == "argmax")
    candidates = None if among is None else Lines(source, among, 1)

    def step(state: State, i: Operand) -> State:
        index = source.fn.as_value(i, "i64")
        if candidates is not None:
            found = candidates.load(candidates.start(spot.line), i)
            assert isinstance(found, Value)
            index = found
        return order.merge(state, (order.load(lines.address(start, index)), index))

    neutral = order.lowest(), Value(str(_LAST), "i64")
    fold = Fold((order.dtype, I64), neutral, step, order.merge)
    _, index = fold_line(source, team, spot, fold)
    fn, chunks = source.fn, chunks_of(team, length)
    first = fn.both(spot.inside, fn.compare("eq", spot.member, 0))
    with fn.if_(first):
        place = fn.add(fn.mul(spot.line, source.dim(chunks)), spot.chunk)
        assert isinstance(index, Value)
        fn.store(index, flat(out, place, source), align=8)
    source.finish(team.block)
    return lowering.done(source, geometry_of(team, count, length), name)


class _Order:
    """How elements of a dtype are compared; `dtype` is that of what is compared."""

    def __init__(self, fn: Function, own: np.dtype, largest: bool) -> None:
        self.fn, self.own, self.largest = fn, own, largest
        self.dtype = own if own.kind == "c" else np.dtype(f"i{own.itemsize}")

    def load(self, address: Value) -> Scalar:
        if self.own.kind == "c":
            return load_scalar(self.fn, self.own, address)
        return load_key(self.fn, self.own, address, nan_last=self.largest)

    def lowest(self) -> Scalar:
        """Return what nothing is behind; it has the last index, so it wins nothing."""
        return literal(start_value("max" if self.largest else "min", self.dtype), self.dtype)

    def merge(self, a: State, b: State) -> State:
        """Return the winner of two elements with their indices."""
        (x, i), (y, j) = a, b
        assert isinstance(i, Value)
        assert isinstance(j, Value)
        fn = self.fn
        earlier = fn.both(self.level(x, y), fn.compare("slt", j, i))
        second = fn.either(self.beats(y, x), earlier)
        return select_scalar(fn, second, y, x), fn.select(second, j, i)

    def beats(self, x: Scalar, y: Scalar) -> Value:
        fn, word = self.fn, "greater" if self.largest else "less"
        if isinstance(x, Value) and isinstance(y, Value):
            return fn.compare("sgt" if self.largest else "slt", x, y)
        nan = fn.both(is_nan(fn, self.own, x), fn.invert(is_nan(fn, self.own, y)))
        return fn.either(nan, compare(fn, word, (self.own, self.own), x, y))

    def level(self, x: Scalar, y: Scalar) -> Value:
        fn = self.fn
        if isinstance(x, Value) and isinstance(y, Value):
            return fn.compare("eq", x, y)
        nans = fn.both(is_nan(fn, self.own, x), is_nan(fn, self.own, y))
        return fn.either(nans, compare(fn, "equal", (self.own, self.own), x, y))


LOWERINGS = dict.fromkeys(("argmax", "argmin"), (lambda node: True, _lower))
