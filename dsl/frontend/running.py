"""`functools.reduce`, `itertools.accumulate` and `math.prod`: over many items, or as many as the data decides, loops of the program."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from dsl.frontend import loops
from dsl.frontend.calls import BUILTINS, call
from dsl.frontend.lists import TracedList
from dsl.frontend.sequences import are_many, folded, is_open, run
from dsl.frontend.traced import Traced

__all__ = ["reduced"]


def reduced(fn: Any, items: Any, *initial: Any) -> Any:
    """`functools.reduce`."""
    step = functools.partial(call, fn)
    if is_open(items):
        return folded(step, items, *initial)
    if not _is_looped(items):
        return functools.reduce(step, items, *initial)
    first, rest = _started(items, initial)
    return run(_fold, rest, step, first)


def _accumulate(items: Any, func: Any = operator.add, *, initial: Any = None) -> Any:
    """`itertools.accumulate`."""
    step = functools.partial(call, func)
    if not _is_looped(items):
        return itertools.accumulate(items, step, initial=initial)
    first, rest = _started(items, () if initial is None else (initial,))
    return run(_every, rest, step, first)


def _prod(items: Any, *, start: Any = 1) -> Any:
    """`math.prod`."""
    return reduced(operator.mul, items, start)


def _is_looped(items: Any) -> bool:
    """Tell whether a loop of the program goes over items: over traced ones, if they are many."""
    if isinstance(items, Iterator) or not isinstance(items, (Traced, TracedList, *_COUNTED)):
        return False
    return is_open(items) or are_many(loops.as_counted(items).trips())


_COUNTED = (loops.Rows, loops.Items, loops.Zipped)


def _started(items: Any, initial: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return what a loop begins with, and the items that it goes over."""
    if initial:
        return initial[0], items
    counted = loops.as_counted(items)
    return counted.item(0), counted.rest(1)


def _fold(items: Any, step: Callable[[Any, Any], Any], total: Any) -> Any:
    for item in items:
        total = step(total, item)
    return total


def _every(items: Any, step: Callable[[Any, Any], Any], total: Any) -> Any:
    made = [total]
    for item in items:
        total = step(total, item)
        made.append(total)
    return made


BUILTINS.update({functools.reduce: reduced, itertools.accumulate: _accumulate, math.prod: _prod})
