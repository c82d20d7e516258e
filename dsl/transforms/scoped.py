"""Gradients of tensors that are already computed: `gradients(ys, xs)` in a graph or in a compiled function."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.autodiff.cotangents import combine
from dsl.autodiff.flow import carries, joins_ranks
from dsl.autodiff.reverse import Reverse
from dsl.errors import GradientError, UnsupportedError
from dsl.frontend.accesses import unnoted
from dsl.frontend.bounds import settle
from dsl.frontend.scopes import Scope, current_scope, current_trace, here
from dsl.frontend.traced import cast, lift, read, wrap
from dsl.ir.algebra import Algebra
from dsl.ir.build import resources_of
from dsl.ir.facts import has_effect
from dsl.ir.graph import Graph, Node, Value
from dsl.ir.ops.comm import RESOURCE
from dsl.ir.registry import Trait

__all__ = ["gradients", "needed_variables"]


def gradients(ys: Any, xs: Any, grad_ys: Any = None) -> list[Any]:
    """Return the derivative of the sum of all `ys` with respect to each of `xs`, as tensors.

    `xs` are tensors that `ys` were computed from, or variables. `grad_ys` are weights for the `ys`, of their shapes. What no
    `y` depends on has a derivative of zeros.

    >>> import dsl, numpy as np
    >>> graph = dsl.Graph()
    >>> with graph:
    ...     x = dsl.placeholder(np.float64, (3,))
    ...     (dx,) = gradients((x * x).sum(), [x])
    >>> dsl.Session(graph).run(dx, {x: np.arange(3.0)})
    array([0., 2., 4.])
    """
    if current_trace() is None:
        raise UnsupportedError(
            "`dsl.gradients` is of tensors in a graph or in a compiled function", location=here(),
            remedy="use `dsl.grad(function)` for a function of arrays",
        )  # fmt: skip
    scope = current_scope()
    outputs = [_checked(read(lift(y)), "ys") for y in _listed(ys)]
    groups = [_sources(x, outputs) for x in _listed(xs)]
    seeds = _seeds(scope, outputs, None if grad_ys is None else _listed(grad_ys))
    before = len(getattr(scope, "order", ()))
    found = _pull_all(scope, outputs, groups, seeds)
    after = _unread(scope, before)
    a = Algebra(scope)
    made = []
    for group, x in zip(groups, _listed(xs), strict=True):
        parts = [g for v in group for g in found.get(v, ())]
        total = combine(a, parts) if parts else a.zeros(lift(x).type)
        made.append(
            wrap(scope.node("identity", (total,), {}, controls=after).output if after else total)
        )
    return made


def _listed(items: Any) -> list[Any]:
    return list(items) if isinstance(items, (list, tuple)) else [items]


def _checked(value: Value, what: str) -> Value:
    if not carries(value):
        raise GradientError(
            f"gradients: {what} must be floating-point or complex, got {value.type}",
            location=here(), remedy="convert with `.astype(float)` before computing",
        )  # fmt: skip
    return value


def _sources(x: Any, outputs: Sequence[Value]) -> list[Value]:
    """Return the values that stand for one of the `xs`: for a variable, all that was read of it."""
    trace = current_trace()
    assert trace is not None
    now = _checked(read(lift(x)), "xs")
    if not hasattr(type(x), "dsl_traced"):
        return [now]
    nodes = set(_needed(outputs, set()))
    if not trace.is_graph:
        return [v for v in trace.contents[id(x)] if v.node in nodes] or [now]
    name = trace.adopt(x)
    reads = [
        node.output
        for node in _needed(outputs, set())
        if node.op.name == "read_variable" and node.attrs["variable"] == name
    ]
    return reads or [now]


def needed_variables(value: Value) -> list[Any]:
    """Return the trainable variables of the graph being built that a value is computed from, in order of their making."""
    trace = current_trace()
    assert trace is not None
    resources = trace.resources
    names = {n.attrs["variable"] for n in _needed([value], set()) if n.op.name == "read_variable"}
    return [
        r
        for name, r in resources.items()
        if name in names and getattr(r, "trainable", False) and np.dtype(r.dtype).kind in "fcV"
    ]


def _seeds(scope: Scope, outputs: Sequence[Value], weights: list[Any] | None) -> list[Value | None]:
    a = Algebra(scope)
    if weights is None:
        return [a.spread(scope.constant(1, v.dtype), v.tensor) for v in outputs]
    if len(weights) != len(outputs):
        raise GradientError(f"gradients: {len(outputs)} ys and {len(weights)} grad_ys")
    found: list[Value | None] = []
    for value, weight in zip(outputs, weights):
        w = cast(read(lift(weight)), value.dtype)
        if w.shape != value.shape:
            raise GradientError(f"gradients: a grad_y of {w.type} for a y of {value.type}")
        found.append(w)
    return found


def _needed(outputs: Sequence[Value], stop: set[Value]) -> list[Node]:
    """Return the nodes that values are computed by, up to those in `stop`."""
    seen: dict[Node, None] = {}
    stack = [v.node for v in outputs if v not in stop]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = None
            stack.extend(v.node for v in node.inputs if v not in stop)
    return list(seen)


def _pull_all(
    scope: Scope, outputs: list[Value], groups: list[list[Value]], seeds: list[Value | None]
) -> dict[Value, list[Any]]:
    """Return the cotangents of all `xs`, each a group. What comes to one that was computed from others goes on to those."""
    leaves = list(dict.fromkeys(v for group in groups for v in group))
    found = {v: list(parts) for v, parts in _pull(scope, outputs, leaves, seeds).items()}
    for leaf, others in _computed_from(groups).items():
        if not found[leaf]:
            continue
        total = combine(Algebra(scope), found[leaf])
        for other, parts in _pull(scope, [leaf], others, [total]).items():
            found[other] += parts
    return found


def _computed_from(groups: list[list[Value]]) -> dict[Value, list[Value]]:
    """Map each leaf that was computed from leaves of other groups to those; one that others come from comes after them."""
    found: dict[Value, list[Value]] = {}
    for group in groups:
        others = dict.fromkeys(v for other in groups if other is not group for v in other)
        for leaf in group:
            inputs = {v for node in _needed([leaf], set()) for v in node.inputs}
            found[leaf] = [v for v in others if v in inputs and v not in group]
    order = sorted(found, key=lambda leaf: -len(found[leaf]))
    return {leaf: found[leaf] for leaf in order if found[leaf]}


@unnoted()
def _pull(
    scope: Scope, outputs: list[Value], leaves: list[Value], seeds: list[Value | None]
) -> dict[Value, Any]:
    meetings = _meetings(scope, set(leaves))
    ends = [*outputs, *(v for node in meetings for v in node.inputs)]
    nodes = _needed(ends, set(leaves))
    cut = [v for node in nodes if _is_leaf(node) for v in node.outputs if v not in leaves]
    graph = Graph(scope.name, (*leaves, *cut), tuple(outputs), tuple(meetings))
    _check_effects(nodes, set(leaves))
    trace = current_trace()
    assert trace is not None
    graph = settle(graph, trace.checks)
    used = set(nodes)
    scope.noted = [item for item in scope.noted if item not in used]
    active = [k < len(leaves) for k in range(len(graph.params))]
    reverse = Reverse(graph, scope, graph.params, active, [True] * len(outputs))
    found = reverse.pull(scope, seeds)
    return dict(zip(leaves, found))


def _unread(scope: Scope, before: int) -> list[Node]:
    """Return what going back does for other ranks alone; a step of a graph that fetches a gradient does it too."""
    made = itertools.islice(getattr(scope, "order", ()), before, None)
    return [node for node in made if joins_ranks(node)]


def _meetings(scope: Scope, leaves: set[Value]) -> list[Node]:
    """Return what this rank does with others on the way from the leaves, though nothing here may need it."""
    made = (node for node in getattr(scope, "order", ()) if joins_ranks(node))
    return [
        node
        for node in made
        if any(v in leaves for n in (node, *_needed(node.inputs, leaves)) for v in n.inputs)
    ]


def _is_leaf(node: Node) -> bool:
    return node.op.name == "param" or _has_effect(node)


def _has_effect(node: Node) -> bool:
    if _only_checks(node):
        return False
    return set(resources_of(node.op, node.regions, node.attrs)) > {RESOURCE} or (
        has_effect(node) and not joins_ranks(node)
    )


def _only_checks(node: Node) -> bool:
    """Tell whether all that the regions of a node do is to check something, which may be done again."""
    effects = [effect for region in node.regions for effect in region.effects]
    return bool(effects) and all(e.op.resource == "assert" or _only_checks(e) for e in effects)


def _check_effects(nodes: Sequence[Node], leaves: set[Value]) -> None:
    """Refuse derivatives through control flow that acts on variables or queues: it cannot be run again."""
    for node in nodes:
        flat, acts = node.op.has(Trait.FLAT), bool(node.regions) and _has_effect(node)
        if not (flat or acts) or not _depends(node, leaves):
            continue
        if flat:
            raise GradientError(
                f"`{node.op.name}` cannot be differentiated: the graph has no structured form",
                location=node.loc, remedy="write branches and loops with `dsl.cond` and `dsl.while_loop`",
            )  # fmt: skip
        raise GradientError(
            f"`{node.op.name}` cannot be differentiated here: it writes a variable, uses a queue or prints",
            location=node.loc,
            remedy="do that outside of the branch or loop, or use `dsl.stop_gradient`",
        )


def _depends(node: Node, leaves: set[Value]) -> bool:
    """Tell whether one of the leaves is needed for a node."""
    return any(v in leaves for n in (node, *_needed(node.inputs, leaves)) for v in n.inputs)
