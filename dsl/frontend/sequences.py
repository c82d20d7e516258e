"""What Python's operations on lists mean for those whose length the data decides: comparison, order, search, comprehensions.

Loops over the items are written in Python and converted, as the user's own are, so that items compare as Python compares them.
"""

from __future__ import annotations

import builtins
import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dsl.config import config
from dsl.errors import (
    AliasError,
    BranchError,
    LoopTypeError,
    NonConcreteError,
    TypeRuleError,
    UndefinedError,
    UnsupportedError,
)
from dsl.frontend import loops
from dsl.frontend.calls import call, converted
from dsl.frontend.choices import named_elsewhere
from dsl.frontend.iterators import rest_of
from dsl.frontend.leaves import info_of, the_trace
from dsl.frontend.library import has_traced
from dsl.frontend.lists import TracedList, as_traced_list, item_layout
from dsl.frontend.operators import binary
from dsl.frontend.regions import discard
from dsl.frontend.scopes import Scope, current_scope, current_trace, here
from dsl.frontend.state import Undefined, is_numeric
from dsl.frontend.traced import _FUNCTIONS, Kind, Traced, concrete, fresh, lift, read
from dsl.frontend.trees import Forward, flatten, forwarded
from dsl.ir.graph import Value

__all__ = [
    "added",
    "again",
    "alike",
    "are_decided",
    "are_many",
    "chosen_from",
    "chosen_of_many",
    "collected",
    "compared",
    "each_of_many",
    "equal_to",
    "extended",
    "filtered",
    "first",
    "folded",
    "is_given",
    "is_open",
    "listed",
    "of_length",
    "of_numbers",
    "ordered",
    "quantified",
    "quantified_map",
    "repeated",
    "sortable",
    "split_around",
]


MOST_SORTED = 16
"""Items that Python sorts by comparisons of two, if they are not numbers, and that stay a Python list when sorted."""
_FEW = 3
"""Numbers that are sorted so: each comparison is a branch, and those for ten numbers compile for 2 s."""


def run(fn: Any, *args: Any) -> Any:
    """Run a function of this module as traced code runs the user's."""
    return converted(fn)(*args)


# -- search ------------------------------------------------------------------------------------------------------------


def equal_to(items: TracedList, item: Any) -> Any:
    """Return for each item whether it is equal to one, as a bool vector."""
    leaves, structure = flatten(item)
    columns = items.columns
    if structure != items.layout[0] or not all(map(is_numeric, leaves)):
        return _FUNCTIONS["zeros"](items.length(), bool)
    if any(column.ndim > 1 for column in columns):
        raise UnsupportedError(
            "looking for an array in a list: whether arrays are equal is ambiguous", location=here(),
            remedy="compare with `np.array_equal` in a `for` statement",
        )  # fmt: skip
    same = columns[0] == leaves[0]
    for column, leaf in zip(columns[1:], leaves[1:], strict=True):
        same = same & (column == leaf)
    return same


# -- comparison --------------------------------------------------------------------------------------------------------


def compared(name: str, left: Any, right: Any) -> Any:
    """`left == right` and its like, of two lists of which one is traced."""
    if not all(isinstance(side, (list, TracedList)) for side in (left, right)):
        return _compared_with_another_kind(name)
    left, right = _alike(left, right), _alike(right, left)
    if left is None or right is None:
        return _compared_with_another_kind(name)
    loop, swapped, negated = _LOOPS[name]
    found = run(loop, *((right, left) if swapped else (left, right)))
    return fresh(read(_FUNCTIONS["logical_not"](found)), Kind.PYTHON) if negated else found


def _compared_with_another_kind(name: str) -> bool:
    if name in ("Eq", "NotEq"):
        return name == "NotEq"
    raise TypeError("lists are ordered among lists of items of the same kind only")


def alike(items: list[Any]) -> TracedList | None:
    """Return a Python list as a traced one, or None if its items are not alike."""
    found = item_layout(items, lambda leaf: info_of(leaf) if is_numeric(leaf) else None)
    return None if found is None else as_traced_list(items, *found)


def of_numbers(items: Any) -> TracedList | None:
    """Return a Python list or tuple as a traced list, if its items are alike and numbers, or tuples of numbers."""
    made = alike(list(items))
    return None if made is None or any(column.ndim > 1 for column in made.columns) else made


