"""Mutation: writes of compiled functions have NumPy's meaning, for the caller's arrays too."""

from __future__ import annotations

import copy
import gc
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from plainly import check_as_plain

import dsl

Function = Callable[..., Any]
TABLE = np.arange(4.0)


def line(n: int = 8) -> np.ndarray:
    return np.arange(1.0, n + 1)


def square(n: int = 4) -> np.ndarray:
    return np.arange(1.0, n * n + 1).reshape(n, n)


# -- assignment by subscript -----------------------------------------------------------------------


def all_of_it(x, v):
    x[...] = v


def one_item(x, v):
    x[2] = v


def last_item(x, v):
    x[-1] = v


def a_slice(x, v):
    x[2:5] = v


def every_third(x, v):
    x[1::3] = v


def backwards(x, v):
    x[6:1:-2] = v


def negative_bounds(x, v):
    x[-4:-1] = v


def clipped_slice(x, v):
    x[5:100] = v


def empty_slice(x, v):
    x[5:2] = v


@pytest.mark.parametrize(
    "write",
    [
        all_of_it, one_item, last_item, a_slice, every_third, backwards, negative_bounds,
        clipped_slice, empty_slice,
    ],
)  # fmt: skip
@pytest.mark.parametrize("v", [7, 2.5, np.float32(1.5)])
def test_a_scalar_is_written_where_numpy_writes_it(write: Function, v: Any) -> None:
    check_as_plain(write, line(), v)


def three_items(x, v):
    x[2:5] = v[:3]


def three_backwards(x, v):
    x[5:2:-1] = v[:3]


def broadcast_row(x, v):
    x.reshape(2, 4)[:, :3] = v[:3]


@pytest.mark.parametrize("write", [three_items, three_backwards, broadcast_row])
def test_an_array_is_written_where_numpy_writes_it(write: Function) -> None:
    check_as_plain(write, line(), 10 * line())


def row(x, v):
    x[1] = v[0]


def column(x, v):
    x[:, 1] = v[0]


def corner(x, v):
    x[1:3, ::2] = v[:2, :2]


def with_ellipsis(x, v):
    x[..., 0] = v[0]


def with_newaxis(x, v):
    x[:, None, 1] = v[0][:, None]


def with_newaxis_and_slices(x, v):
    x[None, 1:3, :] = v[2:]


def item_of_row(x, v):
    x[2][3] = v[0, 0]


@pytest.mark.parametrize(
    "write",
    [row, column, corner, with_ellipsis, with_newaxis, with_newaxis_and_slices, item_of_row],
)
def test_parts_of_a_matrix_are_written(write: Function) -> None:
    check_as_plain(write, square(), -square())


def mask_scalar(x):
    x[x > 3] = 0


def mask_array(x):
    x[x > 3] = np.arange(5.0)


def mask_augmented(x):
    x[x > 3] *= -1


def mask_rows(x):
    m = x.reshape(2, 4)
    m[m.sum(1) > 11] = -1.0


def mask_and_column(x):
    m = x.reshape(2, 4)
    m[m[:, 0] > 2, 1] = 0.5


def mask_of_result(x):
    x[x > 3] = np.sqrt(x[x > 3])


def mask_of_none(x):
    x[x > 100] = 1


def two_masks(x):
    x[(x > 2) & (x < 6)] += x[(x > 3) & (x < 7)]


@pytest.mark.parametrize(
    "write",
    [
        mask_scalar, mask_array, mask_augmented, mask_rows, mask_and_column, mask_of_result,
        mask_of_none, two_masks,
    ],
)  # fmt: skip
def test_boolean_masks_are_written(write: Function) -> None:
    check_as_plain(write, line())


def at_indices(x, i):
    x[i] = np.arange(len(i)) * 1.5


def scalar_at_indices(x, i):
    x[i] = 0


def augmented_at_indices(x, i):
    x[i] += 1


def pairs_of_indices(x, i):
    x.reshape(2, 4)[i % 2, i % 4] = i


def indices_and_slice(x, i):
    x.reshape(2, 4)[:, i % 4] = np.arange(len(i))


def list_of_indices(x, i):
    x[[0, -1]] = x[[-1, 0]]


@pytest.mark.parametrize(
    "write",
    [
        at_indices, scalar_at_indices, augmented_at_indices, pairs_of_indices, indices_and_slice,
        list_of_indices,
    ],
)  # fmt: skip
@pytest.mark.parametrize("i", [[0, 3, 5], [2, 2, -6], [-1, 7, 7]])
def test_integer_arrays_write_with_the_last_of_duplicates_winning(write: Function, i: Any) -> None:
    check_as_plain(write, line(), np.array(i))


def test_augmented_assignment_with_duplicates_adds_once() -> None:
    x = np.zeros(3)

    @dsl.jit
    def bump(x, i):
        x[i] += 1

    bump(x, np.array([1, 1, 1]))
    np.testing.assert_array_equal(x, [0, 1, 0])


def add_at(x, i):
    np.add.at(x, i, 1.0)


def add_at_array(x, i):
    np.add.at(x, i, np.array([1.0, 2.0, 4.0]))


def subtract_at(x, i):
    np.subtract.at(x, i, 1.0)


def maximum_at(x, i):
    np.maximum.at(x, i, 4.0)


def minimum_at(x, i):
    np.minimum.at(x, i, 4.0)


def multiply_at(x, i):
    np.multiply.at(x, i, 2.0)


