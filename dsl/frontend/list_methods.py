"""Methods of Python's lists whose items may be traced, and the lists that stand for `deque` in traced code.

A deque without `maxlen` is a list; one with it is a `BoundedDeque`. A list becomes a traced one where the data decides a place
in it or its length.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

from dsl.errors import NonConcreteError
from dsl.frontend import sequences
from dsl.frontend.builtin_functions import list_of
from dsl.frontend.calls import BUILTINS, LIST_METHODS
from dsl.frontend.captures import watched
from dsl.frontend.deques import bounded
from dsl.frontend.iterators import rest_of
from dsl.frontend.leaves import the_trace
from dsl.frontend.lists import TracedList
from dsl.frontend.optional import unwrap
from dsl.frontend.own_items import iterable
from dsl.frontend.scopes import here
from dsl.frontend.sequences import chosen_from
from dsl.frontend.sorting import sorted_items
from dsl.frontend.traced import _FUNCTIONS, Traced
from dsl.frontend.trees import Forward

__all__ = ["DEQUE_METHODS"]


def _sort_list(items: list[Any], **how: Any) -> None:
    made = sorted_items(items, **how)
    items[:] = [Forward(made)] if isinstance(made, TracedList) else made


def _as_traced_list(items: list[Any]) -> TracedList:
    """Return a list of numbers, or of tuples of them, among which a number is looked for when the program runs."""
    made = sequences.alike(items)
    if made is None:
        raise NonConcreteError(
            "looking for an item in a list of unlike items, of which some are known only when the compiled function runs",
            location=here(),
            remedy="loop over the list and compare",
        )
    return made


def _at_place(name: str) -> Callable[..., Any]:
    """A method of lists that takes a place, which the data may decide: the list becomes a traced one."""

    def change(items: list[Any], *args: Any) -> Any:
        traced = bool(args) and isinstance(args[0], Traced)
        numbers = chosen_from(items, args[0]) if traced else None
        if numbers is None:
            return getattr(items, name)(*args)
        items[:] = [Forward(numbers)]
        return getattr(numbers, name)(*args)

    return change


def _extend(items: list[Any], more: Any) -> None:
    more = rest_of(iterable(more))
    if sequences.is_open(more):
        sequences.extended(items, more)
    else:
        items.extend(more)


def _remove(items: list[Any], item: Any) -> None:
    """`items.remove(item)`: which one goes, the data decides."""
    made = _as_traced_list(items)
    items[:] = [Forward(made)]
    made.remove(item)


LIST_METHODS.update(
    {
        "sort": _sort_list,
        "count": lambda items, item: _as_traced_list(items).count(item),
        "index": lambda items, item: _as_traced_list(items).index(item),
        "insert": _at_place("insert"),
        "pop": _at_place("pop"),
        "remove": _remove,
        "extend": _extend,
    }
)
DEQUE_METHODS: dict[str, Callable[..., Any]] = {
    "popleft": lambda items: items.pop(0),
    "appendleft": lambda items, item: items.insert(0, item),
    "extendleft": lambda items, more: [items.insert(0, item) for item in more] and None,
    "rotate": lambda items, steps=1: _rotate(items, steps),
}


def _rotate(items: Any, steps: Any) -> None:
    if isinstance(items, TracedList):
        items.columns = [_FUNCTIONS["roll"](column, steps, axis=0) for column in items.columns]
    elif items:
        at = -operator.index(steps) % len(items)
        items[:] = items[at:] + items[:at]


def _deque(items: Any = (), maxlen: Any = None) -> Any:
    """`deque(items, maxlen)`."""
    if maxlen is None:
        return _list_for_deque(items)
    return bounded(list_of(watched(unwrap(rest_of(items)))), operator.index(maxlen))


def _list_for_deque(items: Any) -> Any:
    """Make the list that stands for a `deque` in traced code; a traced list stays one."""
    made = list_of(watched(unwrap(items)))
    the_trace().deques[id(made)] = made
    return made


BUILTINS[collections.deque] = _deque
