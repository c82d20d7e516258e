"""Finds loops that end after few trips, whatever the numbers: each trip takes at least a bit from a number until none is left.

Such are the loops over the bits or digits of a number, and Euclid's algorithm. Within a loop that looks for interrupts they need not.
"""

from __future__ import annotations

from collections.abc import Callable

from dsl.codegen.control.carried import Carried, Loop
from dsl.codegen.control.passing import is_integer
from dsl.codegen.ranges import Ranges
from dsl.ir import graph as ir

__all__ = ["MOST", "is_brief"]

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
        natural = positive or param.dtype.kind == "u"
        if (natural and _halves(item)) or _drops_a_bit(item) or _is_euclid(item, loop):
            return True
    return False


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


def _halves(item: Carried) -> bool:
    node = item.result.node
    least = {"right_shift": 1, "floor_divide": 2}.get(node.op.name)
    return (
        least is not None
        and node.inputs[0] is item.param
        and _const(node.inputs[1], lambda number: least <= number < 64)
    )


def _drops_a_bit(item: Carried) -> bool:
    """Tell whether `v & (v - 1)` follows `v`."""
    node = item.result.node
    if node.op.name != "bitwise_and" or item.param not in node.inputs:
        return False
    less = node.inputs[1 - node.inputs.index(item.param)].node
    return (
        less.op.name == "subtract"
        and less.inputs[0] is item.param
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