@pytest.mark.parametrize(
    "write", [add_at, add_at_array, subtract_at, maximum_at, minimum_at, multiply_at]
)
def test_ufunc_at_counts_duplicates(write: Function) -> None:
    check_as_plain(write, line(), np.array([2, 2, -1]))


# -- functions and methods that write --------------------------------------------------------------


def out_of_ufunc(x, y):
    return np.add(x, y, out=x)


def out_as_tuple(x, y):
    np.multiply(x, y, out=(y,))


def out_slice(x, y):
    np.negative(x[:4], out=x[4:])


def out_with_where(x, y):
    np.sqrt(x, out=y, where=x > 4)


def out_of_reduction(x, y):
    np.sum(x.reshape(2, 4), axis=0, out=y[:4])


def out_of_cumulative(x, y):
    np.cumsum(x, out=y)


def out_of_matmul(x, y):
    np.matmul(x.reshape(2, 4), np.eye(4), out=y.reshape(2, 4))


def out_of_clip(x, y):
    np.clip(x, 2, 5, out=x)


def sorts(x, y):
    y.sort()
    x[::-1].sort()


def sorts_an_axis(x, y):
    y.reshape(2, 4).sort(axis=0)


def fills(x, y):
    x.fill(0)
    y[2:4].fill(3.5)


def copies_to(x, y):
    np.copyto(x, y)
    np.copyto(y, 0.0, where=y > 5)


def puts(x, y):
    np.put(x, [0, -1], [8.0, 9.0])


def puts_mask(x, y):
    np.putmask(x, x > 3, y)


def places(x, y):
    np.place(x, x > 3, [1.0, 2.0])


def fills_diagonal(x, y):
    np.fill_diagonal(x.reshape(2, 4), -1.0)


def puts_along_axis(x, y):
    np.put_along_axis(x.reshape(2, 4), np.array([[1], [3]]), 0.0, axis=1)


@pytest.mark.parametrize(
    "write",
    [
        out_of_ufunc, out_as_tuple, out_slice, out_with_where, out_of_reduction, out_of_cumulative,
        out_of_matmul, out_of_clip, sorts, sorts_an_axis, fills, copies_to, puts, puts_mask, places,
        fills_diagonal, puts_along_axis,
    ],
)  # fmt: skip
def test_functions_write_into_arguments(write: Function) -> None:
    check_as_plain(write, line(), line()[::-1].copy())


# -- views -----------------------------------------------------------------------------------------


def through_row(x):
    r = x[1]
    r[2] = -1


def through_row_of_row(x):
    x[1:3][1][:2] = -1


def through_transpose(x):
    x.T[0] = -1


def through_swapped_axes(x):
    np.swapaxes(x, 0, 1)[2, 1:] = -1


def through_reshape(x):
    x.reshape(2, 8)[1, ::2] = -1


def through_ravel(x):
    x.ravel()[5] = -1


def through_ravel_copy(x):
    flat = x.T.ravel()
    flat[5] = -1
    return flat


def through_reshape_copy(x):
    flat = x[:, :2].reshape(-1)
    flat[0] = -1
    return flat


def through_flatten(x):
    x.flatten()[0] = -1


def through_flip(x):
    x[::-1, ::-1][0, 0] = -1


def through_diagonal_slice(x):
    x.reshape(-1)[:: x.shape[0] + 1] = -1


def through_squeeze_and_expand(x):
    np.squeeze(np.expand_dims(x, 0))[0] = -1


def through_split(x):
    top, bottom = np.split(x, 2)
    top[0] = -1
    bottom += 1


def through_newaxis(x):
    x[:, np.newaxis][1, 0] = -1


def through_broadcast_reads(x):
    y = np.broadcast_to(x[0], x.shape)
    x[0, 0] = -1
    return y.sum()


def through_loop_over_rows(x):
    for r in x:
        r[0] = r.sum()


def seen_by_all_names(x):
    y = x
    z = x[1]
    y[1] = 0
    x[1, 2] = 5
    return z.sum()


def augmented_name(x):
    y = x
    y += 1
    y = y + 1
    y[0] = 100


def copies_are_apart(x):
    y = x.copy()
    y[:] = 0
    z = np.array(x)
    z[:] = 0
    w = x[[0, 1]]
    w[:] = 0
    np.asarray(x)[3, 3] = -1


