"""Which nodes have to be on one device, and what they ask for together.

In: a flat graph. Out: groups of nodes, each with one request, the merger of its members'. Nodes are joined, in this
order, because

1. they touch the same variable or queue. Its device is where it is known to be, or what the first node asks for that
   touches it; another node that asks for something else is overruled, with a line in the log.
2. control flow holds them together: a switch follows its data, an exit its switch, the enter and the next_iteration of a
   loop variable its loop_merge. What the followers ask for does not count.
3. they have the same `colocate` attribute. If they ask for different devices, that is an error that names both; under
   soft placement the later one is left out of the group, with a line in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

from dsl.errors import DeviceError
from dsl.ir.devices import ANY_DEVICE, DeviceName
from dsl.ir.graph import Graph, Node
from dsl.logs import log
from dsl.passes.placing.homes import leader_of
from dsl.passes.placing.requests import RESOURCES, Request, conflict, pins_of, requests_of, ties_of

__all__ = ["Group", "Groups"]


@dataclass(eq=False)
class Group:
    """Nodes that run on one device; `asked` are the requests that shaped `request`."""

    members: list[Node]
    request: DeviceName = ANY_DEVICE
    asked: list[Request] = field(default_factory=list)


class Groups:
    """The groups of a graph's nodes. `resources` says where variables and queues are."""

    def __init__(self, graph: Graph, resources: Mapping[str, str], soft: bool) -> None:
        self.graph, self.soft = graph, soft
        self.pins = pins_of(graph, resources)
        self.followed = _followed(graph)
        self._groups = {node: self._alone(node) for node in graph.nodes}
        self._join_resources()
        for node, leader in self.followed.items():
            self._join(leader, node)
        self._join_colocated()

    def __getitem__(self, node: Node) -> Group:
        return self._groups[node]

    def all(self) -> list[Group]:
        """Return the groups in the order of their first nodes."""
        return list(dict.fromkeys(self._groups.values()))

    def _alone(self, node: Node) -> Group:
        group = Group([node])
        if node in self.followed:
            return group
        asked = list(dict.fromkeys(requests_of(node)))
        if pair := conflict(asked):
            raise _disagreement(f"`{node.op.name}` runs whole on one device", *pair)
        group.asked, group.request = asked, _merged(asked)
        return group

    def _join_resources(self) -> None:
        first: dict[tuple[str, str], Node] = {}
        for node in self.graph.nodes:
            for tie in dict.fromkeys(ties_of(node)):
                if tie[0] not in RESOURCES:
                    continue
                if tie in self.pins:
                    self._overrule(node, self.pins[tie], tie)
                self._join(first.setdefault(tie, node), node)

    def _overrule(self, node: Node, pin: Request, tie: tuple[str, str]) -> None:
        """Make a node ask for the device of what it touches."""
        group = self._groups[node]
        kind, name = tie
        if group.request.conflict(pin.name):
            held = next(
                (r for r in group.asked if r.node is not node and r.name.conflict(pin.name)), None
            )
            if held is not None:
                raise _disagreement(
                    f"`{node.op.name}` and what it touches run on one device", held, pin
                )
            log(
                "placement", "%s asks for %s and touches %s %r on %s, so it runs there",
                node.op.name, group.request, kind, name, pin.name,
            )  # fmt: skip
            group.asked = [request for request in group.asked if request.node is not node]
        group.asked.append(pin)
        group.request = _merged(group.asked)

    def _join_colocated(self) -> None:
        first: dict[tuple[str, str], Node] = {}
        for node in self.graph.nodes:
            if node in self.followed:
                continue
            for tie in dict.fromkeys(ties_of(node)):
                if tie[0] == "colocate":
                    self._colocate(first.setdefault(tie, node), node, tie[1])

    def _colocate(self, first: Node, node: Node, name: str) -> None:
        one, other = self._groups[first], self._groups[node]
        pair = conflict([*one.asked, *other.asked])
        if pair is None:
            self._join(first, node)
        elif not self.soft:
            raise _disagreement(
                f"the nodes of the colocation group {name!r} run on one device", *pair
            )
        else:
            log(
                "placement", "%s asks for %s, so it leaves the colocation group %r on %s",
                node.op.name, other.request, name, one.request,
            )  # fmt: skip

    def _join(self, first: Node, node: Node) -> None:
        one, other = self._groups[first], self._groups[node]
        if one is other:
            return
        if pair := conflict([*one.asked, *other.asked]):
            raise _disagreement("nodes that run on one device disagree", *pair)
        one.members += other.members
        known = {request.name for request in one.asked}
        one.asked += [request for request in other.asked if request.name not in known]
        one.request = _merged(one.asked)
        for member in other.members:
            self._groups[member] = one


def _merged(asked: list[Request]) -> DeviceName:
    return reduce(DeviceName.merge, (request.name for request in asked), ANY_DEVICE)


def _followed(graph: Graph) -> dict[Node, Node]:
    """Map each node of a loop or branch that goes where another is to that other."""
    found = {n: leader for n in graph.nodes if (leader := leader_of(n)) is not None}
    for node in graph.nodes:
        if node.op.name == "loop_merge" and node.inputs[0].node.op.name == "enter":
            found.setdefault(node.inputs[0].node, node)
    for merge, value in graph.back.items():
        if value.node.op.name == "next_iteration":
            found.setdefault(value.node, merge)
    return found


def _disagreement(what: str, one: Request, other: Request) -> DeviceError:
    lines = [f"{what}: `{one.node.op.name}` asks for {str(one.name)!r}"]
    if one.node.loc is not None:
        lines.append(one.node.loc.excerpt())
    lines.append(f"and `{other.node.op.name}` for {str(other.name)!r}")
    return DeviceError(
        "\n".join(lines),
        location=other.node.loc,
        remedy="ask for one device, or for none",
    )
