"""Lists and arrays that a counted loop makes longer by as many rows in each trip, and reads in no other way.

In: the params, results and first values of a loop's body, about to become a `scan`. Out: the same, where such an array has its final length
from the start and each trip writes its rows where they belong. No array changes its size then, and going back through the loop
reads the rows' cotangents where they lie; the cotangent of an array that grows would be copied in each trip.

    @body(%trip, %xs: f64[d]) { %1 = concatenate(%xs, %row) }      @body(%trip, %xs: f64[n]) { %1 = update_dynamic_slice(%xs, %row, %trip) }
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dsl.frontend.bounds import Place
from dsl.frontend.scopes import Scope
from dsl.ir.dims import DimLike, Symbol, lower_bound
from dsl.ir.graph import Node, Value
from dsl.ir.types import I64, TensorType

__all__ = ["fill", "of_open_length"]


def fill(
    parent: Scope, body: Scope, trip: Value, trips: Value, params: list[Value], results: list[Value], inits: list[Value]
) -> list[int]:  # fmt: skip
    """Have arrays that the body appends to filled instead; return the places of those in the lists, which are changed."""
    users = _users(body, results)
    found = [
        k for k, values in enumerate(zip(inits, params, results)) if _is_appended(*values, users)
    ]
    count = _count(parent, trips) if found else 0
    for k in found:
        params[k], results[k], inits[k] = _filled(
            parent, body, trip, count, params[k], results[k], inits[k]
        )
    return found


def _count(parent: Scope, trips: Value) -> DimLike:
    """Return the number of trips as a size: one that is known, or a symbol for what the run tells."""
    known = parent.known_dim(trips)
    least = None if known is None else lower_bound(known)
    if known is not None and least is not None and least >= 0:
        return known
    return parent.as_dim(parent.emit("maximum", trips, parent.constant(0, I64)))


def of_open_length(parent: Scope, array: Value) -> Value:
    """Return an array under a length that only the run tells, as lists in traced code have it."""
    length = Symbol("d")
    inputs = (array, parent.size(array.shape[0]))
    shape = (length, *array.shape[1:])
    return parent.node("reshape", inputs, {"shape": shape}, dims=[length]).output


def _users(body: Scope, results: list[Value]) -> Counter[Value]:
    """Count how often the body uses each value, its results and what it may have to check included."""
    ends = [*results, *_checked(body)]
    counts = Counter(ends)
    waiting = [*(value.node for value in ends), *body._last_effect.values()]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            counts.update(node.inputs)
            waiting += [*(value.node for value in node.inputs), *node.controls]
    return counts


def _checked(body: Scope) -> Iterator[Value]:
    for item in body.noted:
        if isinstance(item, Place):
            yield from (v for v in (item.index, item.given, item.size) if isinstance(v, Value))
        else:
            yield from item.outputs


def _is_appended(init: Value, param: Value, result: Value, users: Counter[Value]) -> bool:
    """Tell whether a trip does nothing with an array but put rows behind it, as many each time, which the array has after the trip."""
    node = result.node
    if node.op.name != "concatenate" or node.attrs["axis"] != 0 or len(node.inputs) != 2:
        return False
    rows = node.inputs[1].shape[0]
    alone = node.inputs[0] is param and users[param] == 1 and users[result] == 1
    known = isinstance(rows, int) and isinstance(init.shape[0], int)
    return alone and known and init.shape[1:] == param.shape[1:] and init.dtype == param.dtype


def _filled(
    parent: Scope, body: Scope, trip: Value, count: DimLike, param: Value, result: Value, init: Value
) -> tuple[Value, Value, Value]:  # fmt: skip
    """Return the array's param, result and first value."""
    rows = result.node.inputs[1]
    first, step = init.shape[0], rows.shape[0]
    type = TensorType(param.dtype, (count * step + first, *param.shape[1:]))
    array = body.param(type, param.node.attrs["name"])
    start = body.emit("multiply", trip, body.constant(step, I64)) if step != 1 else trip
    start = body.emit("add", start, body.constant(first, I64)) if first else start
    room = parent.emit(
        "full", parent.constant(0, type.dtype), shape=(count * step, *type.shape[1:])
    )
    whole = parent.emit("concatenate", init, room, axis=0) if first else room
    written = body.emit("update_dynamic_slice", array, rows, start, axis=0, step=1)
    return array, written, whole
