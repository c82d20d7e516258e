"""Objects, lists and dicts of the user's that traced branches and loops make and change."""

from __future__ import annotations

import abc
import copy
import gc
import types
import weakref
from collections import ChainMap, UserDict, deque
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytest
from plainly import check_as_plain

import dsl
from dsl.errors import BranchError


class Pair:
    def __init__(self, a: Any, b: Any = 0.0) -> None:
        self.a, self.b = a, b

    def __add__(self, other: Pair) -> Pair:
        return Pair(self.a + other.a, self.b + other.b)


class Log:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.named: dict[str, Any] = {}


@dataclass
class Buffer:
    data: np.ndarray = field(default_factory=lambda: np.zeros(3))


def test_branches_make_objects_of_one_class() -> None:
    def choose(x):
        pair = Pair(x, 1.0) if x > 0 else Pair(-x)
        return pair.a, pair.b

    check_as_plain(choose, np.float64(2.0))
    check_as_plain(choose, np.float64(-2.0))


def test_branch_returns_a_new_object_or_the_old_one() -> None:
    def flipped(pair):
        if pair.a > 0:
            return Pair(-pair.a)
        return pair

    def program(x):
        return flipped(Pair(x)).a

    check_as_plain(program, np.float64(3.0))
    check_as_plain(program, np.float64(-3.0))


def test_loop_carries_an_object_that_it_makes_anew() -> None:
    def grow(x):
        pair = Pair(x, 1.0)
        while pair.a < 100:
            pair = pair + pair
        return pair.a, pair.b

    check_as_plain(grow, np.float64(3.0))
    assert dsl.grad(lambda x: dsl.jit(grow)(x)[0])(3.0) == 64.0


def test_an_object_can_be_returned() -> None:
    found = dsl.jit(lambda x: Pair(x * 2, [x]))(np.arange(3.0))
    assert type(found) is Pair
    np.testing.assert_array_equal(found.a, [0, 2, 4])
    np.testing.assert_array_equal(found.b[0], [0, 1, 2])


def test_list_of_an_argument_object_changes_in_place() -> None:
    @dsl.jit
    def record(log, x):
        log.items.append(x.sum())
        log.named["last"] = x * 2
        return x

    log = Log()
    items = log.items
    for k in range(3):
        record(log, np.full(2, float(k)))
    assert log.items is items
    assert items == [0.0, 2.0, 4.0]
    np.testing.assert_array_equal(log.named["last"], [4.0, 4.0])


def test_list_of_an_object_is_as_before_a_call_that_raises() -> None:
    @dsl.jit
    def record(log, x):
        log.items.append(x.sum())
        if x[0] > 1:
            raise ValueError("large")
        return log.items[-1] + np.ones(3) @ np.ones(2) if x.ndim > 1 else x

    log = Log()
    with pytest.raises(ValueError, match="large"):
        record(log, np.full(2, 5.0))
    assert log.items == []
    with pytest.raises(ValueError):
        record(log, np.ones((2, 2)))
    assert log.items == []


def test_list_of_an_object_in_a_derivative() -> None:
    log = Log()

    def loss(w):
        log.items.append(w.sum())
        return (w * w).sum()

    step = dsl.jit(dsl.grad(loss))
    np.testing.assert_array_equal(step(np.arange(3.0)), [0, 2, 4])
    assert log.items == [3.0]


class Tally:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.total = 0.0

    def add(self, x: Any) -> None:
        self.items.append(x)
        self.total = self.total + x


class Nest:
    def __init__(self) -> None:
        self.tally = Tally()


def nested_object(x):
    nest = Nest()
    for i in range(int(x.sum())):
        nest.tally.add(x[i % 3] * x[0])
    return nest.tally.total + sum(nest.tally.items)


def objects_in_a_list(x):
    tallies = [Tally(), Tally()]
    for i in range(int(x.sum())):
        for tally in tallies:
            tally.add(x[i % 3])
    return tallies[0].total + sum(tallies[1].items)


def object_in_a_dict(x):
    held = {"tally": Tally()}
    for i in range(int(x.sum())):
        held["tally"].add(x[i % 3])
    return held["tally"].total


def object_made_in_a_loop(x):
    total = 0.0
    for i in range(3):
        nest = Nest()
        for j in range(int(x[2])):
            nest.tally.add(x[i] * x[j])
        total += nest.tally.total
    return total


def object_made_in_a_branch(x):
    def made(y):
        tally = Tally()
        for j in range(int(x[2])):
            tally.add(y[j])
        return tally

    tally = made(x)
    if x[0] > 0:
        tally = made(2 * x)
    return tally.total + sum(tally.items)


def list_that_grows_by_a_sum(x):
    items, total = [], 0.0
    while total < 5.0:
        items = items + [x[2]]
        total = total + x[0]
    return sum(items)


@pytest.mark.parametrize(
    "program",
    [
        nested_object, objects_in_a_list, object_in_a_dict, object_made_in_a_loop, object_made_in_a_branch,
        list_that_grows_by_a_sum,
    ],
)  # fmt: skip
def test_growing_lists_of_objects_inside_others_and_their_derivatives(program: Any) -> None:
    x = np.array([0.6, 1.0, 2.2])
    check_as_plain(program, x)
    slopes = [(program(x + step) - program(x - step)) / 2e-6 for step in 1e-6 * np.eye(3)]
    np.testing.assert_allclose(dsl.grad(program)(x), slopes, rtol=1e-6, atol=1e-6)


def test_objects_in_a_list_of_another_object_and_their_derivatives() -> None:
    class Holder:
        def __init__(self) -> None:
            self.tallies = [Tally()]

    def through_the_attribute(x):
        holder = Holder()
        for _ in range(int(x.sum())):
            holder.tallies[0].add(x[0])
        return holder.tallies[0].total

    def through_a_variable(x):
        holder = Holder()
        tally = holder.tallies[0]
        for _ in range(int(x.sum())):
            tally.add(x[0])
        return holder.tallies[0].total

    x = np.array([0.6, 1.0, 2.2])
    check_as_plain(through_the_attribute, x)
    np.testing.assert_allclose(dsl.grad(through_the_attribute)(x), [3.0, 0.0, 0.0])
    np.testing.assert_allclose(dsl.grad(through_a_variable)(x), [3.0, 0.0, 0.0])


