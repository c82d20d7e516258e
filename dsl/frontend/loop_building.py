"""Build the `while` or `scan` of a loop whose plan is stable, and put its results into variables and arrays.

The regions are those of the last attempt. If anything fails, the scope around is as before.
"""

from __future__ import annotations

from typing import Any

from dsl.config import config
from dsl.frontend.appending import fill, of_open_length
from dsl.frontend.carried import Carried, Key, Moves, Pass
from dsl.frontend.choices import note_choice, note_held
from dsl.frontend.leaves import (
    contents_of,
    count_leaves,
    the_trace,
    unchecked_value,
    visible_shape,
    zeros,
)
from dsl.frontend.loop_aliases import (
    find_moves,
    never_runs,
    note_aliases,
    note_shares,
    part,
    parted,
    refuse_parting,
    unswap,
)
from dsl.frontend.regions import discard, installed, region_of
from dsl.frontend.scopes import Scope, Storage, current_scope
from dsl.frontend.state import Snapshot, Undefined
from dsl.frontend.traced import Traced
from dsl.frontend.trees import unflatten
from dsl.frontend.undo import all_or_nothing
from dsl.ir.dims import Dim
from dsl.ir.graph import Value
from dsl.ir.types import I64, TensorType, scalar

__all__ = ["build"]


def build(
    loop: Carried,
    test: Pass | None,
    chosen: Value | None,
    run: Pass,
    after: Snapshot,
    contents: dict[Storage, Value],
) -> None:
    """Build the loop of regions that were traced last: the test and what it chose, the body and what it left."""
    trace, parent = the_trace(), current_scope()
    with trace.resumed(run.scope, contents):
        results = _results(loop, run, after)
    moves = find_moves(loop, run, after)
    refuse_parting(loop, run, after, contents, moves)
    never = never_runs(loop, parent) if run.arrays() else None
    inits = _inits(loop, parent)
    with all_or_nothing(parent, _reached(loop, after)):
        outputs = _emit(loop, parent, test, chosen, run, results, inits, moves)
        _finish(loop, parent, run, after, outputs, moves, never)
    discard(run.scope, *([test.scope] if test else []))


def _reached(loop: Carried, after: Snapshot) -> set[Storage]:
    """Return the storages whose contents or links the loop may change where it stands."""
    leaves = [leaf for each in (loop.before, after) for own in each.leaves for leaf in own]
    return {leaf.storage for leaf in leaves if isinstance(leaf, Traced)} | set(loop.plan.storages)


def _results(loop: Carried, run: Pass, after: Snapshot) -> list[Value]:
    b = current_scope()
    values = []
    for (cell, k), info in loop.plan.rebound.items():
        leaf = after.leaves[cell][k]
        if isinstance(leaf, Undefined):
            leaf = run.leaves[cell, k]
        values.append(unchecked_value(leaf, info))
    for cell in loop.plan.maybe:
        values.append(_flag(cell, after, b))
    return values + [contents_of(storage) for storage in loop.plan.storages]


def _flag(cell: int, after: Snapshot, b: Scope) -> Value:
    leaves = [leaf for leaf in after.leaves[cell] if isinstance(leaf, Traced)]
    for leaf in leaves:
        if leaf.storage.defined is not None:
            flag, owner, _ = leaf.storage.defined
            return b.local(flag, owner)
    return b.constant(True)


def _inits(loop: Carried, parent: Scope) -> list[Value]:
    values = []
    for (cell, k), info in loop.plan.rebound.items():
        leaves = loop.before.leaves[cell]
        if cell in loop.plan.structures:
            values.append(zeros(info, parent))
        else:
            values.append(unchecked_value(leaves[k], info))
    values += [parent.constant(False) for _ in loop.plan.maybe]
    return values + [contents_of(storage) for storage in loop.plan.storages]


def _emit(
    loop: Carried, parent: Scope, test: Pass | None, chosen: Value | None, run: Pass, results: list[Value], inits: list[Value],
    swap: Moves | None,
) -> list[Value]:  # fmt: skip
    body_params, results, inits = list(run.params), list(results), list(inits)
    test_params = list(test.params) if test else []
    if swap:
        slots = {key: run.scope.param(scalar(I64), "slot") for key in swap}
        body_params += slots.values()
        results += [slots[swap[key]] for key in swap]
        inits += [parent.constant(j, I64) for j in range(len(swap))]
        test_params += [test.scope.param(scalar(I64), "slot") for _ in swap] if test else []
    captures = list(dict.fromkeys([*run.scope.captured, *(test.scope.captured if test else ())]))
    if test is None:
        return _emit_scan(loop, parent, run, captures, body_params, results, inits, bool(swap))
    types = _types(body_params, parent)
    assert chosen is not None
    if run.trip is not None:
        assert test.trip is not None
        body_params, test_params = [run.trip, *body_params], [test.trip, *test_params]
        results = [run.scope.emit("add", run.trip, run.scope.constant(1, I64)), *results]
        inits, types = [parent.constant(0, I64), *inits], [scalar(I64), *types]
    regions = [
        region_of(test.scope, captures, [chosen], test_params),
        region_of(run.scope, captures, results, body_params),
    ]
    node = parent.node(
        "while", [*inits, *captures], {"carried": len(inits)}, regions=regions, types=types
    )
    return list(node.outputs[1:] if run.trip is not None else node.outputs)