def chosen_from(items: Any, key: Traced, *, constant: bool = False) -> TracedList | None:
    """Return a list or tuple of numbers as a traced list, for an index that the data decides; None if Python can take it.

    One from outside the function must be `constant`: it is not to be changed.
    """
    outside = id(items) in the_trace().outside and not constant
    inside = isinstance(items, (list, tuple)) and not outside
    given = key.dtype.kind not in "iu" or key.ndim or is_given(key)
    return of_numbers(items) if inside and not given else None


def _alike(items: Any, other: Any) -> TracedList | None:
    """Return a list as one whose items are of the kind of those of `other`, or None if they are not."""
    if isinstance(items, TracedList):
        return items
    structure, kinds = other.layout
    types = other.spec()[1]
    if items:
        found = item_layout(items, lambda leaf: info_of(leaf) if is_numeric(leaf) else None)
        if found is None or found[0][0] != structure:
            return None
        types = found[1]
    return as_traced_list(items, (structure, kinds), types)


def _equal(left: Any, right: Any) -> Any:
    if len(left) != len(right):
        return False
    for k in range(len(left)):  # noqa: SIM110, `all` would make a list first
        if left[k] != right[k]:
            return False
    return True


def _less(left: Any, right: Any) -> Any:
    for k in range(min(len(left), len(right))):
        if left[k] != right[k]:
            return left[k] < right[k]
    return len(left) < len(right)


# The loop, whether the sides change places, and whether its result is negated.
_LOOPS: dict[str, tuple[Any, bool, bool]] = {
    "Eq": (_equal, False, False), "NotEq": (_equal, False, True), "Lt": (_less, False, False),
    "Gt": (_less, True, False), "LtE": (_less, True, True), "GtE": (_less, False, True),
}  # fmt: skip


# -- parts -------------------------------------------------------------------------------------------------------------


def of_length(items: TracedList, count: int) -> list[Any]:
    """Return the items of a list that is taken apart into so many; the program raises if it is of another length."""
    length = items.length()
    _require(length <= count, f"too many values to unpack (expected {count})")
    few = f"not enough values to unpack (expected {count}, got {{}})"
    _require(length >= count, few, length)
    return [items[k] for k in range(count)]


def split_around(items: TracedList, before: int, after: int) -> list[Any]:
    """Return the first and last items of a list, and between them the list of all others."""
    length, least = items.length(), before + after
    few = f"not enough values to unpack (expected at least {least}, got {{}})"
    _require(length >= least, few, length)
    middle = items[before : length - after]
    return [*(items[k] for k in range(before)), middle, *(items[k] for k in range(-after, 0))]


def _require(test: Any, message: str, *values: Any, error: str = "ValueError") -> None:
    inputs = [read(lift(item)) for item in (test, *values)]
    current_scope().node("assert", inputs, {"message": message, "error": error})


# -- order -------------------------------------------------------------------------------------------------------------


def ordered(items: TracedList, key: Any, reverse: bool) -> Any:
    """`sorted(items, key=key, reverse=reverse)`: items with equal keys stay in their order."""
    if reverse:
        return ordered(items[::-1], key, False)[::-1]
    length = items.length()
    if isinstance(length, int) and length <= _FEW:
        return call(sorted, list(items), key=key)
    keys = items if key is None else _keys_of(items, key)
    if keys is None or any(column.ndim > 1 for column in keys.columns):
        raise UnsupportedError(
            "sorting a list in traced code by keys that are not numbers, or tuples of numbers",
            location=here(), remedy="sort by numbers",
        )  # fmt: skip
    order = _FUNCTIONS["lexsort"](tuple(keys.columns[::-1]))
    made = items._also_in(TracedList(items.layout, [column[order] for column in items.columns]))
    return list(made) if isinstance(length, int) and length <= MOST_SORTED else made


def sortable(items: Any, key: Any) -> TracedList | None:
    """Return what is to be sorted as a traced list, or None if Python can go over it: it is short, or nothing traced decides."""
    if isinstance(items, TracedList):
        return items
    source = items if type(items) in (list, tuple) else loops.as_counted(items)
    if source is None or _is_short(source) or not _is_traced_order(source, key):
        return None
    made = source if type(source) in (list, tuple) else collected(source, list)
    return made if isinstance(made, TracedList) else of_numbers(made)


def _is_short(source: Any) -> bool:
    count = len(source) if isinstance(source, (list, tuple)) else source.trips()
    return isinstance(count, int) and count <= _FEW


