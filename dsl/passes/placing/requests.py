"""What nodes ask for: devices, and to be where a variable, a queue or another node is.

A structured node asks for what the nodes in its regions ask for, each of which takes from the structured node what it
leaves open: inside a loop on `/rank:1`, `cpu:0` is `/rank:1/cpu:0`, and a node that says nothing is on `/rank:1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dsl.errors import DeviceError
from dsl.ir.devices import ANY_DEVICE, DeviceName
from dsl.ir.graph import Graph, Node
from dsl.ir.registry import PLACEMENT

__all__ = [
    "RESOURCES",
    "Request",
    "conflict",
    "pins_among",
    "pins_of",
    "requests_of",
    "spans",
    "ties_of",
]

Tie = tuple[str, str]
"""What holds nodes in one place: a kind, `variable`, `queue` or `colocate`, and a name."""

RESOURCES = ("variable", "queue")


class Request(NamedTuple):
    """A device, perhaps a part of its name, and the node that asks for it."""

    name: DeviceName
    node: Node


def requests_of(node: Node, outer: DeviceName = ANY_DEVICE) -> Iterator[Request]:
    """Yield what a node, and then what those in its regions, ask for; `outer` is asked for around it."""
    own = _own(node).within(outer)
    if own != ANY_DEVICE:
        yield Request(own, node)
    for inner in _inner(node):
        yield from requests_of(inner, own)


def _own(node: Node) -> DeviceName:
    try:
        return DeviceName.parse(node.attrs.get("device", ""))
    except DeviceError as error:
        error.location = node.loc
        raise


def _inner(node: Node) -> Iterator[Node]:
    for region in node.regions:
        yield from region.nodes


def ties_of(node: Node) -> Iterator[Tie]:
    """Yield what holds a node, or one in its regions, to others."""
    for kind in (*RESOURCES, PLACEMENT[0]):
        if isinstance(node.attrs.get(kind), str):
            yield kind, node.attrs[kind]
    for inner in _inner(node):
        yield from ties_of(inner)


def pins_of(graph: Graph, resources: Mapping[str, str]) -> dict[Tie, Request]:
    """Map what holds nodes together to the first request there is for it; `resources` says where variables are."""
    return pins_among(graph.nodes, resources)


def pins_among(nodes: Iterable[Node], resources: Mapping[str, str]) -> dict[Tie, Request]:
    """Do the same for nodes that need not be all of a graph."""
    found: dict[Tie, Request] = {}
    for node in nodes:
        _note_pins(node, ANY_DEVICE, resources, found)
    return found


def _note_pins(
    node: Node, outer: DeviceName, resources: Mapping[str, str], found: dict[Tie, Request]
) -> None:
    own = _own(node).within(outer)
    for kind in (*RESOURCES, PLACEMENT[0]):
        name = node.attrs.get(kind)
        if isinstance(name, str):
            known = resources.get(name) if kind in RESOURCES else None
            asked = own if known is None else DeviceName.parse(known)
            if asked != ANY_DEVICE:
                found.setdefault((kind, name), Request(asked, node))
    for inner in _inner(node):
        _note_pins(inner, own, resources, found)


def conflict(requests: Iterable[Request]) -> tuple[Request, Request] | None:
    """Return the first two requests that no one device can meet."""
    met: dict[DeviceName, Request] = {}
    for request in requests:
        for other in met.values():
            if other.name.conflict(request.name):
                return other, request
        met.setdefault(request.name, request)
    return None


def spans(
    node: Node, outer: DeviceName, pins: Mapping[Tie, Request]
) -> tuple[Request, Request] | None:
    """Return two requests inside a structured node that differ, if no one device can run it whole."""
    asked = [*requests_of(node, outer), *(pins[tie] for tie in ties_of(node) if tie in pins)]
    return conflict(dict.fromkeys(asked))
