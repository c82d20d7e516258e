"""Give every node of a flat graph a device.

In: a flat graph, the devices there are, and what nodes ask for in the attributes `device`, a full or partial name, and
`colocate`, the name of a group. Structured nodes run whole; `lower_spanning` spells out those that cannot. Out: the graph
whose every node has the full name of a device; the same object when nothing changed. Before and after, on two CPUs:

    %y = sin(%x) {device="cpu:1"} : f64[]
    %z = add(%y, %y) : f64[]

    %y = sin(%x) {device="/rank:0/cpu:1"} : f64[]
    %z = add(%y, %y) {device="/rank:0/cpu:1"} : f64[]

Nodes are gathered into groups that stay together (`placing.groups`). The devices that a group may have are those that
match its request and that support all its ops. If there is none, that is an error, or, under soft placement, only the rank
that was asked for counts. Among several, the cost model chooses (`placing.schedule`), but:

- a loop variable that asks for nothing goes where its next value is made, if that is decided;
- what is made out of nothing, a constant say, and invariants go where they are read if that is one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from dsl.errors import DeviceError
from dsl.ir.devices import DeviceName, listing
from dsl.ir.graph import Graph, Node, Value
from dsl.logs import log
from dsl.passes.flat.scopes import is_rename
from dsl.passes.placing.groups import Group, Groups
from dsl.passes.placing.homes import is_generator, readers_of
from dsl.passes.placing.schedule import LINKS, Links, schedule

__all__ = ["place"]

Supports = Callable[[Node, DeviceName], bool]


def place(
    graph: Graph,
    devices: Iterable[str | DeviceName],
    *,
    default: str | None = None,
    soft: bool = False,
    costs: Mapping[str, float] | None = None,
    supports: Supports | None = None,
    resources: Mapping[str, str] | None = None,
    links: Links = LINKS,
) -> Graph:
    """Return the graph with a device for every node.

    `default` is asked for where nothing else is. `costs` are measured seconds by the names of `ir.parts.node_names`.
    `supports(node, device)` says what a device can run; by default, everything. `resources` are the devices of variables and
    queues that have one already.
    """
    names = [_full(device) for device in devices]
    placing = _Placing(graph, names, supports or (lambda node, device: True), soft)
    return placing.run(DeviceName.parse(default or ""), costs or {}, resources or {}, links)


def _full(device: str | DeviceName) -> DeviceName:
    name = DeviceName.parse(device)
    if not name.is_full:
        raise DeviceError(
            f"{str(name)!r} is a part of a device's name",
            remedy="list devices by their full names, as /rank:0/cpu:0",
        )
    return name


class _Placing:
    def __init__(
        self, graph: Graph, devices: list[DeviceName], supports: Supports, soft: bool
    ) -> None:
        self.graph, self.devices, self.supports, self.soft = graph, devices, supports, soft

    def run(
        self,
        default: DeviceName,
        costs: Mapping[str, float],
        resources: Mapping[str, str],
        links: Links,
    ) -> Graph:
        groups = Groups(self.graph, resources, self.soft)
        feasible = {group: self._feasible(group, default) for group in groups.all()}
        pinned = {group: found[0] for group, found in feasible.items() if len(found) == 1}
        self._choose_loop_variables(groups, feasible, pinned)
        chosen = schedule(self.graph, groups, feasible, pinned, costs, links)
        found = {n: chosen[groups[n]] for n in self.graph.nodes if groups[n] in chosen}
        self._join_readers(groups, feasible, found)
        return _with_devices(self.graph, found)

    # -- what may be where ---------------------------------------------------------------------------------------

    def _feasible(self, group: Group, default: DeviceName) -> Sequence[DeviceName]:
        """Return the devices that a group may have."""
        for request in (group.request.within(default), group.request):
            if found := self._matching(group, request):
                return found
        if self.soft and (found := self._matching(group, group.request.softened())):
            log("placement", "%s asks for %s, which cannot be, and gets %s",
                group.members[0].op.name, group.request, found[0])  # fmt: skip
            return found
        raise self._impossible(group)

    def _matching(self, group: Group, request: DeviceName) -> list[DeviceName]:
        return [d for d in self.devices if request.matches(d) and self._runs(group, d)]

    def _runs(self, group: Group, device: DeviceName) -> bool:
        return all(
            self.supports(node, device) for member in group.members for node in _walk(member)
        )

    def _impossible(self, group: Group) -> DeviceError:
        node = group.asked[0].node if group.asked else group.members[0]
        there = f"the devices are {listing(self.devices)}"
        if not any(map(group.request.matches, self.devices)):
            return DeviceError(
                f"`{node.op.name}` asks for the device {str(group.request)!r}, which is not there; {there}",
                location=node.loc,
                remedy="ask for one of them; a session takes `devices=`, how many CPUs, and `soft_placement=True`",
            )
        ops = ", ".join(sorted({each.op.name for m in group.members for each in _walk(m)}))
        return DeviceError(
            f"no device that matches {str(group.request)!r} runs all of {ops}; {there}",
            location=node.loc,
        )

    # -- choices before and after the cost model -----------------------------------------------------------------

    def _choose_loop_variables(
        self,
        groups: Groups,
        feasible: Mapping[Group, Sequence[DeviceName]],
        chosen: dict[Group, DeviceName],
    ) -> None:
        for merge, value in self.graph.back.items():
            maker = _maker(value)
            device = chosen.get(groups[maker]) if maker.op.name != "param" else None
            group = groups[merge]
            if group not in chosen and device is not None and device in feasible[group]:
                chosen[group] = device

    def _join_readers(
        self,
        groups: Groups,
        feasible: Mapping[Group, Sequence[DeviceName]],
        found: dict[Node, DeviceName],
    ) -> None:
        """Put generators and invariants where they are read, readers before what they read."""
        readers = readers_of(self.graph)
        for node in reversed(self.graph.nodes):
            group = groups[node]
            loose = node.attrs.get("invariant") is True or is_generator(node)
            if node in found and (not loose or group.asked or len(group.members) > 1):
                continue
            where = list(dict.fromkeys(found[r] for r in readers[node] if r in found))
            where = [device for device in where if device in feasible[group]]
            if len(where) == 1 or node not in found:
                found[node] = (where or list(feasible[group]))[0]


def _maker(value: Value) -> Node:
    """Return the node that makes what a next_iteration, or a node that only passes a value on, passes on."""
    node = value.node
    while node.op.name in ("next_iteration", "identity") or is_rename(node):
        node = node.inputs[0].node
    return node


def _walk(node: Node) -> Iterable[Node]:
    yield node
    for region in node.regions:
        yield from region.walk()


def _with_devices(graph: Graph, found: Mapping[Node, DeviceName]) -> Graph:
    """Return the graph with these devices; nodes are made anew only from the first that changes."""
    values: dict[Value, Value] = {value: value for value in graph.params}
    nodes = {value.node: value.node for value in graph.params}
    for node in graph.nodes:
        device = str(found[node])
        inputs = tuple(values[value] for value in node.inputs)
        controls = tuple(nodes[before] for before in node.controls)
        made, same = node, node.attrs.get("device") == device
        if not same or inputs != node.inputs or controls != node.controls:
            rest = (node.regions, controls, node.dims, node.loc)
            made = Node(node.op, inputs, {**node.attrs, "device": device}, node.types, *rest)
        nodes[node] = made
        values.update(zip(node.outputs, made.outputs, strict=True))
    if all(old is new for old, new in nodes.items()):
        return graph
    back = {nodes[merge]: values[value] for merge, value in graph.back.items()}
    results = tuple(values[value] for value in graph.results)
    return Graph(graph.name, graph.params, results, tuple(nodes[n] for n in graph.effects), back)
