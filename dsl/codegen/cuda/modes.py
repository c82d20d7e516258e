"""Which rank-0 values the host knows: numbers that were passed, sizes, counters, and what is computed from them.

The others are on the device, computed there and not waited for. The host reads one when it must have it: to decide a
branch, to count trips, to check where a slice begins, to allocate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dsl.codegen.cuda.scalars import is_scalar_control
from dsl.codegen.plan import REDUCTIONS
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.types import TensorType

__all__ = ["Modes"]


class Modes:
    """The rank-0 values of a graph and its regions that are on the host."""

    def __init__(
        self, graph: Graph, given: Iterable[bool], on_device: Callable[[Node], bool]
    ) -> None:
        self.on_device = on_device  # whether an op that is no kernel runs on the device
        self.host: set[Value] = set()
        self._graph(graph, list(given))

    def __call__(self, value: Value) -> bool:
        return value in self.host or value.node.op.name == "const"

    def _graph(self, graph: Graph, given: list[bool]) -> list[bool]:
        """Find those of a graph whose params are on the host or not; return where its results are."""
        for param, on_host in zip(graph.params, given, strict=True):
            self._set(param, on_host)
        for node in graph.nodes:
            if node.regions:
                self._control(node)
                continue
            on_host = self._is_host(node)
            for value in node.outputs:
                self._set(value, on_host)
        return [self(value) for value in graph.results]

    def _set(self, value: Value, on_host: bool) -> None:
        rank_0 = not isinstance(value.type, TensorType) or not value.shape
        (self.host.add if on_host and rank_0 else self.host.discard)(value)

    def _is_host(self, node: Node) -> bool:
        if node.op.name in ("dim_size", "const", "broadcast_dim"):
            return True
        if any(isinstance(v.type, TensorType) and v.shape for v in node.inputs):
            kernel = node.op.name in REDUCTIONS or node.op.name in ("gather", "reshape", "slice")
            return not kernel and not self.on_device(node)
        return all(self(value) for value in node.inputs)

    def _control(self, node: Node) -> None:
        given = [self(value) for value in node.inputs]
        if is_scalar_control(node) and (node.op.name != "cond" or not given[0]):
            for value in node.outputs:
                self._set(value, False)
            return
        if node.op.name == "cond":
            found = [self._graph(region, given[1:]) for region in node.regions]
            for value, sides in zip(node.outputs, zip(*found, strict=True), strict=True):
                self._set(value, all(sides))
            return
        first = [True] if node.op.name == "scan" else []
        count, given = node.attrs["carried"], given[len(first) :]
        while (
            True
        ):  # a carried value is on the host if it starts there and each trip leaves it there
            results = self._graph(node.regions[-1], [*first, *given])
            next = [a and b for a, b in zip(given[:count], results, strict=True)] + given[count:]
            if next == given:
                break
            given = next
        if node.op.name == "while":
            self._graph(node.regions[0], given)
        for value, on_host in zip(node.outputs, given[:count], strict=True):
            self._set(value, on_host)