def test_growing_list_has_other_names() -> None:
    def program(x):
        one = other = []
        outer = {"list": one}
        for v in x:
            if v > 0:
                one.append(v)
        return other, outer["list"], len(other), other[0]

    check_as_plain(program, np.array([1.0, -1.0, 2.0]))


def test_argument_list_grows_in_a_loop() -> None:
    def program(items, x):
        for v in x:
            if v > 0:
                items.append(v)
        return len(items)

    check_as_plain(program, [], np.array([1.0, -1.0, 2.0]))


def test_default_factory_makes_a_new_array_at_each_call() -> None:
    @dsl.jit
    def bump(x):
        buffer = Buffer()
        buffer.data[0] += x
        return buffer.data

    for x in (1.0, 2.0):
        np.testing.assert_array_equal(bump(x), [x, 0, 0])


def test_empty_list_pops_only_where_the_branch_is_taken() -> None:
    def program(x):
        items = []
        for v in x:
            if v > 0:
                items.append(v)
            else:
                items.pop()
        return len(items)

    check_as_plain(program, np.array([1.0, 2.0, -1.0]))
    with pytest.raises(IndexError):
        dsl.jit(program)(np.array([-1.0, 2.0, -1.0]))


def test_builtins_of_a_growing_list() -> None:
    def program(x):
        out = []
        for v in x:
            if v > 0:
                out.append(v)
        return (
            sum(out),
            max(out),
            min(out),
            sorted(out),
            any(out),
            all(out),
            list(out),
            max(out, default=0.0),
        )

    check_as_plain(program, np.array([3.0, -1.0, 2.0]))


def test_a_deque_is_not_returned() -> None:
    with pytest.raises(dsl.errors.UnsupportedError, match="a deque cannot be returned"):
        dsl.jit(lambda x: deque([x]))(np.ones(2))


RANGES = [
    lambda n, x: np.array(range(n)) * 2,
    lambda n, x: np.meshgrid(range(n), range(1, n)),
    lambda n, x: np.sum(range(n)),
    lambda n, x: sum(range(1, n), 3),
    lambda n, x: x[range(n)],
    lambda n, x: x[:n] + range(n),
    lambda n, x: range(n) - x[:n],
    lambda n, x: np.concatenate([x, range(n, 0, -1)]),
    lambda n, x: np.repeat(range(n), 2),
    lambda n, x: [v in range(n) for v in (0, 2, 3, 2.5, -1)],
    lambda n, x: [v in range(n, 0, -2) for v in (0, 1, 2, 3, 4, 5)],
    lambda n, x: x[1] not in range(1, n, 2),
]


@pytest.mark.parametrize("fn", RANGES)
def test_ranges_whose_ends_are_arguments_are_arrays_where_numpy_makes_them_so(fn: Any) -> None:
    compiled = dsl.jit(fn)
    for n in (3, 4, 5):
        want, got = fn(n, np.arange(8.0)), compiled(n, np.arange(8.0))
        assert type(got) is type(want)
        np.testing.assert_equal(got, want)
    assert compiled.cache_info().entries == 1


def test_membership_of_a_long_range() -> None:
    def program(n):
        return n in range(10**5), n in range(9, 0, -2), n not in range(0)

    for n in (np.int64(5), np.int64(8), np.int64(-1)):
        check_as_plain(program, n)


def test_loops_of_one_function_keep_their_own_dtypes() -> None:
    def double(v, n):
        for _ in range(n):
            v = v + v
        return v

    def program(x, n):
        return double(x, n), double(np.int64(2**53 + 1), n), double(np.float32(1), n)

    check_as_plain(program, np.float64(1.5), 3)


def test_raise_with_values_outside_branches() -> None:
    def fail(x):
        raise ValueError(f"sum {x.sum():.2f}")

    with pytest.raises(ValueError, match=r"^sum 3\.00"):
        dsl.jit(fail)(np.ones(3))


@pytest.mark.parametrize(
    "transform",
    [
        dsl.grad,
        dsl.hessian,
        lambda f: dsl.jit(dsl.grad(f)),
        lambda f: dsl.grad(dsl.checkpoint(f)),
        lambda f: lambda x: dsl.jvp(f, (x,), (x,)),
        lambda f: dsl.jit(lambda x: dsl.cond(x[0] > 0, lambda: dsl.grad(f)(x), lambda: x)),
    ],
)
def test_a_derivative_of_what_always_raises_raises_its_message(transform: Any) -> None:
    def refuse(x):
        y = 2 * x[0]
        raise ValueError(f"{{no}} {y:.2f} of {x}")

    with pytest.raises(ValueError, match=r"^\{no\} 2\.00 of \[1\. 2\.\]"):
        transform(refuse)(np.array([1.0, 2.0]))


def test_a_batch_of_what_always_raises_names_no_item() -> None:
    def refuse(x):
        raise ValueError(f"no {x:.2f}")

    with pytest.raises(ValueError, match=r"^no …$"):
        dsl.vmap(refuse)(np.ones(3))


def test_generator_is_run_as_python_runs_it() -> None:
    def count(x):
        k = 0
        while True:
            yield x[k]
            k += 1

    def program(x):
        total = 0.0
        for v in count(x):
            x[3] += 1
            total += v
            if v is x or len(x) == 0:
                continue
            if x.ndim == 1:
                break
        return total, next(count(x))

    check_as_plain(program, np.arange(4.0))


def test_a_decorated_generator_is_refused() -> None:
    @dsl.jit
    def pieces(x):
        yield x[:2]

    with pytest.raises(dsl.errors.ConversionError, match="`yield` cannot be converted"):
        pieces(np.ones(4))


class Mode:
    def __init__(self) -> None:
        self.name = "plain"


