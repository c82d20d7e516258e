"""Python's `bisect` and `heapq` on traced values: searches are loops of the program, heaps are refused with what to use in their place."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from typing import Any

from dsl.errors import UnsupportedError
from dsl.frontend.calls import BUILTINS, call
from dsl.frontend.library import has_traced
from dsl.frontend.lists import TracedList
from dsl.frontend.scopes import here
from dsl.frontend.sequences import alike, run
from dsl.frontend.traced import _FUNCTIONS, Kind, Traced, fresh, lift, read
from dsl.frontend.trees import forwarded

__all__: list[str] = []


def _search(plain: Callable[..., int], loop: Any) -> Callable[..., Any]:
    """Make `bisect_left` or `bisect_right`, by the loop that Python runs."""

    def apply(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
        a = forwarded(a)
        if not has_traced((a, x, lo, hi)):
            return plain(a, x, lo, hi, key=key)
        if isinstance(lo, int) and lo < 0:
            raise ValueError("lo must be non-negative")
        items: Any = _indexed(a)
        end = items.length() if isinstance(items, TracedList) else items.shape[0]
        end = end if hi is None else hi
        found = run(loop, items, x, lo, end, (lambda item: item) if key is None else key)
        return fresh(read(lift(found)), Kind.PYTHON)

    return apply


def _indexed(items: Any) -> Traced | TracedList:
    """Return a list or array as one that data can index."""
    made = alike(list(items)) if isinstance(items, (list, tuple)) else None
    if made is None:
        return items if isinstance(items, TracedList) else lift(_FUNCTIONS["asarray"](items))
    return made


def _left(a: Any, x: Any, lo: Any, hi: Any, key: Any) -> Any:
    while lo < hi:
        middle = (lo + hi) // 2
        if key(a[middle]) < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


def _right(a: Any, x: Any, lo: Any, hi: Any, key: Any) -> Any:
    while lo < hi:
        middle = (lo + hi) // 2
        if x < key(a[middle]):
            hi = middle
        else:
            lo = middle + 1
    return lo


def _refused(name: str, remedy: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that works on Python's own values only."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        if not has_traced(tuple(map(forwarded, args))):
            return plain(*args, **kwargs)
        raise UnsupportedError(
            f"`{name}` of values that are known only when the compiled function runs",
            location=here(), remedy=remedy,
        )  # fmt: skip

    return apply


def _first(plain: Callable[..., Any], reverse: bool) -> Callable[..., Any]:
    """Make `nlargest` or `nsmallest`: the first ones of the sorted list."""

    def apply(n: Any, iterable: Any, key: Any = None) -> Any:
        if not has_traced((n, forwarded(iterable))):
            return plain(n, iterable, key)
        return call(sorted, iterable, key=key, reverse=reverse)[:n]

    return apply


_SORTED = "append to a list and sort it once (`rows.sort()`), or use `np.sort` or `np.partition`"
_HEAP = (
    "keep the values in an array and find the least with `np.argmin` (a value that is taken becomes `np.inf`), "
    "or sort once with `np.sort`"
)
_REMEDIES: dict[Callable[..., Any], str] = {
    **dict.fromkeys([heapq.heappush, heapq.heappop, heapq.heapify, heapq.heappushpop, heapq.heapreplace], _HEAP),
    **dict.fromkeys([bisect.insort_left, bisect.insort_right], _SORTED),
    heapq.merge: "use `np.sort(np.concatenate([...]))`, or `sorted` of one list",
}  # fmt: skip

BUILTINS.update(
    {
        plain: _refused(f"{plain.__module__.strip('_')}.{plain.__name__}", remedy, plain)
        for plain, remedy in _REMEDIES.items()
    }
)
BUILTINS.update(
    {
        bisect.bisect_left: _search(bisect.bisect_left, _left),
        bisect.bisect_right: _search(bisect.bisect_right, _right),
        heapq.nlargest: _first(heapq.nlargest, True),
        heapq.nsmallest: _first(heapq.nsmallest, False),
    }
)