def _is_traced_order(source: Any, key: Any) -> bool:
    """Tell whether the first item, or its key, is traced; asking traces nothing that stays."""
    if is_open(source):
        return True
    with the_trace().region("asked") as scope:
        try:
            item = next(iter(loops.items_now(source)))
            return has_traced(item if key is None else call(key, item))
        except NonConcreteError:
            return True
        finally:
            scope.suspend()
            discard(scope)


def _keys_of(items: TracedList, key: Any) -> TracedList | None:
    """Return what a function gives for each item, or None if that is not of one kind."""

    def make(each: Any) -> list[Any]:
        return [call(key, item) for item in each]

    if not isinstance(items.length(), int):
        return collected(items, make)  # type: ignore[no-any-return]
    made = each_of_many(items, items, make, list)
    return made if isinstance(made, TracedList) else alike(made)


def first(items: TracedList, key: Any, reverse: bool) -> Any:
    """`min(items, key=key)`, or `max` with `reverse`."""
    name = "max" if reverse else "min"
    empty = empty_message(name)
    if isinstance(items.length(), int) and items.length() == 0:
        raise ValueError(empty)
    _require(items.length() > 0, empty)
    return ordered(items, key, reverse)[0]


def empty_message(name: str) -> str:
    """Return what this Python says to the `min` or `max` of nothing."""
    try:
        getattr(builtins, name)(())
    except ValueError as error:
        return str(error)
    raise AssertionError


# -- comprehensions ----------------------------------------------------------------------------------------------------


def is_open(items: Any) -> bool:
    """Tell whether the data decides how many items there are."""
    if isinstance(items, loops.Zipped):
        return any(map(is_open, items.parts))
    if isinstance(items, (Traced, TracedList)):
        items = loops.as_counted(items)
    if not isinstance(items, (loops.Rows, loops.Items, loops.Span)):
        return False
    return not _is_given(loops.trip_value(items.trips()), current_scope())


def is_given(number: Traced) -> bool:
    """Tell whether a number is known, or will be in a trace for the sizes and numbers of the arguments."""
    return concrete(number) is not None or _is_given(read(number), current_scope())


def _is_given(size: Value, scope: Scope) -> bool:
    """Tell whether a size is computed from those of the arguments, and from numbers, for which a function can be compiled."""
    node, outer = size.node, scope.captured_from(size)
    if outer is not None and scope.parent is not None:
        return _is_given(outer, scope.parent)
    if node.op.name == "dim_size":
        return _is_argument(node.inputs[0], scope)
    if node.op.name == "param" or node.regions or any(part.shape for part in node.inputs):
        return size in the_trace().numbers
    return all(_is_given(part, scope) for part in node.inputs)


def _is_argument(value: Value, scope: Scope) -> bool:
    """Tell whether a value is an argument of the function, and not what a loop carries."""
    outer = scope.captured_from(value)
    if outer is not None and scope.parent is not None:
        return _is_argument(outer, scope.parent)
    return value.node.op.name == "param" and scope.parent is None


def each_of_many(
    items: Any, left: Any, make: Callable[[Any], Any], read: Callable[[], list[Any]] | None,
    pick: Callable[[Any], Any] | None = None,
) -> Any:  # fmt: skip
    """The list of what `make` makes of a known number of items, one of each; for many, by a loop of the program.

    That is `pick` if the comprehension may change something.
    Python goes over few items, over those of which it makes objects of its own, and where the loop cannot be traced. If it is the rest
    of the function that needs such objects, all of it is traced again (`Trace.unrolls`).
    """
    counted = loops.as_counted(left)
    count: Any = counted.trips() if counted is not None else None
    if not are_many(count) or not _are_traced(left, read):
        return make(items)
    made = _looped(lambda: pick(left) if pick else collected(left, make), count)
    if made is None:
        return make(items)
    rest_of(items)
    return made


def listed(items: Any, *read: Any) -> Any:
    """`list(items)`: a traced one of items whose number the data decides, and of many that are traced, or are read with what is."""
    if isinstance(items, TracedList):
        return items
    if is_open(items):
        return collected(items, list)
    return each_of_many(items, items, list, lambda: list(read))


def chosen_of_many(
    items: Any, make: Callable[[Any], Any], read: Callable[[], list[Any]] | None, pick: Callable[[Any], Any],
    ask: Callable[[Any], Any] | None,
) -> Any:  # fmt: skip
    """The list of what `make` makes of those items that Python chooses; for many, by the loop `pick`."""
    if ask is None or current_trace() is None or not _are_traced(items, read):
        return make(items)
    count = len(list(_asked(items, ask)))
    made = _looped(lambda: pick(items), count) if are_many(count) else None
    return make(items) if made is None else made