def function_chosen_in_a_loop(x):
    function = np.sin
    for i in range(3):
        if x[i] > 0:
            function = np.cos
    return function(x)


def text_chosen_in_a_loop(x):
    word, i = "no", 0
    while i < x.sum():
        if x[i] > 0.5:
            word = "yes"
        i += 1
    return 2.0 if word == "yes" else 1.0


def text_read_in_the_next_trip(x):
    word, total = "no", 0.0
    for i in range(len(x)):
        total += 1.0 if word == "yes" else 0.0
        if x[i] > 0:
            word = "yes"
    return total


def object_of_another_class(x):
    pair = Mode()
    for i in range(3):
        if x[i] > 0:
            pair = Pair(x[i])
    return pair.a


def attribute_chosen_in_a_loop(x):
    mode = Mode()
    for i in range(3):
        if x[i] > 0:
            mode.name = "other"
    return 1.0 if mode.name == "other" else 0.0


def attribute_chosen_in_a_branch(x):
    mode = Mode()
    if x[0] > 0:
        mode.name = "other"
    return 1.0 if mode.name == "other" else 0.0


@pytest.mark.parametrize(
    "program",
    [
        function_chosen_in_a_loop, text_chosen_in_a_loop, text_read_in_the_next_trip, object_of_another_class,
        attribute_chosen_in_a_loop, attribute_chosen_in_a_branch,
    ],
)  # fmt: skip
def test_data_does_not_choose_objects_in_branches_of_loops(program: Any) -> None:
    with pytest.raises(dsl.errors.BranchError, match="after one branch of an `if` and") as caught:
        dsl.jit(program)(np.ones(3))
    assert caught.value.location is not None
    assert caught.value.remedy


def test_what_is_not_read_may_be_chosen_in_a_loop() -> None:
    def program(x):
        total, word = 0.0, "no"
        for i in range(3):
            word = "yes" if i == 1 else word
            total += x[i]
        return total

    check_as_plain(program, np.ones(3))


class Lazy:
    def __init__(self, x: Any) -> None:
        self.x = x

    @cached_property
    def total(self) -> Any:
        total = 0.0
        for v in self.x:
            if v > 0:
                total += v
        return total

    @property
    def scaled(self) -> Any:
        factor = 2.0
        if self.x[0] > 0:
            factor = 3.0
        return lambda v: factor * v


def test_what_a_property_returns_is_called() -> None:
    def program(x):
        return Lazy(x).scaled(2.0)

    check_as_plain(program, np.array([1.0, -2.0]))
    check_as_plain(program, np.array([-1.0, -2.0]))


def test_cached_property_with_a_condition_on_data() -> None:
    def program(x):
        lazy, found = Lazy(x), 0.0
        for v in x:
            if v > 0:
                found += lazy.total
        return found, lazy.total, lazy.total

    check_as_plain(program, np.array([1.0, -2.0, 4.0]))


def test_class_inside_the_function_has_conditions_on_data() -> None:
    def program(x):
        class Counter:
            def __init__(self, start):
                self.count = start

            def add(self, v):
                if v > 0:
                    self.count += 1
                return np.array([v, self.count])

        counter = Counter(10)
        for v in x:
            pair = counter.add(v)
        return counter.count, pair

    check_as_plain(program, np.array([1.0, -2.0, 4.0]))


def test_list_is_filled_by_a_method_kept_in_a_variable() -> None:
    def program(x):
        found = []
        push = found.append
        for v in x:
            if v > 0:
                push(v)
        return len(found), found

    for size in (5, 90):
        check_as_plain(program, np.sin(np.arange(size)))


def test_closure_that_outlives_its_function_keeps_state_in_branches_and_loops() -> None:
    def accumulator(factor):
        total, count = 0.0, 0

        def add(v):
            nonlocal total, count
            if v > 1:
                count += 1
            total = factor * total + v
            return total

        return add, lambda: (total, count)

    def program(x):
        one, of_one = accumulator(0.5)
        two, of_two = accumulator(-1.0)
        for v in x:
            if v > 0:
                one(v)
            else:
                two(v)
        return of_one(), of_two(), one(1.0)

    check_as_plain(program, np.array([1.0, -1.0, 2.0, 3.0, -0.5]))


def test_closure_variable_is_none_until_it_is_set() -> None:
    def cell():
        held = None

        def put(v):
            nonlocal held
            held = v

        return put, lambda: held

    def program(x):
        put, get = cell()
        for v in x:
            if v > 0.3:
                put(v)
        last = get()
        return -1.0 if last is None else last

    rows = np.array([[1.0, 2.0], [0.0, 0.5]])
    check_as_plain(program, rows[0])
    np.testing.assert_array_equal(dsl.vmap(program)(rows), [2.0, 0.5])


def test_batched_function_that_returns_none_for_some_items() -> None:
    def program(x):
        found = None
        if x > 0:
            found = x
        return found

    with pytest.raises(dsl.DslError, match="None for some items"):
        dsl.vmap(program)(np.array([1.0, -1.0]))


def test_variable_outside_of_the_function_is_not_written() -> None:
    count = 0

    def bump(x):
        nonlocal count
        count += 1
        return x * count

    with pytest.raises(dsl.DslError, match="`nonlocal count`") as caught:
        dsl.jit(bump)(np.ones(2))
    assert "return the value" in str(caught.value)
    assert count == 0


class Level(IntEnum):
    LOW = 0
    HIGH = 1


def test_members_of_an_int_enum_are_numbers() -> None:
    def program(levels):
        high = 0
        for level in levels:
            if level == Level.HIGH:
                high += 1
            elif level < Level.HIGH:
                high -= Level.HIGH
        return high, levels + Level.HIGH, levels[Level.HIGH], np.where(levels > 0, Level.HIGH, 5)

    check_as_plain(program, np.array([0, 1, 1, 2]))
    check_as_plain(program, np.array([0, 1, 1, 2], np.int8))


