"""Cut a placed flat graph into parts, one for each device, that exchange tokens through `send` and `recv`.

In: a flat graph whose every node has a `device` (see `place`); structured nodes in it run whole where they are. Out: a
`Partition`: the parts, each of which obeys the verifier, and where each result comes from. What the parts do together
is what the graph does. Before and after, for `y = x + x` on cpu:0 and `y * y` on cpu:1:

    %y = add(%x, %x) {device="/rank:0/cpu:0"} : f64[]
    %z = multiply(%y, %y) {device="/rank:0/cpu:1"} : f64[]

    on /rank:0/cpu:0                                          on /rank:0/cpu:1
    %y = add(%x, %x) : f64[]                                  %y = recv() {key="…;add_0:0"} : f64[]
    !0 = send(%y) {key="…;add_0:0"}                           %z = multiply(%y, %y) : f64[]

- A value goes to a device once, however many nodes read it there; a control edge goes as a token of its own, also once,
  or comes with a value of the same node. Arguments are at hand everywhere. A dead value is sent as a dead token, so
  branches need nothing more.
- A frame that spans devices has on each of them, but for the predicate's own if nothing comes to it, a *driver*: a loop
  variable whose only work is to start the iterations there. The predicate is sent to every such device in each
  iteration, and every `recv` of the frame waits for the driver, so it waits in the iteration that it belongs to:

        %start = enter(%true) {frame="w"}                     # of an inner frame: enter(the outer frame's driver)
        %driver = loop_merge(%start, %next)
        %p = recv() {key="…;loop_cond_5:0"} after %driver
        %c = loop_cond(%p)                                    # what the loop's own switches here read too
        %x = recv() {key="…;add_3:0"} after %driver
        %_, %on = switch(%driver, %c)
        %next = next_iteration(%on)

  When the predicate is false the driver stops; when it is dead, because the loop is in a branch not taken, too. The
  devices do not wait for each other otherwise: each may be ahead as far as its bound on parallel iterations allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dsl.errors import VerifyError
from dsl.ir.checks.frames import ROOT, Frames, most_iterations
from dsl.ir.devices import DeviceName
from dsl.ir.graph import Graph, Literal, Node, Value
from dsl.ir.parts import Part, Partition, Source, node_names
from dsl.ir.registry import get_op
from dsl.ir.types import BOOL, ValueType, scalar
from dsl.passes.placing.homes import SMALL, Homes

__all__ = ["partition"]

TOKEN = scalar(BOOL)


def partition(graph: Graph, *, small: int = SMALL) -> Partition:
    """Cut a placed graph into the parts of its devices; constants of up to `small` bytes are never sent."""
    return _Cut(graph, Homes(graph, small)).run()


class _Site:
    """The part of one device, being made: what values and nodes became there, and the driver of each frame."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.values: dict[Value, Value] = {}
        self.nodes: dict[Node, Node] = {}
        self.drivers: dict[str, Node] = {}
        self.back: dict[Node, Value] = {}
        self.effects: list[Node] = []

    def emit(
        self,
        op: str,
        inputs: Sequence[Value],
        types: Sequence[ValueType],
        controls: Iterable[Node] = (),
        origin: Node | None = None,
        **attrs: Any,
    ) -> Node:
        """Make a node for the sake of `origin`, whose line it gets."""
        placed, loc = {**attrs, "device": self.device}, None if origin is None else origin.loc
        rest: tuple[Any, ...] = ((), tuple(controls), (), loc)
        return Node(get_op(op), tuple(inputs), placed, tuple(types), *rest)

    def stands_for(self, node: Node, made: Node) -> None:
        """Note what a node became."""
        self.nodes[node] = made
        self.values.update(zip(node.outputs, made.outputs, strict=True))


