"""Errors of native code: NumPy's types and messages, arguments as they were, effects in order, memory given back.

Each program runs with arguments that are wrong in one way. Where NumPy does not raise but warns (a division by zero, an
overflow), native code gives the same numbers.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from test_programs import check_same

import dsl
from dsl.codegen.cpu import memory

Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def outcome(function: Program, args: tuple[Any, ...]) -> Any:
    try:
        return "returned", function(*args)
    except Exception as error:
        return type(error), str(error).strip()


def check_error(function: Program, *args: Any, message: bool = True) -> None:
    """Both raise the same, and ours leaves the arguments alone; twice, since the second call takes another way in."""
    kind, text = outcome(function, copy.deepcopy(args))
    assert kind != "returned", text
    compiled, mine = dsl.jit(function), copy.deepcopy(args)
    for _ in range(2):
        found, words = outcome(compiled, mine)
        assert found != "returned", words
        assert issubclass(found, next(k for k in kind.__mro__ if k.__module__ == "builtins"))
        if message:
            assert words.splitlines()[0] == text
        check_same(mine, args, "arguments of a call that raised")


def check_value(function: Program, *args: Any) -> None:
    plain, mine = copy.deepcopy(args), copy.deepcopy(args)
    check_same(dsl.jit(function)(*mine), function(*plain), "result")
    check_same(mine, plain, "arguments")


# -- indices -----------------------------------------------------------------------------------------------------------


def element(x, i):
    return x[i]


def element_of_matrix(m, i, j):
    return m[i, j]


def element_of_expression(x, i):
    return (x * 2 + 1)[i]


def set_element(x, i):
    x[i] = 1.0


def add_to_element(x, i):
    x[i] += 1.0


def set_element_of_matrix(m, i, j):
    m[i, j] = 1.0


def set_row(m, i):
    m[i] = 0.0


def set_column(m, i):
    m[:, i] *= 2.0


def taken(x, i):
    return x[i]


def taken_and_summed(x, i):
    return (x[i] * 2).sum()


def taken_through_two(x, i, j):
    return x[i][j]


def taken_of_both(x, y, i):
    return x[i] + y[i]


def pairs(m, i, j):
    return m[i, j]


def taken_of_zeros(i):
    return np.zeros(3)[i]


def taken_and_summed_of_ones(i):
    return np.ones((3, 3))[i, i].sum()


def row_of_zeros(i):
    return np.zeros((3, 2))[i]


def taken_of_one_row(x, i):
    return x[None][i]


def taken_of_flattened(m, i):
    return m.reshape(-1)[i]


def taken_of_repeated(x, i):
    return np.broadcast_to(x, (3,))[i].sum()


def rows(m, i):
    return m[i].sum(axis=1)


def columns(m, i):
    return m[:, i]


def set_taken(x, i):
    x[i] = 1.0


def add_to_taken(x, i):
    np.add.at(x, i, 1.0)


def set_pairs(m, i, j):
    m[i, j] = 5.0


def set_diagonal(m, i):
    m[i, i] = 1.0


def index_from_rows(x, table):
    return table[x.max(axis=1)]


def index_from_columns(x, table):
    return table[x.max(axis=0)]


def index_less_row_maximum(x, table):
    return table[x - x.max(axis=1, keepdims=True)].sum(axis=1)


def in_loop(x, n):
    total = 0.0
    for k in range(n):
        total += x[k]
    return total


def in_loop_backwards(x, n):
    total = 0.0
    for k in range(n, -1, -1):
        total += x[k]
    return total


def in_while(x, n):
    k = 0
    while x[k] < n:
        k += 1
    return k


def written_in_loop(x, n):
    for k in range(n):
        x[k] = k
        x[-k - 1] += 1.0


def written_before_and_after(x, y, i):
    x[0] = 7.0
    y[i] = 1.0
    x[1] = 8.0


def old_value_kept(x, i):
    y = np.exp(x)
    s = y[i]
    x[:] = y + s


def row_in_loop(m, n):
    for k in range(n):
        m[k] = m[k + 1] * 2


def under_test(x, i, flag):
    if flag:
        x[0] = x[i]
    return x.sum()


X, M = np.arange(6.0), np.arange(12.0).reshape(4, 3)
INDICES = np.array([0, 3, -1])
OUT_OF_BOUNDS = [
    (element, (X, 6)),
    (element, (X, -7)),
    (element, (X, 2**62)),
    (element, (X, -(2**63))),
    (element, (X[:0], 0)),
    (element, (X, np.int8(-7))),
    (element, (M, 4)),
    (element_of_matrix, (M, 4, 0)),
    (element_of_matrix, (M, 0, 3)),
    (element_of_matrix, (M, -5, 3)),
    (element_of_expression, (X, 6)),
    (set_element, (X, 6)),
    (set_element, (X, -7)),
    (add_to_element, (X, 9)),
    (set_element_of_matrix, (M, 3, -4)),
    (set_row, (M, 4)),
    (set_row, (M, -5)),
    (set_column, (M, 3)),
    (taken, (X, np.array([0, 6, 1]))),
    (taken, (X, np.array([5, -7]))),
    (taken, (X, np.array([[1, 2], [250, 3]], np.uint8))),
    (taken, (X[:0], np.array([0]))),
    (taken_and_summed, (X, np.array([1, 2, 6, 7]))),
    (taken_through_two, (X, np.array([1, 2]), np.array([0, 2]))),
    (taken_through_two, (X, np.array([1, 9]), np.array([0, 2]))),
    (taken_of_both, (X, X[:5], np.array([0, 5]))),
    (taken_of_both, (X[:5], X, np.array([0, 5]))),
    (pairs, (M, np.array([0, 3, 9]), np.array([0, 5, 0]))),
    (pairs, (M, np.array([0, 3, 1]), np.array([0, -4, 0]))),
    (taken_of_zeros, (np.array([0, 9]),)),
    (taken_of_zeros, (np.array([0, -4]),)),
    (taken_and_summed_of_ones, (np.array([0, 9]),)),
    (row_of_zeros, (3,)),
    (taken_of_one_row, (X, np.array([0, 1]))),
    (taken_of_flattened, (M[:1, :1], np.array([0, 2]))),
    (taken_of_repeated, (X[:1], np.array([0, 3]))),
    (rows, (M, np.array([0, 4]))),
    (columns, (M, np.array([[0], [3]]))),
    (set_taken, (X, np.array([0, 6]))),
    (set_taken, (X, np.array([0, 1, -7]))),
    (add_to_taken, (X, np.array([0, 1, 6]))),
    (set_pairs, (M, np.array([0, 9]), np.array([7, 0]))),
    (set_pairs, (M, np.array([0, 1]), np.array([0, 3]))),
    (set_diagonal, (M, np.array([0, 3]))),
    (index_from_rows, (np.arange(40).reshape(20, 2), np.zeros(30))),
    (index_from_columns, (np.arange(40).reshape(2, 20), np.zeros(30))),
    (index_less_row_maximum, (np.arange(60).reshape(20, 3), np.zeros(1))),
    (in_loop, (X, 7)),
    (in_loop_backwards, (X, 6)),
    (in_while, (X, 100)),
    (written_in_loop, (X, 7)),
    (written_before_and_after, (X, X + 1, 6)),
    (old_value_kept, (X, 6)),
    (row_in_loop, (M, 4)),
    (under_test, (X, 6, True)),
]


@pytest.mark.parametrize(
    ("function", "args"), OUT_OF_BOUNDS, ids=lambda x: getattr(x, "__name__", "")
)
def test_indices_out_of_bounds(function: Program, args: tuple[Any, ...]) -> None:
    check_error(function, *args)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (element, (X, -6)),
        (element, (X, np.int8(-1))),
        (element_of_matrix, (M, -4, -3)),
        (taken, (X, np.array([-6, 5, -1]))),
        (taken, (X, np.array([255, 0], np.uint8) % np.uint8(6))),
        (taken, (X, np.zeros((0, 3), np.int64))),
        (set_taken, (X, np.array([-1, -6, -1]))),
        (set_diagonal, (M, INDICES[:1])),
        (index_from_rows, (np.arange(40).reshape(20, 2), np.arange(40.0))),
        (index_less_row_maximum, (np.arange(40).reshape(20, 2), np.arange(40.0))),
        (under_test, (X, 6, False)),
        (in_loop_backwards, (X, 5)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_indices_within_bounds(function: Program, args: tuple[Any, ...]) -> None:
    check_value(function, *args)


def counter_that_wraps(x, n):
    i = np.int8(0)
    total = 0.0
    for _ in range(n):
        total += x[i]
        i = i + np.int8(1)
    return total


def counter_below_zero(x, n):
    i = np.uint8(1)
    total = 0.0
    for _ in range(n):
        total += x[i]
        i = i - np.uint8(1)
    return total


def guarded_sum(x, i):
    total = 0.0
    if i >= 0 and i + np.int64(1) < len(x):
        total += x[i]
    return total


def test_narrow_counters_wrap_round() -> None:
    check_value(counter_that_wraps, np.arange(200.0), 140)
    check_error(counter_that_wraps, np.arange(100.0), 140)
    check_value(counter_below_zero, np.arange(300.0), 4)
    check_error(counter_below_zero, np.arange(200.0), 4)


def test_a_guard_that_overflows_does_not_replace_the_check() -> None:
    check_value(guarded_sum, X, np.int64(3))
    check_error(guarded_sum, X, np.int64(2**63 - 1))


def larger_before(x):
    count = 0
    for i in range(1, len(x)):
        j = i - 1
        while j >= 0 and x[j] > x[i]:
            count += 1
            j -= 1
    return count


def inside_or_zero(x, i, j):
    if (i >= 0 and i < len(x) and x[i] > 0) and not (j < 0 or j >= len(x) or x[j] < 0):
        return x[i] * x[j]
    return 0.0


def either(x, i):
    if i >= 0 or x[i] > 2:
        return x[i]
    return 0.0


def test_what_a_short_circuit_guards_is_not_checked_again() -> None:
    values = np.random.default_rng(0).random(20)
    for function, args in (
        (larger_before, (values,)),
        (inside_or_zero, (values, np.int64(3), np.int64(19))),
    ):
        check_value(function, *args)
        compiled = dsl.jit(function, dynamic=True)
        compiled(*args)
        assert "uge" not in compiled.ir(*args, stage="llvm")
    for i, j in ((-1, 2), (20, 2), (2, -1), (2, 20)):
        check_value(inside_or_zero, values, np.int64(i), np.int64(j))


def test_an_or_guards_nothing_where_it_holds() -> None:
    check_value(either, X, np.int64(-2))
    check_error(either, X, np.int64(6))
    check_error(either, X, np.int64(-7))


# -- shapes and sizes known when the program runs -------------------------------------------------------------------------


def largest(x):
    return x.max()


def largest_of_part(x, k):
    return x[k:].max()


def smallest_of_columns(m, k):
    return m[k:].min(axis=0)


def position_of_largest(x, k):
    return x[k:].argmax()


def assign_part(x, y, k):
    x[k:] = y


def join_rows(m, k):
    return np.concatenate([m[:k], m[:, k:]])


def reshape_part(x, k):
    return x[k:].reshape(2, 2)


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (largest, (X[:0],), True),
        (largest_of_part, (X, 6), True),
        (smallest_of_columns, (M, 4), True),
        (position_of_largest, (X, 6), True),
        (assign_part, (X, X[:3], 4), False),
        (join_rows, (M, 1), False),
        (reshape_part, (X, 1), False),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_sizes_that_do_not_fit(function: Program, args: tuple[Any, ...], message: bool) -> None:
    check_error(function, *args, message=message)


def sum_of_part(m, k):
    return m[k:].sum(axis=0) * 2 + 1, m[:, k:].sum(axis=1) * 2 + 1


def mean_of_rows(m):
    return m.sum(axis=1) + 1, m.prod(axis=1, keepdims=True) - m


@pytest.mark.parametrize("rows", [4, 20])
def test_reductions_of_nothing(rows: int) -> None:
    check_value(sum_of_part, np.ones((rows, rows)), rows)
    check_value(sum_of_part, np.ones((rows, rows)), 1)
    check_value(mean_of_rows, np.ones((rows, 0)))
    check_value(mean_of_rows, np.ones((0, rows)))


# -- arithmetic ----------------------------------------------------------------------------------------------------------


def divisions(a, b):
    return a // b, a % b, a / b


def shifts(a, b):
    return a << b, a >> b


def powers(a, b):
    return a**b


EDGES = {
    dtype: np.array([info.min, info.min + 1, 0, 1, 2, 7, info.max], dtype)
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    for info in [np.iinfo(dtype)]
}


@pytest.mark.parametrize("dtype", EDGES)
def test_integers_divide_and_shift_as_numpys(dtype: str) -> None:
    values = EDGES[dtype]
    signed = dtype.startswith("i")
    divisors = np.array([0, 1, 2, 3, *([-1, -3] if signed else [])], dtype)
    check_value(divisions, values[:, np.newaxis], divisors)
    bits = values.itemsize * 8
    check_value(shifts, values[:, np.newaxis], np.array([0, 1, bits - 1, bits, bits + 3], dtype))
    check_value(powers, values[:, np.newaxis], np.array([0, 1, 2, 3, 5], dtype))


def test_integers_divide_by_zero_scalars() -> None:
    check_value(divisions, np.array([1, -1, 0]), np.int64(0))
    check_value(divisions, np.int32(5), np.int32(0))
    check_value(divisions, np.array([1.0, -1.0, 0.0]), np.float64(0))


def test_negative_powers_of_integers() -> None:
    check_error(powers, np.array([2, 3]), np.array([1, -1]))
    check_error(powers, np.array([2, 3]), np.int64(-1))
    check_error(powers, np.arange(1, 41).reshape(20, 2), -np.ones((20, 2), np.int64))


def to_integers(x):
    return x.astype(np.int64), x.astype(np.int32), x.astype(np.uint8), x.astype(bool)


def test_floats_become_integers_as_numpys() -> None:
    check_value(to_integers, np.array([0.0, -0.9, 1.9, 100.5, -100.5, 3e9, -3e9]))


# -- effects, linear algebra, memory ---------------------------------------------------------------------------------------


def asserts_in_order(x, n):
    for k in range(n):
        print("at", k)
        assert x[k] >= 0, f"negative at {k}"
        x[k] += 1
    print("done")


@pytest.mark.parametrize(("values", "n"), [([1.0, 2.0], 2), ([1.0, -2.0, 3.0], 3), ([1.0], 2)])
def test_prints_and_asserts_come_in_order(
    values: list[float], n: int, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = outcome(asserts_in_order, (np.array(values), n))
    printed = capsys.readouterr().out
    mine = np.array(values)
    found = outcome(dsl.jit(asserts_in_order), (mine, n))
    assert capsys.readouterr().out == printed
    assert (found[0], str(found[1]).splitlines()[:1]) == (
        expected[0],
        str(expected[1]).splitlines()[:1],
    )


def test_an_assertion_on_a_device_says_what_it_says_elsewhere() -> None:
    @dsl.jit
    def bounded(x):
        with dsl.device("cpu:0"):
            assert x[0] < 1, "too large"
        return x

    with pytest.raises(AssertionError, match="too large"):
        bounded(np.ones(2))


def solve(a, b):
    b[0] += 1
    return np.linalg.solve(a, b)


def factorise(a):
    return np.linalg.cholesky(a) + 1


def test_matrices_that_cannot_be_handled() -> None:
    check_error(solve, np.zeros((3, 3)), np.ones(3))
    check_error(factorise, -np.eye(3))


def square(n, x):
    x[0] = 5.0
    made = np.zeros((n, n))
    made[1, 1] = x[0]
    return np.sort(made, axis=1)[1, -1]


def doubling(x, n):
    x[0] = 1.0
    y = x
    for _ in range(n):
        y = np.concatenate([y, y])
    return y


def test_memory_that_cannot_be_had() -> None:
    x = np.arange(3.0)
    compiled = dsl.jit(square)
    assert compiled(10, x.copy()) == 5.0
    gc.collect()  # what tests before this one left
    before = memory.stats().blocks
    for _ in range(2):
        with pytest.raises(MemoryError):
            compiled(10**7, x)
        check_same(x, np.arange(3.0), "arguments")
    gc.collect()
    assert memory.stats().blocks == before
    assert compiled(10, x.copy()) == 5.0


def outer_sum(x, n):
    x[0] = 5.0
    rows = np.ones((n, n))
    table = np.outer(rows[0], rows[1]) + x[1]
    x[:] = table.sum()
    return table


def sorted_squares(x, n):
    x[0] = 2.0
    for i in range(3):
        x[1] += np.sort(np.ones((n + i, n)), axis=0)[0, 0]
    return x.sum()


def running_sum(x, n):
    x[0] = 7.0
    ones = np.ones(n)
    ones[0] = x[1]
    return ones.cumsum()


@pytest.mark.parametrize("function", [outer_sum, sorted_squares, running_sum])
def test_sizes_in_bytes_that_do_not_fit_in_a_word_cannot_be_had(function: Any) -> None:
    compiled = dsl.jit(function)
    for n in (3, 4):
        check_same(compiled(np.ones(3), n), function(np.ones(3), n), "result")
    for n in (2**61, 2**62, 2**62 + 1):
        x = np.ones(3)
        with pytest.raises(MemoryError):
            compiled(x, n)
        check_same(x, np.ones(3), "arguments")


def test_one_check_for_the_memory_of_all_arrays() -> None:
    """One for each made LLVM take a time that grows with the square of their number."""
    compiled = dsl.jit(lambda x: [np.sort(x) + k for k in range(30)])
    text = compiled.ir(np.ones((9, 9)), stage="llvm")
    assert text.count("call ptr @dsl_alloc") >= 30
    assert text.count("store i64 2, ptr") == 1


def printed_by(text: str) -> tuple[str, str]:
    """Return what another process prints that runs a text, and its errors."""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout, done.stderr


def test_memory_that_cannot_be_had_in_a_loop() -> None:
    """In a process of its own with little memory, so that the machine does not suffer."""
    text = (
        "import resource, sys\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "import numpy as np, dsl\n"
        "from test_native_errors import doubling\n"
        "compiled = dsl.jit(doubling)\n"
        "x = np.arange(1000.0)\n"
        "assert len(compiled(x.copy(), 3)) == 8000\n"
        "with open('/proc/self/statm') as file:\n"
        "    used = int(file.read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28),) * 2)\n"
        "try:\n"
        "    compiled(x, 40)\n"
        "except MemoryError:\n"
        "    print('MemoryError', x[0], len(compiled(x, 2)))\n"
    )
    assert printed_by(text) == ("MemoryError 0.0 4000\n", "")


def test_an_error_leaves_the_function_usable() -> None:
    compiled = dsl.jit(in_loop)
    for _ in range(3):
        with contextlib.suppress(IndexError):
            compiled(X, 9)
        assert compiled(X, 6) == 15.0


def columns(x):
    e = np.exp(x - x.max(axis=0, keepdims=True))
    return e / e.sum(axis=0, keepdims=True)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by the system's call")
def test_scratch_memory_that_cannot_be_had() -> None:
    """The result can be had, what a thread needs meanwhile cannot."""
    text = (
        "import resource, sys\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "import numpy as np, dsl\n"
        "from dsl.codegen.cpu import memory\n"
        "from test_native_errors import columns\n"
        "x = np.ones((4100, 300))\n"
        "compiled = dsl.jit(columns)\n"
        "compiled(x)\n"
        "memory.release_cached()\n"
        "with open('/proc/self/statm') as file:\n"
        "    used = int(file.read().split()[0]) * resource.getpagesize()\n"
        "before = resource.getrlimit(resource.RLIMIT_AS)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (14 << 20), before[1]))\n"
        "try:\n"
        "    compiled(x)\n"
        "except MemoryError:\n"
        "    resource.setrlimit(resource.RLIMIT_AS, before)\n"
        "    print('MemoryError', compiled(x).sum().round())\n"
    )
    assert printed_by(text) == ("MemoryError 300.0\n", "")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("number", [np.nan, 1e30, -1e30, np.inf, 10.0, -11.0])
def test_floats_that_are_no_index(number: float, dtype: Any) -> None:
    def count(x, bins):
        for i in range(len(x)):
            bins[np.int64(x[i])] += 1
        return bins

    good = np.array([1.5, 2.2, -1.0, -2.7, 0.0, 9.99, -10.0], dtype)
    np.testing.assert_array_equal(
        dsl.jit(count)(good, np.zeros(10, int)), count(good, np.zeros(10, int))
    )
    with pytest.raises(IndexError), np.errstate(invalid="ignore"):
        dsl.jit(count)(np.array([1.0, number], dtype), np.zeros(10, int))


NEGATIVE = {
    "pad": (lambda n: np.pad(np.ones(3), n), "index can't contain negative values"),
    "pad one side": (
        lambda n: np.pad(np.ones((2, 3)), ((1, 1), (n, 9)), mode="edge"),
        "index can't",
    ),
    "repeat": (lambda n: np.repeat(np.ones(3), n), "negative"),
    "eye": (lambda n: np.eye(4, n), "negative dimensions"),
    "tri": (lambda n: np.tri(n, 4), "negative dimensions"),
    "vander": (lambda n: np.vander(np.ones(2), n), "negative dimensions"),
    "zeros": (lambda n: np.zeros(n), "negative dimensions"),
    "sum of ones": (lambda n: np.ones(n).sum(), "negative dimensions"),
    "two sizes": (lambda n: np.zeros((n, n - 1)).sum(), "negative dimensions"),
    "full": (lambda n: np.full((n, 3), np.arange(3.0)) + 1, "negative dimensions"),
    "shape of empty": (lambda n: np.empty(n).shape, "negative dimensions"),
    "zeros_like": (lambda n: np.zeros_like(np.ones(2), shape=n).sum(), "negative dimensions"),
    "broadcast_to": (lambda n: np.broadcast_to(2.0, n).sum(), "must be non-negative"),
    "indices": (lambda n: np.indices((n, 2)).sum(), "negative dimensions"),
    "tile": (lambda n: np.tile(np.ones(3), n).sum(), "negative dimensions"),
    "resize": (lambda n: np.resize(np.ones(3), n).sum(), "must be non-negative"),
    "linspace": (lambda n: np.linspace(0, 1, n).sum(), "must be non-negative"),
    "bincount": (lambda n: np.bincount([0, 1], minlength=n), "'minlength' must not be negative"),
    "one_hot": (lambda n: dsl.nn.one_hot(np.array([0, 1]), n), "negative dimensions"),
    "normal": (
        lambda n: dsl.random.normal(dsl.random.key(0), (n, 2)).sum(),
        "negative dimensions",
    ),
    "permutation": (
        lambda n: dsl.random.permutation(dsl.random.key(0), n).sum(),
        "negative dimensions",
    ),
    "rfftfreq": (lambda n: np.fft.rfftfreq(n + (n == 0)).sum(), "negative dimensions"),
    "loop": (lambda n: sum(np.zeros(n).sum() + k for k in range(3)), "negative dimensions"),
}


@pytest.mark.parametrize("name", NEGATIVE)
def test_sizes_that_the_call_decides_are_not_negative(name: str) -> None:
    """What was written before the memory of the result ended the process, or another array's contents."""
    fn, message = NEGATIVE[name]
    f = dsl.jit(fn)
    for n in (3, 2, -1, -2, 0, -5, 1) if name != "two sizes" else (3, 2, -1, -2, 1):
        if n < 0:
            with pytest.raises(ValueError, match=message):
                f(n)
        else:
            np.testing.assert_array_equal(f(n), fn(n))


