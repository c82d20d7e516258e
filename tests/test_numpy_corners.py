"""Corners of NumPy functions: empty arrays, arrays without axes, `out=` of another shape, views of other sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from against_numpy import check

import dsl

EMPTY, ONE, LOW = np.zeros(0), np.array(3.0), np.array([1, 2, 3], np.int8)
SMALL_PRINT: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ix_ of empty": (lambda a: np.ix_(a, [0, 1]), (EMPTY,)),
    "trim_zeros of empty": (lambda a: np.trim_zeros(a), (EMPTY,)),
    "roll by several": (lambda a: np.roll(a, (1, 2)), (LOW,)),
    "insert a matrix": (lambda a: np.insert(a, 1, np.ones((1, 1))), (LOW,)),
    "lexsort of one row": (lambda a: np.lexsort((a,)), (LOW,)),
    "packbits of empty": (lambda a: np.packbits(a, axis=-1), (np.zeros((2, 0, 2), np.uint8),)),
    "unpackbits of more": (lambda a: np.unpackbits(a, count=20), (LOW.view(np.uint8)[:2],)),
    "c_ with numbers": (lambda a: np.c_[a[:1], 1, 2], (LOW,)),
    "r_ with numbers": (lambda a: np.r_[a, 1, 2], (LOW,)),
    "take along no axis": (lambda a: np.take(a, [0, 0], axis=0), (ONE,)),
    "repeat along no axis": (lambda a: np.repeat(a, 2, axis=0), (ONE,)),
    "squeeze along no axis": (lambda a: np.squeeze(a, axis=-1), (ONE,)),
    "edges of one dtype": (lambda a, b: np.histogram2d(a, b, 2), (LOW, LOW.astype(np.float32))),
    "round complex infinity": (lambda a: np.round(a, 1), (np.array([1.25 + 2j, np.inf - 0.25j]),)),
    "in": (lambda a: 2 in a, (LOW,)),
}


@pytest.mark.parametrize("name", SMALL_PRINT)
def test_small_print(name: str) -> None:
    function, args = SMALL_PRINT[name]
    check(function, *args)


@pytest.mark.parametrize(
    "function", [np.sum, np.max, np.any, np.argmax, np.mean, np.median, np.cumsum]
)
def test_out_has_the_shape_of_the_result(function: Any) -> None:
    x, out = np.ones((3, 4)), np.zeros((2, 4))
    for call in (function, dsl.jit(function)):
        with pytest.raises(ValueError):
            call(x, axis=0, out=out)


NUMBERS = np.arange(1.0, 9.0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.int64, np.complex64, complex])
@pytest.mark.parametrize("source", [NUMBERS, NUMBERS.astype(np.float32), NUMBERS + 1j * NUMBERS])
def test_view_as_numbers_of_another_size(source: Any, dtype: Any) -> None:
    check(lambda x: x.view(dtype), source)
    check(lambda x: x.reshape(2, 4).view(dtype) * 2, source)

    def write(x):
        parts = x.view(dtype)
        parts[1:3] = 1
        return parts

    mine, plain = source.copy(), source.copy()
    np.testing.assert_array_equal(dsl.jit(write)(mine), write(plain))
    np.testing.assert_array_equal(mine, plain)


def test_view_of_another_size_needs_a_last_axis_that_fits() -> None:
    for x in (np.ones(3), np.ones((4, 4))[:, ::2], np.array(1.0)):
        with pytest.raises(ValueError):
            dsl.jit(lambda a: a.view(complex))(x)


def test_index_that_is_an_array_without_axes_makes_a_copy() -> None:
    def program(x, i):
        row, also = x[i], x[np.array(0)]
        row += 1.0
        also[...] = 5.0
        return row, also

    check(program, np.ones((2, 3)), np.array(1))


# -- indices that count: read as slices are ----------------------------------------------------------


def sums_of_windows(x):
    return np.lib.stride_tricks.sliding_window_view(x, 4).sum(axis=-1)


def backwards(x):
    return x[5 - np.arange(6)] + x[np.arange(6) - 0]


def diagonal_of(x):
    return x.reshape(4, -1)[np.arange(4), np.arange(4)]


def by_two_counters(x):
    return x[np.arange(5)[:, None] + np.arange(4)[::-1] + 2]


COUNTING = [sums_of_windows, backwards, diagonal_of, by_two_counters]


@pytest.mark.parametrize("function", COUNTING)
def test_indices_that_count_are_read_as_slices_are(function: Any) -> None:
    x = np.arange(16.0) ** 2
    compiled = dsl.jit(function)
    assert "[?]" not in compiled.ir(x, stage="kernels")
    check(function, x)
    for size in (20, 24):
        np.testing.assert_array_equal(
            compiled(np.arange(size) * 1.0), function(np.arange(size) * 1.0)
        )


@pytest.mark.parametrize("first", [-20, -3, 0, 3, 12, 13, 14])
def test_indices_that_count_are_checked_and_count_from_the_end(first: int) -> None:
    def program(x):
        return x[np.arange(4) + first]

    x = np.arange(16.0)
    if -16 <= first <= 12:
        check(program, x)
        return
    with pytest.raises(IndexError, match="out of bounds for axis 0 with size 16"):
        dsl.jit(program)(x)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_long_correlations_keep_nan_and_infinity_where_they_are(mode: str) -> None:
    x, taps = np.arange(90.0), np.arange(40.0) + 1
    check(lambda a, v: np.correlate(a, v, mode), x, taps)
    x[3], taps[[0, 7]] = np.inf, [np.nan, -np.inf]
    check(lambda a, v: np.correlate(a, v, mode), x, taps)
    check(lambda a, v: np.convolve(a, v, mode), x[50:], taps)
    check(lambda a, v: np.convolve(v, a, mode), x, taps + 1j)


# -- integers that are near each other are counted ----------------------------------------------------


@pytest.mark.parametrize("dtype", ["h", "i", "l", "H", "I", "L"])
@pytest.mark.parametrize("size", [4095, 4096, 150_000])
def test_sort_of_integers_near_each_other(dtype: str, size: int) -> None:
    limits, rng = np.iinfo(dtype), np.random.default_rng(size)
    low, high = int(limits.min), int(limits.max)
    for first, last in ((0, 60), (low, low + 99), (high - 4095, high), (1, 4097), (low, high)):
        x = rng.integers(first, last, size, np.dtype(dtype), endpoint=True)
        x[0], x[-1] = last, first
        np.testing.assert_array_equal(dsl.jit(np.sort)(x), np.sort(x))
        np.testing.assert_array_equal(dsl.jit(np.unique)(x), np.unique(x))
    rows = rng.integers(0, 50, (3, size)).astype(dtype)
    check(lambda a: np.sort(a, axis=1), rows)


@pytest.mark.parametrize(
    "counts", [[0, 2, 0, 3, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [4, 0, 0, 0, 0]]
)
def test_repeat_each_its_own_number_of_times(counts: list[int]) -> None:
    check(lambda x, c: np.repeat(x, c), np.arange(5.0), np.array(counts))
    check(lambda x, c: np.repeat(x, c, axis=1), np.arange(10.0).reshape(2, 5), np.array(counts))


def test_repeats_are_not_negative() -> None:
    for call in (np.repeat, dsl.jit(np.repeat)):
        with pytest.raises(ValueError, match=r"repeats may not contain negative values\."):
            call(np.arange(3.0), np.array([1, -1, 2]))


# -- indices out of bounds, in reads that nothing uses or that have no elements ------------------------


def _unused_subscript(x, i):
    x[i]
    return x


def _unused_variable(x, i):
    y = x[i] + 1  # noqa: F841
    return x


def _unused_in_a_branch(x, i):
    if x.sum() > 0:
        y = x[i]  # noqa: F841
    return x


def _unused_in_a_loop(x, i):
    for k in range(3):
        y = x[i + k - 2]  # noqa: F841
    return x


def _unused_take(x, i):
    np.take(x, i, axis=0)
    return x


def _unused_item(x, i):
    x.take(i, axis=0)
    return x


UNUSED = [
    _unused_subscript, _unused_variable, _unused_in_a_branch, _unused_in_a_loop, _unused_take, _unused_item,
]  # fmt: skip


@pytest.mark.parametrize("read", UNUSED)
@pytest.mark.parametrize("place", [3, np.int64(-6), np.array([1, 9]), np.array([[0], [-7]])])
@pytest.mark.parametrize("x", [np.ones(3), np.ones((3, 2))])
def test_a_read_that_nothing_uses_is_checked(read: Any, place: Any, x: Any) -> None:
    with pytest.raises(IndexError, match="is out of bounds for axis 0 with size 3") as plain:
        read(x, place)
    with pytest.raises(IndexError) as traced:
        dsl.jit(read)(x, place)
    assert str(traced.value).startswith(str(plain.value))


@pytest.mark.parametrize("read", UNUSED)
def test_a_read_in_bounds_that_nothing_uses_changes_nothing(read: Any) -> None:
    for place in (2, np.array([0, 2])):
        check(read, np.arange(3.0), place)


def _row_without_elements(x, i):
    return np.outer(x, x[x > 100])[i]


def _rows_without_elements(x, i):
    return np.outer(x, x[x > 100])[np.array([0, i])]


def _row_of_unknown_size(x, i):
    return np.outer(x, x[3:])[i]


@pytest.mark.parametrize(
    "read", [_row_without_elements, _rows_without_elements, _row_of_unknown_size]
)
def test_reads_of_what_has_no_elements_at_run_time_are_checked(read: Any) -> None:
    compiled = dsl.jit(read)
    for size in (5, 4, 3):
        x = np.arange(float(size))
        np.testing.assert_array_equal(compiled(x, size - 1), read(x, size - 1))
        with pytest.raises(IndexError, match=f"index {size} is out of bounds for axis 0 with size"):
            compiled(x, size)


def test_a_read_that_nothing_uses_is_not_checked_in_a_branch_that_is_not_taken() -> None:
    check(_unused_in_a_branch, -np.ones(3), 10)


def test_reads_that_are_used_have_no_check_of_their_own() -> None:
    def total(x, n):
        s = 0.0
        for i in range(n):
            row = x[i]
            s = s + row[i] * x[i, 0] + np.median(row)
        return s

    assert "assert" not in dsl.jit(total).ir(np.ones((4, 4)), 4, stage="traced")


# -- indices out of bounds, in loops and writes of which nothing uses the result ------------------------


def _dead_sum(x, n):
    s = 0.0
    for i in range(n):
        s += x[i]
    return 1.0


def _dead_while(x, n):
    s, i = 0.0, 0
    while i < n:
        s, i = s + x[i], i + 1
    return 1.0


def _dead_nest(x, n):
    s = 0.0
    for i in range(n):
        for _ in range(2):
            s += x[i]
    return 1.0


def _dead_beside_live(x, n):
    s = t = 0.0
    for i in range(n):
        s, t = s + x[i], t + 1.0
    return t


def _dead_in_a_branch(x, n):
    s = 0.0
    for i in range(n):
        if i > 1:
            s += x[i]
    return 1.0


def _dead_shorter_array(x, n):
    y, s, t = np.ones(9), 0.0, 0.0
    for i in range(n):
        s, t = s + x[i], t + y[i]
    return t


def _dead_take(x, n):
    s = 0.0
    for i in range(n):
        s += np.take(x, i)
    return 1.0


def _dead_write(x, n):
    x[n - 1] = 1.0
    x[:] = 2.0
    return x


def _dead_writes(x, n):
    y = np.zeros(4)
    for i in range(n):
        y[i] += 1.0
    return x


def _dead_rows(x, n):
    y = np.zeros((4, 2))
    for i in range(n):
        y[i] = 1.0
    return x


def _dead_write_in_a_branch(x, n):
    y = np.zeros(4)
    if n > 2:
        for i in range(n):
            y[i] = x[0]
    return x


def _overwritten(x, n):
    for i in range(n):
        x[i] = 1.0
    x[:] = 2.0
    return x


def _dead_scatter(x, n):
    y = np.zeros(4)
    for i in range(n):
        y[np.array([0, i])] = 1.0
    return x


DEAD = [
    _dead_sum, _dead_while, _dead_nest, _dead_beside_live, _dead_in_a_branch, _dead_shorter_array, _dead_take, _dead_write,
    _dead_writes, _dead_rows, _dead_write_in_a_branch, _overwritten, _dead_scatter,
]  # fmt: skip


@pytest.mark.parametrize("access", DEAD)
def test_an_index_is_checked_where_nothing_uses_what_a_loop_makes(access: Any) -> None:
    compiled = dsl.jit(access)
    with pytest.raises(IndexError, match="is out of bounds for axis 0 with size 4") as plain:
        access(np.arange(4.0), 6)
    with pytest.raises(IndexError) as traced:
        compiled(np.arange(4.0), 6)
    assert str(traced.value).startswith(str(plain.value))
    check(access, np.arange(4.0), 4)


@pytest.mark.parametrize(
    "folded",
    [
        lambda b, i: b[i] == b[i],
        lambda b, i: b[i] > b[i],
        lambda b, i: b[i] * 0,
        lambda b, i: b[i] - b[i],
        lambda b, i: b[i] & 0,
        lambda b, i: b[0] + (b[i] * 0 + 1),
        lambda b, i: np.where(True, b[0], b[i]),
        lambda b, i: np.where(False, b[i] + 1, b[0]),
        lambda b, i: np.where(b[i] > 0, b, b),
        lambda b, i: np.logical_or(b[i] > 0, True),
    ],
)
def test_an_index_is_checked_where_algebra_needs_no_element(folded: Any) -> None:
    for call in (folded, dsl.jit(folded)):
        with pytest.raises(IndexError, match="index 6 is out of bounds for axis 0 with size 4"):
            call(np.arange(4), 6)
    check(folded, np.arange(4), 3)


def test_a_loop_that_nothing_uses_goes_if_its_indices_are_surely_inside() -> None:
    def total(x):
        s = 0.0
        for i in range(1, len(x) - 1):
            s += x[i - 1] * x[i + 1]
        return x + 1

    text = dsl.jit(total).ir(np.ones(300), stage="optimized")
    assert "scan" not in text
    assert "assert" not in text


def test_a_loop_that_only_a_derivative_makes_unused_goes() -> None:
    def total(x, n):
        s = 0.0
        for i in range(n):
            s += 3.0 * x[i]
        return s

    text = dsl.grad(total).ir(np.ones(4), 4, stage="optimized")
    assert text.count("scan(") == 1
    assert "assert" not in text
    np.testing.assert_array_equal(dsl.grad(total)(np.ones(4), 3), [3, 3, 3, 0])


def test_a_loop_that_only_gradients_of_its_result_make_unused_goes() -> None:
    def slope(x, n):
        s = 0.0
        for i in range(n):
            s += 3.0 * x[i]
        return dsl.gradients(s, [x])[0]

    text = dsl.jit(slope).ir(np.ones(4), 4, stage="optimized")
    assert text.count("scan(") == 1
    assert "assert" not in text


def _dropped_in_a_branch(b, i):
    v, w = b[i], 0
    if b[1] > 0:
        w = v * 0
    return w


def _dropped_in_loops(b, i):
    v, s = b[i], 0
    for k in range(100):
        for _ in range(k):
            if k > 3:
                s = v - v
    return s


def _dropped_with_a_branch(b, i):
    v, w = b[i], 0
    if i * 0 > 1:
        w = v
    return w


def _dropped_with_a_predicate(b, i):
    w = 0
    if b[i] > 0:
        w = 0
    return w


def _dropped_with_a_loop(b, i):
    v = b[i]
    for _ in range(i * 0):
        b = b + v
    return b


def _dropped_with_a_while_loop(b, i):
    v = b[i]
    while i * 0 > 1:
        b = b + v
    return b


def _dropped_in_a_while_loop(b, i):
    v = b[i]
    while b[0] < 5:
        b = b + v * 0 + 1
    return b


def _dropped_matrix(b, i):
    v, w = np.linalg.inv(b[:1, None] * 1.0 + (i < 4))[0, 0] > 0, False
    if b[1] > 0:
        w = v & False
    return b[0] + w + 0 * b[i]


@pytest.mark.parametrize(
    "folded",
    [
        _dropped_in_a_branch, _dropped_in_loops, _dropped_with_a_branch, _dropped_with_a_predicate, _dropped_with_a_loop,
        _dropped_with_a_while_loop, _dropped_in_a_while_loop,
    ],
)  # fmt: skip
def test_an_index_is_checked_where_a_region_needs_no_element(folded: Any) -> None:
    for call in (folded, dsl.jit(folded)):
        with pytest.raises(IndexError, match="index 6 is out of bounds for axis 0 with size 4"):
            call(np.arange(4), 6)
    check(folded, np.arange(4), 3)


def test_a_matrix_is_inverted_where_a_region_needs_nothing_of_it() -> None:
    for call in (_dropped_matrix, dsl.jit(_dropped_matrix)):
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            call(np.arange(5), 4)
    check(_dropped_matrix, np.arange(5), 3)


def _write_in_a_loop(x, i, n):
    for k in range(100):
        x[i, k : k + n] = 3
    return x


def _write_in_a_copy(x, i, n):
    y = x[:, :n].copy()
    y[i] = 3
    return y


def _write_in_a_selection(x, i, n):
    y = x[:, x[0] > 5]
    y[i] = 3
    return y


def _add_in_a_selection(x, i, n):
    y = x[:, x[0] > 5]
    np.add.at(y, i, 3.0)
    return y


def _write_in_columns(x, i, n):
    x[i, :n] = 3
    return x


@pytest.mark.parametrize(
    "write",
    [_write_in_a_loop, _write_in_a_copy, _write_in_a_selection, _add_in_a_selection, _write_in_columns],
)  # fmt: skip
def test_writes_to_rows_without_elements_are_checked(write: Any) -> None:
    for x in (np.zeros((3, 0)), np.zeros((3, 4))):
        for inside in (2, np.array([0, -3])):
            check(write, x, inside, 0)
        for outside in (3, -4, np.array([0, 7]), np.array([[-4], [1]])):
            for call in (write, dsl.jit(write)):
                with pytest.raises(IndexError, match="is out of bounds for axis 0 with size 3"):
                    call(x.copy(), outside, 0)


# -- ops that may raise, of which nothing uses the result ------------------------------------------------


def _dead_op_in_a_loop(call, x, y):
    for k in range(len(x)):
        z = call(x, y + 0 * k)  # noqa: F841
    return x + 1


def _dead_sum_of_ops(call, x, y):
    total = 0 * call(np.ones_like(x) + np.eye(2, dtype=x.dtype), abs(y) + 1).ravel()[0]
    for _ in range(100):
        total = total + call(x, y).ravel()[0]
    return x + 1


def _dead_op_in_a_branch(call, x, y):
    if x[0, 0] < 2:
        call(x, y)
    return x + 1


DEAD_USES: list[Any] = [
    lambda call, x, y: (call(x, y), x + 1)[1],
    lambda call, x, y: (call(x, y) + 1, x + 1)[1],
    _dead_op_in_a_loop,
    _dead_op_in_a_branch,
]
RAISING: dict[str, Any] = {
    "inv": lambda x, y: np.linalg.inv(1.0 * x),
    "solve": lambda x, y: np.linalg.solve(1.0 * x, 1.0 * y),
    "cholesky": lambda x, y: np.linalg.cholesky(1.0 * x),
    "eigvals": lambda x, y: np.linalg.eigvals(x / 0.0),
    "svd": lambda x, y: np.linalg.svd(x / 0.0)[1],
    "power": lambda x, y: x**y,
    "max": lambda x, y: x[x > 5].max(),
    "argmin": lambda x, y: np.argmin(x[x > 5]),
    "sizes": lambda x, y: x[x == x] + y[y == y],
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("use", DEAD_USES)
@pytest.mark.parametrize("name", RAISING)
def test_an_op_that_raises_does_so_where_nothing_uses_its_result(name: str, use: Any) -> None:
    call, x, y = RAISING[name], np.zeros((2, 2), np.int64), np.array([-1, 2])
    with pytest.raises(Exception) as plain:
        use(call, x, y)
    with pytest.raises(type(plain.value)) as traced:
        dsl.jit(lambda x, y: use(call, x, y))(x, y)
    assert str(traced.value).startswith(str(plain.value).rstrip())


@pytest.mark.parametrize("use", DEAD_USES)
def test_an_op_that_nothing_uses_changes_nothing_if_it_does_not_raise(use: Any) -> None:
    x, y = np.array([[2, 0], [0, 9]]), np.array([1, 2])
    for name in ("inv", "solve", "cholesky", "power", "max", "argmin"):
        call = RAISING[name]
        check(lambda x, y, call=call: use(call, x, y), x, y)


def test_an_op_that_raises_does_not_where_its_branch_is_not_taken() -> None:
    check(lambda x, y: _dead_op_in_a_branch(RAISING["inv"], x, y), np.full((2, 2), 3), np.ones(2))


def test_a_sum_that_nothing_uses_raises_in_the_trip_that_does() -> None:
    for name in ("inv", "power"):
        call = RAISING[name]
        for x, y in (np.eye(2), np.array([1, -1])), (np.zeros((2, 2)), np.array([1, -1])):
            try:
                _dead_sum_of_ops(call, x.astype(int), y)
            except Exception as error:
                with pytest.raises(type(error)):
                    dsl.jit(lambda x, y, call=call: _dead_sum_of_ops(call, x, y))(x.astype(int), y)
            else:
                check(lambda x, y, call=call: _dead_sum_of_ops(call, x, y), x.astype(int), y)


def _solved(a, b):
    return np.linalg.solve(a, b).sum() + (b**3).max()


@pytest.mark.parametrize(
    "used",
    [
        lambda a, b: _solved(a, b),
        lambda a, b: dsl.grad(_solved, argnums=(0, 1))(a, b)[1],
        lambda a, b: dsl.gradients(_solved(a, b), [a, b])[1],
        lambda a, b: dsl.vjp(_solved, a, b)[1](np.float64(1))[1],
        lambda a, b: dsl.jvp(_solved, (a, b), (a, b))[1],
        lambda a, b: (b**2, b.max(), b + 1)[2],
    ],
)
def test_ops_that_are_used_or_cannot_raise_are_not_kept(used: Any) -> None:
    text = dsl.jit(used).ir(np.eye(2), np.ones(2), stage="traced")
    assert "keep(" not in text


def test_an_op_that_a_loop_uses_is_not_kept() -> None:
    def total(a, n):
        s = np.zeros_like(a)
        for i in range(n):
            if i % 2 == 0:
                s += np.linalg.inv(a + i)
        return s

    assert "keep(" not in dsl.jit(total).ir(np.eye(2), 3, stage="traced")


NOTHING: dict[str, Any] = {
    "a row of no columns": lambda x, i, k: x[i, :0],
    "rows of no columns": lambda x, i, k: x[k, :0],
    "a row of a view": lambda x, i, k: x[:, :0][i],
    "rows of a view": lambda x, i, k: x[:, :0][k],
    "a column of no rows": lambda x, i, k: x[:0, i],
    "columns of no rows": lambda x, i, k: x[:0, k],
    "take": lambda x, i, k: np.take(x[:, :0], k, axis=0),
    "a part of it": lambda x, i, k: np.take(x, k)[:0],
    "a number beside no indices": lambda x, i, k: x[k[:0], i],
    "a list": lambda x, i, k: x[[100], :0],
}


@pytest.mark.parametrize("name", NOTHING)
def test_indices_are_checked_where_there_is_nothing_to_read(name: str) -> None:
    for run in (NOTHING[name], dsl.jit(NOTHING[name])):
        with pytest.raises(IndexError, match="index 100 is out of bounds"):
            run(np.ones((2, 3)), 100, np.array([100]))


def test_what_numpy_does_not_look_at_is_not_checked() -> None:
    check(lambda x, k: x[k[:0], k], np.ones((2, 3)), np.array([100]))
    check(lambda x, k: np.take(x[:0], k, axis=1), np.ones((2, 3)), np.array([100]))


@pytest.mark.parametrize("places", [[0, 5], [0, 3], [0, -1], [7]])
@pytest.mark.parametrize("ufunc", [np.add, np.maximum, np.multiply])
def test_reduceat_refuses_places_outside(ufunc: Any, places: list[int]) -> None:
    x, starts = np.arange(3.0), np.array(places)
    with pytest.raises(IndexError) as plain:
        ufunc.reduceat(x, starts)
    with pytest.raises(IndexError) as traced:
        dsl.jit(lambda x, starts: ufunc.reduceat(x, starts))(x, starts)
    assert str(traced.value).startswith(str(plain.value))


def test_reduceat_of_no_segments() -> None:
    x = np.arange(6).reshape(2, 3) > 2
    check(lambda x: np.add.reduceat(x, np.zeros(0, int), axis=1), x)


# -- what an array of integers is given ----------------------------------------------------------------


@pytest.mark.parametrize("ufunc", [np.add, np.subtract, np.multiply, np.maximum, np.minimum])
@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.float32])
def test_at_computes_in_the_common_dtype(ufunc: Any, dtype: Any) -> None:
    def change(x, places, values):
        ufunc.at(x, places, values)
        return x

    x, places = np.array([3, 2, 100, 7]).astype(dtype), np.array([0, 1, 1, 2])
    check(change, x, places, 1.5)
    check(change, x, places, np.array([1.5, 0.5, 2.5, -0.5]))
    check(change, x, places, np.array([1, 300, 2, 200]))


def test_products_in_place_refuse_another_kind() -> None:
    def product(x, y):
        x @= y
        return x

    for run in (product, dsl.jit(product)):
        with pytest.raises(TypeError, match="Cannot cast ufunc 'matmul' output from"):
            run(np.eye(2, dtype=int), np.eye(2))
    check(product, np.eye(2, dtype=int), np.ones((2, 2), int))


UNSAFE: dict[str, Any] = {
    "putmask": lambda x, v: np.putmask(x, x > 0, v),
    "place": lambda x, v: np.place(x, x > 0, v),
    "argmax": lambda x, v: np.argmax(x, axis=0, out=v[:1].reshape(())),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_is_stored_fits_the_dtype(name: str) -> None:
    for run in (UNSAFE[name], dsl.jit(UNSAFE[name])):
        with pytest.raises(TypeError, match=r"Cannot cast .* according to the rule 'safe'"):
            run(np.array([1, 2]), np.array([1.5, 2.5]))


def test_numbers_that_are_put_are_converted() -> None:
    def put(x):
        np.putmask(x, x > 1, 2.5)
        np.place(x, x > 2, [7.5])
        return x

    check(put, np.array([1, 2, 3]))


def test_what_needs_bytes_or_a_number_of_bins_says_what_to_do() -> None:
    with pytest.raises(AttributeError, match="use its `tobytes` outside the compiled function"):
        dsl.jit(lambda x: x.tobytes())(ONE)
    with pytest.raises(TypeError, match=r"bins='auto': how many bins") as e:
        dsl.jit(lambda x: np.histogram(x, bins="auto"))(LOW)
    assert "give their number" in str(e.value)


@pytest.mark.parametrize("ufunc", [np.maximum, np.add, np.logical_and, np.hypot])
def test_methods_of_ufuncs_take_lists_of_arrays(ufunc: np.ufunc) -> None:
    x, y = (
        np.array([[1.0, 0.0, 2.0], [3.0, 1.5, 0.0]]),
        np.array([[2.0, 0.0, 1.0], [0.5, 1.0, 4.0]]),
    )
    check(lambda x, y: ufunc.reduce([x, y, x * y]), x, y)
    check(lambda x, y: ufunc.reduce((x > 1, y > 1), axis=1, keepdims=True), x, y)
    check(lambda x, y: ufunc.outer([x[0, 0], y[0, 1]], x), x, y)
    check(lambda x: ufunc.accumulate([x[0, 0], x[0, 2], x[1, 1]]), x)


def test_bincount_takes_weights_of_a_size_that_the_data_decides() -> None:
    f = dsl.jit(lambda at, counts, w: np.bincount(at, np.repeat(w, counts), minlength=4))
    weights = np.array([1.0, 2.0])
    np.testing.assert_array_equal(f(np.array([0, 1, 1]), np.array([1, 2]), weights), [1, 4, 0, 0])
    np.testing.assert_array_equal(f(np.array([3, 1]), np.array([2, 0]), weights), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="don't have the same length"):
        f(np.array([0, 1, 1]), np.array([1, 1]), weights)
    with pytest.raises(ValueError, match="object too deep"):
        dsl.jit(lambda at: np.bincount(at, np.ones((2, 1))))(np.array([0, 1]))


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_as_many_evenly_spaced_numbers_as_an_argument_says(count: int) -> None:
    def program(start, stop, n):
        same = np.linspace(start, start, n), np.linspace([start, stop], stop, n)
        logarithmic = np.logspace(start, stop, n), np.geomspace(start, stop, n)
        return np.linspace(start, stop, n), np.linspace(start, stop, n, endpoint=False), *same, *logarithmic  # fmt: skip

    check(program, 2.0, 5.0, count)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_step_between_as_many_numbers_as_an_argument_says(count: int) -> None:
    def program(n):
        return np.linspace(2.0, 5.0, n, retstep=True)[1], np.linspace(2.0, 5.0, n, False, True)[1]

    got, want = dsl.jit(program)(count), program(count)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("size", [0, 4, 6])
def test_reshape_beside_no_elements_raises_what_numpy_raises(size: int) -> None:
    def view(x, n):
        x[:1] = 9.0
        return x.reshape(n, -1)

    def copied(x, n):
        return (x * 2).reshape(-1, n).sum(axis=0)

    for function in (view, copied):
        compiled = dsl.jit(function)
        check(compiled, np.arange(4.0), 2)
        x = np.arange(float(size))
        with pytest.raises(ValueError, match="cannot reshape") as wanted:
            function(x.copy(), 0)
        with pytest.raises(ValueError, match="cannot reshape") as got:
            compiled(x, 0)
        assert str(wanted.value) in str(got.value)
        np.testing.assert_array_equal(x, np.arange(float(size)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_mask_without_elements_fits_any_array(dynamic: bool) -> None:
    def chosen(x: Any, mask: Any) -> Any:
        y = x.copy()
        y[mask] += 1
        return y, x[mask]

    compiled = dsl.jit(chosen, dynamic=dynamic)
    for shape, masked in (((3,), (0,)), ((5,), (0,)), ((3, 4), (0, 4)), ((6, 4), (0,)), ((6, 4), (6,))):  # fmt: skip
        args = np.ones(shape), np.ones(masked, bool)
        for found, expected in zip(compiled(*args), chosen(*args), strict=True):
            np.testing.assert_array_equal(found, expected)
    with pytest.raises(IndexError, match="boolean index did not match"):
        compiled(np.ones(6), np.ones(5, bool))
