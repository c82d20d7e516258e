"""Methods of the user's objects that Python calls by itself: they read arrays of each call, and what was written before."""

from __future__ import annotations

import collections.abc
import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from plainly import assert_equal, check_as_plain

import dsl
from dsl.errors import LeakError, UnsupportedError


class Rows:
    def __init__(self, *rows: float) -> None:
        self.data = np.array(rows)
        self.taken = 0

    @property
    def first(self) -> Any:
        return self.data[0]

    @first.setter
    def first(self, value: Any) -> None:
        self.data[0] = value
        self.taken = self.taken + 1

    def __delitem__(self, k: int) -> None:
        self.data[k] = -1.0


class Iterable(Rows):
    def __iter__(self) -> Any:
        return iter(self.data)


class Generating(Rows):
    def __iter__(self) -> Any:
        for k in range(len(self.data)):
            yield self.data[k]


class Stepping(Rows):
    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.taken >= len(self.data):
            raise StopIteration
        self.taken += 1
        return self.data[self.taken - 1]


class Indexed(Rows):
    def __getitem__(self, k: int) -> Any:
        if k >= len(self.data):
            raise IndexError(k)
        return self.data[k]


class Sequence(Rows, collections.abc.Sequence):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, k: Any) -> Any:
        return self.data[k]


class Table(Rows, collections.abc.Mapping):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Any:
        return iter(range(len(self.data)))

    def __getitem__(self, k: Any) -> Any:
        return self.data[k]


class Counted(Rows):
    def __enter__(self) -> Any:
        self.data[0] += 1.0
        return self.data

    def __exit__(self, *error: Any) -> bool:
        self.data[1] += 1.0
        return True


@contextlib.contextmanager
def scaled(rows: Rows) -> Iterator[np.ndarray]:
    rows.data *= 2
    yield rows.data
    rows.data += 1


def summed(rows):
    total = 0.0
    for value in rows:
        total = 2 * total + value
    return total


def unpacked(rows):
    a, b, c = rows
    d, *e = rows
    return a, b, c, d, e


def starred(rows):
    return [*rows, 1.0], (*rows, 1.0), (lambda a, b, c: 100 * a + 10 * b + c)(*rows)


def by_builtins(rows):
    whole = list(rows), tuple(rows), sorted(rows), list(enumerate(rows))
    return sum(rows), max(rows), whole, list(zip(rows, rows, strict=True))


def by_functions(rows):
    return list(map(abs, rows)), list(itertools.chain(rows, rows)), np.array(list(rows)), 2.0 in rows  # fmt: skip


def extending(rows):
    items = [0.0]
    items.extend(rows)
    items += rows
    return items


def comprehended(rows):
    return (
        [v + 1 for v in rows],
        {k: v * 2 for k, v in enumerate(rows)},
        [v for v in rows if v > 1.5],
    )


def generated(rows):
    def inner():
        yield from rows

    return list(inner())


WAYS: list[Callable[..., Any]] = [
    summed, unpacked, starred, by_builtins, by_functions, extending, comprehended, generated,
]  # fmt: skip


def check_calls(function: Callable[..., Any], kind: Callable[..., Any]) -> None:
    """Check calls with the same object, whose arrays change meanwhile."""
    compiled, plain, mine = dsl.jit(function), kind(1.0, 2.0, 3.0), kind(1.0, 2.0, 3.0)
    for _ in range(3):
        assert repr(compiled(mine)) == repr(function(plain))
        np.testing.assert_array_equal(mine.data, plain.data)
        mine.data += 1.0
        plain.data += 1.0


@pytest.mark.parametrize("kind", [Iterable, Generating, Indexed, Sequence])
@pytest.mark.parametrize("function", WAYS)
def test_items_of_an_object_are_those_of_each_call(function: Any, kind: Any) -> None:
    check_calls(function, kind)


def test_iterator_of_the_users_reads_arrays_of_each_call() -> None:
    compiled, rows = dsl.jit(summed), Stepping(1.0, 2.0)
    for factor in (1.0, 3.0):
        rows.taken = 0
        rows.data[:] = [factor, 2 * factor]
        assert compiled(rows) == 4 * factor
        assert rows.taken == 2


@pytest.mark.parametrize("kind", [Iterable, Generating, Indexed, Sequence])
def test_items_of_an_object_show_what_was_written_before(kind: Any) -> None:
    def program(rows):
        rows.data[1] = 7.0
        return [v for v in rows], sum(rows)  # noqa: C416

    check_calls(program, kind)


def test_values_and_items_of_a_mapping_are_those_of_each_call() -> None:
    def program(table):
        table.data[0] += 5.0
        return list(table.values()), list(table.items()), [v for v in table.values()]  # noqa: C416

    check_calls(program, Table)


def test_with_statement_enters_and_leaves_objects_at_each_call() -> None:
    def program(rows):
        with rows as data:
            inside = data.copy()
        return inside

    def in_a_loop(rows):
        for k in range(20):
            with rows:
                rows.data[2] += k
        return rows.data.copy()

    def returning(rows):
        with rows as data:
            if data[1] > 3.0:
                return data * 2
        return data * 3

    for function in (program, in_a_loop, returning):
        check_calls(function, Counted)


def test_object_of_a_with_statement_may_suppress_an_error() -> None:
    def program(rows):
        with rows:
            raise ValueError
        return rows.data.copy()

    check_calls(program, Counted)


def test_generator_of_a_context_manager_is_traced() -> None:
    def program(rows):
        rows.data[0] = 7.0
        with scaled(rows) as data:
            inside = data.copy()
        return inside

    check_calls(program, Rows)