def test_methods_of_python_numbers() -> None:
    def program(n, x):
        return (
            n.bit_length(), (-n).bit_length(), n.bit_count(), x.is_integer(), (n / 2).is_integer(), n.imag, x.real,
            n.numerator, n.denominator, (n * 0).bit_length(),
        )  # fmt: skip

    for n in (1, 2, 255, 256, 2**53 + 1, 2**62 - 1, 2**62, -(2**63 - 1)):
        check_as_plain(program, n, 0.5)
    check_as_plain(program, 6, 3.0)


class Signed:
    def __init__(self, x):
        if x.sum() > 0:
            self.size = x
        else:
            self.size = -x

    def doubled(self):
        return 2 * self.size


class Inherits(Signed):
    pass


class Abstract(abc.ABC):
    def __init__(self, x):
        self.size = x if x.sum() > 0 else -x

    @abc.abstractmethod
    def doubled(self): ...


class Concrete(Abstract):
    def doubled(self):
        return 2 * self.size


@pytest.mark.parametrize("kind", [Signed, Inherits, Concrete])
def test_initialisers_may_be_inherited_and_branch_on_data(kind: Any) -> None:
    def program(x):
        made = kind(x)
        while made.size[0] < 4:
            made = kind(made.doubled())
        return made.size

    check_as_plain(program, np.ones(3))
    check_as_plain(program, -np.ones(3))


# -- containers and objects inside others, which a branch replaces ------------------------------------


class Box:
    """What has an attribute, and no `__init__`."""


@dataclass
class Record:
    """What has a field."""

    item: Any


def replaced_in_a_dict(x):
    inner = [x]
    state = {"a": inner}
    if x.sum() > 0:
        state["a"] = [2 * x]
    return inner, state, x


def changed_in_a_dict(x):
    inner = [x]
    state = {"a": inner}
    if x.sum() > 0:
        state["a"][0] = 2 * x
    return inner, state


def changed_in_a_tuple(x):
    inner = [x]
    pair = (inner, 1)
    if x.sum() > 0:
        pair[0][0] = 2 * x
    return inner[0], pair[0][0]


def exchanged(x):
    one, other = [x], [2 * x]
    both = [one, other]
    if x.sum() > 0:
        both[0], both[1] = both[1], both[0]
    return one[0], other[0], both[0][0], both[1][0]


def turned_around(x):
    one, other = {"v": x}, {"v": 2 * x}
    both = [one, other]
    if x.sum() > 0:
        both.reverse()
    return one["v"], other["v"], both[0]["v"]


def three_deep(x):
    inner = [x]
    middle = {"inner": inner}
    outer = [middle]
    if x.sum() > 0:
        outer[0]["inner"] = [2 * x]
    return inner[0], middle["inner"][0], outer[0]["inner"][0]


def replaced_and_changed(x):
    state = {"a": [x]}
    if x.sum() > 0:
        state["a"] = [2 * x]
    state["a"][0] = state["a"][0] + 1
    return state


def attribute_replaced_and_changed(x):
    box = Box()
    box.items = [x]
    if x.sum() > 0:
        box.items = [2 * x]
    box.items[0] = box.items[0] + 1
    return box.items[0]


def object_replaced(x):
    one = Box()
    one.item = x
    held, chosen = [one], one
    if x.sum() > 0:
        other = Box()
        other.item = 2 * x
        held[0] = chosen = other
    return one.item, held[0].item, chosen.item


@pytest.mark.parametrize(
    "program",
    [
        replaced_in_a_dict, changed_in_a_dict, changed_in_a_tuple, exchanged, turned_around, three_deep,
        replaced_and_changed, attribute_replaced_and_changed, object_replaced,
    ],
)  # fmt: skip
def test_containers_in_others_are_replaced_and_changed_in_branches(program: Any) -> None:
    x = np.array([1.0, 2.0])
    check_as_plain(program, x)
    check_as_plain(program, -x)


def changed_after_it_was_replaced(x):
    inner = [x]
    state = [inner]
    if x.sum() > 0:
        state[0] = [2 * x]
    state[0][0] = 5 * x
    return inner[0], state[0][0]


def read_after_a_change_of_the_other(x):
    inner = [x]
    state = {"a": inner}
    if x.sum() > 0:
        state["a"] = [2 * x]
    inner[0] = 5 * x
    return inner[0], state["a"][0]


def changed_after_an_exchange(x):
    one, other = [x], [2 * x]
    both = [one, other]
    if x.sum() > 0:
        both.reverse()
    both[0][0] = 7 * x
    return one[0], other[0]


def field_of_the_chosen(x):
    one = chosen = Record(x)
    if x.sum() > 0:
        chosen = Record(2 * x)
    chosen.item = 9 * x
    return one.item, chosen.item


def attribute_of_what_an_object_holds(x):
    one, outer = Box(), Box()
    one.item, outer.item = x, one
    if x.sum() > 0:
        other = Box()
        other.item = 2 * x
        outer.item = other
    outer.item.item = 7 * x
    return one.item, outer.item.item


@pytest.mark.parametrize(
    "program",
    [
        changed_after_it_was_replaced, read_after_a_change_of_the_other, changed_after_an_exchange, field_of_the_chosen,
        attribute_of_what_an_object_holds,
    ],
)  # fmt: skip
def test_which_container_is_changed_does_not_depend_on_data(program: Any) -> None:
    with pytest.raises(dsl.errors.AliasError, match="list, dict or object") as info:
        dsl.jit(program)(np.array([1.0, 2.0]))
    assert "choose between copies" in str(info.value)


def replaced_in_every_trip(x):
    rows = [[0.0, 1.0], [2.0, 3.0]]
    while x.sum() < 50:
        rows[0], rows[1] = rows[1], [r + 1 for r in rows[0]]
        rows[0][0] = rows[0][0] + x[0]
        x = x + 1
    return rows


def exchanged_in_every_trip(x):
    one, other = [x], [2 * x]
    both = [one, other]
    while x.sum() < 50:
        both.reverse()
        x = x + 1
    return one[0], other[0], both[0][0]


