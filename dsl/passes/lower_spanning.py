"""Lower the structured nodes that several devices have to run, and no others.

In: a graph, structured at any depth, some nodes of which ask for devices. Out: the graph in which a `cond`, `while` or
`scan` is spelled with tokens (see `lower_control`) if nodes inside it ask for different devices, or touch variables or
belong to colocation groups that are on different devices; the same object if there is none. A loop that one device can run stays
whole: that device compiles it to machine code. Before and after, for a loop inside which only a branch spans devices: the loop
and the `cond` are spelled out, and what the branches contain is not:

    while { @body ... cond { @then ... scan on cpu:0 ... @else ... scan on cpu:1 ... } }

    enter loop_merge ... switch ... scan on cpu:0 ... scan on cpu:1 ... merge ... next_iteration exit
"""

from __future__ import annotations

from collections.abc import Mapping

from dsl.errors import DeviceError
from dsl.ir.devices import ANY_DEVICE, DeviceName
from dsl.ir.graph import Graph, Node
from dsl.ir.registry import Trait
from dsl.passes.lower_control import has_spelling, lower_control
from dsl.passes.placing.requests import Request, Tie, pins_of, spans

__all__ = ["lower_spanning"]


def lower_spanning(graph: Graph, *, resources: Mapping[str, str] | None = None) -> Graph:
    """Return the graph in which what no one device can run whole is spelled with tokens.

    `resources` says on which devices variables and queues are that have a place already.
    """
    pins = pins_of(graph, resources or {})
    found: set[Node] = set()
    _find(graph, ANY_DEVICE, pins, found)
    return lower_control(graph, found.__contains__) if found else graph


def _find(graph: Graph, outer: DeviceName, pins: Mapping[Tie, Request], found: set[Node]) -> None:
    for node in graph.nodes:
        if node.op.has(Trait.CONTROL) and (pair := spans(node, outer, pins)):
            _check_spelling(node, pair)
            found.add(node)
            own = DeviceName.parse(node.attrs.get("device", "")).within(outer)
            for region in node.regions:
                _find(region, own, pins, found)


def _check_spelling(node: Node, pair: tuple[Request, Request]) -> None:
    if has_spelling(node):
        return
    one, other = pair
    raise DeviceError(
        f"`{node.op.name}` runs on one device, and nodes in it ask for {str(one.name)!r} and {str(other.name)!r}",
        location=other.node.loc or node.loc,
        remedy="ask for one device around it",
    )
