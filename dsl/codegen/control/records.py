"""Finds branches that are taken where a new number is better than the best so far: the more trips are made, the rarer they are.

    for j in range(n):               for j in range(n):
        if x[j] > best:                  if a[j] < a[least]:
            best, place = x[j], j            least = j

Taken as branches they let the CPU read on: it guesses that nothing changes. As choices each trip waits for the one before, and for
what it reads where that says. A maximum alone is left to LLVM, which computes several at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dsl.codegen.control.weights import is_loop
from dsl.ir import graph as ir
from dsl.ir.registry import Trait

if TYPE_CHECKING:
    from dsl.codegen.control.carried import Carried, Loop

__all__ = ["is_kept", "rare_side", "seeks_records"]

_FEW = 64  # trips in which a new best is no rare thing
_SMALL = 40  # ops of a loop that is unrolled
_ORDERS = frozenset(("less", "less_equal", "greater", "greater_equal"))
_DEEP = 6  # ops in a formula
_OWN = "own"

Key = Any
"""A formula as nested tuples of names of ops, attributes and values; equal if they surely give the same number."""
Names = Mapping[ir.Value, Key]


def rare_side(loop: Loop | None, node: ir.Node) -> int | None:
    """Return which side of a branch a loop rarely takes, or None if neither is known to be rare."""
    if loop is None or node.op.name != "cond" or _is_short(loop):
        return None
    items = [item for item in loop.carried if item.result.node is node]
    for rare, kept in ((0, 1), (1, 0)):
        if all(is_kept(node, node.regions[kept], item) for item in items):
            records = [item for item in items if _is_record(node, node.regions[rare], item)]
            return rare if records and not _is_extremum(items, node) else None
    return None


def seeks_records(loop: Loop) -> bool:
    """Tell whether an innermost loop hardly does more than to compare with the best so far: to count its trips takes as long."""
    if sum(1 for _ in loop.body.walk()) > _SMALL or any(map(is_loop, loop.body.walk())):
        return False
    return any(rare_side(loop, node) is not None for node in loop.body.nodes)


def _is_short(loop: Loop) -> bool:
    """Tell whether a counted loop surely makes few trips."""
    trips = loop.node.inputs[0].node
    counted = len(loop.node.regions) == 1 and trips.op.name == "const"
    return counted and int(trips.attrs["value"].array) <= _FEW


def _is_extremum(items: list[Carried], node: ir.Node) -> bool:
    """Tell whether all that changes is one number, and it is compared itself."""
    test = node.inputs[0].node
    return len(items) == 1 and test.op.name in _ORDERS and items[0].param in test.inputs


def is_kept(node: ir.Node, side: ir.Graph, item: Carried) -> bool:
    """Tell whether one side of a branch leaves a number as it is."""
    result = side.results[item.result.index]
    return result in side.params and node.inputs[1 + side.params.index(result)] is item.param


def _is_record(node: ir.Node, side: ir.Graph, item: Carried) -> bool:
    """Tell whether a branch asks how a formula of a number compares with that of another one, which it becomes."""
    if item.param.shape or item.param.dtype.kind not in "iuf":
        return False
    names: Names = {item.param: _OWN}
    new = _key(side.results[item.result.index], _inside(node, side, names))
    return not _has_own(new) and _compares(node.inputs[0], names, new)


def _compares(value: ir.Value, names: Names, new: Key) -> bool:
    """Tell whether a condition compares what is, and what will be, or has a part that does."""
    node = value.node
    if node.op.name in _ORDERS:
        one, other = (_key(v, names) for v in node.inputs)
        return any(_has_own(a) and _put(a, new) == b for a, b in ((one, other), (other, one)))
    if node.op.name in ("logical_and", "logical_or", "bitwise_and", "bitwise_or"):
        return any(_compares(v, names, new) for v in node.inputs)
    if node.op.name != "cond":
        return False
    results = [(side.results[value.index], _inside(node, side, names)) for side in node.regions]
    return any(_compares(v, known, new) for v, known in ((node.inputs[0], names), *results))


def _inside(node: ir.Node, side: ir.Graph, names: Names) -> Names:
    """Name what a branch is given as it is named outside."""
    return {
        param: _key(v, names) for param, v in zip(side.params, node.inputs[1:]) if not v.shape
    } | {param: names.get(v, v) for param, v in zip(side.params, node.inputs[1:]) if v.shape}


def _key(value: ir.Value, names: Names, depth: int = _DEEP) -> Key:
    """Return the formula of a value."""
    if value in names:
        return names[value]
    node = value.node
    if node.op.name == "const" and not value.shape:
        return str(value.dtype), node.attrs["value"].array.tobytes()
    is_formula = node.op.name == "gather" or (node.op.has(Trait.ELEMENTWISE) and not value.shape)
    if not depth or not is_formula or node.op.name == "const":
        return value
    parts = (_key(v, names, depth - 1) for v in node.inputs)
    return (node.op.name, str(sorted(node.attrs.items())), value.index, *parts)


def _has_own(key: Key) -> bool:
    return key == _OWN or (isinstance(key, tuple) and any(map(_has_own, key)))


def _put(key: Key, new: Key) -> Key:
    """Return a formula with another number in place of the loop's own."""
    if isinstance(key, tuple):
        return tuple(_put(part, new) for part in key)
    return new if key == _OWN else key