def only_the_first_trip_changes_it(x):
    first = last = [x]
    for _ in range(3):
        last[0] = 7 * last[0]
        last = [2 * x]
    return first[0], last[0]


@pytest.mark.parametrize(
    "program", [replaced_in_every_trip, exchanged_in_every_trip, only_the_first_trip_changes_it]
)
def test_containers_in_others_are_replaced_in_loops(program: Any) -> None:
    check_as_plain(program, np.array([1.0, 2.0]))
    check_as_plain(program, np.array([40.0, 20.0]))


def changed_in_a_branch_and_dropped(x):
    first = last = [x]
    if x.sum() < 50:
        last[0] = 7 * x
        last, x = [2 * x], x + 1
    return first[0], last[0]


def changed_inside_another_and_dropped(x):
    rows = other = {"row": [x], "x": x}
    if x.sum() < 50:
        rows["row"][0] = 7 * x
        rows["x"] = x + 3
        rows = {"row": [2 * x], "x": x}
    else:
        rows["row"][0] = x - 1
    return other["row"][0], rows["row"][0], other["x"], rows["x"]


@pytest.mark.parametrize(
    "program", [changed_in_a_branch_and_dropped, changed_inside_another_and_dropped]
)
def test_what_a_branch_changes_and_a_variable_then_drops_is_changed(program: Any) -> None:
    check_as_plain(program, np.array([1.0, 2.0]))
    check_as_plain(program, np.array([40.0, 20.0]))


def one_that_the_first_trip_changes(x):
    first = last = [x]
    while x.sum() < 50:
        last[0] = 7 * x
        last, x = [2 * x], x + 1
    return first[0], last[0]


def one_in_a_dict_that_the_first_trip_changes(x):
    first = [x]
    held = {"last": first}
    while x.sum() < 50:
        held["last"][0] = 7 * x
        held["last"], x = [2 * x], x + 1
    return first[0], held["last"][0]


def one_that_is_changed_if_there_was_no_trip(x):
    first = last = Record(x)
    while x.sum() < 50:
        last, x = Record(2 * x), x + 1
    last.item = 9 * x
    return first.item, last.item


@pytest.mark.parametrize(
    "program",
    [
        one_that_the_first_trip_changes, one_in_a_dict_that_the_first_trip_changes,
        one_that_is_changed_if_there_was_no_trip,
    ],
)  # fmt: skip
def test_which_container_is_changed_does_not_depend_on_the_trip(program: Any) -> None:
    with pytest.raises(dsl.errors.AliasError, match="this changes a list, dict or object"):
        dsl.jit(program)(np.array([1.0, 2.0]))


@dataclass
class Sum:
    count: int = 0
    total: float = 0.0

    def push(self, x: Any) -> None:
        self.count += 1
        self.total += x


def filled_by_row(x):
    rows = [[] for _ in range(len(x))]
    for i in range(len(x)):
        rows[i].append(x[i])
    return rows


def changed_by_row(x):
    rows = [[1.0, 2.0], [3.0, 4.0]]
    for i in range(2):
        rows[i][0] += float(x[i])
    return rows


def summed(x):
    sums = [Sum(), Sum()]
    for k in range(2):
        for v in x[k::2]:
            sums[k].push(float(v))
    return sums


def named_by_row(x):
    rows = [(1, {"a": 1.0}), (2, {"a": 2.0})]
    for i in range(2):
        rows[i][1]["a"] += float(x[i])
    return rows


def read_after_a_change(x):
    rows, total = [[1.0, 2.0], [3.0, 4.0]], 0.0
    for i in range(2):
        row = rows[i]
        rows[1][0] = float(x[i]) + total
        total += row[0]
    return total


@pytest.mark.parametrize(
    "program", [filled_by_row, changed_by_row, summed, named_by_row, read_after_a_change]
)
def test_loops_over_places_in_a_list_change_its_items(program: Any) -> None:
    check_as_plain(program, np.arange(5.0) + 1)
    check_as_plain(program, np.arange(2.0) + 1)


def by_label(x):
    rows = [[0.0], [0.0]]
    for v in x:
        rows[int(v) % 2].append(v)
    return rows


def of_a_list_that_grew(x):
    rows = []
    for v in x:
        if v > 0:
            rows.append([v, 0.0])
    for row in rows:
        row[1] = 1.0
    return rows


def picked_before_a_loop(x):
    rows = [[1.0, 2.0], [3.0, 4.0]]
    row = rows[int(x[1])]
    for v in x:
        row[0] += v
    return rows


def of_an_object(x):
    one, two = Sum(), Sum()
    picked = one if x[0] > 0 else two
    picked.push(x[0])
    return one, two


def inside_a_tuple(x):
    one, two = [1.0], [2.0]
    picked = (one, 1) if x[0] > 0 else (two, 2)
    picked[0][0] = 7.0
    return one, two


@pytest.mark.parametrize(
    "program", [by_label, of_a_list_that_grew, picked_before_a_loop, of_an_object, inside_a_tuple]
)
def test_changes_of_what_the_data_chose_are_refused(program: Any) -> None:
    with pytest.raises(dsl.errors.AliasError, match="the data chose among others"):
        dsl.jit(program)(np.arange(5.0))


def test_an_object_whose_other_name_is_not_read_any_more_may_be_changed() -> None:
    def program(x):
        state = Sum()
        for v in x:
            new = Sum(state.count + 1, state.total + v)
            if v > 1:
                state = new
            state.count += 10
        return state

    check_as_plain(program, np.arange(5.0))


def best_sum(x):
    best = None
    for v in x:
        if best is None:
            best = Sum(1, float(v))
        elif v > 0:
            best.push(float(v))
            best.total += 1
    return best


def last_pair(x):
    last = None
    for v in x:
        if v > 0:
            last = Pair(float(v))
    last.b = 7.0
    return last.a, last.b


def best_row(x):
    best = None
    for v in x:
        if best is None or v > best[0]:
            best = [float(v), 1]
        else:
            best[1] += 1
    return best


