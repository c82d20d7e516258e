"""Algebraic rules as data, and how they are applied.

A rule is titled by its algebra:

    Rule("x + 0 -> x", p.add(x, 0), x, when=integers)

The left side is a pattern of ops, variables and numbers; a number matches a constant of exactly that value, -0.0 and
0.0 being different, in any splatted form. The right side is a variable, a number, a pattern to build, or a function of
the `Match`. `apply_rules` indexes rules by op and applies them bottom-up to a fixpoint. A rule applies only if the
result keeps the type of what it replaces, and no check at run time is lost: of sizes, or by an op that may raise and stands in
what the right side does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dsl.ir.facts import commutes, fits, splat_of
from dsl.ir.graph import Node, Value
from dsl.ir.rewrite import Rewrite, Rewriter, UnknownSize
from dsl.ir.types import TensorType, is_integer

__all__ = ["Apply", "Match", "OfDtype", "Patterns", "Rule", "Var", "apply_rules", "variables"]


@dataclass(frozen=True)
class Var:
    """Matches any value; twice the same variable, the same value."""

    name: str


@dataclass(frozen=True)
class Apply:
    """Matches an op applied to what the arguments match; commutative ops match in either order."""

    op: str
    args: tuple[Pattern, ...]


Pattern = Var | Apply | int | float | bool


class Patterns:
    """`p.add(x, 0)` is the pattern of `add`; a Python keyword takes an underscore."""

    def __getattr__(self, name: str) -> Callable[..., Apply]:
        return lambda *args: Apply(name.rstrip("_"), args)


def variables(names: str) -> tuple[Var, ...]:
    """Return variables with the given names, separated by spaces."""
    return tuple(map(Var, names.split()))


@dataclass(frozen=True)
class Match:
    """A node that the left side of a rule fits, and what its variables stand for."""

    builder: Rewriter
    node: Node
    bound: Mapping[str, Value]

    def __getitem__(self, var: Var) -> Value:
        return self.bound[var.name]

    @property
    def type(self) -> TensorType:
        return self.node.output.tensor

    def splat(self, number: Any) -> Value:
        """Return a value of the node's type all of whose elements are `number`."""
        value = self.builder.constant(np.asarray(number, dtype=self.type.dtype))
        return (
            value
            if not self.type.shape
            else self.builder.make("full", value, shape=self.type.shape)
        )

    def make(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        return self.builder.make(op, *inputs, **attrs)


@dataclass(frozen=True)
class OfDtype:
    """A condition on the dtype of the first operand, which is looked at before anything is matched."""

    test: Callable[[np.dtype], bool]

    def __call__(self, match: Match) -> bool:
        return self.test(match.node.inputs[0].dtype)


@dataclass(frozen=True)
class Rule:
    """`left -> right` where `when` holds. See the head of this file."""

    title: str
    left: Apply
    right: Pattern | Callable[[Match], Value | None]
    when: Callable[[Match], bool] = lambda match: True

    def apply(self, builder: Rewriter, node: Node) -> Value | None:
        """Return what replaces the output of a node, or None."""
        if builder.flat and not self.keeps_deadness():
            return None
        for bound in _matches(self.left, node, {}):
            match = Match(builder, node, bound)
            if self.when(match) and fits(node) and self._keeps_checks(match):
                found = self._build(match)
                if found is not None and found.type == node.types[0] and found is not node.output:
                    return found
        return None

    def _build(self, match: Match) -> Value | None:
        try:
            return self.right(match) if callable(self.right) else _build(self.right, match)
        except UnknownSize:
            return None

    def _keeps_checks(self, match: Match) -> bool:
        """Tell whether what the rule drops cannot raise, or only where what it keeps does."""
        if not self.dropped:
            return True
        kept = [match[var] for var in _leaves(self.right) if isinstance(var, Var)]  # type: ignore[arg-type]
        return match.builder.may_drop([match[var] for var in self.dropped], kept)

    @cached_property
    def dropped(self) -> set[Var]:
        """The variables that only the left side has."""
        if callable(self.right):
            return set()
        return {v for v in _leaves(self.left) if isinstance(v, Var)} - set(_leaves(self.right))

    def keeps_deadness(self) -> bool:
        """Tell whether both sides are dead for the same tokens, which only the same variables on both assure."""
        if callable(self.right):
            return False
        return not self.dropped and all(isinstance(v, Var) for v in _leaves(self.right))


def _leaves(pattern: Pattern) -> list[Any]:
    return (
        [leaf for arg in pattern.args for leaf in _leaves(arg)]
        if isinstance(pattern, Apply)
        else [pattern]
    )


def _build(pattern: Pattern, match: Match) -> Value:
    if isinstance(pattern, Var):
        return match[pattern]
    if isinstance(pattern, Apply):
        return match.make(pattern.op, *(_build(arg, match) for arg in pattern.args))
    return match.splat(pattern)


def _matches(pattern: Apply, node: Node, bound: dict[str, Value]) -> list[dict[str, Value]]:
    """Return the ways in which a node fits a pattern."""
    data = node.data_inputs
    if (
        node.op.name != pattern.op
        or node.controls
        or len(node.types) != 1
        or len(data) != len(pattern.args)
    ):
        return []
    orders = [data, (data[1], data[0], *data[2:])] if len(data) > 1 and commutes(node) else [data]
    return [ways for order in orders for ways in _match_all(pattern.args, order, bound)]


def _match_all(
    patterns: Sequence[Pattern], values: Sequence[Value], bound: dict[str, Value]
) -> list[dict[str, Value]]:
    ways = [bound]
    for pattern, value in zip(patterns, values, strict=True):
        ways = [more for way in ways for more in _match(pattern, value, way)]
    return ways


def _match(pattern: Pattern, value: Value, bound: dict[str, Value]) -> list[dict[str, Value]]:
    if isinstance(pattern, Var):
        known = bound.get(pattern.name, value)
        return [{**bound, pattern.name: value}] if known is value else []
    if isinstance(pattern, Apply):
        return _matches(pattern, value.node, bound)
    return [bound] if _is_number(value, pattern) else []


def _is_number(value: Value, number: float) -> bool:
    if value.node.op.name not in _NUMBERS:
        return False
    array = splat_of(value)
    if array is None or (array.dtype.kind == "b") != isinstance(number, bool):
        return False
    if is_integer(array.dtype):
        return isinstance(number, int) and int(array) == number
    return array.tobytes() == np.asarray(number, dtype=array.dtype).tobytes()


_NUMBERS = frozenset({"const", "full", "broadcast_to"})


def _needed(pattern: Apply) -> list[frozenset[str]]:
    """Return sets of ops one of each of which must be among the producers of the inputs: a quick first test."""
    found = [
        frozenset({arg.op}) if isinstance(arg, Apply) else _NUMBERS
        for arg in pattern.args
        if not isinstance(arg, Var)
    ]
    return list(dict.fromkeys(found))


def apply_rules(rules: Iterable[Rule]) -> Rewrite:
    """Return the rewrite that applies the first rule that fits, and those that fit its result."""
    index: dict[str, list[tuple[Rule, list[frozenset[str]]]]] = {}
    for rule in rules:
        index.setdefault(rule.left.op, []).append((rule, _needed(rule.left)))
    narrowed: dict[tuple[str, np.dtype | None], list[tuple[Rule, list[frozenset[str]]]]] = {}

    def rewrite(builder: Rewriter, node: Node) -> list[Value] | None:
        name = node.op.name
        if name not in index:
            return None
        type = node.inputs[0].type
        dtype = type.dtype if isinstance(type, TensorType) else None
        rules = narrowed.get((name, dtype))
        if rules is None:
            rules = [pair for pair in index[name] if _is_for(pair[0], dtype)]
            narrowed[name, dtype] = rules
        if not rules:
            return None
        below = {value.node.op.name for value in node.inputs}
        for rule, needed in rules:
            if not needed or not any(map(below.isdisjoint, needed)):
                found = rule.apply(builder, node)
                if found is not None:
                    return [found]
        return None

    return rewrite


def _is_for(rule: Rule, dtype: np.dtype | None) -> bool:
    """Tell whether a rule may apply to nodes whose first operand has a dtype."""
    return dtype is None or not isinstance(rule.when, OfDtype) or rule.when.test(dtype)