@pytest.mark.parametrize(
    "write",
    [
        through_row, through_row_of_row, through_transpose, through_swapped_axes, through_reshape,
        through_ravel, through_ravel_copy, through_reshape_copy, through_flatten, through_flip,
        through_diagonal_slice, through_squeeze_and_expand, through_split, through_newaxis,
        through_broadcast_reads, through_loop_over_rows, seen_by_all_names, augmented_name,
        copies_are_apart,
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", ["C", "F"])
def test_writes_show_through_views(write: Function, layout: Any) -> None:
    check_as_plain(write, np.asarray(square(), order=layout))


def real_part(z):
    z.real[1:] = 0


def imaginary_part(z):
    z.imag = -z.imag


def imaginary_slice(z):
    z[::2].imag[...] += 1


@pytest.mark.parametrize("write", [real_part, imaginary_part, imaginary_slice])
def test_parts_of_complex_arrays_are_written(write: Function) -> None:
    check_as_plain(write, line(4) + 1j * line(4))


def shift_right(x):
    x[1:] = x[:-1]


def shift_left(x):
    x[:-1] = x[1:]


def reverse(x):
    x[:] = x[::-1]


def shift_and_add(x):
    x[1:] += x[:-1]


def shift_by_ufunc(x):
    np.multiply(x[:-1], 2, out=x[1:])


def swap_ends(x):
    x[0], x[-1] = x[-1], x[0]


def swap_halves(x):
    x[:4], x[4:] = x[4:].copy(), x[:4].copy()


@pytest.mark.parametrize(
    "write",
    [shift_right, shift_left, reverse, shift_and_add, shift_by_ufunc, swap_ends, swap_halves],
)
def test_overlapping_slices_are_read_before_they_are_written(write: Function) -> None:
    check_as_plain(write, line())


# -- the caller's arrays ---------------------------------------------------------------------------


def test_a_captured_global_array_is_written() -> None:
    @dsl.jit
    def bump(k):
        TABLE[k] += 1
        return TABLE.sum()

    TABLE[:] = 0
    assert bump(2) == 1
    assert bump(2) == 2
    np.testing.assert_array_equal(TABLE, [0, 0, 2, 0])


def test_a_captured_array_of_an_enclosing_function_is_written() -> None:
    held = np.zeros(3)

    @dsl.jit
    def bump():
        held[1:] += 1

    bump()
    np.testing.assert_array_equal(held, [0, 1, 1])


def test_arrays_in_arguments_that_are_trees_are_written() -> None:
    state = {"a": line(3), "b": [line(2), (line(2),)]}

    @dsl.jit
    def clear(state):
        state["a"][0] = 0
        state["b"][0][:] = 1
        state["b"][1][0][1] = 2

    kept = state["b"][1][0]
    clear(state)
    np.testing.assert_array_equal(state["a"], [0, 2, 3])
    np.testing.assert_array_equal(state["b"][0], [1, 1])
    assert state["b"][1][0] is kept
    np.testing.assert_array_equal(kept, [1, 2])


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x[1:3], lambda x: x.T, lambda x: x[::2, ::-1], lambda x: x.reshape(-1),
        lambda x: x[:, None], lambda x: x[1], lambda x: (x, x[0])[1], lambda x: np.ravel(x)[3:],
    ],
)  # fmt: skip
def test_a_view_that_is_returned_shares_memory_with_the_argument(look: Function) -> None:
    x = square()
    got = dsl.jit(look)(x)
    assert np.shares_memory(got, x)
    want = look(x)
    assert (got.shape, got.ctypes.data) == (want.shape, want.ctypes.data)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "look",
    [
        lambda x, i: x[i], lambda x, i: x[i:], lambda x, i: x[:, i : i + 2], lambda x, i: x[i::-1], lambda x, i: x[:: i + 1],
        lambda x, i: x.T[i, 1:], lambda x, i: x[i:].reshape(-1), lambda x, i: x[x[:, i].argmax()], lambda x, i: x[-i:, ::-1],
        lambda x, i: x[len(x) // 2 - i :],
    ],
)  # fmt: skip
def test_a_returned_view_at_a_place_that_the_run_decides_is_one(look: Function) -> None:
    compiled = dsl.jit(look)
    for i in (1, 2, np.int64(0)):
        x = square()
        got, want = compiled(x, i), look(x, i)
        assert (got.shape, got.ctypes.data) == (want.shape, want.ctypes.data)
        got += 1
        np.testing.assert_array_equal(got, want)


def test_views_at_places_of_the_run_are_kept_in_attributes_and_lists() -> None:
    @dsl.jit
    def keep(rows, i):
        rows[0][i] += 1
        rows.append(rows[0][i:])
        return rows[0][i], i

    rows = [square()]
    row, i = keep(rows, 1)
    row[0] = 100
    assert i == 1
    assert rows[0][1, 0] == rows[1][0, 0] == 100


def test_a_returned_view_at_a_place_outside_of_the_array_raises_before_anything_is_written() -> (
    None
):
    @dsl.jit
    def change(x, i):
        x[0] = 5
        return x[i]

    x = square()
    with pytest.raises(IndexError, match=f"index 9 is out of bounds for axis 0 with size {len(x)}"):
        change(x, 9)
    np.testing.assert_array_equal(x, square())


def test_results_that_are_copies_share_nothing() -> None:
    x = square()
    for function in (lambda x: x.copy(), lambda x: x[[0, 1]], lambda x: x + 0, lambda x: +x):
        assert not np.shares_memory(dsl.jit(function)(x), x)


def test_views_of_one_result_share_memory() -> None:
    @dsl.jit
    def pair(x):
        y = x + 1
        return y, y[1:]

    whole, rest = pair(line())
    rest[0] = 100
    assert whole[1] == 100


def test_equal_results_made_apart_are_apart() -> None:
    @dsl.jit
    def pair(x):
        return np.zeros(3), np.zeros(3), x + 1, x + 1

    results = pair(line())
    assert not np.shares_memory(results[0], results[1])
    assert not np.shares_memory(results[2], results[3])
    results[0][0] = 1
    assert pair(line())[0][0] == 0


def test_returning_an_argument_returns_the_same_object() -> None:
    @dsl.jit
    def bump(x, y):
        x += 1
        return x, [y]

    x, y = line(), line()
    a, [b] = bump(x, y)
    assert a is x
    assert b is y


def test_returning_a_captured_array_returns_the_same_object() -> None:
    held = line()
    assert dsl.jit(lambda: held)() is held


def test_the_contents_of_two_arguments_are_exchanged() -> None:
    def exchange(x, y):
        kept = x.copy()
        x[:] = y
        y[:] = kept

    check_as_plain(exchange, line(), -line())