@pytest.mark.parametrize("program", [best_sum, last_pair, best_row])
def test_what_may_be_none_can_be_changed(program: Any) -> None:
    check_as_plain(program, np.array([1.0, -1.0, 2.0]))
    check_as_plain(program, np.array([2.0, 3.0, 1.0, -1.0, 2.0]))


def test_attributes_of_none_raise_what_python_raises() -> None:
    for function in (last_pair, dsl.jit(last_pair)):
        with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'b'"):
            function(-np.ones(3))


def test_what_may_be_none_keeps_its_structure() -> None:
    def program(x):
        rows = None
        for v in x:
            if v > 0:
                rows = [v]
        rows.append(1.0)
        return rows

    with pytest.raises(dsl.errors.UnsupportedError, match="the structure of what may be None"):
        dsl.jit(program)(np.ones(3))


def test_gradients_of_what_may_be_none() -> None:
    def controlled(goal):
        state, y = Pair(None), 0.0
        for _ in range(4):
            error = goal - y
            y = y + 0.1 * (error if state.a is None else 2 * error - state.a)
            state.a = error
        return y

    def largest(x):
        best = None
        for v in x:
            if best is None or v > best:
                best = v * v
        return best

    step = 1e-6
    slope = (controlled(1.0 + step) - controlled(1.0 - step)) / (2 * step)
    np.testing.assert_allclose(dsl.grad(controlled)(1.0), slope, rtol=1e-6)
    np.testing.assert_allclose(dsl.grad(largest)(np.array([0.5, 0.2, 0.9])), [0, 0, 1.8])
    x = np.array([0.5, 0.2, 0.9])
    np.testing.assert_allclose(dsl.jvp(largest, (x,), (x,)), (0.81, 1.62))
    np.testing.assert_allclose(dsl.vjp(largest, x)[1](1.0)[0], [0, 0, 1.8])
    np.testing.assert_allclose(dsl.jacrev(largest)(x), [0, 0, 1.8])
    np.testing.assert_allclose(dsl.hessian(largest)(x), np.diag([0, 0, 2]))
    value, aux = dsl.value_and_grad(lambda x: (largest(x), 1), has_aux=True)(np.array([2.0]))[0]
    assert (value, aux) == (4.0, 1)


class Slotted:
    __slots__ = ("__half", "x")

    def __init__(self, x):
        self.x = x
        if x > 4:
            self.x = x - 4
        self.__half = self.x / 2

    def half(self):
        return self.__half


@dataclass(slots=True)
class SlottedRecord:
    x: Any
    seen: list[Any] = field(default_factory=list)

    def __post_init__(self):
        if self.x > 4:
            self.x = self.x - 4

    def half(self):
        return self.x / 2


@dataclass(frozen=True, slots=True)
class FrozenSlottedRecord:
    x: Any
    doubled: Any = 0.0

    def __post_init__(self):
        object.__setattr__(self, "doubled", self.x * 2)

    def half(self):
        return self.doubled / 4


@pytest.mark.parametrize("kind", [Slotted, SlottedRecord, FrozenSlottedRecord])
def test_instances_with_slots_are_replaced_in_branches_and_loops(kind: Any) -> None:
    def program(x):
        held = kind(x)
        if x > 3:
            held = kind(x - held.half())
        for _ in range(30):
            held = kind(held.x + 1)
        return held.half(), held, min([kind(x), kind(-x)], key=lambda k: k.x).x

    for x in (1.0, 3.5, 9.0):
        half, held, least = dsl.jit(program)(x)
        want, also, lowest = program(x)
        assert (half, held.x, least) == (want, also.x, lowest)
        assert type(held) is kind


@pytest.mark.parametrize("kind", [Slotted, SlottedRecord])
def test_instances_with_slots_are_changed_in_branches_and_loops(kind: Any) -> None:
    def program(x, outside):
        held = kind(x)
        for _ in range(30):
            if held.x < 20:
                held.x += 1.5
        outside.x += held.x
        return held.x

    mine, plain = kind(1.0), kind(1.0)
    assert dsl.jit(program)(2.0, mine) == program(2.0, plain)
    assert mine.x == plain.x


# -- tuples of which some items are None until the data gives them a value ------------------------------------------


class _Found(NamedTuple):
    value: Any
    place: Any = None


def _largest_and_place(x):
    best = (-1.0, None)
    for i, v in enumerate(x):
        if v > best[0]:
            best = (v, i)
    return best


def _named_and_nested(x):
    found, pair = _Found(0.0), ((None, 1.0), 2)
    for i, v in enumerate(x):
        if v > found.value:
            found, pair = _Found(v, i), ((v, 2.0), pair[1] + 1)
    return found, pair


def _one_or_the_other(x):
    first = (None, x[0]) if x[0] > 0.5 else (x[0], None)
    return first, first[0] is None


def _searched(x):
    def search(limit):
        for i, v in enumerate(x):
            if v > limit:
                return i, v
        return None, None

    place, value = search(0.6)
    return -1.0 if place is None else place * value


def _first_two(x):
    pair = (None, None)
    for v in x:
        if v > 0.5 and pair[0] is None:
            pair = (v, pair[1])
        elif v > 0.5:
            pair = (pair[0], v)
    return pair


def _text_or_none(x):
    if x[0] > 0.5:
        return "large", 1
    return None, 2


@pytest.mark.parametrize("x", [np.linspace(0, 1, 5), np.linspace(1, 0, 100), -np.ones(4)])
@pytest.mark.parametrize(
    "program",
    [
        _largest_and_place,
        _named_and_nested,
        _one_or_the_other,
        _searched,
        _first_two,
        _text_or_none,
    ],
)
def test_item_of_a_tuple_that_is_none_or_a_value(program: Any, x: np.ndarray) -> None:
    check_as_plain(program, x)