def _emit_scan(
    loop: Carried, parent: Scope, run: Pass, captures: list[Value], params: list[Value], results: list[Value], inits: list[Value],
    swapping: bool,
) -> list[Value]:  # fmt: skip
    assert run.trip is not None
    assert loop.trips is not None
    lists = (params, results, inits)
    filled = [] if swapping else fill(parent, run.scope, run.trip, loop.trips, *lists)
    types = _types(params, parent)
    region = region_of(run.scope, captures, results, [run.trip, *params])
    inputs = [loop.trips, *inits, *captures]
    node = parent.node("scan", inputs, {"carried": len(inits)}, regions=[region], types=types)
    ends = zip(node.outputs, inits, params, results, strict=True)
    return [
        _filled(loop, parent, end[0]) if k in filled else _of_known_length(loop, parent, *end)
        for k, end in enumerate(ends)
    ]


def _types(params: list[Value], parent: Scope) -> list[TensorType]:
    """Return the types of what a loop gives: sizes that are one in each trip are one after it."""
    met: dict[Any, Dim] = {}
    return [TensorType(p.dtype, visible_shape(p.shape, parent, met)) for p in params]


def _filled(loop: Carried, parent: Scope, output: Value) -> Value:
    """Return an array that a loop filled, of a length that is known after few trips only: longer lists are gone over in the graph."""
    few = loop.static_trips is not None and loop.static_trips <= config.unroll_limit
    return output if few else of_open_length(parent, output)


def _of_known_length(
    loop: Carried, parent: Scope, output: Value, init: Value, param: Value, result: Value
) -> Value:
    """Return what a loop gives, with its length if that is known: few trips, each of which appends as many rows."""
    if loop.static_trips is None or loop.static_trips > config.unroll_limit or not param.shape:
        return output
    first, rows = init.shape[0], result.shape[0] - param.shape[0]
    known = isinstance(first, int) and isinstance(rows, int)
    if not known or not rows or output.shape[1:] != init.shape[1:]:
        return output
    return parent.emit("reshape", output, shape=(first + loop.static_trips * rows, *init.shape[1:]))


def _finish(
    loop: Carried, parent: Scope, run: Pass, after: Snapshot, outputs: list[Value], moves: Moves | None, never: Value | None
) -> None:  # fmt: skip
    """Put the loop's results into the cells and storages."""
    values = iter(outputs)
    leaves = {
        key: Traced(Storage(next(values), parent), (), info.kind)
        for key, info in loop.plan.rebound.items()
    }
    for cell, name in loop.plan.maybe.items():
        flag = next(values)
        certain = name.startswith("dsl__") or (bool(loop.static_trips) and _always(after, cell))
        for key, traced in leaves.items():
            if key[0] == cell and not certain:
                traced.storage.defined = (flag, parent, name)
    for storage in loop.plan.storages:
        storage.leave(next(values))
    left = parted(loop, run, after)  # before what the loop's results are is noted
    note_aliases(loop, run, after, leaves, moves, never, parent)
    note_shares(loop, run, after, leaves, parent)
    part(left)
    if moves:
        unswap(loop, dict(zip(moves, values, strict=True)), leaves, parent)
    cells = range(len(loop.before.objects))
    replaced = loop.replaced(run, after)
    final = [_final(loop, cell, leaves, run, after) for cell in cells]
    loop.state.commit(final, loop.before)
    for end, item in zip(after.objects, final, strict=True):
        note_held(end, item)
    for place in replaced:
        place.note()
    for cell in loop.rebound_cells(run, after) if not loop.static_trips else ():
        names = loop.rebound_names(run, after)
        note_choice(final[cell], [loop.before.objects[cell]], names, False)


def _final(loop: Carried, cell: int, leaves: dict[Key, Traced], run: Pass, after: Snapshot) -> Any:
    """Return what a cell holds after the loop."""
    if cell in loop.plan.lost:
        return loop.plan.lost[cell]
    structure = loop.plan.structures.get(cell)
    if structure is not None:
        new = [
            leaves.get((cell, k), loop.static_leaf(cell, k)) for k in range(count_leaves(structure))
        ]
        return unflatten(structure, new)
    own = loop.before.leaves[cell]
    new = [leaves.get((cell, k), leaf) for k, leaf in enumerate(own)]
    same = after.objects[cell] is run.objects[cell]
    return installed(loop.before, cell, loop.before.structures[cell], new, same)


def _always(after: Snapshot, cell: int) -> bool:
    """Tell whether every trip gives a variable a value."""
    return all(
        not isinstance(e, Undefined) and (not isinstance(e, Traced) or e.storage.defined is None)
        for e in after.leaves[cell]
    )