def test_errors_of_a_view_that_is_returned_have_the_line_of_the_function() -> None:
    def row(x, k):
        halves = x.reshape(2, -1)
        return halves[k]

    f = dsl.jit(row)
    for n in (4, 6, 8, 10):
        with pytest.raises(IndexError, match="index 5 is out of bounds") as caught:
            f(np.ones(n), 5)
        assert "return halves[k]" in "".join(caught.value.__notes__)


def test_a_size_that_is_negative_leaves_arguments_as_they_were() -> None:
    def mark(x, n):
        x[0] = 5.0
        return np.zeros(n) + x[0]

    f, x = dsl.jit(mark), np.ones(3)
    for n in (-1, -4, 2, -2):
        if n < 0:
            with pytest.raises(ValueError, match="negative dimensions"):
                f(x, n)
        else:
            np.testing.assert_array_equal(f(x.copy(), n), mark(x.copy(), n))
        np.testing.assert_array_equal(x, 1.0)


@pytest.mark.parametrize("window", [np.hanning, np.bartlett, np.blackman, np.hamming])
def test_a_window_of_fewer_than_no_points_has_none(window: Any) -> None:
    f = dsl.jit(lambda n: window(n - 4))
    for n in (7, 8, 5, 4, 3, 0):
        np.testing.assert_allclose(f(n), window(n - 4), atol=1e-15)


def test_a_reshape_to_no_rows_that_the_call_decides_is_refused() -> None:
    f = dsl.jit(lambda n: np.arange(12).reshape(n, -1))
    assert [f(n).shape for n in (3, 4)] == [(3, 4), (4, 3)]
    with pytest.raises(ValueError, match="cannot reshape array of size 12"):
        f(0)
