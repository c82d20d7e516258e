"""Objects, lists and dicts of the user's that traced branches and loops make and change."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from plainly import check_as_plain

import dsl


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
