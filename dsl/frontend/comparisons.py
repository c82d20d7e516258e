"""`==`, `<`, `in`, `is` and chains of them, of traced values and of what holds them.

Sizes are compared while tracing if all arguments of a program decide alike. Objects compare by the methods that the user wrote,
tuples and lists by their items, as Python asks for them.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Callable
from typing import Any

from dsl.frontend import loops, sequences
from dsl.frontend.calls import call, converted
from dsl.frontend.conditions import conditional, holding, logic, negated, truth
from dsl.frontend.deques import BoundedDeque
from dsl.frontend.iterators import Cursor, searched
from dsl.frontend.library import has_traced, has_traced_fields
from dsl.frontend.lists import TracedList
from dsl.frontend.optional import TracedOptional, unwrap
from dsl.frontend.own_items import iterable
from dsl.frontend.scopes import current_scope, current_trace
from dsl.frontend.traced import _FUNCTIONS, Kind, Traced, constant, fresh, is_number, lift, read
from dsl.frontend.trees import forwarded
from dsl.frontend.user_code import own_method
from dsl.ir.dims import DimLike, lower_bound
from dsl.ir.types import I64

__all__ = ["compare_all", "compare_two"]

_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge,
    "Is": operator.is_, "IsNot": operator.is_not,
}  # fmt: skip
_METHODS_OF = {
    "Eq": ("__eq__", "__eq__"), "NotEq": ("__ne__", "__ne__"), "Lt": ("__lt__", "__gt__"), "LtE": ("__le__", "__ge__"),
    "Gt": ("__gt__", "__lt__"), "GtE": ("__ge__", "__le__"),
}  # fmt: skip


def compare_all(left: Any, *steps: tuple[str, Callable[[], Any]]) -> Any:
    """`a < b < c` and its like: each step is a comparison and what its right side is."""
    name, right = steps[0]
    value = right()
    result = compare_two(name, left, value)
    if len(steps) == 1:
        return result
    rest = holding(lambda: compare_all(value, *steps[1:]), *(part for _, part in steps[1:]))
    return logic(result, (rest,), True)


def compare_two(name: str, left: Any, right: Any) -> Any:
    """`left == right` and its like, and `in`; `name` is that of the syntax tree."""
    left, right = forwarded(left), forwarded(right)
    if isinstance(left, Traced) or isinstance(right, Traced):
        decided = _compare_sizes(name, left, right)
        if decided is not None:
            return decided
    if name in ("Eq", "NotEq") and type(left) is type(right) and isinstance(left, (tuple, list)):
        same = _equal_items(left, right) if has_traced([left, right]) else None
        if same is not None:
            return same if name == "Eq" else negated(same)
    ordered = name in ("Lt", "LtE", "Gt", "GtE")
    alike = type(left) is type(right) and isinstance(left, (tuple, list))
    if ordered and alike and has_traced([left, right]):
        return _compare_in_order(name, left, right)
    if name in ("Is", "IsNot") and isinstance(left, TracedOptional) and right is None:
        return left.is_none() if name == "Is" else lift(left.present)
    if name in _METHODS_OF and (isinstance(left, TracedList) or isinstance(right, TracedList)):
        return sequences.compared(name, left, right)
    if name in _METHODS_OF:
        return _compare_objects(name, left, right)
    if name in _COMPARED:
        return _COMPARED[name](left, right)
    found = _contains(right, left)
    return truth(found) if name == "In" else negated(found)


def _compare_objects(name: str, left: Any, right: Any) -> Any:
    """Compare by the methods that the user wrote, if there are any, the way Python asks for them."""
    for item, other, method in zip((left, right), (right, left), _METHODS_OF[name], strict=True):
        own = _own_comparison(item, method)
        result = NotImplemented if own is None else call(own, item, unwrap(other))
        if result is not NotImplemented:
            return result
    if name == "NotEq" and own_method(left, "__eq__") is not None:
        return negated(_compare_objects("Eq", left, right))
    if type(left) is type(right) and _compares_fields(left, name):
        names = [f.name for f in dataclasses.fields(left) if f.compare]
        sides = [tuple(getattr(x, name) for name in names) for x in (left, right)]
        return compare_two(name, *sides)
    _note_native(left, right)
    return _COMPARED[name](left, right)


def _note_native(*items: Any) -> None:
    """Note objects that are compared by what is not traced."""
    if (trace := current_trace()) is not None:
        trace.roles.note_native(*items)


def _own_comparison(item: Any, method: str) -> types.FunctionType | None:
    """Return a comparison that the user wrote, or one that `functools.total_ordering` made of it."""
    found = getattr(type(item), method, None)
    if not isinstance(found, types.FunctionType) or found.__code__.co_filename == "<string>":
        return None
    return converted(found) if found.__module__ == "functools" else own_method(item, method)


def _compares_fields(item: Any, name: str) -> bool:
    """Tell whether `dataclass` wrote the comparison of an object with traced fields."""
    params = getattr(type(item), "__dataclass_params__", None)
    wanted = params is not None and (params.eq if name in ("Eq", "NotEq") else params.order)
    return bool(wanted) and has_traced_fields(item)


def _compare_sizes(name: str, left: Any, right: Any) -> bool | None:
    """Decide a comparison of sizes of which the smallest or the difference is known, else return None."""
    if name not in ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"):
        return None
    one, other = _size_of(left), _size_of(right)
    if one is None or other is None:
        return None
    above, below = lower_bound(one - other), lower_bound(other - one)
    if above is not None and (above > 0 or above == below == 0):
        return bool(_COMPARED[name](above, 0))
    if below is not None and below > 0:
        return bool(_COMPARED[name](-below, 0))
    if above == 0 and name in ("GtE", "Lt"):
        return name == "GtE"
    if below == 0 and name in ("LtE", "Gt"):
        return name == "LtE"
    return None


def _size_of(x: Any) -> DimLike | None:
    if isinstance(x, int) and not isinstance(x, bool):
        return x
    if not isinstance(x, Traced) or x.kind is not Kind.PYTHON or x.dtype != I64:
        return None
    return current_scope().known_dim(read(x))


def _compare_in_order(name: str, left: Any, right: Any) -> Any:
    """Compare two tuples or lists by their first items that differ."""
    if not left or not right:
        return _COMPARED[name](len(left), len(right))
    return conditional(
        compare_two("NotEq", left[0], right[0]),
        lambda: compare_two(name, left[0], right[0]),
        lambda: _compare_in_order(name, left[1:], right[1:]),
    )


def _equal_items(left: Any, right: Any) -> Any:
    """Compare two tuples or lists with traced numbers in them; None if there is anything else in them."""
    if len(left) != len(right):
        return False
    tests = [compare_two("Eq", a, b) for a, b in zip(left, right, strict=True)]
    if any(isinstance(test, Traced) and test.ndim for test in tests):
        return None
    open_tests = [test for test in tests if isinstance(test, Traced)]
    if not all(test for test in tests if not isinstance(test, Traced)):
        return False
    if not open_tests:
        return True
    return fresh(read(functools.reduce(operator.and_, open_tests)), Kind.PYTHON)


def _contains(items: Any, item: Any) -> Any:
    items = searched(items)
    if isinstance(items, BoundedDeque):
        items = list(items)
    own = own_method(items, "__contains__")
    if own is not None:
        return truth(call(own, items, item))
    items = searched(iterable(items))
    if isinstance(items, Cursor):
        items = list(items)
    if isinstance(items, range) and isinstance(item, Traced) and items:
        low, high = sorted((items[0], items[-1]))
        inside = compare_two("GtE", item, low) & compare_two("LtE", item, high)
        return inside & compare_two("Eq", (item - low) % abs(items.step), 0)
    if isinstance(items, loops.Span) and isinstance(items.step, int) and is_number(item):
        return items.has(item)
    if isinstance(items, Traced):
        return fresh(read(_FUNCTIONS["any"](items == item)), Kind.PYTHON)
    if isinstance(items, TracedList):
        return items.has(item)
    if isinstance(item, Traced) and isinstance(items, (list, tuple, set, frozenset, range)):
        hits = [item == other for other in items if not isinstance(other, str)]
        return functools.reduce(operator.or_, hits) if hits else False
    if isinstance(items, (list, tuple)) and has_traced(items):
        return functools.reduce(
            operator.or_, [other == item for other in items], constant(False, kind=Kind.PYTHON)
        )
    if isinstance(items, (list, tuple)) and any(own_method(x, "__eq__") for x in (item, *items)):
        equal = [True if other is item else compare_two("Eq", other, item) for other in items]
        return functools.reduce(operator.or_, map(truth, equal), False)
    _note_native(item, items)
    return item in items