def test_a_result_can_be_written_by_the_caller() -> None:
    for function in (lambda: np.zeros(3), lambda: np.full(3, 2.0), lambda: np.array([1.0, 2.0])):
        compiled = dsl.jit(function)
        compiled()[0] = 100
        np.testing.assert_array_equal(compiled(), function())


def test_the_same_array_passed_twice_is_one_array() -> None:
    def step(x, y):
        x[0] = 10
        y[1] = x[0] + y[0]
        return x.sum()

    compiled = dsl.jit(step)
    x = line()
    assert compiled(x, x) == 10 + 20 + sum(range(3, 9))
    a, b = line(), line()
    assert compiled(a, b) == 10 + sum(range(2, 9))
    np.testing.assert_array_equal(b[:2], [1, 11])


def write_and_read_table(x):
    x[0] = x[0] + 5
    return TABLE[0]


def test_a_captured_array_that_is_an_argument_too_is_one_array() -> None:
    TABLE[:] = 0
    compiled = dsl.jit(write_and_read_table)
    assert compiled(np.zeros(4)) == 0
    assert compiled(TABLE) == 5
    assert compiled(TABLE) == 10


def test_a_captured_array_that_was_an_argument_at_first_is_not_always_one() -> None:
    TABLE[:] = 0
    compiled = dsl.jit(write_and_read_table)
    assert compiled(TABLE) == 5
    assert compiled(np.ones(4)) == 5
    np.testing.assert_array_equal(TABLE, [5, 0, 0, 0])


def test_a_captured_array_that_overlaps_an_argument_is_refused() -> None:
    TABLE[:] = 0
    with pytest.raises(dsl.errors.AliasError, match="overlap"):
        dsl.jit(write_and_read_table)(TABLE[:2])
    np.testing.assert_array_equal(TABLE, 0)


def test_a_written_argument_whose_own_elements_overlap_is_refused() -> None:
    @dsl.jit
    def add(x, y):
        x += y

    memory = np.zeros(9)
    for _ in range(2):  # the first call is taken by another way than those after it
        with pytest.raises(dsl.errors.AliasError, match="elements may share memory"):
            add(
                np.lib.stride_tricks.sliding_window_view(memory, 3, writeable=True), np.ones((7, 3))
            )
    assert not memory.any()


# -- windows and grids that are views -------------------------------------------------------------------------------------

windows_of = np.lib.stride_tricks.sliding_window_view


def windows_of_rows(x):
    return windows_of(x, 3, axis=1)


def windows_of_blocks(x):
    return windows_of(x, (2, 2))[::2, ::2]


def windows_of_windows(x):
    return windows_of(windows_of(x.T, 2, axis=0), 2, axis=1)


def one_window(x):
    return windows_of(x[1, ::-1], 3)[2]


def windows_reshaped(x):
    return windows_of(x, (2, 2)).reshape(-1, 4)


strided = np.lib.stride_tricks.as_strided