def test_lists_and_dicts_that_are_defaults_change_once_in_branches_and_loops() -> None:
    def program(x):
        def count(v, seen=[0.0], *, named={}):  # noqa: B006
            seen[0] = seen[0] + v
            named["n"] = named.get("n", 0.0) + 1.0
            return named["n"]

        def collect(v, found=[]):  # noqa: B006
            found.append(v)
            return len(found)

        lengths = [collect(k) for k in range(3)]
        for k in range(3):
            lengths.append(collect(k))
        count(0.0)
        for v in x:
            count(v)
        if x[0] > 0:
            count(10.0)
        return lengths, count(1.0), count.__defaults__[0][0]

    check_as_plain(program, np.array([1.0, 2.0, 3.0]))
    check_as_plain(program, np.array([-1.0, 2.0]))


class Shared:
    total = 0.0
    steps = 0


def test_attributes_of_classes_change_in_branches_and_loops() -> None:
    def program(x):
        Shared.total = 0.0
        Shared.steps = 0
        for v in x:
            Shared.steps += 1
            if v > 1:
                Shared.total = Shared.total + v
        return Shared.total, Shared.steps

    for x in (np.arange(4.0), np.arange(9.0)):
        check_as_plain(program, x)
        assert (Shared.total, Shared.steps) == program(x)


ASKED = {
    "hasattr": lambda o, x: x * (2 if hasattr(o, "more") else 3),
    "getattr": lambda o, x: x * getattr(o, "more", 5.0),
    "vars": lambda o, x: x * len(vars(o)),
    "values": lambda o, x: x * sum(v for v in vars(o).values() if isinstance(v, float)),
    "dir": lambda o, x: x * len([name for name in dir(o) if name[0] != "_"]),
    "copy": lambda o, x: x * copy.copy(o).rate + copy.copy(o).weights,
}


@pytest.mark.parametrize("name", ASKED)
def test_what_an_object_has_is_asked_at_each_call(name: str) -> None:
    """What the graph depends on may change: an attribute that comes, goes or gets another value."""
    plain = ASKED[name]
    compiled = dsl.jit(plain)
    o, x = types.SimpleNamespace(rate=2.0, weights=np.ones(3)), np.arange(3.0)
    for change in ({}, {"rate": 3.0}, {"more": 4.0}, {"more": 6.0}, {"weights": np.full(3, 7.0)}):
        vars(o).update(change)
        np.testing.assert_array_equal(compiled(o, x), plain(o, x))
    del o.more
    np.testing.assert_array_equal(compiled(o, x), plain(o, x))


class Base:
    """Has what `super()` of a `Strategy` finds."""

    factor = 2.0

    @property
    def shift(self):
        return self.factor

    def base(self, x):
        return x * 3

    @classmethod
    def of_base(cls, x):
        return x + cls.factor


class Strategy(Base):
    """Has what functions ask it for: methods, operators, functions and containers among its attributes."""

    scale = 2.0

    def __init__(self, weight: float) -> None:
        self.weight, self.table, self.act, self.acts = weight, [1.0, 2.0], np.tanh, [np.tanh]

    def move(self, x):
        return x + self.weight

    def __getitem__(self, k):
        return self.table[k]

    def __eq__(self, other):
        return self.weight == other.weight

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def scaled(cls, x):
        return x * cls.scale

    @staticmethod
    def plain(x):
        return x * 4

    def from_base(self, x):
        return super().base(x) * super().shift + super().of_base(x) * super().factor