def are_many(count: Any) -> bool:
    """Tell whether there are more items than a loop that is unrolled has trips."""
    return isinstance(count, int) and config.unroll_limit < count < loops.ENDLESS


def _are_traced(items: Any, read: Callable[[], list[Any]] | None) -> bool:
    """Tell whether what is made of items is traced: it is if they are, and may be by what else is read."""
    trace = current_trace()
    if trace is None or trace.unrolls or read is None:
        return False
    return _gives_traced(items) or any(map(_may_be_traced, read()))


def _looped(loop: Callable[[], Any], count: int) -> TracedList | None:
    """Return the list of so many items that a loop makes, or None if it cannot be traced."""
    try:
        made = loop()
    except _UNLOOPED:
        return None
    if not isinstance(made, TracedList) or not made.columns:
        return None
    the_trace().looped = max(the_trace().looped, count)
    return _of_known_length(made, count)


# What tells that a loop of the program cannot do what Python does.
_UNLOOPED = (
    NonConcreteError, LoopTypeError, BranchError, UndefinedError, AliasError, UnsupportedError, TypeRuleError,
)  # fmt: skip


def _gives_traced(items: Any) -> bool:
    """Tell whether items are traced whichever they are, as those of an array and not those of a range are."""
    if isinstance(items, loops.Zipped):
        return any(map(_gives_traced, items.parts))
    return isinstance(items, (Traced, TracedList, loops.Rows, loops.Items))


def _of_known_length(made: TracedList, count: int) -> TracedList:
    """Return a list that a loop has made as one of which it is known how long it is."""
    shapes = [(count, *column.type.shape[1:]) for column in made.columns]
    columns = [column.reshape(shape) for column, shape in zip(made.columns, shapes, strict=True)]
    return made._also_in(TracedList(made.layout, columns))


def collected(items: Any, make: Callable[[list[Any]], Any]) -> Any:
    """The list of what `make` makes of lists of one item each, in a row."""
    return run(_collect, items, lambda item: list(make([item])))


def quantified(
    plain: Callable[[Any], bool], items: Any, make: Callable[[Any], Any], search: Callable[[Any], Any],
    held: Callable[[], list[Any]], pure: bool,
) -> Any:  # fmt: skip
    """`any` or `all` of what `make` makes of items: Python decides if it can, or the loop `search` does."""
    if current_trace() is None or not any(map(_may_be_traced, (items, *held()))):
        return plain(make(items))
    if not pure or isinstance(items, Iterator) or is_open(items) or _gives_traced(items):
        return search(items)
    try:
        return _asked(items, lambda each: plain(make(each)))
    except NonConcreteError:
        return search(items)


def quantified_map(plain: Callable[[Any], bool], fn: Any, *items: Any) -> Any:
    """`any(map(fn, *items))`, or `all`."""
    rows = loops.zip_(*items)
    search = functools.partial(run, _all if plain is all else _any, fn)
    return quantified(
        plain, rows, lambda each: (call(fn, *row) for row in each), search, lambda: [fn], False
    )


def _any(fn: Any, rows: Any) -> Any:
    for row in rows:  # noqa: SIM110 - this is what `any` becomes
        if fn(*row):
            return True
    return False


def _all(fn: Any, rows: Any) -> Any:
    for row in rows:  # noqa: SIM110
        if not fn(*row):
            return False
    return True


def again(items: Any) -> Any:
    """Return what can be gone over twice: for an iterator the list of its items."""
    items = rest_of(items)
    return list(items) if isinstance(items, Iterator) else items


def are_decided(items: Any, held: list[Any], ask: Callable[[Any], Any] | None) -> bool:
    """Tell whether Python can decide the conditions of a comprehension now: asking for them traces nothing that stays."""
    if is_open(items):
        return False
    if not any(map(_may_be_traced, (items, *held))):
        return True
    if ask is None or any(isinstance(item, Iterator) for item in held):
        return False
    try:
        _asked(items, ask)
    except NonConcreteError:
        return False
    return True


def _asked(items: Any, ask: Callable[[Any], Any]) -> Any:
    """Ask for the conditions of a comprehension, and for what it goes over, in a region that is thrown away."""
    with the_trace().region("asked") as scope:
        try:
            return ask(items)
        finally:
            scope.suspend()
            discard(scope)


