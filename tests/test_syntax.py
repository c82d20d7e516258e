"""Python syntax on traced values: what a compiled function does is what Python does."""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import itertools
import math
import operator
import os
import pty
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import syntax_helpers
from plainly import check_as_plain
from syntax_helpers import clamp, decorated, scaled

import dsl

ROOT = Path(__file__).parent.parent
UP, DOWN, MIXED = np.arange(1.0, 7.0), -np.arange(1.0, 7.0), np.array([3.0, -1, 4, -1, 5, -9])


# -- statements ------------------------------------------------------------------------------------


def if_elif_else(x):
    if x[0] > 2:
        y = x + 1
    elif x[0] > 0:
        y = x * 2
    else:
        y = -x
    return y


def if_alone(x):
    if x.sum() > 0:
        x = x * 2
    return x


def nested_ifs(x):
    r = 0
    if x[0] > 0:
        if x[1] > 0:
            r = 1
        else:
            r = 2
    elif x[1] < -1:
        r = 3
    return r


def while_loop(x):
    n = 0
    s = x.sum()
    while abs(s) > 1:
        s /= 2
        n += 1
    return s, n


def while_else(x):
    n = 0
    while n < 4:
        if x[n] < 0:
            break
        n += 1
    else:
        n = 100
    return n


def while_true(x):
    s = 0.0
    while True:
        s += abs(x[0])
        if s > 10:
            break
    return s


def for_range(x):
    s = 0.0
    for i in range(len(x)):
        s += i * x[i]
    return s, i


def for_range_down(x):
    s = 0.0
    for i in range(len(x) - 1, -1, -2):
        s = 2 * s + x[i]
    return s


def for_array(x):
    s = 0.0
    for v in x:
        if v > 0:
            s += v
    return s


def for_rows(x):
    s = np.zeros(2)
    for row in x.reshape(3, 2):
        s += row
    return s


def for_enumerate(x):
    s = 0.0
    for i, v in enumerate(x, 1):
        s += i * v
    return s


def for_zip(x):
    s = 0.0
    for a, b in zip(x, x[1:]):  # noqa: RUF007
        s += a * b
    return s


def for_enumerate_zip(x):
    s = 0.0
    for i, (a, b) in enumerate(zip(x, x[::-1])):
        s += i * a * b
    return s


def for_reversed(x):
    s = 0.0
    for v in reversed(x):
        s = 2 * s + v
    for i in reversed(range(3)):
        s = 3 * s + i
    return s


def for_list(x):
    s = 0.0
    for f in [np.sin, np.cos, lambda v: v * 2]:
        s += f(x).sum()
    return s


def for_dict_items(x):
    s = 0.0
    for name, v in {"a": x, "bb": 2 * x}.items():
        s += len(name) * v.sum()
    return s


def break_and_continue(x):
    s = 0.0
    for i in range(len(x)):
        if x[i] < 0:
            continue
        if x[i] > 4:
            break
        s += x[i]
    return s, i


def for_else(x):
    for v in x:
        if v < -2:
            r = 1
            break
    else:
        r = 2
    return r


def break_of_the_inner_loop(x):
    count = 0
    for i in range(len(x)):
        for j in range(i):
            if x[j] < 0:
                break
            count += 1
        else:
            count += 100
    return count


def return_from_a_loop(x):
    for i in range(len(x)):
        if x[i] < 0:
            return i
    return -1


def return_from_nested_loops(x):
    for i in range(len(x)):
        for j in range(i):
            if x[i] + x[j] > 8:
                return i, j
        if x[i] < -8:
            return i, -1
    return -1, -1


def return_from_a_while(x):
    n = 0
    while n < 6:
        if x[n] == 4:
            return x * n
        n += 1
    return x


def early_returns(x):
    if x[0] < 0:
        return -1.0
    y = x.max()
    if y > 5.5:
        return y
    return y * 100


def return_nothing(x):
    if x[0] > 0:
        x[0] = 0
        return
    x[1] = 0


def assertion(x):
    assert x.shape == (6,), "six"
    assert x[0] > -100, f"{x[0]} is small"
    return x


def deletion(x):
    y = x + 1
    del y
    y = x * 2
    return y


def pass_and_docstring(x):
    """Say nothing."""
    if x[0] > 0:
        pass
    else:
        ...
    return x


def loop_that_does_not_run(x):
    y = x[0]
    for i in range(int(x[0]) - 100):
        y = x[i]
    return y


def while_that_promotes(x):
    total = 0
    for v in x:
        total += v
    return total


def loop_over_a_list_that_grows(x):
    found, total = [], 0.0
    for v in x:
        if v > 0:
            found.append((v, 2 * v))
    for k, (one, two) in enumerate(found):
        if one > 4:
            continue
        total += one * two + k
    for one, _ in reversed(found):
        total = total * 0.5 + one
    for a, b in zip(found, found[::-1]):
        total += a[0] * b[0]
    return total, found


STATEMENTS = [
    loop_over_a_list_that_grows,
    if_elif_else, if_alone, nested_ifs, while_loop, while_else, while_true, for_range,
    for_range_down, for_array, for_rows, for_enumerate, for_zip, for_enumerate_zip, for_reversed,
    for_list, for_dict_items, break_and_continue, for_else, break_of_the_inner_loop,
    return_from_a_loop, return_from_nested_loops, return_from_a_while, early_returns,
    return_nothing, assertion, deletion, pass_and_docstring, loop_that_does_not_run,
    while_that_promotes,
]  # fmt: skip


