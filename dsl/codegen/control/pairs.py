"""Puts two trips of a `while` together whose numbers wait for a choice: the second is begun on both sides while that is still open.

    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1

    odd:  3 * n + 1                    -> (3 * n + 1) // 2         what is made of an odd number is even
    even: n // 2                       -> n // 4, or 3 * (n // 2) + 1

A trip of its own takes the longer side and the choice; two together take less than twice that, where the sides differ or the
condition takes longer than they do, as in bisections. Between the two the loop's test is made as before. What a trip computes is
computed up to three times, so it must be little, of numbers alone, and must not raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dsl.codegen.tallies import chosen
from dsl.ir import graph as ir
from dsl.ir.build import Builder
from dsl.ir.facts import constant_of, depends, is_array, may_raise
from dsl.ir.rewrite import Rewriter, rebuild

__all__ = ["two_trips"]

_MOST = 24  # ops of a trip
_GAIN = 0.9  # of the time that two trips take one after the other
_CYCLES = {
    "add": (1, 3), "subtract": (1, 3), "multiply": (3, 3), "square": (3, 3), "divide": (0, 13), "sqrt": (0, 18),
    "negative": (1, 1), "absolute": (2, 1), "minimum": (2, 4), "maximum": (2, 4), "where": (1, 2),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "bitwise_invert"), (1, 0)),
    **dict.fromkeys(("left_shift", "right_shift", "floor_divide", "remainder"), (1, 0)),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not"), (1, 1)),
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), (1, 3)),
    "const": (0, 0), "identity": (0, 0), "cond": (0, 0),
}  # fmt: skip
"""How long one waits for an op of integers, and of floats: about, on the processors of today."""
_BY_CONSTANTS = frozenset(("left_shift", "right_shift", "floor_divide", "remainder"))


class Residue(NamedTuple):
    """What is left of a whole number by a power of two."""

    value: ir.Value
    modulus: int
    left: int


def two_trips(node: ir.Node) -> ir.Graph | None:
    """Return a graph that makes two trips of a `while`, or None if nothing is gained: its results are those of the first, then of both."""
    body, carried = node.regions[1], node.attrs["carried"]
    inside = list(_walk(body))
    chooses = any(inner.op.name in ("cond", "where") for inner in inside)
    if body.effects or not chooses or not all(map(_is_quick, inside)):
        return None
    straight = rebuild(body, _choose)
    if sum(inner.op.name != "const" for inner in straight.nodes) > _MOST:
        return None
    least, found = _GAIN * 2 * _time(straight, carried), None
    for predicate in _predicates(straight, carried):
        pair = _pair(straight, predicate)
        time = _time(pair, carried, carried)
        if time <= least:
            least, found = time, pair
    return found


def _walk(body: ir.Graph) -> Iterator[ir.Node]:
    for node in body.nodes:
        yield node
        for region in node.regions:
            yield from _walk(region)


def _is_quick(node: ir.Node) -> bool:
    """Tell whether a node computes numbers, in little time, without raising."""
    if node.op.name not in _CYCLES or any(is_array(v) for v in node.outputs):
        return False
    if node.op.name in _BY_CONSTANTS and _power_of(node) is None:
        return False
    return all(v.dtype.kind in "iufb" for v in node.outputs) and (
        node.op.name == "cond" or not may_raise(node)
    )


def _power_of(node: ir.Node) -> int | None:
    """Return the power of two, or its exponent, that a number is divided or shifted by."""
    found = constant_of(node.inputs[1])
    if found is None or node.inputs[0].dtype.kind not in "iu":
        return None
    number = int(found)
    if node.op.name in ("left_shift", "right_shift"):
        return number if 0 <= number < 8 * found.dtype.itemsize else None
    return number if number > 0 and number & (number - 1) == 0 else None


def _choose(builder: Rewriter, node: ir.Node) -> list[ir.Value] | None:
    """Make choices of branches."""
    if node.op.name != "cond":
        return None
    sides = [builder.inline(side, node.inputs[1:], ())[0] for side in node.regions]
    return [chosen(builder, node.inputs[0], *both) for both in zip(*sides, strict=True)]


def _predicates(body: ir.Graph, carried: int) -> list[ir.Value]:
    """Return the conditions of choices that wait for the trip before."""
    found = dict.fromkeys(node.inputs[0] for node in body.nodes if node.op.name == "where")
    return [p for p in found if any(depends(p, param) for param in body.params[:carried])]


# --- Two trips -----------------------------------------------------------------------------------


def _pair(body: ir.Graph, predicate: ir.Value) -> ir.Graph:
    """Return two trips, the second of them on each side of a choice of the first."""
    builder = Builder(body.name)
    params = [builder.param(p.type, str(p.node.attrs.get("name", ""))) for p in body.params]
    carried = len(body.results)
    values = _copies(builder, body, params, {}, {}, None)
    asked = values[predicate]
    sides: list[list[ir.Value]] = []
    for holds in (True, False):
        known = _assumed(asked, holds)
        first = _copies(builder, body, params, values, {asked: holds}, known)
        given = [first[v] for v in body.results] + params[carried:]
        second = _copies(builder, body, given, values, {}, known)
        sides.append([*given[:carried], *(second[v] for v in body.results)])
    results = [chosen(builder, asked, *both) for both in zip(*sides, strict=True)]
    return ir.Graph(body.name, tuple(params), tuple(results))


def _copies(
    builder: Builder, body: ir.Graph, args: Sequence[ir.Value], others: Mapping[ir.Value, ir.Value],
    told: Mapping[ir.Value, bool], known: Residue | None,
) -> dict[ir.Value, ir.Value]:  # fmt: skip
    """Make a trip; return what became of its values, some of which another copy has.

    Choices are not made where it is told how they come out.
    """
    values = dict(zip(body.params, args, strict=True))
    for node in body.nodes:
        inputs = [values[v] for v in node.inputs]
        side = _told(inputs[0], told, known) if node.op.name == "where" else None
        if side is not None:
            values[node.output] = inputs[1 if side else 2]
            continue
        if others and inputs == [others[v] for v in node.inputs]:
            values.update((v, others[v]) for v in node.outputs)
            continue
        made = builder.node(node.op, inputs, node.attrs, types=node.types, loc=node.loc)
        values.update(zip(node.outputs, made.outputs, strict=True))
    return values


def _told(predicate: ir.Value, told: Mapping[ir.Value, bool], known: Residue | None) -> bool | None:
    """Tell how a choice comes out, or None."""
    asked = _asked_residue(predicate)
    if predicate in told or asked is None or known is None:
        return told.get(predicate)
    left = _left(asked.value, asked.modulus, known)
    return None if left is None else (left == asked.left) == (predicate.node.op.name == "equal")


def _assumed(predicate: ir.Value, holds: bool) -> Residue | None:
    """Return what a condition says of a number if it holds, or if it does not."""
    asked = _asked_residue(predicate)
    if asked is None or holds == (predicate.node.op.name == "equal"):
        return asked
    return asked._replace(left=1 - asked.left) if asked.modulus == 2 else None


def _asked_residue(predicate: ir.Value) -> Residue | None:
    """Return what a comparison such as `n % 4 == 1` or `n & 1 != 0` asks for."""
    node = predicate.node
    if node.op.name not in ("equal", "not_equal"):
        return None
    part, left = node.inputs[0].node, constant_of(node.inputs[1])
    if left is None or part.op.name not in ("remainder", "bitwise_and"):
        return None
    by = constant_of(part.inputs[1])
    if by is None or part.inputs[0].dtype.kind not in "iu":
        return None
    modulus = int(by) + (part.op.name == "bitwise_and")
    fits = modulus > 0 and modulus & (modulus - 1) == 0 and 0 <= int(left) < modulus
    return Residue(part.inputs[0], modulus, int(left)) if fits else None


def _left(value: ir.Value, modulus: int, known: Residue) -> int | None:
    """Return what is left of a whole number by a power of two; that it wraps around does not count."""
    if value is known.value and known.modulus % modulus == 0:
        return known.left % modulus
    constant = constant_of(value)
    if constant is not None:
        return int(constant) % modulus
    node = value.node
    if node.op.name not in ("add", "subtract", "multiply"):
        return None
    one, other = (_left(v, modulus, known) for v in node.inputs)
    if one is None or other is None:
        return None
    whole = {"add": one + other, "subtract": one - other, "multiply": one * other}[node.op.name]
    return whole % modulus


# --- Time ----------------------------------------------------------------------------------------


def _time(graph: ir.Graph, carried: int, first: int = 0) -> int:
    """Return how long results from the first on are waited for, from the numbers of the trip before on."""
    ready: dict[ir.Value, int] = dict.fromkeys(graph.params[:carried], 0)
    for node in graph.nodes:
        waits = [ready[v] for v in node.inputs if v in ready]
        if waits and node.outputs[0] not in ready:
            ready.update(dict.fromkeys(node.outputs, max(waits) + _cycles(node)))
    return max((ready.get(v, 0) for v in graph.results[first:]), default=0)


def _cycles(node: ir.Node) -> int:
    whole, real = _CYCLES[node.op.name]
    if node.inputs[-1].dtype.kind == "f":
        return real
    factors = [constant_of(v) for v in node.inputs] if node.op.name == "multiply" else []
    # Such products are additions of a shifted number.
    return 1 if any(f is not None and abs(int(f)) in (2, 3, 4, 5, 8, 9) for f in factors) else whole