def strided_blocks(x):
    (a, b), (s, t) = x.shape, x.strides
    return strided(x, (a // 2, b // 3, 2, 3), (2 * s, 3 * t, s, t))


def strided_diagonal(x):
    return strided(x, (min(x.shape),), (sum(x.strides),))


def strided_backwards(x):
    return strided(x[::-1, ::-1], (2, 3), (-x.strides[0], x.strides[1] * -1))


def strided_antidiagonal(x):
    flipped = x[:, ::-1]
    return strided(flipped, (3,), (sum(flipped.strides),))


def strided_windows(x):
    return strided(x, (x.shape[0] - 1, x.shape[1] - 2, 2, 3), x.strides + x.strides)


def strided_over_the_ends_of_rows(x):
    x = x.ravel()
    return strided(x, (x.size - 4, 4), 2 * x.strides)


def strided_repeats(x):
    return strided(x[1], (3, x.shape[1]), (0, x.strides[1]), writeable=False)


def strided_shape(x):
    return strided(x.copy(), (2, 3))


def grids(x):
    return np.meshgrid(x[0], x[:, 1], copy=False)[0]


def sparse_grids(x):
    return np.meshgrid(x[0], x[:, 1], copy=False, sparse=True)[1]


def sparse_copies(x):
    return np.meshgrid(x[0], x[:, 1], sparse=True)[1]


WINDOWS = [windows_of_rows, windows_of_blocks, windows_of_windows, one_window]
APART = [strided_blocks, strided_diagonal, strided_backwards, strided_antidiagonal, strided_shape]
OVERLAPPING = [strided_windows, strided_over_the_ends_of_rows]
GRIDS = [
    *APART,
    *OVERLAPPING,
    strided_repeats,
    windows_reshaped,
    grids,
    sparse_grids,
    sparse_copies,
]


@pytest.mark.parametrize("part", WINDOWS + GRIDS)
def test_windows_and_grids_show_what_is_written_later(part: Function) -> None:
    def after(x):
        seen = part(x)
        x *= 3
        return seen, seen.sum()

    def in_a_loop(x):
        seen, total = part(x), 0.0
        for i in range(3):
            x[0, i] = total + 1
            total += seen.sum()
        return total

    for program in (after, in_a_loop):
        compiled = dsl.jit(program)
        for shape in ((4, 6), (5, 7), (6, 9), (4, 6)):
            mine, plain = (np.arange(float(shape[0] * shape[1])).reshape(shape) for _ in range(2))
            got, want = compiled(mine), program(plain)
            np.testing.assert_equal(got, want)
            np.testing.assert_array_equal(mine, plain)
            if program is after:
                assert np.shares_memory(got[0], mine) == np.shares_memory(want[0], plain)


@pytest.mark.parametrize("part", WINDOWS)
def test_windows_are_read_only(part: Function) -> None:
    def write(x):
        part(x)[...] = 5.0

    x = np.arange(24.0).reshape(4, 6)
    for function in (write, dsl.jit(write)):
        with pytest.raises(ValueError, match="assignment destination is read-only"):
            function(x)
    assert not dsl.jit(part)(x).flags.writeable
    np.testing.assert_array_equal(x.ravel(), np.arange(24.0))


@pytest.mark.parametrize("part", APART)
@pytest.mark.parametrize("order", ["C", "F"])
def test_strided_views_are_written(part: Function, order: Any) -> None:
    def write(x):
        part(x)[...] = 5.0
        return x.sum()

    check_as_plain(write, np.asarray(np.arange(24.0).reshape(4, 6), order=order))
    check_as_plain(write, np.arange(96.0).reshape(8, 12)[::2, 1::2])


@pytest.mark.parametrize("part", OVERLAPPING)
def test_strided_views_of_elements_that_are_there_more_than_once_are_not_written(
    part: Function,
) -> None:
    def write(x):
        part(x)[...] = 5.0

    with pytest.raises(dsl.errors.UnsupportedError, match="elements more than once"):
        dsl.jit(write)(np.arange(24.0).reshape(4, 6))


@pytest.mark.parametrize(
    ("shape", "strides"), [((5, 6), (48, 8)), ((2,), (-8,)), ((2,), (4,)), ((23, 3), (8, 8))]
)
def test_strided_views_stay_inside_the_array(shape: Any, strides: Any) -> None:
    with pytest.raises(dsl.errors.UnsupportedError, match="beyond or between the elements"):
        dsl.jit(lambda x: strided(x, shape, strides))(np.arange(24.0).reshape(4, 6))


def test_strides_of_new_arrays_in_the_order_of_an_argument_are_refused() -> None:
    compiled = dsl.jit(lambda x: (x + 1).strides)
    assert compiled(np.ones((4, 6))) == (48, 8)
    with pytest.raises(dsl.errors.UnsupportedError, match="lie in memory as those of an argument"):
        compiled(np.ones((4, 6), order="F"))


def test_windows_that_may_be_written_are_read_and_returned_but_not_written() -> None:
    @dsl.jit
    def seen(x):
        return windows_of(x, 3, writeable=True)

    @dsl.jit
    def write(x):
        windows_of(x, 3, writeable=True)[0] = 1.0

    x = np.arange(6.0)
    seen(x)[1, 2] = 9.0
    assert x[3] == 9.0
    with pytest.raises(dsl.errors.UnsupportedError, match="windows, which share their elements"):
        write(x)


def swap_names(x, y, n):
    for _ in range(n):
        y[1:-1] = 0.5 * (x[2:] + x[:-2])
        x, y = y, x
    return x


def swap_in_while(x, y, n):
    k = 0
    while k < n:
        y[...] = x + 1
        x, y = y, x
        k += 1
    return x, y


@pytest.mark.parametrize("function", [swap_names, swap_in_while])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_names_swapped_in_a_loop_write_the_right_arrays(function: Function, n: int) -> None:
    x, y = line(), np.zeros(8)
    plain = [x.copy(), y.copy()]
    want, got = function(*plain, n), dsl.jit(function)(x, y, n)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal([x, y], plain)


@pytest.mark.parametrize("x", [[1.0, 2.0], [1.0, -2.0], [-1.0, 2.0]])
def test_a_loop_that_is_unrolled_after_all_writes_once(
    x: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Which array `d` is depends on branches, so that names cannot change places in a loop of the graph."""

    def swapped_after_branches(x, y):
        a, c, d = x + 0.0, x + y, x - y
        if x[0] > 0:
            if x[1] > 0:
                d = x + 1
            y[0] = 5
        for i in range(2):
            print("trip", i)
            a[i] = 10 * a[i]
            y[i] += 1
            c, d = d, c
        return a, c, d

    args = (np.array(x), np.array([3.0, 4.0]))
    plain, mine = copy.deepcopy(args), copy.deepcopy(args)
    expected = swapped_after_branches(*plain)
    printed = capsys.readouterr().out
    found = dsl.jit(swapped_after_branches)(*mine)
    assert capsys.readouterr().out == printed
    for got, wanted in zip((*found, *mine), (*expected, *plain), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_swap_of_new_arrays_in_a_loop() -> None:
    def relax(x, n):
        a, b = x.copy(), np.zeros_like(x)
        for _ in range(n):
            b[1:-1] = a[:-2] + a[2:]
            a, b = b, a
        return a

    check_as_plain(relax, line(), 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: square(6)[::2, 1::2], lambda: square(3).T, lambda: square(3)[::-1],
        lambda: np.asfortranarray(square(3)), lambda: square(6)[:3, :3], lambda: square(3)[:, ::-1],
    ],
)  # fmt: skip
def test_arguments_that_are_not_contiguous_are_written_in_place(make: Function) -> None:
    def step(x):
        x[1:, 0] = x[0, 1:]
        x *= 2
        return x.sum(axis=0)

    mine, plain = make(), make()
    np.testing.assert_array_equal(dsl.jit(step)(mine), step(plain))
    np.testing.assert_array_equal(mine, plain)
    np.testing.assert_array_equal(mine.base, plain.base)


def test_a_write_in_one_branch_only() -> None:
    def maybe(x):
        if x[0] > 3:
            x[1] = -1
        else:
            x[2:] *= 2
        return x[1]

    check_as_plain(maybe, line())
    check_as_plain(maybe, 10 * line())


def test_values_are_cast_to_the_dtype_of_the_target() -> None:
    def write(x, v):
        x[1] = 2.9
        x[2:4] = v[:2]

    check_as_plain(write, np.arange(5), 1.7 * line())
    check_as_plain(write, np.arange(5, dtype=np.uint8), 1.7 * line())
    check_as_plain(write, np.zeros(5, np.float32), 0.1 * line())


def test_writes_in_a_loop_are_seen_by_later_trips() -> None:
    def fibonacci(x):
        for i in range(2, len(x)):
            x[i] = x[i - 1] + x[i - 2]

    check_as_plain(fibonacci, np.ones(12, np.int64))


def test_writes_into_arrays_that_a_library_copied_are_seen() -> None:
    kept = [np.ones(3), np.arange(3)]

    def first(data, scale):
        scale[0] = 7
        return (data * scale).sum()

    def call(data):
        parts = copy.deepcopy(kept)
        parts[0] = data
        return first(*parts)

    x = np.array([1.0, 2.0, 3.0])
    assert dsl.jit(call)(x) == call(x) == 15.0
    np.testing.assert_array_equal(kept[1], [0, 1, 2])


def test_writes_after_a_conditional_swap_in_a_loop_reach_the_callers_array() -> None:
    def swapping(m, n):
        a = m.copy()
        for _ in range(2):
            for j in range(2):
                a[j] = 5.0
                if n > 1:
                    m, a = a, m
        return a

    def outer(m, n):
        return swapping(m, n), m

    for fn in (swapping, outer):
        for n in (1, 2):
            check_as_plain(fn, np.arange(3.0), n)


# -- arrays that branches and loops choose -----------------------------------------------------------


def chosen_in_nested_branches(x):
    base = np.zeros_like(x)
    best = base
    if x[0] > 0:
        if x[1] > 0:
            best = best * 0.5 + x[0]
        if x[2] > 0:
            best = best * 0.5 + x[1]
    best[0] = 7
    return best, base


def one_of_three(x):
    base, other = np.zeros_like(x), np.ones_like(x)
    best = base
    if x[0] > 0:
        best = base if x[1] > 0 else other
    elif x[2] > 0:
        best = other
    best[0] = 7
    return best, base, other


def rebound_and_written_in_nested_branches(x):
    best = np.zeros_like(x)
    for i in range(len(x)):
        if i % 2 == 0:
            if x[i] > 0:
                best = best * 0.5 + x[i]
            elif x[i] < -1:
                best[i] = x[i]
    return best


def picked(a, b, first, doubled):
    if first:
        if doubled:
            return a * 2
        return a
    return b


def what_a_function_picked(x):
    p, q = np.zeros(3), np.ones(3)
    for i in range(3):
        y = picked(p, q, x[0] > 0, x[i] > 1)
        y[i] += 7
    return p, q, y


def first_positive(rows, x):
    for i in range(3):
        if x[i] > 0:
            return rows[i]
    return np.zeros(3)


def what_a_function_found(x):
    rows = [np.zeros(3), np.ones(3), np.full(3, 2.0)]
    found = first_positive(rows, x)
    found += 100
    return rows, found


SIGNS = [np.array(s) * [1.0, 2.0, 3.0] for s in itertools.product((1.0, -1.0), repeat=3)]


@pytest.mark.parametrize(
    "write",
    [
        chosen_in_nested_branches, one_of_three, rebound_and_written_in_nested_branches, what_a_function_picked,
        what_a_function_found,
    ],
)  # fmt: skip
def test_write_goes_to_the_array_that_branches_chose(write: Function) -> None:
    for x in SIGNS:
        check_as_plain(write, x)


def chosen_by_a_loop(x):
    base, other = np.zeros_like(x), np.ones_like(x)
    best = base
    for i in range(len(x)):
        if x[i] > 0:
            best = other
    best[0] = 7
    return best, base, other


def kept_by_a_loop(x):
    base = np.zeros_like(x)
    best = base
    for i in range(len(x)):
        if x[i] > 0:
            if i > 0:
                best = best * 0.5 + 1
            if i > 1:
                best = best * 0.5 + 2
    best[0] = 7
    return best, base


def exchanged_by_a_loop(x):
    a, b = np.zeros_like(x), np.ones_like(x)
    first = a
    for i in range(len(x)):
        if x[i] > 0:
            a, b = b, a
    a[0] = 7
    return a, b, first


def view_chosen_twice(x):
    v = x[1:]
    if x[0] > 0:
        v = x[:2]
    w = v if x[1] > 0 else v * 2
    w[0] = 9
    return v, w


def row_found_by_a_function(x):
    rows = np.arange(9.0).reshape(3, 3)
    found = first_positive(rows, x)
    found += 100
    return rows, found


@pytest.mark.parametrize(
    "write", [chosen_by_a_loop, kept_by_a_loop, exchanged_by_a_loop, view_chosen_twice, row_found_by_a_function]
)  # fmt: skip
def test_write_to_what_is_perhaps_another_array_is_refused(write: Function) -> None:
    for x in SIGNS:
        before = x.copy()
        with pytest.raises(dsl.DslError, match="may or may not share memory"):
            dsl.jit(write)(x)
        np.testing.assert_array_equal(x, before)


def sum_of_chosen(rows, x):
    best = rows[0]
    for i in range(len(x)):
        if x[i] > 0:
            best = rows[i]

    def again():
        return again, best

    return again()[1].sum()


def written_after_a_choice(x):
    rows = np.arange(9.0).reshape(3, 3)
    chosen = sum_of_chosen(rows, x)
    rows[0] = 5
    return rows, chosen


def count_of_kept(row, x):
    rows = []
    for v in x:
        if v > 0:
            rows.append(row)

    def again():
        return again, rows

    return len(again()[1])


def written_after_a_list(x):
    total = 0.0
    if x[0] > 0:
        row = x * 2
        total += count_of_kept(row, x)
        row[0] += 5
        total += row.sum()
    return total


@pytest.mark.parametrize("write", [written_after_a_choice, written_after_a_list])
def test_what_only_a_cycle_of_garbage_holds_is_no_reason_to_refuse(write: Function) -> None:
    """Whether a program compiles must not depend on when Python collected garbage last."""
    gc.disable()
    try:
        for x in SIGNS:
            check_as_plain(write, x)
    finally:
        gc.enable()


def test_arrays_that_many_branches_swap_are_refused_at_once() -> None:
    """The ways from one array to those that may be the same memory double with each swap."""

    @dsl.jit
    def f(x):
        p, q, r, s = x + 1, x + 2, x + 3, x + 4
        for i in dsl.unroll(range(6)):
            if x[i] > 0:
                p, q = q, p
            if x[i] > 1:
                q, r = r, q
            if x[i] > 2:
                r, s = s, r
            p[0] = 7.0
        return p + q

    with pytest.raises(dsl.errors.AliasError, match="too many arrays may be the same memory"):
        f(np.arange(6.0))


# -- flat, boolean scalars, parts of numbers ---------------------------------------------------------


def write_flat(x):
    x.flat[1] = 50.0
    x.flat[2:4] = 7.0
    x.flat[[0, -1]] = [8.0, 9.0]
    taken = x.flat[:3]
    taken[0] = -1.0
    return taken


def fill_flat(x):
    x.flat[::2] = [1.0, 2.0, 3.0]
    x.T.flat[0] += 1.0


def assign_flat(x):
    x.flat = [1.0, 2.0, 3.0]


LAYOUTS = {
    "rows": square(),
    "columns": np.asfortranarray(square()),
    "transposed": square().T,
    "strided": np.arange(64.0).reshape(8, 8)[::2, ::-2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", [write_flat, fill_flat, assign_flat])
def test_flat_writes_to_arrays_of_every_layout(program: Function, layout: str) -> None:
    want, got = LAYOUTS[layout].copy(order="K"), LAYOUTS[layout].copy(order="K")
    np.testing.assert_array_equal(dsl.jit(program)(got), program(want))
    np.testing.assert_array_equal(got, want)


def zero_where_negative(x):
    x[x < 0] = 0.0
    x[x > 5] *= 2.0
    return x[x > 1]


@pytest.mark.parametrize("number", [-3.0, 3.0, 7.0])
def test_masks_of_arrays_without_axes(number: float) -> None:
    check_as_plain(zero_where_negative, np.array(number))
    check_as_plain(zero_where_negative, np.array([number, 6.0]))


def test_boolean_scalars_are_masks_of_new_axes() -> None:
    def program(x, flag):
        some, none, row = x[flag], x[~flag], x[1, flag, :2]
        x[flag, 0] = 5.0
        return some, none, row, x[True, [0, 2]], x[None, flag]

    check_as_plain(program, square(), np.bool_(True))
    check_as_plain(program, square(), np.bool_(False))


def test_imaginary_part_of_reals_cannot_be_set() -> None:
    def program(x):
        x.imag = 1.0

    with pytest.raises(TypeError, match="array does not have imaginary part to set"):
        dsl.jit(program)(np.ones(3))


def test_conj_of_reals_is_the_array_itself() -> None:
    def program(x, flags):
        x.conj()[0] = 5.0
        return flags.conj()

    check_as_plain(program, np.ones(3), np.array([True, False]))


# -- memory that loops exchange ---------------------------------------------------------------------


def test_what_is_written_after_a_loop_is_not_in_memory_that_goes_back_to_an_argument() -> None:
    def program(u, x):
        for _ in range(3):
            old = u.copy()
            u[1:-1] = old[:-2] + old[2:]
        x[:] = np.sort(x)

    check_as_plain(program, line(), line()[::-1].copy())


@pytest.mark.parametrize("trips", [1, 2, 3, 4, 5])
def test_results_of_loops_are_not_in_an_argument_s_memory(trips: int) -> None:
    def program(x):
        y = x * 2
        for i in range(trips):
            z = x.copy()
            x[i] += 1
            z[i] -= 1
            y = z
        return y

    check_as_plain(program, line())
    x = line()
    assert not np.shares_memory(dsl.jit(program)(x), x)


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
@pytest.mark.parametrize(
    "made",
    [
        lambda x: x, lambda x: x.T, lambda x: x.transpose(1, 0, 2), lambda x: x.T + 1, lambda x: x.T[::2], lambda x: x[::-1].T,
        lambda x: x[:1].T, lambda x: x[:, ::2], lambda x: x.T.copy(), lambda x: x.T.astype(np.float32),
    ],
)  # fmt: skip
def test_orders_that_follow_memory(made: Function, order: str) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    for given in (x, np.asfortranarray(x), x.transpose(2, 0, 1), x[:, :, ::2]):
        check_as_plain(lambda x: made(x).ravel(order), given)
        check_as_plain(lambda x: made(x).flatten(order=order), given)
        if order != "K":
            check_as_plain(lambda x: np.reshape(made(x), (-1, 2), order), given)


def test_an_order_that_is_none() -> None:
    x = np.ones((2, 2))
    with pytest.raises(ValueError, match="order 'K' is not permitted for reshaping"):
        dsl.jit(lambda x: x.reshape(4, order="K"))(x)
    with pytest.raises(ValueError, match="order must be one of 'C', 'F', 'A', or 'K'"):
        dsl.jit(lambda x: x.ravel("Z"))(x)


def test_the_order_of_memory_that_is_not_known() -> None:
    @dsl.jit(dynamic=True)
    def f(x):
        return (x.T + 1)[::2].ravel("K")

    with pytest.raises(dsl.errors.UnsupportedError, match="not known while the function is traced"):
        f(np.ones((3, 4)))


def _put_slice(x, i):
    x[0] = x[:1]
    return x


def _add_slice(x, i):
    x[0] += x[1:2]
    return x


def _put_list(x, i):
    x[0] = [2.0]
    return x


def _put_at_place_of_the_run(x, i):
    x[i] = x[:1]
    return x


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("put", [_put_slice, _add_slice, _put_list, _put_at_place_of_the_run])
def test_elements_take_arrays_of_one_element_where_this_numpy_lets_them(put: Function) -> None:
    try:
        want = put(line(), 1)
    except ValueError:
        with pytest.raises(ValueError, match="setting an array element with a sequence"):
            dsl.jit(put)(line(), 1)
    else:
        np.testing.assert_array_equal(dsl.jit(put)(line(), 1), want)


def test_slices_of_one_element_take_arrays_of_one_element() -> None:
    def fill(x):
        x[..., 0] = np.array([1.0])
        x[0:1] = np.array([[2.0]])
        x[[1]] = np.array([[3.0]])
        return x

    check_as_plain(fill, line())


# -- through masks -----------------------------------------------------------------------------------------------------


def escape(c, n):
    z, counts = np.zeros_like(c), np.zeros(c.shape, np.int32)
    for _ in range(n):
        m = z.real**2 + z.imag**2 < 4
        z[m] = z[m] ** 2 + c[m]
        counts[m] += 1
    return z, counts


def logarithms(x, y):
    m = x > 0
    out = np.full_like(x, -1.0)
    out[m] = np.log(x[m]) * y[m] + 2
    y[m] -= x[m]
    return out, y


def kept_values(x, y):
    m = x > y
    taken = x[m]
    x[m] = taken * 2
    return taken, x


def integers(x, y):
    m = x != 0
    z = x.astype(np.int64)
    z[m] = z[m] // (z[m] - 3)
    z[m] += z[m] > 2
    return z


def other_values(x, y):
    m = x > 0
    x[m] = np.arange(m.sum()) * 1.0
    x[x < y] = y[y > x]
    return x


@pytest.mark.parametrize("program", [logarithms, kept_values, integers, other_values])
def test_updates_through_masks(program: Any) -> None:
    rng = np.random.default_rng(5)
    for shape in ((7,), (40, 30), (2, 3, 4), (0,), (1,)):
        x, y = rng.integers(-3, 4, shape) * 1.5, rng.standard_normal(shape)
        mine, theirs = (x.copy(), y.copy()), (x.copy(), y.copy())
        with np.errstate(all="ignore"):
            got, want = dsl.jit(program)(*mine), program(*theirs)
        for a, b in zip(
            got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)
        ):
            np.testing.assert_allclose(a, b, rtol=1e-14)
        for a, b in zip(mine, theirs):
            np.testing.assert_allclose(a, b, rtol=1e-14)


def test_updates_through_masks_in_loops_are_choices() -> None:
    c = np.linspace(-2, 1, 60) + 1j * np.linspace(-1.5, 1.5, 40)[:, None]
    f = dsl.jit(escape)
    z, counts = f(c, 30)
    want = escape(c, 30)
    np.testing.assert_allclose(z, want[0], rtol=1e-6)
    np.testing.assert_array_equal(counts, want[1])
    assert "nonzero" not in f.ir(c, 30)


def test_derivatives_of_updates_through_masks() -> None:
    def masked(x):
        out = x * 3
        m = x > 0.5
        out[m] = np.log(x[m]) * x[m] + out[m]
        return (out**2).sum()

    x = np.random.default_rng(2).uniform(-1, 2, 30)
    dsl.check_grads(masked, (x,), order=2)
    assert "nonzero" not in dsl.jit(dsl.grad(masked)).ir(x)


WHOLE: dict[str, Any] = {
    "[:]": lambda x: x[:],
    "[...]": lambda x: x[...],
    "view()": lambda x: x.view(),
    "reshape": lambda x: x.reshape(x.shape),
    "T": lambda x: x.T,
    "itself": lambda x: x,
    "asarray": np.asarray,
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_view_of_all_of_an_argument_is_a_new_object(name: str) -> None:
    x = np.arange(3.0)
    want, compiled = WHOLE[name](x), dsl.jit(WHOLE[name])
    for _ in range(2):
        got = compiled(x)
        assert (got is x, got.base is x) == (want is x, want.base is x)
        got[0] += 1
    assert x[0] == 2