# -- expressions -----------------------------------------------------------------------------------


def conditional_expression(x):
    return x * 2 if x[0] > 0 else x - 1 if x[1] > -3 else x


def and_or_not(x):
    a = x[0] > 0 and x[1] > 0
    b = x[0] > 0 or x[1] > 0
    return a, b, not a, not (a or b)


def and_gives_an_operand(x):
    return x[0] and x[1], x[0] or x[1], 0 or x[2], None or x[3]


def short_circuit(x):
    i = 6
    if i < len(x) and x[i] > 0:
        return 1
    n = 0
    while n < len(x) and x[n] > 0:
        n += 1
    return n


def short_circuit_on_data(x):
    n = np.int64(abs(x[0])) + 5
    return n < 6 and x[n] > 0


def chained_comparison(x):
    return 0 < x[0] < 2, -2 < x[1] <= x[0] != 3


def comparison_evaluates_once(x):
    def middle():
        print("once")
        return x[1]

    return 0 < middle() < 3


def augmented_names(x):
    a = 1
    a += x[0]
    a *= 2
    b = x
    b -= 1
    c = x[0]
    c **= 2
    d = 7
    d //= 2
    d %= 2
    return a, b, c, d


def augmented_subscripts(x):
    x[0] += 1
    x[1:3] *= 2
    x[-1] -= x[0]
    items = [1, 2]
    items[0] += x[1]
    table = {"k": x[2]}
    table["k"] /= 2
    return items, table


def augmented_evaluates_its_index_once(x):
    calls = []

    def index():
        calls.append(1)
        return 2

    x[index()] += 1
    return len(calls)


def tuple_targets(x):
    a, b = x[0], x[1]
    a, b = b, a
    (c, d), e = (a, b), x[2]
    [f, g] = [c, d]
    x[0], x[1] = x[1], x[0]
    h = i = x[3]
    return a, b, c, d, e, f, g, h, i


def starred_targets(x):
    first, *rest = x
    *most, last = [x[0], x[1], 3]
    a, *b, c = range(5)
    return first, len(rest), rest[0], most, last, a, b, c


def unpacked_rows(x):
    a, b, c = x.reshape(3, 2)
    return a + b * c


def comprehensions(x):
    a = [v * 2 for v in x]
    b = np.array([x[i] for i in range(6) if i % 2])
    c = {k: x[k] for k in range(2)}
    d = [x[i] + j for i in range(2) for j in range(i)]
    e = [[x[i + j] for j in range(2)] for i in range(2)]
    return a, b, c, d, e


def generator_expressions(x):
    return (
        sum(v for v in x), sum(x[i] * i for i in range(3)), any(v > 5 for v in x),
        all(v > 0 for v in x), max(v for v in x), min(abs(v) for v in x), sum([x[0], x[1]]),
    )  # fmt: skip


def builtins_on_values(x):
    return (
        abs(x[0]), max(x[0], x[1]), min(x[0], 2.0), round(x[0]), len(x), sum(x), int(x[0]),
        float(x[1]), bool(x[0] > 2), divmod(x[0], 2.0), pow(x[0], 2), sorted([3, 1, 2]),
    )  # fmt: skip


def walrus(x):
    if (n := x[0]) > 0:
        return n
    return n * 100


def walrus_in_while(x):
    i = -1
    s = 0.0
    while (i := i + 1) < 4:
        s += x[i]
    return s, i


def walrus_in_and(x):
    rises = 0.0
    for i in range(len(x) - 1):
        if x[i] > 0 and (d := x[i + 1] - x[i]) > 0 and d < 3:
            rises += d
        elif x[i] < 0 and not (e := 2 * x[i]) > -1:
            rises -= e
    return rises


def walrus_in_or(x):
    if (most := x.max()) > 2 or (least := x.min()) < -2:
        return most
    return most + least


def walrus_in_while_and(x):
    i = trips = 0
    while i < len(x) - 1 and ((v := x[i]) > 0 or x[i + 1] > 0):
        i += 1
        if v > 1:
            continue
        trips += 1
        if trips > 3:
            break
    else:
        trips = -trips
    return i, trips


def walrus_in_conditional(x):
    y = (u := x[2]) if x[0] > 0 else (u := x[1])
    assert len(x) > 1 and (k := x[1]) > -10  # noqa: PT018, RUF018
    return y, u, k


def walrus_of_an_array(x):
    if x.sum() > 0 and (y := x * 2).max() > 1:
        y[0] = 0
        return y
    return x


def test_what_and_assigns_or_not_is_asked_for_where_it_is_read() -> None:
    @dsl.jit
    def late(x):
        if x[0] > 0 and (k := x[1]) > 0:
            pass
        return k

    assert late(np.array([1.0, 2.0])) == 2.0
    with pytest.raises(UnboundLocalError, match="'k'"):
        late(np.array([-1.0, 2.0]))


def membership(x):
    return x[0] in (1, 2, 3), 4.0 in x, "a" in {"a": 1}, x[0] not in [3.0], 2 in [1, 2]


def identity(x):
    y = None
    return y is None, x is not None, x is x


def slices(x):
    n = int(abs(x[0]))
    return x[n:], x[:n], x[-n:], x[::n], x[n : 2 * n].sum()


