"""Where the state of a graph is when parts of it are on ranks.

A variable or queue is on one rank, whichever steps touch it: where it was made (`with dsl.device(...)` around it), else where the first
node of the graph asks to be that touches it, else on the rank whose session first does. That is decided once, when a
step is made, and kept among the places of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsl.executor.ranks import names_a_rank
from dsl.ir import graph as ir
from dsl.ir.devices import ANY_DEVICE, DeviceName
from dsl.passes.placing.requests import RESOURCES, pins_among, ties_of
from dsl.session.graph import Graph

__all__ = ["is_elsewhere", "settle"]


def settle(graph: Graph, step: ir.Graph, rank: int) -> None:
    """Give what a step on a rank touches a place, if the graph is on several ranks at all."""
    if not (names_a_rank(step) or any(map(_has_rank, graph.places.values())) or _asks(graph)):
        return
    pins = pins_among(graph.root.order, {})
    for kind, name in _touched(step):
        known = DeviceName.parse(graph.places.get(name, ""))
        pin = pins.get((kind, name))
        asked = known if known != ANY_DEVICE or pin is None else pin.name
        graph.places[name] = str(asked.within(DeviceName(rank, "cpu", 0)))


def is_elsewhere(graph: Graph, step: ir.Graph, rank: int) -> bool:
    """Tell whether a step touches something that is on another rank."""
    places = (DeviceName.parse(graph.places.get(name, "")) for _, name in _touched(step))
    return any(place.rank not in (None, rank) for place in places)


def _has_rank(place: str) -> bool:
    return DeviceName.parse(place).rank is not None


def _asks(graph: Graph) -> bool:
    """Tell whether a node of a graph asks for a rank, in the step at hand or not."""
    return any("device" in n.attrs and _has_rank(n.attrs["device"]) for n in graph.root.order)


def _touched(step: ir.Graph) -> Iterator[tuple[str, str]]:
    for node in step.nodes:
        yield from ((kind, name) for kind, name in ties_of(node) if kind in RESOURCES)
