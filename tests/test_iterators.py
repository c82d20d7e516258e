"""Iterators and generators: each item is given once, and regions that the data decides find them where they were."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from plainly import check_as_plain

import dsl
from dsl.errors import BranchError, UnsupportedError

X = np.array([1.0, 2.0, 3.0])

TWICE: dict[str, Any] = {
    "generator": lambda x: (v * 2 for v in x),
    "generator with a condition": lambda x: (v * 2 for v in x if v > 1),
    "map": lambda x: map(np.sin, x),
    "filter": lambda x: filter(lambda v: v > 1, x),
    "zip": lambda x: (a * b for a, b in zip(x, x[::-1], strict=True)),
    "reversed": lambda x: reversed(x),
    "iter": lambda x: iter(x),
    "iter of a list": lambda x: iter([x[0], x[1]]),
    "chain": lambda x: itertools.chain([x[0]], [x[1]]),
}


@pytest.mark.parametrize("name", TWICE)
def test_items_are_given_once(name: str) -> None:
    make = TWICE[name]

    def sums(x):
        items = make(x)
        return sum(items), sum(items)

    def lists(x):
        items = make(x)
        return list(items), list(items)

    def loops(x):
        items, total = make(x), 0.0
        for v in items:
            total = total + v
        for v in items:
            total = total + 100 * v
        return total

    def one_then_others(x):
        items = make(x)
        first = next(items)
        return first, list(items), next(items, -1.0)

    for program in (sums, lists, loops, one_then_others):
        check_as_plain(program, X)


def test_pairs_are_given_once() -> None:
    def pairs(x):
        numbered, zipped = enumerate(x), zip(x, x + 1, strict=False)
        total = next(numbered)[1] + next(zipped)[1]
        for k, v in numbered:
            total = total + k * v
        for a, b in zipped:
            total = total + a * b
        return total, list(numbered), list(zipped)

    check_as_plain(pairs, X)


def test_the_same_iterator_twice_gives_neighbours() -> None:
    def pairs(x):
        items = iter(x)
        return [a * b for a, b in zip(items, items, strict=False)]

    check_as_plain(pairs, np.arange(6.0))


def test_a_break_leaves_the_rest() -> None:
    def split(x, names):
        items, seen = iter(names), 0
        for name in items:
            if name == "-":
                break
            seen += len(name)
        return x * seen, len(list(items))

    check_as_plain(lambda x: split(x, ["a", "bb", "-", "c"]), X)


def test_generators_have_no_length_and_no_places() -> None:
    with pytest.raises(TypeError, match="no len"):
        dsl.jit(lambda x: len(v for v in x if v > 0))(X)
    with pytest.raises(TypeError, match="not subscriptable"):
        dsl.jit(lambda x: map(np.sin, x)[0])(X)


def _both(x):
    items = iter([x, 2 * x, 3 * x])
    y = next(items) if x.sum() > 0 else 5 * next(items)
    return y + next(items)


def _made_inside(x):
    y = x
    if x.sum() > 0:
        items = iter([x, 2 * x])
        y = next(items) + next(items)
    return y


def _not_used_after(x):
    items, y = iter([1.0, 2.0]), x
    if x.sum() > 0:
        for v in items:
            y = y + v
    else:
        y = y - next(items)
    return y


def _in_a_short_loop(x):
    items, y = (k * x for k in range(9)), x
    for _ in range(3):
        y = y + next(items)
    return y, next(items)


def _in_a_function(x):
    items = iter([1.0, 2.0, 3.0])

    def advance():
        return next(items)

    y = advance() if x.sum() > 0 else -advance()
    return y * x + advance()


@pytest.mark.parametrize(
    "program", [_both, _made_inside, _not_used_after, _in_a_short_loop, _in_a_function]
)
def test_iterators_in_branches_and_loops(program: Any) -> None:
    check_as_plain(program, X)
    check_as_plain(program, -X)


def _one_branch(x):
    items = iter([x, 2 * x])
    if x.sum() > 0:
        next(items)
    return next(items)


def _counter(x):
    counter = itertools.count()
    y = next(counter) if x.sum() > 0 else 0
    return y + next(counter)


def _operand(x):
    items = iter([1, 2, 3])
    found = x.sum() > 0 and next(items) > 0
    return found, next(items)


def _emptied(x):
    items, count = iter([1, 2, 3]), 0
    if x.sum() > 0:
        count = len(list(items))
    return count + len(list(items))


def _searched(x):
    items = (v for v in x if v > 0)
    return 2.0 in items, list(items)


def _while_the_data_says(x):
    items = iter([x, 2 * x, 3 * x])
    while x.sum() < 10:
        x = x + next(items)
    return x


def _in_a_long_loop(x):
    items, total = iter(range(10_000)), x.sum()
    for _ in range(9_000):
        total = total + next(items)
    return total


def _held_by_an_object(x):
    holder = {"items": [iter([1, 2, 3])]}
    if x.sum() > 0:
        next(holder["items"][0])
    return next(holder["items"][0])


@pytest.mark.parametrize(
    "program",
    [_one_branch, _operand, _emptied, _searched, _while_the_data_says, _in_a_long_loop, _held_by_an_object],
)  # fmt: skip
def test_an_iterator_whose_place_the_data_decides_is_refused(program: Any) -> None:
    with pytest.raises(
        BranchError, match="how many items of this iterator have been taken"
    ) as info:
        dsl.jit(program)(X)
    assert program.__name__ in str(info.value)
    assert "make a new one where it is used" in str(info.value)


def _counter_in_a_loop(x):
    counter, total = itertools.count(10, 5), 0.0
    for v in x:
        if v > 0:
            total += v * next(counter)
    return total, next(counter)


@pytest.mark.parametrize("program", [_counter, _counter_in_a_loop])
def test_a_counter_goes_on_from_where_the_data_left_it(program: Any) -> None:
    for x in (X, -X, np.arange(-50.0, 50.0)):
        assert dsl.jit(program)(x) == program(x)


def test_a_generator_does_not_go_on_in_a_branch() -> None:
    def steps(x):
        yield x
        yield 2 * x

    def program(x):
        items, y = steps(x), x
        if x.sum() > 0:
            y = next(items)
        return y

    with pytest.raises(BranchError, match="a generator goes on in a branch or loop"):
        dsl.jit(program)(X)


def test_iterators_are_not_returned() -> None:
    for make in (lambda x: map(np.sin, x), lambda x: (x, iter(x))):
        with pytest.raises(UnsupportedError, match="an iterator cannot be returned"):
            dsl.jit(make)(X)


def signs(x):
    total = 0.0
    for v, sign in zip(x, itertools.cycle([1, -1])):
        total += v * sign
    return total, [v * w for v, w in zip(x, itertools.cycle((1.0, 2.0, 4.0)))]


def taken_where_the_data_says(x):
    weights, total = itertools.cycle([1.0, 2.0, 4.0]), 0.0
    total += next(weights)
    for v in x:
        if v > 0:
            total += v * next(weights)
    return total, next(weights)


def until_large(x):
    total = 0.0
    for a, b in itertools.cycle([(1, 0.5), (3, 0.25)]):
        total += (x * x).sum() * a + b
        if total > 100:
            break
    return total


def rows_and_functions(x):
    rows, total = x[:6].reshape(2, 3), 0.0
    for v, row in zip(x, itertools.cycle(rows)):
        total += (v * row).sum()
    for v, f in zip(x[:4], itertools.cycle([np.sin, np.cos])):
        total += f(v)
    return total


@pytest.mark.parametrize(
    "program", [signs, taken_where_the_data_says, until_large, rows_and_functions]
)
def test_cycle(program: Any) -> None:
    check_as_plain(program, np.sin(np.arange(7.0) + 1))
    check_as_plain(program, np.sin(np.arange(300.0) + 1))


def test_nditer_goes_in_the_order_of_memory_or_of_axes() -> None:
    def weigh(x, order):
        total = 0.0
        for v in np.nditer(x, order=order):
            total = 2 * total + v
        return total

    def plain(x):
        return weigh(x, "K")

    x = np.arange(6.0).reshape(2, 3)
    for order in "CF":
        for given in (x, x.T, x[:, ::-1]):
            assert dsl.jit(weigh)(given, order) == weigh(given, order)
    assert dsl.jit(plain)(x) == plain(x)
    for given in (x.T, x[::-1]):
        with pytest.raises(dsl.errors.UnsupportedError, match="as it lies in memory"):
            dsl.jit(plain)(given)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: np.nditer(x, flags=["multi_index"]),
        lambda x: np.nditer(x, op_flags=["readwrite"]),
        lambda x: np.nditer([x, x]),
    ],
)
def test_nditer_with_flags_is_refused_with_a_remedy(make: Any) -> None:
    def program(x):
        return [v for v in make(x)]  # noqa: C416

    with pytest.raises(dsl.errors.UnsupportedError, match=r"np\.ndenumerate"):
        dsl.jit(program)(np.ones((2, 3)))


def _ahead(x):
    out = {}
    for i, v in enumerate(x):
        if i + 1 < 3:
            x[i + 1] += v
        out[f"k{i}"] = v
    return out


def _written_between(x):
    items, doubled, rows = (v for v in x), map(lambda v: 2 * v, x), iter(x)  # noqa: C417
    x[1] = 66.0
    first = next(items)
    x[2] = 55.0
    return first, list(items), list(doubled), list(rows)


@pytest.mark.parametrize("program", [_ahead, _written_between])
def test_items_are_what_they_are_when_they_are_asked_for(program: Any) -> None:
    check_as_plain(program, X.copy())


def test_values_have_the_class_of_what_they_stand_for() -> None:
    check_as_plain(lambda x: (x.__class__ is np.ndarray, x[0].__class__ is np.float64), X)
