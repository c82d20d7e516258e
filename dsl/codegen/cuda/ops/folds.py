"""Folds lines: each becomes one state, some scalars, by steps of a thread and merges between threads.

What a `Fold` merges must not depend on the order of two states; which states are merged depends on sizes alone, so that
results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dsl.codegen.arrays import Scalar, load_scalar, store_scalar
from dsl.codegen.cuda.ops.lines import Spot
from dsl.codegen.cuda.source import Source
from dsl.codegen.cuda.teams import WARP, Team, shuffled
from dsl.codegen.library.cells import Cell
from dsl.codegen.llvm import Operand

__all__ = ["Fold", "State", "fold_line"]

State = tuple[Scalar, ...]


@dataclass(frozen=True)
class Fold:
    """How a line is folded: `step` takes the point at a place of the line into a state."""

    dtypes: Sequence[np.dtype]
    neutral: State
    step: Callable[[State, Operand], State]
    merge: Callable[[State, State], State]


def fold_line(source: Source, team: Team, spot: Spot, fold: Fold) -> State:
    """Emit the fold of a team's chunk; all its threads get the result. Every thread of the block must come here."""
    fn = source.fn
    cells = [Cell(fn, dtype) for dtype in fold.dtypes]
    _set(cells, fold.neutral)
    first = fn.add(spot.low, fn.mul(spot.member, team.vector))
    with fn.loop(first, spot.high, team.threads * team.vector) as i:
        for k in range(team.vector):
            _set(cells, fold.step(tuple(cell.get() for cell in cells), fn.add(i, k)))
    state = tuple(cell.get() for cell in cells)
    state = _butterfly(source, fold, state, min(WARP, team.threads))
    return state if team.threads <= WARP else _through_memory(source, team, spot, fold, state)


def _set(cells: Sequence[Cell], state: State) -> None:
    for cell, scalar in zip(cells, state, strict=True):
        cell.set(scalar)


def _butterfly(source: Source, fold: Fold, state: State, width: int) -> State:
    """Merge over as many neighbouring lanes."""
    distance = width // 2
    while distance:
        state = fold.merge(state, tuple(shuffled(source, "bfly", s, distance) for s in state))
        distance //= 2
    return state


def _through_memory(source: Source, team: Team, spot: Spot, fold: Fold, state: State) -> State:
    """Merge over the warps of a team."""
    fn, warps = source.fn, team.threads // WARP
    lane, warp = fn.binary("and", spot.member, WARP - 1), fn.binary("lshr", spot.member, 5)
    places = [source.shared(warps * dtype.itemsize) for dtype in fold.dtypes]
    with fn.if_(fn.compare("eq", lane, 0)):
        for dtype, scalar, place in zip(fold.dtypes, state, places, strict=True):
            store_scalar(fn, dtype, scalar, fn.gep(place, fn.mul(warp, dtype.itemsize)))
    source.barrier()
    which = fn.binary("and", lane, warps - 1)
    mine = tuple(
        load_scalar(fn, dtype, fn.gep(place, fn.mul(which, dtype.itemsize)))
        for dtype, place in zip(fold.dtypes, places, strict=True)
    )
    return _butterfly(source, fold, mine, warps)
