"""What makes a loop of a frame: its variables, invariants and effects, and whether it counts trips.

In: a frame of a flat graph. Out: the parts from which a `while`, or a `scan`, is made. The variable that orders
effects, and the one that counts trips, are recognised by the marks that `lower_control` leaves and by their form;
if either is not as expected they are variables like the others.
"""

from __future__ import annotations

from typing import NamedTuple

from dsl.ir.graph import Node, Value
from dsl.ir.types import ValueType
from dsl.passes.flat.scopes import Frame, Scopes
from dsl.passes.flat.slices import Bounds, Part, Slices, unwrap_token

__all__ = ["Counter", "Loop", "Token", "rank", "renamed_type"]


class Counter(NamedTuple):
    """The trip number, and what brings in the number of trips."""

    merge: Node
    limit: Node


class Token(NamedTuple):
    """The variable that orders effects, and the effects that it waits for in the test and in the body."""

    merge: Node
    switch: Node
    test: list[Node]
    body: list[Node]


def rank(scopes: Scopes, node: Node) -> tuple[int, int, int]:
    """Order flat nodes by their recorded index, then by their place in the text."""
    hint, position = node.attrs.get("index"), scopes.position[node]
    return (0, hint, position) if isinstance(hint, int) else (1, position, 0)


class Loop:
    """The parts of a loop. `variables` are the `loop_merge` nodes of its carried values, in order."""

    def __init__(self, slices: Slices, frame: Frame) -> None:
        self.slices, self.scopes, self.frame = slices, slices.scopes, frame
        self.back = self.scopes.graph.back
        self.token = self._find_token()
        self.counter = self._find_counter()
        hidden = {part.merge for part in (self.token, self.counter) if part is not None}
        merges = [merge for merge in frame.merges if merge not in hidden]
        self.variables = sorted(merges, key=lambda merge: rank(self.scopes, merge.inputs[0].node))
        self.test, self.body = self._parts()
        self.invariants = self._find_invariants()
        self._switches: dict[Node, Node] = {}
        for switch in frame.switches:
            self._switches.setdefault(switch.inputs[0].node, switch)

    def next_value(self, merge: Node) -> Value:
        return self.back[merge].node.inputs[0]

    # -- tokens and counters -------------------------------------------------------------------------------------

    def _find_token(self) -> Token | None:
        merges = [merge for merge in self.frame.merges if merge.attrs.get("token")]
        switches = [switch for switch in self.frame.switches if switch.attrs.get("token")]
        if len(merges) != 1 or len(switches) != 1:
            return None
        test, head = unwrap_token(switches[0].inputs[0])
        body, inside = unwrap_token(self.next_value(merges[0]))
        fits = head.node is merges[0] and inside.node is switches[0]
        return Token(merges[0], switches[0], test, body) if fits else None

    def _find_counter(self) -> Counter | None:
        """Find the trip number, if the loop is still the `scan` that it was."""
        pred = self.frame.cond.inputs[0].node
        if not self.frame.cond.attrs.get("counted") or pred.op.name != "less":
            return None
        merge, limit = (value.node for value in pred.inputs)
        fits = merge.attrs.get("counter") and limit.attrs.get("limit") and self._counts(merge)
        has_test = self.token is not None and self.token.test
        return Counter(merge, limit) if fits and not has_test else None

    def _counts(self, merge: Node) -> bool:
        """Tell whether a variable counts from 0 by 1, for the loop alone."""
        following = self.next_value(merge).node
        if following.op.name != "add" or not _is_const(merge.inputs[0].node.inputs[0], 0):
            return False
        trip, step = (self.scopes.through(value).node for value in following.inputs)
        by_one = step.op.name == "enter" and _is_const(step.inputs[0], 1)
        leaves = any(exit.inputs[0].node.inputs[0].node is merge for exit in self.frame.exits)
        return trip is merge and by_one and not leaves

    # -- test and body -------------------------------------------------------------------------------------------

    def _parts(self) -> tuple[Part, Part]:
        frame, token = self.frame, self.token
        bounds = Bounds(frame.scope, (frame.scope,))
        test = Part(bounds, [frame.cond.inputs[0]], [] if token is None else token.test)
        bounds = Bounds(frame.scope, (frame.scope, frame.body), late=True)
        following = [self.next_value(merge) for merge in self.variables]
        body = Part(bounds, following, [] if token is None else token.body)
        effects = self.scopes.effects.get(frame.scope, [])
        inner = dict.fromkeys(self.scopes.effects.get(frame.body, ()))
        tests = [effect for effect in effects if effect not in inner]
        return self.slices.complete(test, tests), self.slices.complete(body, inner)

    # -- operands ------------------------------------------------------------------------------------------------

    def _find_invariants(self) -> list[Node]:
        """Return the invariants that were operands, and others that are read."""
        parts = [self.body] if self.counter is not None else [self.test, self.body]
        read = {value.node for part in parts for value in self.slices.find(part).outside}
        found = [
            enter
            for enter in self.frame.enters
            if enter.attrs.get("invariant") and (enter in read or "index" in enter.attrs)
        ]
        return sorted(found, key=lambda enter: rank(self.scopes, enter))

    # -- types -------------------------------------------------------------------------------------------------

    def type_in_test(self, head: Node) -> ValueType:
        """Return the type of a variable or invariant in the test."""
        return head.types[0] if head.op.name == "loop_merge" else self._held_type(head, "test")

    def type_in_body(self, head: Node) -> ValueType:
        """Return the type of a variable or invariant in the body."""
        if head.op.name != "loop_merge":
            return self._held_type(head, "body")
        return self._type_on_side(head, 1)

    def _held_type(self, enter: Node, region: str) -> ValueType:
        names = self.scopes.renames.get(enter.output, ())
        found = [name.types[0] for name in names if name.attrs.get("region", region) == region]
        return found[0] if found else enter.types[0]

    def _type_on_side(self, merge: Node, side: int) -> ValueType:
        switch = self._switches.get(merge)
        return merge.types[0] if switch is None else renamed_type(self.scopes, switch.outputs[side])

    def types_after(self) -> tuple[ValueType, ...]:
        """Return the types of the carried values after the loop."""
        exits = {self.scopes.through(exit.inputs[0]).node: exit for exit in self.frame.exits}
        return tuple(
            renamed_type(self.scopes, exits[merge].output)
            if merge in exits
            else self._type_on_side(merge, 0)
            for merge in self.variables
        )


def renamed_type(scopes: Scopes, value: Value) -> ValueType:
    """Return the type that a value has where a region takes it or a loop leaves it."""
    names = scopes.renames.get(value)
    return names[0].types[0] if names else value.type


def _is_const(value: Value, number: int) -> bool:
    return value.node.op.name == "const" and bool(value.node.attrs["value"].array == number)
