"""Comprehensions, generators, `filter` and `next` whose conditions the data decides, or of many items: as Python's own."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from plainly import check_as_plain

import dsl
from dsl.errors import BranchError, UnsupportedError

UP, MIXED = np.arange(1.0, 7.0), np.array([3.0, -1, 4, -1, 5, -9])
PRICES = np.array([2.0, 9.0, 4.0])


def kept(x):
    return [2 * v for v in x if v > 0], np.array([v for v in x if v < 4 if v > 0])


def of_places(x):
    places = [i for i, v in enumerate(x) if v > 0]
    return places, x[places], [x[i] for i in range(len(x) - 1) if x[i] < x[i + 1]]


def of_two_loops(x):
    m = x.reshape(2, 3)
    pairs = [(i, j) for i in range(2) for j in range(3) if m[i, j] > 0]
    return pairs, [a + b for a in x if a > 0 for b in x if a < b]


def of_rows(x):
    m = x.reshape(3, 2)
    positive = [sum(v for v in row if v > 0) + 0.5 for row in m]
    return np.array([row for row in m if row.max() > 0]), positive


def counted(x):
    return sum(1 for v in x if v > 0), len([v for v in x if v > 2]), max(v for v in x if v < 5)


def by_a_helper(x):
    asked = 0

    def is_wanted(v):
        nonlocal asked
        asked += 1
        return v > 0

    return [v for v in x if is_wanted(v)], asked


def without_doubles(x):
    seen = []
    return [v for v in x if not (v in seen or seen.append(v))], seen


def for_its_effect(x):
    log = []
    [log.append(1) for v in x if v > 0]
    [log.append(2) for v in x]
    return log


def assigning(x):
    return [y for v in x if (y := 2 * v) > 1], y


def in_a_lambda(x):
    above = lambda t: sum(v for v in x if v > t)
    return above(0.0), above(2.5)


def in_tests(x):
    n = 0
    while sum(v for v in x if v > 0) > 1:
        x, n = x * 0.5, n + 1
    return n if [v for v in x if v > 0.25] else -n


def of_an_outside_array(x):
    return [k for k in range(len(PRICES)) if PRICES[k] > 3], [p for p in PRICES if p < x[0]]


def with_errors_where_python_has_them(x):
    return [v for v in x if v > 0 and math.sqrt(v) < 2]


def decided_by_python(x):
    a, b, c = [x[k] for k in range(6) if k % 2]
    few = [v for v in (x[:1], x[:2]) if len(v) > 1]
    return a + b * c, few[0], [n for n in ("left", "right") if n.startswith("l")]


def first_of_all(x):
    return next(i for i, v in enumerate(x) if v > 2), next((v for v in x if v > 50), -1.0)


def filtered(x):
    return list(filter(lambda v: v > 0, x)), len(list(filter(None, x - 3))), sum(filter(None, x))


def taken_apart(x):
    first, *rest = [v for v in x if v > 0]
    low, *middle, high = sorted(v for v in x if v > 0)
    a, b = [v for v in x if v > 2][:2]
    return first, rest, low, middle, high, a, b


PROGRAMS = [
    kept, of_places, of_two_loops, of_rows, counted, by_a_helper, without_doubles, for_its_effect, assigning, in_a_lambda, in_tests,
    of_an_outside_array, with_errors_where_python_has_them, decided_by_python, first_of_all, filtered, taken_apart,
]  # fmt: skip


@pytest.mark.parametrize("x", [UP, MIXED], ids=["up", "mixed"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_comprehension_with_conditions_on_data(program: Callable[..., Any], x: np.ndarray) -> None:
    check_as_plain(program, x)


def test_comprehension_of_as_many_items_as_an_argument_says() -> None:
    @dsl.jit
    def primes(n):
        return [p for p in range(2, n) if all(p % d for d in range(2, p))]

    assert primes(30) == primes.__wrapped__(30)
    assert primes(2) == []


def test_next_without_an_item_raises() -> None:
    with pytest.raises(StopIteration):
        dsl.jit(lambda x: next(v for v in x if v > 100))(UP)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda x: _pair([v for v in x if v > 4]), "not enough values to unpack"),
        (lambda x: _pair([v for v in x if v > 0]), "too many values to unpack"),
        (lambda x: _start([v for v in x if v > 50]), "expected at least 1, got 0"),
    ],
)
def test_taking_too_few_or_too_many_items_raises(program: Callable[..., Any], message: str) -> None:
    for run in (program, dsl.jit(program)):
        with pytest.raises(ValueError, match=message):
            run(MIXED)


def _pair(items):
    a, b = items
    return a - b


def _start(items):
    a, *_ = items
    return a


def test_gradient_through_a_comprehension_with_a_condition() -> None:
    grad = dsl.grad(lambda x: sum(v * v for v in x if v > 0))
    np.testing.assert_array_equal(grad(MIXED), np.where(MIXED > 0, 2 * MIXED, 0))


# -- many items, of which a loop of the program makes the list ---------------------------------------------------------


def summed(x):
    pairs = sum((a - b) ** 2 for a, b in zip(x, x[2:], strict=False))
    return sum(v * v for v in x), sum([v * i for i, v in enumerate(x)]), pairs


def put_into_arrays(x):
    every = np.zeros(len(x))
    every[:] = [v * v for v in x]
    every[1:] += [a - b for a, b in zip(x[1:], x, strict=False)]
    return (
        every,
        np.array([x[i] + x[i - 1] for i in range(len(x))]),
        np.array([x[:3] * v for v in x]),
    )


def listed(x):
    made = [v + 1 for v in x]
    made.append(0.5)
    made[2] = x[1]
    return made, made[3], made[-2:], len(made), x[3] + 1 in made, [int(v * 10) for v in x]


def of_tuples_and_of_lists(x):
    pairs = [(v, i) for i, v in enumerate(x)]
    products = [[a * b for b in x[:70]] for a in x]
    return max(pairs), pairs[4], np.array(products), [[v, -v] for v in x][5]


def any_and_all(x):
    n = len(x)
    falls = any(x[i] > x[i + 1] for i in range(n - 1))
    below = [v < 1 for v in x]
    return any(v > 0.99 for v in x), all(below), falls, any(v > 2 for v in x)


def over_two_things(x):
    lower = sum(x[i] * x[j] for i in range(20) for j in range(i))
    return lower, [a * i for i in range(9) for a in x[:20] if i % 2]


def mapped(x):
    return list(map(_doubled, x)), list(map(_doubled, range(70))), list(x), [v * 2 for v in list(x)]


def _doubled(v):
    return v * 2


def sorted_by_keys(x):
    n = len(x)
    by_tens = sorted(range(n), key=lambda i: (int(x[i] * 4), -i), reverse=True)
    return (
        sorted(range(n), key=lambda i: x[i]),
        by_tens,
        sorted(zip(x, range(n), strict=True)),
        sorted(x),
    )


def extremes_by_keys(x):
    nearest = min(range(len(x)), key=lambda i: abs(x[i] - 0.5))
    return nearest, max(enumerate(x), key=lambda pair: pair[1]), min(x, key=lambda v: -v)


def reduced(x):
    largest = functools.reduce(max, x)
    dotted = functools.reduce(lambda total, pair: total + pair[0] * pair[1], enumerate(x), 0)
    least = functools.reduce(min, (v * v for v in x))
    return functools.reduce(lambda a, b: 0.5 * a + b, x), largest, dotted, least, math.prod(x + 0.5)


def accumulated(x):
    steps = list(itertools.accumulate(x, lambda a, b: 0.9 * a + b))
    return steps, list(itertools.accumulate(x, max)), list(itertools.accumulate(x, initial=1.0))[:3]


def taken_by_numpy(x):
    rows = x[:200].reshape(-1, 2)
    sums = np.apply_along_axis(lambda row, k: row.sum() * k, 1, rows, 3)
    return sums, np.apply_along_axis(np.sort, 1, rows), np.fromiter((v * v for v in x), float)


def changing_something(x):
    calls, seen = 0, []

    def count(v):
        nonlocal calls
        calls += 1
        seen.append(v)
        return v + calls

    return [count(v) for v in x], calls, seen


def of_python_objects(x):
    squares = [i * i for i in range(100)]
    names = [f"n{i}" for i in range(80)]
    rows = [np.zeros(2) for _ in range(100)]
    rows[3][1] = x[0]
    nothing, zeros = [None for v in x], [0.0 for _ in x]
    return np.zeros(squares[2]), x.sum() * squares[5], names[70], rows[3:5], nothing[:2], zeros[-1]


def of_shapes_that_differ(x):
    return [x[:i].sum() for i in range(70)], [x[:i] for i in range(70)][5]


def of_views_that_are_written(x):
    rows = [x[i : i + 2] for i in range(0, 80, 2)] + [x[i : i + 2] for i in range(66)]
    rows[0][1] = 9.0
    return x


def partly_taken(x):
    halves = (v / 2 for v in x)
    return next(halves), next(halves)


MANY = [
    summed, put_into_arrays, listed, of_tuples_and_of_lists, any_and_all, over_two_things, mapped, sorted_by_keys, extremes_by_keys,
    reduced, accumulated, taken_by_numpy,
    changing_something, of_python_objects, of_shapes_that_differ, of_views_that_are_written, partly_taken,
]  # fmt: skip


@pytest.mark.parametrize("size", [30, 200])
@pytest.mark.parametrize("program", MANY)
def test_comprehension_over_few_or_many_items(program: Callable[..., Any], size: int) -> None:
    check_as_plain(program, np.random.default_rng(0).random(size))


def test_comprehension_over_a_million_items_is_a_loop() -> None:
    x = np.random.default_rng(0).random(1_000_000)
    roots = dsl.jit(lambda x: np.array([math.sqrt(v) for v in x]))
    np.testing.assert_array_equal(roots(x), np.sqrt(x))
    assert "scan" in roots.ir(x)


def test_gradients_and_batches_of_a_comprehension_over_many_items() -> None:
    x = np.random.default_rng(0).random((3, 100))
    energy = lambda x: sum(v**3 for v in x)
    np.testing.assert_allclose(dsl.grad(energy)(x[0]), 3 * x[0] ** 2)
    np.testing.assert_allclose(dsl.vmap(dsl.grad(energy))(x), 3 * x**2)
    np.testing.assert_allclose(dsl.hessian(energy)(x[0]), np.diag(6 * x[0]))


def _counted(x):
    seen = [0]

    def positive(v):
        seen[0] += 1
        return v > 0

    found = any(positive(v) for v in x), all(positive(v) for v in x)
    return found, any(positive(w) for v in x if v < 0 for w in (v, -v)), seen[0]


def _logged(x, log):
    def note(k, v):
        log[k] = v
        return v > 0

    def rises(v):
        return x[int(v) + 2] > v

    return any(note(k, v) for k, v in enumerate(x)), all(map(rises, x[:-2]))


def _neighbours(x):
    found = any(x[k + 1] > x[k] for k in range(len(x)))
    return found, any((hit := v) > 0 for v in x), hit


@pytest.mark.parametrize("count", [4, 200])
def test_any_and_all_ask_for_no_more_items_than_python_does(count: int) -> None:
    x = np.arange(count) - 1.0
    check_as_plain(_counted, x)
    check_as_plain(_logged, x, np.zeros(count))
    check_as_plain(_neighbours, x)
    with pytest.raises(IndexError):
        dsl.jit(_neighbours)(-x)


def test_any_and_all_of_what_is_known_are_known() -> None:
    def known(x, names):
        sizes = all(x.shape[k] == k + 2 for k in range(x.ndim))
        return x.sum(axis=0 if sizes else 1), any(map(str.isupper, names))

    check_as_plain(known, np.ones((2, 3)), ["a", "B"])
    check_as_plain(known, np.ones((3, 2)), ["a"])


def test_a_search_through_an_iterator_that_something_else_uses_is_refused() -> None:
    def rest(x):
        items = (v + 1 for v in x)
        return any(v > 2 for v in items), sum(items)

    def calls(x):
        items = (np.linalg.det(v) for v in x)
        return any(items)

    with pytest.raises(BranchError, match="how many items"):
        dsl.jit(rest)(np.arange(3.0))
    with pytest.raises(UnsupportedError, match="write the generator in the call"):
        dsl.jit(calls)(np.ones((3, 2, 2)))