def formatted(x):
    name, width = "x", 5
    print(f"{name}[0] = {x[0]:8.3f}!", f"{x.sum():.1e}", sep="|", end="<\n")
    print("plain", 1, [2], None)
    print(x[1], int(x[2]), x[0] > 0)
    print(x)
    print(f"{{braces}} {3:>4} {'a':>{4}} {int(x[0]):{width}d}")
    print()


def formatted_by_repr(x):
    print(f"{x[0]!r} {int(x[1])!r} {x!r} {x[0]!s}")


def printed_in_order(x):
    for i in range(3):
        if x[i] > 0:
            print("positive", i, x[i])
        else:
            print("not", i)
    print("done")


EXPRESSIONS = [
    conditional_expression, and_or_not, and_gives_an_operand, short_circuit, short_circuit_on_data,
    chained_comparison, comparison_evaluates_once, augmented_names, augmented_subscripts,
    augmented_evaluates_its_index_once, tuple_targets, starred_targets, unpacked_rows,
    comprehensions, generator_expressions, builtins_on_values, walrus, walrus_in_while, membership,
    walrus_in_and, walrus_in_or, walrus_in_while_and, walrus_in_conditional, walrus_of_an_array,
    identity, slices, formatted, formatted_by_repr, printed_in_order,
]  # fmt: skip


# -- functions and classes -------------------------------------------------------------------------


def nested_functions(x):
    def step(v, k=2):
        def inner(w):
            return w * k if w > 0 else w

        return inner(v) + 1

    return step(x[0]), step(x[1], k=3)


def lambdas_on_one_line(x):
    f, g, h = lambda v: v + 1, lambda v: v * 2, lambda v: v if v > 0 else -v
    return f(x[0]), g(x[0]), h(x[1])


def closures(x):
    scale = 2.0

    def apply(v):
        return scale * v

    a = apply(x)
    scale = 3.0
    return a, apply(x)


def nonlocal_counter(x):
    count = 0

    def visit(v):
        nonlocal count
        if v > 0:
            count += 1

    for i in range(6):
        visit(x[i])
    return count


def helpers_of_another_module(x):
    return clamp(x[0], 0.0), clamp(x[1], 0.0, high=2.0), syntax_helpers.scaled(x), scaled(x[0])


def decorated_helper(x):
    return decorated(x)


def recursion(x, n=4):
    return x if n == 0 else recursion(x * 2 + n, n - 1)


def defaults_and_keywords(x):
    def f(a, /, b=2, *rest, c=3, **more):
        return a + b + sum(rest) + c + more.get("d", 0)

    return f(x[0]), f(x[0], 1, 5, 6, c=x[1], d=x[2]), f(*[x[0], x[1]], **{"c": 1})  # noqa: PIE804


def higher_order(x):
    def apply(f, *args):
        return f(*args)

    return apply(np.maximum, x, 0), list(map(abs, [x[0], x[1]])), apply(lambda a, b: a - b, x, 1)


class Shape:
    sides = 4

    def __init__(self, size):
        self.size = size
        self.__hidden = 10 * size
        if size > 2:
            self.size = size * 100

    @property
    def area(self):
        return self.size * self.size if self.size > 0 else 0.0

    @classmethod
    def unit(cls):
        return cls(1.0)

    @staticmethod
    def double(v):
        return v * 2 if v > 0 else v

    def hidden(self):
        return self.__hidden

    def grow(self, by):
        self.size += by
        return self

    def __add__(self, other):
        return Shape(self.size + other.size)

    def __getitem__(self, k):
        return self.size if self.size > 0 else float(k)

    def __len__(self):
        return 3

    def __call__(self, v):
        return v if v > self.size else self.size


def classes(x):
    s = Shape(x[0])
    u = s.grow(2).size
    return u, Shape.double(x[0]), Shape.sides, s(x[2]), Shape.unit().size, len(s)


def properties(x):
    return Shape(x[0]).area


def operators_of_classes(x):
    return (Shape(x[0]) + Shape(x[1])).size, Shape(x[0])[5]


def private_names(x):
    return Shape(x[0]).hidden()


@dataclasses.dataclass
class State:
    position: Any
    velocity: Any
    steps: int = 0

    def energy(self):
        return (self.velocity**2).sum()


def dataclass_state(x):
    state = State(x, np.ones_like(x))
    for _ in range(3):
        state.position = state.position + 0.5 * state.velocity
        if state.position[0] > 2:
            state.velocity = -state.velocity
        state.steps += 1
    return state, state.energy()


def with_errstate(x):
    with np.errstate(divide="ignore", invalid="ignore"):
        y = x / (x - x[0])
        if x[0] > 2:
            y = y * 2
    return y[1:]


def dicts_and_lists(x):
    d = {"a": x[0]}
    d["b"] = d["a"] + 1
    d.update(c=x[1])
    items = [x[0]]
    items.append(x[1])
    items.extend([1, 2])
    items.insert(0, x[2])
    return d, items, items.pop(), d.get("z", 5), list(d), tuple(items)


def jumps_pass_by_the_else_of_try(x):
    known, total = {0: 1.0, 2: 5.0, 3: 7.0}, 0.0
    for k in (0, 1, 2, 3):
        try:
            factor = known[k]
            if k == 2:
                continue
            if k == 3:
                break
        except KeyError:
            total += 100.0
        else:
            total += factor * x[k]

    def doubled(y):
        try:
            return y * 2
        except KeyError:
            pass
        else:
            return y * 0

    return total, doubled(x)


