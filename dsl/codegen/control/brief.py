"""Finds loops that end after few trips, whatever the numbers: each trip takes at least a bit from a number until none is left.

Such are the loops over the bits or digits of a number, and Euclid's algorithm. Within a loop that looks for interrupts they need not.
Those that can be told by themselves count as no loops at all: then LLVM makes several trips of the loop around at once, or finds the
instruction that counts bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsl.codegen.control.passing import is_integer
from dsl.codegen.ranges import Ranges
from dsl.ir import graph as ir

if TYPE_CHECKING:
    from dsl.codegen.control.carried import Carried, Loop

__all__ = ["MOST", "counts_bits", "goes_through_bits", "is_brief"]

MOST = 100
"""Trips of such a loop: 64 for bits, and 92 for the remainders of two numbers of 64 bits."""


def is_brief(loop: Loop, test: ir.Graph, ranges: Ranges) -> bool:
    """Tell whether a `while` surely makes few trips; the ranges know that its test holds."""
    for item, param in zip(loop.carried, test.params):
        if not is_integer(param):
            continue
        positive = ranges.is_natural(loop.forms[item] + -1)
        if not positive and not _asks_for_zero(test.results[0], param):
            continue
        if _shrinks(item.param, item.result, positive) or _is_euclid(item, loop):
            return True
    return False


def goes_through_bits(node: ir.Node) -> bool:
    """Tell whether a node is a `while` that surely makes few trips, by what is in it alone."""
    if node.op.name != "while":
        return False
    test, body = node.regions
    if any(inner.regions for inner in body.nodes):
        return False
    condition = test.results[0]
    for tested, param, result in zip(test.params, body.params, body.results):
        if is_integer(param):
            positive = _asks_whether_positive(condition, tested)
            if (positive or _asks_for_zero(condition, tested)) and _shrinks(
                param, result, positive
            ):
                return True
    return False


def counts_bits(node: ir.Node) -> bool:
    """Tell whether a `while` drops one bit after the other, for which LLVM knows an instruction."""
    body = node.regions[-1]
    return goes_through_bits(node) and any(map(_drops_a_bit, body.params, body.results))


def _shrinks(param: ir.Value, result: ir.Value, positive: bool) -> bool:
    natural = positive or param.dtype.kind == "u"
    return (natural and _halves(param, result)) or _drops_a_bit(param, result)


def _asks_whether_positive(condition: ir.Value, param: ir.Value) -> bool:
    node = condition.node
    sides = {"greater": (0, 1), "less": (1, 0)}.get(node.op.name)
    if sides is None or node.inputs[sides[0]] is not param:
        return False
    return _const(node.inputs[sides[1]], lambda number: number >= 0)


def _asks_for_zero(condition: ir.Value, param: ir.Value) -> bool:
    node = condition.node
    return (
        node.op.name == "not_equal"
        and node.inputs[0] is param
        and _const(node.inputs[1], lambda number: number == 0)
    )


def _const(value: ir.Value, fits: Callable[[int], bool]) -> bool:
    node = value.node
    return node.op.name == "const" and not value.shape and fits(int(node.attrs["value"].array))


def _halves(param: ir.Value, result: ir.Value) -> bool:
    node = result.node
    least = {"right_shift": 1, "floor_divide": 2}.get(node.op.name)
    return (
        least is not None
        and node.inputs[0] is param
        and _const(node.inputs[1], lambda number: least <= number < 64)
    )


def _drops_a_bit(param: ir.Value, result: ir.Value) -> bool:
    """Tell whether `v & (v - 1)` follows `v`."""
    node = result.node
    if node.op.name != "bitwise_and" or param not in node.inputs:
        return False
    less = node.inputs[1 - node.inputs.index(param)].node
    return (
        less.op.name == "subtract"
        and less.inputs[0] is param
        and _const(less.inputs[1], lambda number: number == 1)
    )


def _is_euclid(item: Carried, loop: Loop) -> bool:
    """Tell whether `x, y = y, x % y` is done to a number `y` and another."""
    node = item.result.node
    if node.op.name != "remainder" or node.inputs[1] is not item.param:
        return False
    return any(
        other.param is node.inputs[0] and other.result is item.param for other in loop.carried
    )
