"""Loops whose first trip leaves variables with another structure than they had before.

`total = 0` before a loop that adds rows to it, an empty dict that the first trip fills, `self.velocity = None`, an array of the caller's
that is written and then rebound, `if i == 0`: Python makes the first trip, or a few, if it is known that there are so many, and the others
are traced.
"""

from __future__ import annotations

from typing import Any

from dsl.config import config
from dsl.errors import AliasError, BranchError, DslError, LoopTypeError, UndefinedError
from dsl.frontend.leaves import the_trace
from dsl.frontend.loops import NdIndex, trip_value
from dsl.frontend.ranges import range_of
from dsl.frontend.scopes import current_scope
from dsl.ir.dims import lower_bound

__all__ = [
    "MOST_FIRST_TRIPS",
    "OF_LATER_TRIPS",
    "UNROLLED",
    "are_few",
    "may_settle",
    "note_looped",
    "settles",
]

# The second settles what looks back two trips, as a short deque does that fills up.
MOST_FIRST_TRIPS = 4

# Nodes that a loop may come to by being unrolled: compiling them takes 0.2 s.
UNROLLED = 256


# What Python raises where a branch for later trips is traced before the first, as `total + x[i]` with a `total` that is None.
OF_LATER_TRIPS = (TypeError, AttributeError, KeyError, IndexError)


def settles(error: Exception) -> bool:
    """Tell whether a loop that failed to be traced may be traced after its first trip."""
    if not isinstance(error, DslError):
        return True
    return isinstance(error, (LoopTypeError, AliasError, BranchError, UndefinedError))


def may_settle(error: Exception, counted: Any) -> bool:
    """Tell whether a first trip may help, and surely happens."""
    if not settles(error) or counted is None or isinstance(counted, NdIndex):
        return False
    trips = counted.trips()
    if isinstance(trips, int) and trips <= config.unroll_limit and the_trace().unrolls:
        return False
    known = range_of(current_scope(), trip_value(trips))
    return known is not None and (lower_bound(known.low) or 0) > 0


def are_few(left: Any, extents: list[int]) -> bool:
    """Tell whether trips that are left are to be unrolled, by the nodes of those that were made.

    Trips that search a list which they fill become longer and longer.
    """
    trips = left.trips()
    if not isinstance(trips, int) or trips > config.unroll_limit:
        return False
    growth = max(extents[-1] - extents[0], 0)
    few = trips * extents[-1] + growth * trips**2 // 2 <= UNROLLED
    return few and (len(extents) > 1 or trips <= _SEEN_BY_ONE)


def note_looped(left: Any) -> None:
    """Note that a short loop is not unrolled, if what follows needs that: then the function is traced again."""
    trips, trace = left.trips(), the_trace()
    if isinstance(trips, int) and trips <= config.unroll_limit:
        trace.looped = max(trace.looped, trips)


# Trips that do not become long, whatever they do.
_SEEN_BY_ONE = 8