def finally_after_jumps_on_data(x):
    trips = 0
    y = x.copy()
    try:
        for v in x:
            try:
                if v < 0:
                    continue
                trips += 10
                if v > 0.5:
                    break
            finally:
                trips += 1
        if trips > 11:
            return y, trips
        y = y * 2
    finally:
        y[0] = trips
    return y, -trips


def match_statement(x):
    match x.shape:
        case (n,):
            return x * n
        case _:
            return x


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def match_attributes_and_classes(x):
    found = []
    for item in (
        Colour.RED,
        Colour.BLUE,
        Pair(x[0], 2.0),
        [1, 2, x[1]],
        {"k": x[2], "z": 1},
        None,
        "on",
        x[0],
    ):
        match item:
            case Colour.RED | Colour.BLUE:
                found.append(item.value / 2)
            case Pair(left=_, right=b) if len(x) > 100:
                found.append(b)
            case Pair(left=a):
                found.append(a)
            case [first, *_, last]:
                found.append(first + last)
            case {"k": value, **rest}:
                found.append(value + len(rest))
            case None | "on":
                found.append(0.0)
            case float():
                found.append(item * 2)
    return found


def match_on_data(x):
    total, code = 0.0, (np.abs(x) * 4).astype(int) % 4
    for k in range(len(x)):
        match code[k]:
            case 0:
                total += 1
            case 1 | 2 if x[k] > 0:
                continue
            case 3 if total > 5:
                break
            case other:
                total += other * x[k]
        total += 0.5
    return total