def _may_be_traced(item: Any) -> bool:
    """Tell whether a condition that reads an object may be traced."""
    item = forwarded(item)
    if isinstance(item, types.FunctionType):
        return any(map(_may_be_traced, _closed_over(item)))
    if type(item) in (list, tuple, set, frozenset):
        return any(map(_may_be_traced, item))
    if type(item) is dict:
        return any(map(_may_be_traced, item.values()))
    plain = (bool, int, float, complex, str, bytes, type(None), range, type, types.ModuleType)
    return not isinstance(item, (*plain, types.BuiltinFunctionType, np.ufunc, Undefined))


def _closed_over(fn: types.FunctionType) -> list[Any]:
    """Return what the variables of a closure hold; functions among them are not looked into."""
    cells = [cell for cell in fn.__closure__ or () if cell.cell_contents is not fn]
    return [c.cell_contents for c in cells if not isinstance(c.cell_contents, types.FunctionType)]


def extended(items: list[Any], more: Any) -> None:
    """`items.extend(more)` of a Python list by so many items as the data decides: it becomes a traced list."""
    source = more if isinstance(more, TracedList) else collected(more, list)
    made = _alike(items, source)
    if made is None:
        raise UnsupportedError(
            "a list is extended by items of another kind, as many as the data decides", location=here(),
            remedy="keep a list for each kind of item",
        )  # fmt: skip
    made.note_items(items, named_elsewhere(items))
    made.extend(source)
    items[:] = [Forward(made)]


def filtered(items: Any, keep: Any) -> Any:
    """The list of the items of which `keep` is true, or that are true."""
    return run(
        _filter, items, (lambda item: item) if keep is None else lambda item: call(keep, item)
    )


def _filter(items: Any, keep: Any) -> Any:
    made: list[Any] = []
    for item in items:
        if keep(item):
            made.append(item)
    return made


def repeated(items: Any, times: Traced) -> Any:
    """`items * times`, where `times` is a number that is not known while the function is traced."""
    if times.kind is Kind.PYTHON and times.dtype.kind == "b":
        times = times + 0
    if times.kind is Kind.ARRAY or times.dtype.kind not in "iu":
        words = f"can't multiply sequence by non-int of type '{_name_of_type(times)}'"
        remedy = "write `np.asarray(items) * x` for the products of the items"
        raise TypeRuleError(words, location=here(), remedy=remedy)
    if isinstance(items, tuple) or is_given(times):
        return items * operator.index(times)
    return run(_repeat, items, times)


def _name_of_type(x: Traced) -> str:
    if x.kind is Kind.PYTHON:
        return type(x.dtype.type().item()).__name__
    return "numpy.ndarray" if x.kind is Kind.ARRAY else f"numpy.{x.dtype.type.__name__}"


def folded(fn: Any, items: Any, *start: Any) -> Any:
    """`functools.reduce(fn, items, start)` of as many items as the data decides."""
    items = items if isinstance(items, TracedList) else collected(items, list)
    if start and not _outgrow(items, start[0]):
        return run(_fold, fn, items, start[0])
    empty = "reduce() of empty iterable with no initial value"
    _require(items.length() > 0, empty, error="TypeError")
    return run(_fold, fn, items[1:], fn(start[0], items[0]) if start else items[0])


def added(items: TracedList, start: Any) -> Any:
    """`sum(items, start)` of as many arrays as the data decides."""
    if _outgrow(items, start):
        _require(items.length() > 0, "the sum of no arrays is not an array, as it is with some")
    rows = items.columns[0]
    total = _FUNCTIONS["sum"](rows, axis=0, dtype=binary("Add", start, rows[:0]).dtype)
    return binary("Add", start, total)


def _outgrow(items: TracedList, start: Any) -> bool:
    """Tell whether items have more axes than what they are added to, so that without any the result has another shape."""
    return bool(max(column.ndim for column in items.columns) - 1 > lift(start).ndim)


def _fold(fn: Any, items: Any, total: Any) -> Any:
    for item in items:
        total = fn(total, item)
    return total


def _repeat(items: Any, times: Any) -> Any:
    made = items[:0]
    for _ in range(times):
        made.extend(items)
    return made


def _collect(items: Any, make: Any) -> Any:
    made: list[Any] = []
    for item in items:
        made.extend(make(item))
    return made