class _Cut:
    def __init__(self, graph: Graph, homes: Homes) -> None:
        self.graph, self.homes = graph, homes
        self.frames = Frames(graph)
        self.names = node_names(graph)
        self.conds = {
            self.frames.after(node): node for node in graph.nodes if node.op.name == "loop_cond"
        }
        found = sorted({d for devices in homes.devices.values() for d in devices}, key=_order)
        self.sites = {device: _Site(device) for device in found}
        self.taken = {node.attrs.get("key") for node in graph.nodes}
        # What has to go where: values, and nodes for which something waits.
        self.values: dict[tuple[Value, str], None] = {}
        self.waits: dict[tuple[Node, str], None] = {}
        self._find_crossings()

    def run(self) -> Partition:
        driven = self._driven()
        for frame, device in driven:
            self._start_driver(frame, self.sites[device])
        for node in self.graph.nodes:
            for device in self.homes.devices[node]:
                self._copy(node, self.sites[device])
        for frame, device in driven:
            self._close_driver(frame, self.sites[device])
        self._join_back_edges()
        for value, device in self.values:
            self._send_value(value, device)
        for node, device in self.waits:
            self._send_word(node, device)
        return self._finish()

    # -- what crosses --------------------------------------------------------------------------------------------

    def _find_crossings(self) -> None:
        for node in self.graph.nodes:
            for device in self.homes.devices[node]:
                for value in node.inputs:
                    if not self._is_at(value.node, device):
                        self.values[value, device] = None
        for node in self.graph.nodes:
            for device in self.homes.devices[node]:
                for before in node.controls:
                    self._note_wait(before, device)

    def _note_wait(self, node: Node, device: str) -> None:
        if node.op.name == "loop_cond" and not self._is_at(node, device):
            self.values[node.output, device] = None  # it comes there anyway
        elif not self._is_at(node, device) and self._carrier(node, device) is None:
            self.waits[node, device] = None

    def _is_at(self, node: Node, device: str) -> bool:
        return node.op.name == "param" or device in self.homes.devices[node]

    def _carrier(self, node: Node, device: str) -> Value | None:
        """Return a value whose coming to a device tells that a node has run. A switch's outputs die one by one."""
        if node.op.name == "switch":
            return None
        return next((value for value in node.outputs if (value, device) in self.values), None)

    # -- drivers -------------------------------------------------------------------------------------------------

    def _driven(self) -> list[tuple[str, str]]:
        """Return the frames that need a driver, each with the device, outer frames first."""
        wanted = [(self.frames.of(value), device) for value, device in self.values]
        wanted += [(self.frames.after(node), device) for node, device in self.waits]
        for node in self.graph.nodes:
            for frame in (self.frames.inside(node), self.frames.after(node)):
                wanted += [
                    (frame, device)
                    for device in self.homes.devices[node]
                    if self._follows(frame, device)
                ]
        found = {(outer, device) for frame, device in wanted for outer in self._path(frame)}
        for frame, device in found:
            self._check_spans(frame, device)
        return sorted(found, key=lambda pair: (len(self._path(pair[0])), pair[0], _order(pair[1])))

    def _follows(self, frame: str, device: str) -> bool:
        """Tell whether a device does not decide itself when to start the iterations of a frame."""
        cond = self.conds.get(frame)
        return cond is not None and self.homes.home[cond] != device

    def _path(self, frame: str) -> list[str]:
        """Return a frame and those around it, outermost first, without the root frame."""
        path: list[str] = []
        while frame != ROOT:
            path.insert(0, frame)
            frame = self.frames.parents[frame]
        return path

    def _check_spans(self, frame: str, device: str) -> None:
        if frame not in self.conds:
            raise VerifyError(
                f"frame {frame!r} has no loop_cond, so it cannot run on several devices; one is {device}"
            )

    def _start_driver(self, frame: str, site: _Site) -> None:
        cond = self.conds[frame]
        parent = self.frames.parents[frame]
        start = site.drivers[parent] if parent else self._dummy(site)
        bound = self._bound(frame)
        enter = site.emit("enter", start.outputs, (TOKEN,), (), cond, frame=frame, **bound)
        site.drivers[frame] = site.emit("loop_merge", enter.outputs, (TOKEN,), (), cond)
        if self.homes.home[cond] != site.device:
            self.values[cond.output, site.device] = None
            pred = self._recv(self._key(cond, site.device, "0"), TOKEN, cond, site)
            site.stands_for(cond, site.emit("loop_cond", pred.outputs, (TOKEN,), (), cond))

    def _bound(self, frame: str) -> dict[str, Any]:
        """Return the bound on parallel iterations that the enters of a frame state."""
        enters = [n for n in self.graph.nodes if n.op.name == "enter" and n.attrs["frame"] == frame]
        most = most_iterations(enters, 0)
        return {"parallel_iterations": most} if most else {}

    def _close_driver(self, frame: str, site: _Site) -> None:
        cond, driver = self.conds[frame], site.drivers[frame]
        inputs = (driver.output, site.values[cond.output])
        switch = site.emit("switch", inputs, (TOKEN, TOKEN), (), cond)
        again = site.emit("next_iteration", switch.outputs[1:], (TOKEN,), (), cond)
        site.back[driver] = again.output
        # Where nothing waits for the driver it starts iterations all the same.
        site.effects.append(driver)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def _copy(self, node: Node, site: _Site) -> None:
        inputs = tuple(self._value(value, site) for value in node.inputs)
        controls = tuple(dict.fromkeys(self._control(before, site) for before in node.controls))
        made, attrs = node, node.attrs
        if attrs["device"] != site.device:
            attrs = {**attrs, "device": site.device}
        if (inputs, controls) != (node.inputs, node.controls) or attrs is not node.attrs:
            rest = (node.regions, controls, node.dims, node.loc)
            made = Node(node.op, inputs, attrs, node.types, *rest)
        site.stands_for(node, made)

    def _value(self, value: Value, site: _Site) -> Value:
        """Return a value as a device knows it."""
        if value.node.op.name == "param":
            return site.values.setdefault(value, value)
        if value not in site.values:
            key = self._key(value.node, site.device, str(value.index))
            site.values[value] = self._recv(key, value.type, value.node, site).output
        return site.values[value]

    def _control(self, node: Node, site: _Site) -> Node:
        """Return what to wait for on a device in place of a node."""
        if node.op.name == "param":
            return self._value(node.output, site).node
        if node not in site.nodes:
            carrier = self._carrier(node, site.device)
            if carrier is not None:
                return self._value(carrier, site).node
            key = self._key(node, site.device, "^")
            site.nodes[node] = self._recv(key, TOKEN, node, site)
        return site.nodes[node]

    def _recv(self, key: str, type: ValueType, source: Node, site: _Site) -> Node:
        frame = self.frames.after(source)
        waits = (site.drivers[frame],) if frame != ROOT else ()
        return site.emit("recv", (), (type,), waits, source, key=key)

    def _join_back_edges(self) -> None:
        for merge, value in self.graph.back.items():
            for device in self.homes.devices[merge]:
                site = self.sites[device]
                site.back[site.nodes[merge]] = site.values[value]

    # -- transfers -----------------------------------------------------------------------------------------------

    def _key(self, node: Node, device: str, port: str) -> str:
        key = f"{self.homes.home[node]};{device};{self.names[node]}:{port}"
        while key in self.taken:
            key += "'"
        return key

    def _send_value(self, value: Value, device: str) -> None:
        site = self.sites[self.homes.home[value.node]]
        self._send(
            site, site.values[value], value.node, self._key(value.node, device, str(value.index))
        )

    def _send_word(self, node: Node, device: str) -> None:
        """Send a token that says that a node has run, or that it is dead."""
        site = self.sites[self.homes.home[node]]
        word = self._dummy(site, site.nodes[node])
        self._send(site, word.output, node, self._key(node, device, "^"))

    def _send(self, site: _Site, value: Value, source: Node, key: str) -> None:
        site.effects.append(site.emit("send", (value,), (), (), source, key=key))

    def _dummy(self, site: _Site, *after: Node) -> Node:
        origin = after[0] if after else None
        return site.emit("const", (), (TOKEN,), after, origin, value=Literal(np.bool_(True)))

    # -- the parts -----------------------------------------------------------------------------------------------

    def _finish(self) -> Partition:
        parts = {device: self._part(site) for device, site in self.sites.items()}
        return Partition(
            parts, tuple(self._source(k, parts) for k in range(len(self.graph.results)))
        )

    def _part(self, site: _Site) -> Part:
        graph, home = self.graph, self.homes.home
        params = [k for k, value in enumerate(graph.params) if value in site.values]
        results = [
            k for k, value in enumerate(graph.results) if home.get(value.node) == site.device
        ]
        own = [site.nodes[node] for node in graph.effects if home[node] == site.device]
        made = Graph(
            graph.name,
            tuple(graph.params[k] for k in params),
            tuple(site.values[graph.results[k]] for k in results),
            tuple(dict.fromkeys([*own, *site.effects])),
            site.back,
        )
        return Part(site.device, made, tuple(params), tuple(results))

    def _source(self, index: int, parts: dict[str, Part]) -> Source:
        value = self.graph.results[index]
        if value.node.op.name == "param":
            return Source(None, self.graph.params.index(value))
        device = self.homes.home[value.node]
        return Source(device, parts[device].results.index(index))


def _order(device: str) -> tuple[Any, ...]:
    name = DeviceName.parse(device)
    return (name.rank or 0, name.kind or "", name.index or 0)