OTHER = Strategy(5.0)
CHANGES: dict[str, tuple[Any, Any]] = {
    "a function among the attributes": (lambda s, x: s.act(x), lambda s: setattr(s, "act", np.sin)),
    "a function in a list": (lambda s, x: s.acts[0](x), lambda s: s.acts.__setitem__(0, np.sin)),
    "a method of its own": (lambda s, x: s.move(x), lambda s: setattr(s, "move", lambda x: x * 9)),
    "an item": (lambda s, x: x * s[0], lambda s: setattr(s, "table", [7.0])),
    "an equal object": (lambda s, x: x * (1 if s == OTHER else 2), lambda s: setattr(s, "weight", 5.0)),
    "an equal object among others": (
        lambda s, x: x * (1 if s in [OTHER] else 2), lambda s: setattr(s, "weight", 5.0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_an_object_are_seen(name: str) -> None:
    plain, change = CHANGES[name]
    compiled, s, x = dsl.jit(plain), Strategy(1.0), np.arange(3.0)
    for _ in range(3):
        np.testing.assert_allclose(compiled(s, x), plain(s, x))
    change(s)
    for _ in range(3):
        np.testing.assert_allclose(compiled(s, x), plain(s, x))
    assert compiled.cache_info().misses == 2


def test_changes_of_a_class_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    s, x = Strategy(1.0), np.arange(3.0)
    moved, scaled = dsl.jit(lambda s, x: s.move(x)), dsl.jit(lambda s, x: s.scaled(x))
    for _ in range(2):
        np.testing.assert_array_equal(moved(s, x), s.move(x))
        np.testing.assert_array_equal(scaled(s, x), s.scaled(x))
    monkeypatch.setattr(Strategy, "move", lambda self, x: x * 55)
    monkeypatch.setattr(Strategy, "scale", 7.0)
    np.testing.assert_array_equal(moved(s, x), x * 55)
    np.testing.assert_array_equal(scaled(s, x), x * 7)


MEMBERS: dict[str, tuple[type, Any, Any]] = {
    "a function of a base": (Base, "base", lambda self, x: x * 30),
    "a classmethod of a base": (Base, "of_base", classmethod(lambda cls, x: x - 7)),
    "a property of a base": (Base, "shift", property(lambda self: 9.0)),
    "a number of a base": (Base, "factor", 5.0),
    "a classmethod": (Strategy, "scaled", classmethod(lambda cls, x: x - cls.scale)),
    "a staticmethod": (Strategy, "plain", staticmethod(lambda x: x - 4)),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members_of_classes_that_are_replaced_are_seen(name: str, monkeypatch: Any) -> None:
    cls, member, new = MEMBERS[name]
    plain = lambda s, x: (
        s.from_base(x) + s.scaled(x) + s.plain(x) + s.shift + Strategy.plain(type(s).scaled(x))
    )
    compiled, s, x = dsl.jit(plain), Strategy(1.0), np.arange(3.0)
    np.testing.assert_array_equal(compiled(s, x), plain(s, x))
    monkeypatch.setattr(cls, member, new)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(s, x), plain(s, x))


def test_a_cached_property_that_was_dropped_is_computed_where_it_is_read() -> None:
    class Grid:
        def __init__(self) -> None:
            self.n = 1.0

        @cached_property
        def points(self):
            return np.full(3, self.n)

        def refined(self, x):
            self.n = self.n + x[0]
            return self.points * x

    compiled, x = dsl.jit(Grid.refined), np.arange(3.0) + 1
    ours, theirs = Grid(), Grid()
    for _ in range(3):
        np.testing.assert_array_equal(compiled(ours, x), theirs.refined(x))
    del ours.points, theirs.points
    np.testing.assert_array_equal(compiled(ours, x), theirs.refined(x))


def test_what_a_class_holds_stays_its_own() -> None:
    class Shared:
        seen: list[Any] = []
        table = {"a": 1.0}

        def note(self, x):
            self.seen.append(x[0])
            self.table["a"] += 1
            return x * self.table["a"]

    s = Shared()
    dsl.jit(Shared.note)(s, np.ones(3))
    assert not vars(s)
    assert (Shared.seen, Shared.table) == ([1.0], {"a": 2.0})


def test_objects_are_as_before_where_the_end_of_tracing_refuses() -> None:
    def exchange(a, b, x):
        b.value = x * 0.5
        if x.sum() > 6:
            a.other, b.other = b.other, a.other
        return x

    a, b = (types.SimpleNamespace(value=k, other=Base()) for k in range(2))
    before = dict(vars(a)), dict(vars(b))
    with pytest.raises(BranchError, match="other"):
        dsl.jit(exchange)(a, b, np.ones(3))
    assert (vars(a), vars(b)) == before


def _in_turn(a, b, x):
    a.held["w"] = a.held["w"] + x
    b.held["w"][0] = 100.0
    b.held["n"] = b.held["n"] * 2
    a.held["n"] = a.held["n"] + 1
    return a.held["w"] * b.held["n"]


def test_two_objects_hold_one_dict_that_changes() -> None:
    results = []
    for function in (_in_turn, dsl.jit(_in_turn)):
        tables = [{"w": np.ones(3), "n": 1.0} for _ in range(2)]
        some = [types.SimpleNamespace(held=tables[k]) for k in (0, 0, 1)]
        got = [function(a, b, np.arange(3.0)).tolist() for a in some for b in some]
        results.append((got, [(t["w"].tolist(), t["n"]) for t in tables]))
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", [UserDict, ChainMap, types.MappingProxyType])
def test_mappings_outside_hold_arrays_and_numbers(kind: Any) -> None:
    held = {"w": np.ones(3), "rate": 2.0}
    mapping, x = kind(held), np.arange(3.0)
    held = mapping.data if kind is UserDict else held

    def plain(x):
        return x * mapping["w"] * mapping["rate"]

    compiled = dsl.jit(plain)
    for k in range(4):
        held.update(w=np.full(3, 1.0 + k), rate=3.0 * k)
        np.testing.assert_array_equal(compiled(x), plain(x))


def test_objects_that_a_function_was_compiled_for_do_not_stay_for_ever() -> None:
    compiled, x = dsl.jit(lambda o, x: x * o.weight + o.table[0]), np.arange(3.0)
    alive = []
    for k in range(150):
        o = Strategy(float(k))
        alive.append(weakref.ref(o))
        np.testing.assert_array_equal(compiled(o, x), x * k + 1.0)
        np.testing.assert_array_equal(compiled(o, x), x * k + 1.0)
    assert compiled.cache_info()[:2] == (
        298,
        2,
    )  # the second weight is another number, and an input from then on
    del o
    gc.collect()
    assert not any(ref() is not None for ref in alive)


@dataclass
class Account:
    total: float
    rates: np.ndarray
    seen: list[Any] = field(default_factory=list)


def summed(o, x):
    o.r.total = o.r.total + x.sum()
    return o.r.total


def in_a_branch(o, x):
    if x[0] > 0:
        o.r.total = o.r.total + x.sum()
    return o.r.total * x


def under_another_name(o, x):
    record = o.r
    for i in range(3):
        if x[i] > 1.5:
            record.total += x[i]
    return record.total


def listed(o, x):
    o.r.seen.append(x[0])
    o.r.rates[0] = 5
    o.r.rates = o.r.rates * 2
    return x


@pytest.mark.parametrize("plain", [summed, in_a_branch, under_another_name, listed])
def test_dataclasses_in_attributes_are_changed(plain: Any) -> None:
    compiled, x = dsl.jit(plain), np.arange(3.0) + 1
    for k in range(3):
        o = types.SimpleNamespace(r=Account(1.0 * k, np.ones(3)))
        for _ in range(2):
            other = copy.deepcopy(o)
            np.testing.assert_array_equal(compiled(o, x), plain(other, x))
            assert repr(o.r) == repr(other.r)
    assert (
        compiled.cache_info().misses <= 4
    )  # Python's number, then NumPy's, each as a constant and as an input


class Energy:
    def __init__(self) -> None:
        self.n, self.w = 1.0, np.ones(3)

    def __call__(self, x):
        return (x * self.n * self.w).sum()

    def each(self, x):
        return x * self.n


def test_derivatives_of_methods_see_what_the_object_holds() -> None:
    o, x = Energy(), np.arange(3.0)
    slopes = [dsl.grad(o), dsl.grad(o.__call__), dsl.jit(dsl.grad(o.__call__))]
    batched = dsl.jit(dsl.vmap(o.each))
    for k in range(4):
        o.n, o.w[:] = 1.0 + k, 2 + k
        for slope in slopes:
            np.testing.assert_array_equal(slope(x), o.n * o.w)
        np.testing.assert_array_equal(batched(x), x * o.n)