def test_setter_of_a_property_writes_at_each_call() -> None:
    def plain(rows):
        rows.first = 9.0
        rows.first += 1.0
        return rows.data.copy()

    def in_a_branch(rows):
        if rows.data[1] > 2.5:
            rows.first = rows.data[1]
        else:
            rows.first = -1.0
        return rows.data.copy(), rows.taken

    def in_a_loop(rows):
        for k in range(20):
            rows.first += k
        return rows.data.copy(), rows.taken

    for function in (plain, in_a_branch, in_a_loop):
        check_calls(function, Rows)


def test_deleting_an_item_of_an_object_writes_at_each_call() -> None:
    def program(rows):
        rows.data[1] = 4.0
        del rows[1], rows[2]
        return rows.data.copy()

    check_calls(program, Rows)


def test_branch_that_deletes_an_item_leaves_the_list_to_the_other() -> None:
    class Held:
        def __init__(self) -> None:
            self.items = [1.0, 2.0, 3.0]

    def program(held, x):
        if x > 0:
            del held.items[0]
        else:
            del held.items[-1]
        return held.items

    for x in (1.0, -1.0):
        assert dsl.jit(program)(Held(), x) == program(Held(), x)


# -- attributes ---------------------------------------------------------------------------------------------------


class Doubled:
    """A descriptor: what is kept is one more than what is assigned, what is read twice of that."""

    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, obj, owner=None):
        return getattr(obj, self.name) * 2

    def __set__(self, obj, value):
        setattr(obj, self.name, value + 1)


class Managed:
    a = Doubled()

    def __init__(self, v):
        self.v = self.a = v

    def scaled(self, x):
        return x * self.v


class Counting(Managed):
    changes = 0

    def __setattr__(self, name, value):
        super().__setattr__("changes", self.changes + 1)
        super().__setattr__(name, value * 3)


class ByDict(Managed):
    def __setattr__(self, name, value):
        self.__dict__[name] = value * 3


def assigned(obj, x):
    obj.a = x
    obj.v += x
    return obj.a, obj.v


def assigned_in_regions(obj, x):
    for _ in range(3):
        obj.v = obj.v + x
    if x[0] > 1:
        obj.a = x
    else:
        obj.v = 2 * x
    return obj.v


def by_name(obj, x):
    setattr(obj, "v", getattr(obj, "v") + x)  # noqa: B009, B010
    object.__setattr__(obj, "w", getattr(obj, "none", x))
    read = operator.attrgetter("v", "w")(obj)
    return read, operator.methodcaller("scaled", x)(obj), getattr(obj, "scaled")(x)  # noqa: B009


def assigned_once(obj, x):
    obj.v = obj.v + x
    return obj.v


CASES = [
    *itertools.product((assigned, assigned_in_regions, by_name), (Managed, Counting)),
    (assigned_once, ByDict),
]


@pytest.mark.parametrize(("program", "cls"), CASES)
def test_attributes_are_assigned_once_and_read_as_they_are_now(program: Any, cls: Any) -> None:
    mine, plain = cls(np.ones(2)), cls(np.ones(2))
    compiled = dsl.jit(program)
    for k in range(3):
        x = np.full(2, k + 0.5)
        assert_equal(compiled(mine, x), program(plain, x), "the result")
        assert_equal(vars(mine), vars(plain), "the attributes")
        vars(mine)["v"], vars(plain)["v"] = x + 1, x + 1


def test_an_attribute_of_an_object_from_outside_is_not_deleted() -> None:
    def delete(obj, x):
        del obj.v
        return x

    with pytest.raises(UnsupportedError, match=r"`v` of an object from outside(.|\n)*del obj.v"):
        dsl.jit(delete)(Managed(1.0), np.ones(2))


# -- formats ------------------------------------------------------------------------------------------------------


class Length:
    def __init__(self, v):
        self.v = v

    def __format__(self, spec):
        return f"{self.v:{spec or '.1f'}} m"

    def __str__(self):
        return f"a length of {self.v:.2f}"


def test_objects_are_formatted_as_their_class_says() -> None:
    def formatted(x):
        one, known = Length(x[0]), Length(2.0)
        print(f"{one} {one:.3f} {one!s} {known:.2f}", "{:.2f} {}".format(one, known))  # noqa: UP032
        print("%s and %8s" % (one, 7), "%20s" % known, format(one, ".4f"))  # noqa: UP031
        return x

    check_as_plain(formatted, np.ones(2))


# -- what calls share ---------------------------------------------------------------------------------------------


class Shared:
    items: list[Any] = []

    def add(self, v):
        self.items.append(v)
        return v


def kept(v, held=[]):  # noqa: B006
    held.append(v)
    return v


def kept_by_name(v, *, more={"v": 0}):  # noqa: B006
    more["v"] = v
    return v


@pytest.mark.parametrize("keep", [kept, kept_by_name, lambda v: Shared().add(v)])
def test_what_outlives_a_call_gets_no_traced_values(keep: Any) -> None:
    with pytest.raises(LeakError, match="container from outside"):
        dsl.jit(lambda x: keep(x[0]))(np.ones(2))
    assert (kept.__defaults__, kept_by_name.__kwdefaults__, Shared.items) == (
        ([],),
        {"more": {"v": 0}},
        [],
    )


def test_comparisons_of_lists_are_bools_and_items_are_counted_through() -> None:
    def compared(x):
        items = list(x[0])
        return (
            items == items[:],
            items != items[::-1],
            (x[0, 0],) == (x[0, 1],),
            x.item(3),
            x.item(1, 0),
        )

    check_as_plain(compared, np.arange(4.0).reshape(2, 2))