def match_values_inside_patterns(x):
    """Structure is known while tracing, values in it are data."""
    total = 0.0
    for k in range(4):
        code = (x * 4).astype(int)
        match (code[k] % 3, [code[k] // 3, k], {"sign": code[k] // 7}):
            case (0, [1 | 2, _], _) | (_, [0, 3], _):
                total += 1.0
            case (1 as one, [_, *_], {"sign": 0}) if k < 3:
                total += 20.0 * one
            case (2, _, _) as all_of_it:
                total += 300.0 + all_of_it[1][0]
            case (a, [b, _], {"sign": 1}):
                total += 4000.0 * a + b
            case _:
                total += 0.5
        match code[k]:
            case (2 | 3) as few:
                total += 50000 * few
            case int(real=0):
                total -= 1.0
        match Count(code[k], k):
            case Count(7, place):
                total += 0.25 * place
            case Count(0, place=1):
                total += 0.125
    return total


class Count(NamedTuple):
    real: Any
    place: Any


def match_in_a_generator(x):
    def items():
        for k in (1, 2):
            match k:
                case 1:
                    yield x[0]
                case _:
                    yield x[1] + k

    return sum(items())


FUNCTIONS = [
    nested_functions, lambdas_on_one_line, closures, nonlocal_counter, helpers_of_another_module,
    decorated_helper, recursion, defaults_and_keywords, higher_order, classes, properties, operators_of_classes, private_names,
    dataclass_state, with_errstate, dicts_and_lists, match_statement, jumps_pass_by_the_else_of_try, finally_after_jumps_on_data,
    match_attributes_and_classes, match_on_data, match_in_a_generator, match_values_inside_patterns,
]  # fmt: skip


@pytest.mark.parametrize("x", [UP, DOWN, MIXED], ids=["up", "down", "mixed"])
@pytest.mark.parametrize("function", STATEMENTS + EXPRESSIONS + FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_syntax_means_what_python_means(function: Callable[..., Any], x: np.ndarray) -> None:
    check_as_plain(function, x)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int8, np.uint16, np.int64, float, int])
def test_math_computes_with_doubles(kind: type) -> None:
    def functions(x: Any, y: Any) -> Any:
        roots = math.sqrt(x), math.hypot(x, y, 1), math.atan2(x, y), math.pow(x, y)
        others = math.sin(x), math.erf(x), math.degrees(x), math.floor(x), math.dist([x, y], [y, x])
        return *roots, *others, math.isclose(x, 2 * y / 3), math.copysign(x, -1)

    x, y = kind(2), kind(3)
    found, expected = dsl.jit(functions)(x, y), functions(x, y)
    assert [type(v) for v in found] == [type(v) for v in expected]
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_math_takes_whole_numbers() -> None:
    f = lambda a, b, c: (math.gcd(a, b, c), math.lcm(a, b, c), math.isqrt(a))
    for numbers in [(12, 18, 8), (np.int8(100), np.int8(75), np.int8(3))]:
        assert dsl.jit(f)(*numbers) == f(*numbers)
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        dsl.jit(f)(1.0, 2, 3)


@pytest.mark.parametrize(
    "n", [0, 15, 16, 2**31 - 1, 2**62 - 1, 2**62, 3037000499**2 - 1, 2**63 - 1]
)
def test_isqrt_is_exact(n: int) -> None:
    assert dsl.jit(lambda n: math.isqrt(n))(n) == math.isqrt(n)


def test_math_refuses_arrays_and_complex_numbers() -> None:
    with pytest.raises(TypeError, match="only 0-dimensional arrays"):
        dsl.jit(lambda x: math.sqrt(x))(np.ones(3))
    with pytest.raises(TypeError, match="must be real number, not complex"):
        dsl.jit(lambda x: math.sqrt(x))(1j)
    with pytest.raises(ValueError, match="math domain error"):
        dsl.jit(lambda n: math.isqrt(n))(-4)


_TINY = 5e-324


@pytest.mark.parametrize(
    "f",
    [
        lambda a, b: math.sqrt(a * a + b**2),
        lambda a, b: math.sqrt((a - b) * (a - b) / (1 + math.exp(a))),
        lambda a, b: math.log(np.maximum(abs(a) * abs(b), _TINY)),
        lambda a, b: math.log(1e-9 + math.sqrt(np.minimum(a * a, b**4))),
        lambda a, b: math.log1p(math.exp(-a * a)) + math.log2(0.5 + a * a) / (1.0 + a * a),
        lambda a, b: math.sqrt(np.maximum(a, 0.0)),
    ],
)
def test_math_does_not_ask_whether_what_is_never_negative_is_in_the_domain(f: Any) -> None:
    assert "assert" not in dsl.jit(f).lower(1.0, 2.0).text(locations=False)
    for a, b in itertools.product([0.0, -0.0, 1.5, -1.5, _TINY, -_TINY, np.nan], repeat=2):
        np.testing.assert_allclose(dsl.jit(f)(a, b), f(a, b), rtol=1e-15)


@pytest.mark.parametrize(
    ("f", "a", "b"),
    [
        (
            lambda a, b: math.log(a * a * (b * b)),
            1e-200,
            1e-200,
        ),  # a product may be rounded to zero
        (lambda a, b: math.sqrt(1 / np.sqrt(a)), -0.0, 0.0),
        (lambda a, b: math.sqrt(1 / np.maximum(a, b)), -0.0, -0.0),
        (lambda a, b: math.sqrt(a * b), 2.0, -3.0),
        (lambda a, b: math.sqrt(a * a - b * b), 1.0, 2.0),
        (lambda a, b: math.sqrt(np.maximum(a, b)), -1.0, -2.0),
        (lambda a, b: math.sqrt(a**3), -1.0, 0.0),
        (lambda a, b: math.sqrt(np.float64(a) ** -b), -0.0, 1.0),
        (lambda a, b: math.log(abs(a)), 0.0, 0.0),
        (lambda a, b: 1.0 / (a * a), 1e-200, 0.0),
        (lambda a, b: math.log(np.float32(a * a + 1e-60)), 0.0, 0.0),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_math_asks_where_a_number_may_be_negative(f: Any, a: float, b: float) -> None:
    for g in (f, dsl.jit(f)):
        with pytest.raises(
            (ValueError, ZeroDivisionError), match=r"domain|nonnegative|positive|division"
        ):
            g(a, b)


@pytest.mark.parametrize(
    "x", [[1.0, np.nan, 2.0], [np.nan, 1.0], [3.0, 1.0, np.nan], [-np.inf, np.nan]]
)
def test_max_of_an_array_compares_as_python_does(x: list[float]) -> None:
    """A NaN is passed over, unless it comes first."""
    check_as_plain(lambda x: (max(x), min(x), max(x, default=0.0)), np.array(x))


@pytest.mark.parametrize(
    "x",
    [
        2.675,
        -1.005,
        0.125,
        2.5,
        -0.04,
        1250.0,
        60887940348.362206,
        1e300,
        math.inf,
        4.7214916039911016e16,
    ],
)
@pytest.mark.parametrize("digits", [-2, -1, 0, 1, 2, 5, 20])
def test_round_of_a_python_number_is_the_nearest_decimal(x: float, digits: int) -> None:
    found = dsl.jit(lambda x: round(x, digits))(x)
    assert type(found) is float
    assert repr(found) == repr(round(x, digits))


def test_round_takes_its_digits_by_name() -> None:
    assert dsl.jit(lambda x: round(x, ndigits=1))(2.375) == 2.4


def test_python_numbers_stay_python_numbers() -> None:
    def numbers(x, n, z):
        return n in x, 7.0 not in x, n in (1, 2), z.conjugate(), n.conjugate(), round(n, -1)

    check_as_plain(numbers, UP, 3, 1 + 2j)
    types = [type(item) for item in dsl.jit(numbers)(UP, 3, 1 + 2j)]
    assert types == [bool, bool, bool, complex, int, int]


def array_of_one_branch(x):
    if x[0] > 0:
        y, scale = x * 2, 0.5
    total = 0.0
    for _ in range(3):
        if x[0] > 0:
            total += y[1] * scale
    return total


def pair_of_one_branch(x):
    is_up = x.sum() > 0
    if is_up:
        low, high = x.min(), x.max()
        pair = (low, {"high": high})
    if not is_up:
        return -1.0
    return high - low + pair[1]["high"]


def last_of_the_trips_before(x):
    total = 0.0
    for i in range(len(x)):
        if x[i] > 0:
            last = x[i]
            place = i
        if i > 1 and x[i] > 2:
            total += last
    if (x > 0).any():
        return total, last, place
    return None


def own_array_of_one_branch(x):
    if x[0] > 0:
        y = x.copy()
    if x[0] > 0:
        y[0] = 9
        return y
    return x


def passed_on_by_one_branch(x):
    if x[0] > 0:
        y = x.sum()
    z = 1.0
    if x.sum() > 3 and x[0] > 0:
        z = y
    return z


@pytest.mark.parametrize("x", [UP, DOWN, MIXED], ids=["up", "down", "mixed"])
@pytest.mark.parametrize(
    "program",
    [array_of_one_branch, pair_of_one_branch, last_of_the_trips_before, own_array_of_one_branch, passed_on_by_one_branch],
)  # fmt: skip
def test_a_variable_of_one_branch_is_read_under_the_same_condition(
    program: Callable[..., Any], x: np.ndarray
) -> None:
    check_as_plain(program, x)


def test_max_of_rows_or_of_nothing_raises() -> None:
    for run in (max, dsl.jit(lambda x: max(x))):
        with pytest.raises(ValueError, match="truth value"):
            run(np.ones((2, 2)))
        with pytest.raises(ValueError, match=r"max\(\)"):
            run(np.ones(0))


def test_jit_of_lambdas_on_one_line() -> None:
    f, g = dsl.jit(lambda x: x + 1), dsl.jit(lambda x: x - 1)
    assert (f(1.0), g(1.0)) == (2.0, 0.0)
    pair = [dsl.jit(h) for h in (lambda x: x * 2, lambda x: x * 3)]
    assert [h(1.0) for h in pair] == [2.0, 3.0]


def test_the_second_operand_is_not_evaluated_where_python_does_not() -> None:
    def f(x, i):
        return i < 3 and x[i] > 0, i >= 3 or x[i] > 0

    compiled = dsl.jit(f)
    assert compiled(np.ones(3), 7) == (False, True)
    assert compiled(np.ones(3), 1) == (True, True)


def test_an_untaken_branch_does_not_run() -> None:
    def f(x, i):
        return x[i] if i < 3 else 0.0

    assert dsl.jit(f)(np.ones(3), 9) == 0.0


def test_a_failing_assertion_raises_with_its_message() -> None:
    def f(x):
        assert x[0] > 0, f"x[0] is {x[0]:.2f}"
        return x

    with pytest.raises(AssertionError, match=r"x\[0\] is -1\.00"):
        dsl.jit(f)(DOWN)


def test_a_raise_under_a_condition_raises_when_the_condition_holds() -> None:
    def f(x):
        if x[0] < 0:
            raise ValueError(f"negative: {x[0]}")
        return x

    compiled = dsl.jit(f)
    np.testing.assert_array_equal(compiled(UP), UP)
    with pytest.raises(ValueError, match=r"negative: -1\.0"):
        compiled(DOWN)


def test_a_list_that_grows_or_shrinks_while_a_loop_goes_over_it() -> None:
    def grown(x):
        found = [v for v in x if v > 0]
        for v in found:
            if v > 2 and len(found) < 9:
                found.append(v - 1)
        return found

    def from_one(x):
        todo = [0]
        for k in todo:
            if x[k] > -1.5 and k + 1 < len(x):
                todo.append(k + 1)
            if k > 4:
                break
        else:
            todo.append(-1)
        return todo

    def shrunk(x):
        left = [1.0, 2.0, 3.0, 4.0]
        for v in left:
            if x[0] < v:
                left.remove(v)
        return left

    for program in (grown, from_one, shrunk):
        check_as_plain(program, MIXED)
        check_as_plain(program, UP)


def test_numbering_a_list_that_grows_is_refused() -> None:
    @dsl.jit
    def numbered(x):
        todo = [0]
        for n, k in enumerate(todo):
            if x[k] > -1.5 and k + 1 < len(x):
                todo.append(k + n)
        return todo

    with pytest.raises(dsl.errors.LoopTypeError, match="grows or shrinks while a loop goes over"):
        numbered(MIXED)


# -- loops stay loops ------------------------------------------------------------------------------


def ir_of_a_loop(n: int) -> str:
    space: dict[str, Any] = {"np": np}
    text = textwrap.dedent(f"""
        def count(x):
            for i in range({n}):
                x = x + i
            return x
    """)
    name = f"<loop of {n}>"
    import linecache

    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), space)
    return dsl.jit(space["count"]).lower(1.0).text(locations=False)


def test_the_number_of_trips_is_a_constant_of_the_graph() -> None:
    short, long = ir_of_a_loop(10), ir_of_a_loop(10**7)
    assert short != long
    assert re.sub(r"\b10\b", "N", short) == re.sub(r"\b10000000\b", "N", long)


def test_a_long_loop_traces_as_fast_as_a_short_one() -> None:
    def seconds(n: int) -> float:
        start = time.perf_counter()
        ir_of_a_loop(n)
        return time.perf_counter() - start

    seconds(5)
    assert seconds(10**7 + 1) < 10 * seconds(11) + 0.05


# -- prompts ---------------------------------------------------------------------------------------

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "PYTHONSTARTUP": ""}


