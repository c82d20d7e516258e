"""Unrolls short loops over whole arrays, so that what their trips compute is one kernel.

A `scan` goes if it makes a known, small number of trips, carries an array, and computes nothing but elements from
elements: then the fused trips read every array once, where the loop would go through memory on each trip. Trip numbers
are constants in the copies, so slices that move with them are static, and what they are checked for is decided here.
A loop with a reduction, an update or a library call stays, and so does one whose trips would not fit one kernel.

    %1 = scan(3, %x, %y) {carried=1}                      %1 = slice(%y) {start=(0,), size=(n,)}
      @body(%trip, %x, %y) {                              %2 = add(%x, %1)
        %0 = dynamic_slice(%y, %trip) {size=n}     ->     %3 = slice(%y) {start=(1,), size=(n,)}
        %1 = add(%x, %0)                                  %4 = add(%2, %3)
        return %1                                         %5 = slice(%y) {start=(2,), size=(n,)}
                                                          %6 = add(%4, %5)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsl.codegen import elementwise
from dsl.errors import DslError
from dsl.ir.dims import Dim, DimLike, lower_bound, substitute
from dsl.ir.facts import constant_of, is_array
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.interpret import apply_node
from dsl.ir.registry import Trait
from dsl.ir.rewrite import Rewriter, rebuild
from dsl.ir.types import I64

__all__ = ["unroll"]

_TRIPS = 16
_WORK = 100  # ops that are left, in all trips
_LOOKS = 4000  # nodes to copy, most of which are numbers that are known then
_DEAR = 8  # ops that a transcendental function counts for
_FREE = frozenset(
    ["const", "full", "slice", "dynamic_slice", "broadcast_to", "transpose", "reshape", "identity"]
)


class _StaysError(Exception):
    """The loop cannot be unrolled, or had better not be."""


def unroll(graph: Graph) -> Graph:
    """Return the graph without its short loops over whole arrays."""
    return rebuild(graph, _unroll, frozenset(("scan",)))


def _unroll(builder: Rewriter, node: Node) -> Sequence[Value] | None:
    if node.op.name != "scan" or not any(is_array(v) for v in node.outputs) or node.controls:
        return None
    try:
        found = _Copy(builder).loop(node, node.inputs)
    except (_StaysError, DslError):
        return None
    return found if tuple(v.type for v in found) == node.types else None


class _Copy:
    """Copies trips into a builder, with the trip numbers and the sizes that follow from them known."""

    def __init__(self, builder: Rewriter) -> None:
        self.builder, self.work, self.looks = builder, 0, 0

    def loop(self, node: Node, inputs: Sequence[Value]) -> list[Value]:
        trips = constant_of(inputs[0])
        (body,) = node.regions
        if trips is None or not 0 < trips <= _TRIPS or body.effects:
            raise _StaysError
        count = node.attrs["carried"]
        carried, invariant = list(inputs[1 : 1 + count]), list(inputs[1 + count :])
        for trip in range(int(trips)):
            number = self.builder.constant(trip, I64)
            carried = self.region(body, [number, *carried, *invariant])
        return carried

    def region(self, body: Graph, args: Sequence[Value]) -> list[Value]:
        values = dict(zip(body.params, args, strict=True))
        if any(param.type != value.type for param, value in values.items()):
            raise _StaysError
        sizes: dict[Dim, DimLike] = {}
        for node in body.nodes:
            outputs = self.node(node, [values[v] for v in node.inputs], sizes)
            values.update(zip(node.outputs, outputs, strict=True))
        return [values[v] for v in body.results]

    def node(self, node: Node, inputs: list[Value], sizes: dict[Dim, DimLike]) -> Sequence[Value]:
        self.looks += 1
        if node.controls or not node.op.has(Trait.PURE) or self.looks > _LOOKS:
            raise _StaysError
        if node.op.name == "scan":
            return self.loop(node, inputs)
        if node.regions:
            raise _StaysError
        if not any(is_array(v) for v in (*inputs, *node.outputs)):
            return self.number(node, inputs)
        self.weigh(node)
        for symbol, value in zip(node.dims, inputs[len(inputs) - len(node.dims) :]):
            sizes[symbol] = _known(value)
        attrs = {name: _resolved(item, sizes) for name, item in node.attrs.items()}
        data = inputs[: len(inputs) - len(node.dims)]
        if node.op.name == "dynamic_slice":
            return [self.slice(data[0], _known(data[1]), attrs, node)]
        return self.builder.node(node.op, data, attrs, loc=node.loc).outputs

    def number(self, node: Node, inputs: list[Value]) -> Sequence[Value]:
        """A node on numbers, evaluated if they are known."""
        known = [constant_of(value) for value in inputs]
        if node.dims or (node.op.has(Trait.CHECKED) and any(k is None for k in known)):
            raise _StaysError
        if node.op.name != "const" and any(k is None for k in known):
            self.spend(1)
        if node.op.name == "const" or any(k is None for k in known):
            return self.builder.node(node.op, inputs, node.attrs, loc=node.loc).outputs
        try:
            return [self.builder.constant(array) for array in apply_node(node, known)]
        except Exception:
            raise _StaysError from None  # whatever it is, the loop raises it when it gets there

    def slice(self, x: Value, first: int, attrs: dict[str, Any], node: Node) -> Value:
        axis, size, step = attrs["axis"], attrs["size"], attrs.get("step", 1)
        if not _is_inside(first, size, step, x.shape[axis]):
            raise _StaysError
        rank = len(x.shape)
        box = {
            "start": tuple(first if k == axis else 0 for k in range(rank)),
            "size": tuple(size if k == axis else x.shape[k] for k in range(rank)),
            "step": tuple(step if k == axis else 1 for k in range(rank)),
        }
        return self.builder.node("slice", (x,), box, loc=node.loc).output

    def weigh(self, node: Node) -> None:
        if node.op.name in _FREE:
            return
        is_element = node.op.name == "gather" and not any(is_array(v) for v in node.outputs)
        if not is_element and not node.op.has(Trait.ELEMENTWISE):
            raise _StaysError
        dear = elementwise.expensive(node.op.name, [v.dtype for v in node.inputs])
        self.spend(_DEAR if dear else 1)

    def spend(self, work: int) -> None:
        self.work += work
        if self.work > _WORK:
            raise _StaysError


def _is_inside(first: int, size: DimLike, step: int, dim: DimLike) -> bool:
    """Tell whether a slice surely lies in an axis. One of a size that is known when the program runs only is looked at then, too."""
    if isinstance(size, int) and isinstance(dim, int):
        ends = (first, first + (size - 1) * step)
        return not size or all(0 <= end < dim for end in ends)
    room = lower_bound(dim - size - first)
    return step == 1 and first >= 0 and room is not None and room >= 0


def _known(value: Value) -> int:
    number = constant_of(value)
    if number is None:
        raise _StaysError
    return int(number)


def _resolved(item: Any, sizes: dict[Dim, DimLike]) -> Any:
    """An attribute with the sizes in it replaced."""
    if isinstance(item, tuple):
        return tuple(_resolved(part, sizes) for part in item)
    return substitute(item, sizes) if isinstance(item, Dim) else item