def test_functions_of_python_dash_c() -> None:
    program = textwrap.dedent("""
        import numpy as np, dsl
        @dsl.jit
        def f(x):
            if x[0] > 0:
                return x * 2
            return x
        print(f(np.ones(2)), dsl.jit(lambda v: v + 1)(1.0))
    """)
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[2. 2.] 2.0\n", done.stderr


def test_functions_of_a_program_from_standard_input_are_refused() -> None:
    program = "import dsl\n@dsl.jit\ndef f(x):\n    return x + 1\nprint(f(1))\n"
    done = subprocess.run(
        [sys.executable, "-"], input=program, env=ENVIRONMENT, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout.strip() == "2" or "SourceError" in done.stderr


PROMPT = """import numpy as np, dsl
@dsl.jit
def f(x):
    if x[0] > 0:
        return x * 2
    return x

f(np.ones(2)).tolist()
def f(x):
    return x * 100

dsl.jit(f)(np.ones(2)).tolist()
dsl.jit(lambda v: v + 41)(1)
exit()
"""


def test_functions_of_the_interactive_prompt() -> None:
    shown = talk([sys.executable, "-q", "-i"], PROMPT)
    assert "[2.0, 2.0]" in shown
    assert "[100.0, 100.0]" in shown
    assert "\n42" in shown


def test_functions_of_a_program_that_is_read_from_standard_input(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import dsl\n@dsl.jit\ndef f(n):\n    while n > 9:\n        n = n // 10\n    return n\nprint(f(7421))\n"
    )
    with program.open() as source:
        ran = subprocess.run([sys.executable], stdin=source, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("7\n", "")


def talk(command: list[str], lines: str) -> str:
    """Type lines at a program that thinks it has a terminal; return what it wrote."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, ENVIRONMENT)
    shown = b""
    for line in lines.splitlines():
        shown += read_until(terminal, (b">>> ", b"... "))
        os.write(terminal, line.encode() + b"\n")
    shown += read_until(terminal, ())
    os.close(terminal)
    os.waitpid(child, 0)
    return shown.decode().replace("\r\n", "\n")


def read_until(terminal: int, ends: tuple[bytes, ...]) -> bytes:
    seen = b""
    while not seen.endswith(ends or b"\0"):
        try:
            part = os.read(terminal, 4096)
        except OSError:
            return seen
        if not part:
            return seen
        seen += part
    return seen


@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
def test_functions_of_notebook_cells(tmp_path: Path) -> None:
    program = textwrap.dedent('''
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance(history_manager=None)
        shell.run_cell("import numpy as np, dsl\\n%precision 3\\nk = 3.0")
        shell.run_cell("""
        import numpy as np
        @dsl.jit
        def f(x):
            if x[0] > 0:
                return k * np.abs(x)
            return x
        """)
        shell.run_cell("print(f(np.ones(2)).tolist())")
        shell.run_cell("k = 4.0\\nprint(f(np.ones(2)).tolist())")
        shell.run_cell("print(dsl.jit(lambda v: v + 41)(1))")
    ''')
    (tmp_path / "cells.py").write_text(program)
    environment = {**ENVIRONMENT, "IPYTHONDIR": str(tmp_path)}
    run = [sys.executable, str(tmp_path / "cells.py")]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[-4:-1] == ["[3.0, 3.0]", "[4.0, 4.0]", "42"], done.stderr


def test_lambda_in_a_lambda_on_one_line_whose_body_is_a_choice() -> None:
    limit = None
    make = lambda n: lambda a: a.sum() if n is limit else a.max()
    both = lambda n: (
        lambda a: a + 1 if n is limit else a - 1,
        lambda a: a * 2 if n is limit else a,
    )
    x = np.array([1.0, 2.0])
    assert dsl.jit(make(None))(x) == 3.0
    assert dsl.jit(make(1))(x) == 2.0
    assert [dsl.jit(f)(x)[1] for f in both(1)] == [1.0, 2.0]
    assert [dsl.jit(f)(x)[1] for f in both(None)] == [3.0, 4.0]
    assert dsl.jit(lambda a: (lambda: a if limit is None else -a, lambda: a)[0]())(x)[1] == 2.0


def counted_until(x, start=1):
    for k in itertools.count(start, 2):
        x = x * 1.5 + 0 * k
        if x.max() > 100:
            break
    return x, k


def counted_beside(x):
    ids = itertools.count()
    first, total = next(ids), 0.0
    for k, v in zip(ids, x):
        total += k * v
    return first, total, [k * v for k, v in zip(itertools.count(1), x)]


def counted_in_python(x):
    steps = [np.sin, np.cos, np.tan]
    for k in itertools.count():
        if k == 3:
            break
        x = steps[k](x)
    return x


@pytest.mark.parametrize("program", [counted_until, counted_beside, counted_in_python])
def test_loops_over_a_count_end_when_the_data_says_so(program: Any) -> None:
    check_as_plain(program, np.ones(3))
    check_as_plain(program, np.ones(5))


def test_a_count_does_not_go_on_after_a_loop() -> None:
    def f(x):
        ids = itertools.count()
        for _ in ids:
            x = x * 2
            if x.max() > 10:
                break
        return next(ids)

    with pytest.raises(dsl.errors.UnsupportedError, match="goes on counting after a loop"):
        dsl.jit(f)(np.ones(3))


def test_iterators_without_an_end_are_not_unrolled_for_ever() -> None:
    def f(x):
        for step in itertools.cycle([np.abs, np.negative]):
            x = step(x) * 2 + 1
            if x.max() > 10:
                break
        return x

    with pytest.raises(dsl.errors.LoopTypeError, match="has not ended after") as caught:
        dsl.jit(f)(np.ones(3))
    assert "itertools.count" in caught.value.remedy


def test_a_strict_zip_wants_arrays_of_one_length() -> None:
    @dsl.jit
    def dot(x, y):
        total = 0.0
        for a, b in zip(x, y, strict=True):
            total += a * b
        return total

    assert dot(np.ones(3), np.ones(3)) == 3
    assert dot(np.ones(4), np.ones(4)) == 4
    with pytest.raises(ValueError, match="argument 2 is longer than argument 1"):
        dot(np.ones(4), np.ones(6))
    with pytest.raises(ValueError, match="argument 2 is shorter than argument 1"):
        dot(np.ones(7), np.ones(6))


def test_indices_out_of_bounds_raise_where_the_branch_is_taken() -> None:
    def length(x):
        planar = math.hypot(x[0], x[1])
        if planar > 10:
            planar = math.hypot(planar, x[2])
        return planar if planar > 1 or x[5] > 0 else x[2:][0]

    def summed(x):
        total = 0.0
        for k in range(int(x[0])):
            total += x[2] if k == 2 else x[k]
        return total

    for program in (length, summed):
        compiled = dsl.jit(program)
        for x in ([2.0, 3.0], [2.0, 4.0], [2.0, 3.0, 4.0], [3.0, 30.0, 4.0]):
            assert compiled(np.array(x)) == pytest.approx(program(np.array(x)))
    with pytest.raises(
        IndexError, match="index 2 is out of bounds for axis 0 with size 2"
    ) as caught:
        dsl.jit(length)(np.array([3.0, 40.0]))
    assert "planar = math.hypot(planar, x[2])" in caught.value.__notes__[0]
    with pytest.raises(IndexError, match="index 5 is out of bounds for axis 0 with size 2"):
        dsl.jit(length)(np.array([0.0, 0.5]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("convert", [float, int, complex, math.sqrt])
def test_arrays_of_one_element_become_numbers_where_this_numpy_lets_them(convert: Any) -> None:
    def program(x):
        return convert(x[:1])

    x = np.array([2.0, 3.0])
    try:
        want = program(x)
    except TypeError:
        with pytest.raises(TypeError, match="only 0-dimensional arrays"):
            dsl.jit(program)(x)
    else:
        assert dsl.jit(program)(x) == want
    assert dsl.jit(lambda x: x[:1].item())(x) == 2.0


def test_class_patterns_of_numbers_give_the_whole_a_name() -> None:
    def kind(n):
        match n:
            case int(k) | float(k) if k > 5:
                return 1.0 * k
            case float(k) if k < 5:
                return k * 2
            case (int(a), float(b)) if b > a:
                return a + b
            case (float(), _):
                return -1.0
            case {"v": float(q) as z}:
                return q + z
            case int(_):
                return -2.0

    for n in (7, 7.5, 3.5, (1, 2.0), (2.0, 1), {"v": 2.0}, 3, np.float64(3.5)):
        check_as_plain(kind, n)


def test_numpy_scalars_are_written_as_numpy_writes_them() -> None:
    def program(a, b, c, d, x):
        print(a, b, c, d, str(a), f"{a} {a!s} {b!r} {a:.2f}")
        for v in x:
            print(v, [v], (v, a))
        print(x.sum(), x)

    short = np.float32(0.1), np.float16(0.1), np.complex64(1 + 0.1j), np.int8(4)
    check_as_plain(program, *short, np.arange(3, dtype=np.float32) / 10)


def test_arrays_without_axes_are_written_as_arrays() -> None:
    def program(a, b):
        print(a, b, repr(a), [b], f"{a} {b!r} {b!s}")

    check_as_plain(program, np.array(1e-10), np.array(3))
    check_as_plain(program, np.array(0.1, np.float32), np.array(True))


def test_widths_of_formats_may_be_traced() -> None:
    def program(v, n):
        print(f"{v:>{n + 6}.{n}f}|{v:{n}}|{n:<{abs(n) + 1}}|{v:.1f}")

    check_as_plain(program, 2.5, 3)
    check_as_plain(program, -1.25, 1)


def test_traced_width_of_a_known_value_is_refused() -> None:
    def program(x):
        print(f"{'a':>{x[0]}}")

    with pytest.raises(dsl.errors.UnsupportedError, match="width that is known"):
        dsl.jit(program)(np.array([3]))


def item_or_nothing(x, n):
    try:
        factor = [1.0, 2.0, 3.0, 4.0, 5.0][n]
    except Exception:
        factor = 0.0
    return x * factor


def checked_index(x, n):
    try:
        size = operator.index(n)
    except TypeError as error:
        raise TypeError(f"{n} is no integer") from error
    return np.ones(size) * x


def caught_by_all(x, n):
    try:
        return x * {1: 2.0, 4: 5.0}[n]
    except:  # noqa: E722
        return x


def caught_outside(x, n):
    try:
        try:
            return x * np.zeros(n).shape[0]
        except ValueError:
            return x
    except TypeError:
        return -x


@pytest.mark.parametrize("program", [item_or_nothing, checked_index, caught_by_all, caught_outside])
def test_what_is_traced_again_with_values_is_not_caught(program: Any) -> None:
    for n in (4, 1):
        np.testing.assert_array_equal(dsl.jit(program)(2.0, n), program(2.0, n))


def test_gauss_points_of_any_number_of_points() -> None:
    for points in (np.polynomial.legendre.leggauss, np.polynomial.chebyshev.chebgauss):
        compiled = dsl.jit(lambda x, n, points=points: points(n)[0] * x)
        for n in (3, 5):
            np.testing.assert_allclose(compiled(2.0, n), points(n)[0] * 2.0, atol=1e-14)


def test_what_is_not_supported_is_not_caught() -> None:
    @dsl.jit
    def program(x):
        try:
            return np.char.upper(x)
        except Exception:
            return x

    with pytest.raises(dsl.errors.UnsupportedError):
        program(np.ones(2))
