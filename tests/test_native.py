"""Native code writes in place where it may, and nobody can tell: programs with aliases, overlaps, swaps and old values.

Every program here is small and nasty: it reads what another statement overwrites, passes arrays round in loops, or
returns the same memory twice. Each must leave results and arguments as NumPy does, call after call. Then: results own
their memory, and calls, also those that raise, give back all the rest.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import platform
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_programs import check_same

import dsl
from dsl.codegen.cpu import memory
from dsl.ir.types import BFLOAT16

Program = Callable[..., Any]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).uniform(-2, 2, shape).round(3)


def whole(*shape: int, low: int = 0, high: int = 9) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(low, high, shape)


def check(function: Program, *args: Any, calls: int = 2, aliases: bool = True) -> None:
    """Compare a compiled function with the plain one, on the arguments as each call leaves them for the next."""
    compiled = dsl.jit(function)
    plain, mine = copy.deepcopy(args), copy.deepcopy(args)
    for k in range(calls):
        expected, found = function(*plain), compiled(*mine)
        check_same(found, expected, f"result of call {k}")
        check_same(mine, plain, f"arguments after call {k}")
        if aliases:
            check_aliases(found, mine, expected, plain)


def check_aliases(found: Any, mine: Any, expected: Any, plain: Any) -> None:
    """A result is an argument of the call where it is one in NumPy, and shares no memory with others."""
    several = isinstance(expected, tuple)
    for f, e in zip(found if several else [found], expected if several else [expected]):
        for a, b in zip(mine, plain):
            if isinstance(a, np.ndarray) and isinstance(e, np.ndarray) and e.size:
                assert (f is a) == (e is b)
                assert np.shares_memory(f, a) == np.shares_memory(e, b)


# -- overlapping assignments ---------------------------------------------------------------------------------------


def shift_right(u):
    u[1:] = u[:-1]


def shift_left(u):
    u[:-1] = u[1:]


def shift_by_two(u):
    u[2:] = u[:-2] + u[2:]


def turn_round(u):
    u[:] = u[::-1]


def turn_round_half(u):
    u[3:] = u[3::-1][: len(u) - 3]


def every_other(u):
    u[::2] = u[1::2]


def every_other_backwards(u):
    u[::2] = u[::-2]


def prefix_by_shifts(u):
    u[1:] += u[:-1]
    u[2:] += u[:-2]
    u[4:] += u[:-4]


def negative_steps(u):
    u[::-1] = u * 2
    u[-1:0:-2] += u[0:-1:2]
    return u[::-1]


def dynamic_spans(u, i, j, k):
    u[i:j] = u[k : k + j - i]


def dynamic_spans_of_expressions(u, i, j, k):
    u[i:j] = u[k : k + j - i] * 2 + u[i:j]
    u[k : k + 2] = u[i : i + 2]


def dynamic_rows(m, i, j):
    m[i] = m[j]
    m[j] += m[i] + m[i - 1]


def dynamic_columns(m, i, j):
    m[:, i] = m[:, j] - m[:, i]
    m[:, j], m[:, i] = m[:, i].copy(), m[:, j].copy()


def transpose_in_place(m):
    m[:] = m.T


def symmetrise(m):
    m += m.T
    m[1:, :] = m[:-1, :].T[:, : m.shape[0] - 1].T


def add_row_to_all(m):
    m += m[0]


def add_column_to_all(m):
    m -= m[:, 1:2]


def subtract_last(m):
    m[...] = m - m[-1, -1]


def block_move(m):
    m[1:, 1:] = m[:-1, :-1]
    m[:-1, 1:] += m[1:, :-1]


def stencil_in_place(m):
    m[1:-1, 1:-1] = 0.25 * (m[:-2, 1:-1] + m[2:, 1:-1] + m[1:-1, :-2] + m[1:-1, 2:])


def gather_scatter_itself(u, i):
    u[i] = u[i[::-1]] + 1
    u[i] += u[0]
    return u[i]


def masked_from_itself(u):
    u[u > 0] = u[0]
    u[u < 0] += u[::-1][u < 0]


def cumulative_onto_itself(u):
    u[:] = np.cumsum(u)
    u[1:] = np.cumsum(u[:-1])


def matmul_onto_itself(m):
    m[:] = m @ m
    m[0] = m @ m[0]


def sort_part(u):
    u[2:] = np.sort(u[:-2])
    u[::-1][:3] = np.sort(u)[:3]


def reduce_into_itself(m):
    m[0] = m.sum(axis=0)
    m[:, 0] = m.max(axis=1)
    m /= m.sum()


def two_arguments(u, v):
    u[1:] = v[:-1] + u[:-1]
    v[:-1] = u[1:] * v[1:]


def concatenate_onto_itself(u):
    n = len(u)
    u[:] = np.concatenate([u[n // 2 :], u[: n // 2]])
    u[:] = np.concatenate([u[1:], u[:1]])


def roll_onto_itself(m):
    m[:] = np.roll(m, 1, axis=0)
    m[:] = np.roll(m, (1, 2), axis=(0, 1))


def pad_onto_itself(u):
    u[:] = np.pad(u[1:-1], 1, mode="edge")


def same_array_both_sides(u):
    u[...] = u
    u[:] = u[:]
    u += u
    u *= u


OVERLAPS = [
    (shift_right, (numbers(9),)),
    (shift_left, (numbers(9),)),
    (shift_by_two, (numbers(9),)),
    (turn_round, (numbers(8),)),
    (turn_round, (numbers(9),)),
    (turn_round_half, (numbers(7),)),
    (every_other, (numbers(10),)),
    (every_other_backwards, (numbers(10),)),
    (prefix_by_shifts, (numbers(9),)),
    (negative_steps, (numbers(9),)),
    (dynamic_spans, (numbers(12), 2, 7, 4)),
    (dynamic_spans, (numbers(12), 4, 9, 1)),
    (dynamic_spans, (numbers(12), 3, 3, 0)),
    (dynamic_spans_of_expressions, (numbers(12), 2, 7, 4)),
    (dynamic_rows, (numbers(4, 5), 1, 3)),
    (dynamic_rows, (numbers(4, 5), 2, 2)),
    (dynamic_columns, (numbers(4, 5), 0, 3)),
    (transpose_in_place, (numbers(5, 5),)),
    (transpose_in_place, (numbers(70, 70),)),
    (symmetrise, (numbers(5, 5),)),
    (add_row_to_all, (numbers(4, 5),)),
    (add_column_to_all, (numbers(4, 5),)),
    (subtract_last, (numbers(4, 5),)),
    (block_move, (numbers(5, 5),)),
    (stencil_in_place, (numbers(6, 7),)),
    (gather_scatter_itself, (numbers(8), np.array([3, 1, 4, 1, 5]))),
    (masked_from_itself, (numbers(9),)),
    (cumulative_onto_itself, (numbers(9),)),
    (matmul_onto_itself, (numbers(5, 5),)),
    (sort_part, (numbers(9),)),
    (reduce_into_itself, (numbers(4, 5) + 3,)),
    (reduce_into_itself, (numbers(20, 5) + 3,)),
    (two_arguments, (numbers(9), numbers(9, seed=1))),
    (concatenate_onto_itself, (numbers(9),)),
    (roll_onto_itself, (numbers(4, 5),)),
    (pad_onto_itself, (numbers(9),)),
    (same_array_both_sides, (numbers(9),)),
]


@pytest.mark.parametrize(("function", "args"), OVERLAPS, ids=lambda x: getattr(x, "__name__", ""))
def test_overlapping_assignments_read_first(function: Program, args: tuple[Any, ...]) -> None:
    check(function, *args)


@pytest.mark.parametrize(
    ("function", "args"), OVERLAPS[::3], ids=lambda x: getattr(x, "__name__", "")
)
@pytest.mark.parametrize("layout", ["strided", "reversed"])
def test_overlapping_assignments_of_strided_arguments(
    function: Program, args: tuple[Any, ...], layout: str
) -> None:
    def give(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        if layout == "reversed":
            return np.flip(np.array(np.flip(x)))
        out = np.zeros([2 * n for n in x.shape], x.dtype)[(slice(None, None, 2),) * x.ndim]
        out[...] = x
        return out

    compiled = dsl.jit(function)
    plain, mine = [give(x) for x in args], [give(x) for x in args]
    check_same(compiled(*mine), function(*plain), "result")
    check_same(mine, plain, "arguments")


# -- names that move round in loops ---------------------------------------------------------------------------------


def swap_two(a, b, n):
    for _ in range(n):
        a, b = b, a
    return a, b


def swap_and_write(a, b, n):
    for k in range(n):
        a, b = b, a
        a = a.copy()
        a[k % len(a)] += 1.0
    return a, b


def rotate_three(a, b, c, n):
    for _ in range(n):
        a, b, c = b, c, a
    return a, b, c


def rotate_three_and_compute(a, b, c, n):
    for _ in range(n):
        a, b, c = b + c, c * 0.5, a - b
    return a, b, c


def leapfrog(u, n):
    old, now = u.copy(), u * 0.9
    for _ in range(n):
        new = np.zeros_like(u)
        new[1:-1] = 2 * now[1:-1] - old[1:-1] + 0.1 * (now[2:] - 2 * now[1:-1] + now[:-2])
        old, now = now, new
    return old, now


def ping_pong_buffers(u, n):
    a, b = u.copy(), u.copy()
    for _ in range(n):
        b[1:-1] = a[1:-1] + 0.1 * (a[2:] - 2 * a[1:-1] + a[:-2])
        a[1:-1] = b[1:-1] + 0.1 * (b[2:] - 2 * b[1:-1] + b[:-2])
    return a, b


def duplicate(a, n):
    b = a.copy()
    for _ in range(n):
        b = a
        a = a * 0.5
    return a, b


def both_from_one(a, b, n):
    for _ in range(n):
        a, b = a + b, a + b
    return a, b


def both_become_one(a, b, n):
    for _ in range(n):
        a, b = b, b
    return a, b


def chain_of_four(a, n):
    b, c, d = a + 1, a + 2, a + 3
    for k in range(n):
        a, b, c, d = d, a, b, c
        c = c + k
    return a, b, c, d


def fibonacci_of_arrays(a, n):
    b = np.zeros_like(a)
    while n > 0:
        a, b = a + b, a
        n -= 1
    return a, b


def swap_while(a, b, n):
    while n > 0 and a[0] < 100:
        a, b = b * 2, a + 1
        n -= 1
    return a, b


def swap_of_unequal_use(a, b, n):
    total = 0.0
    for _ in range(n):
        a, b = b, a
        total += a[0]
    return total, a.sum()


def reverse_each_trip(a, n):
    for _ in range(n):
        a = a[::-1]
    return a


def transpose_each_trip(m, n):
    for _ in range(n):
        m = m.T + 0.0
    return m


def transposed_view_each_trip(m, n):
    for _ in range(n):
        m = m.T
    return m


def reshape_each_trip(u, n):
    m = u.reshape(3, 4)
    for _ in range(n):
        m = m.reshape(4, 3).T.copy()
    return m


def nested_rebuild(a, n):
    b = np.zeros_like(a)
    for i in range(n):
        for j in range(n):
            b[(i + j) % len(b)] += a[j % len(a)]
        a = a * 0.5 + b
    return a, b


def nested_swaps(a, b, n):
    a, b = a.copy(), b.copy()
    for _ in range(n):
        for _ in range(n):
            a, b = b, a
            a = a + 1
        b[0] = a[1]
        a, b = b, a
    return a, b


def inner_loop_carries_outer(a, n):
    b = a.copy()
    for _ in range(n):
        c = b
        for j in range(3):
            c = c + a
            b[j] = c[j]
        a = a + c * 0.1
    return a, b


def zero_trips(a, b, n):
    a, b = a + 0, b + 0
    for _ in range(n):
        a, b = b + 1, a
    while n > 0:
        b[0] = a[0]
        n -= 1
    return a, b


def zero_trip_inner(a, n):
    for i in range(n):
        for j in range(i):
            a[j] += a[i]
            a = a + 1
    return a


def lu(a):
    for i in range(a.shape[0]):
        for j in range(i):
            a[i, j] = (a[i, j] - a[i, :j] @ a[:j, j]) / a[j, j]
        for j in range(i, a.shape[0]):
            a[i, j] -= a[i, :i] @ a[:i, j]


def test_the_text_does_not_depend_on_where_objects_are_in_memory() -> None:
    """It is what code on disk is found by."""
    matrix = np.eye(20)
    kept = [dsl.jit(lu).lower(matrix) for _ in range(20)]
    assert len({lowered.text("llvm") for lowered in kept}) == 1


def growing(a, n):
    out = a[:0]
    for k in range(n):
        out = np.concatenate([out, a * k])
    return out


def growing_and_summing(a, n):
    out = np.zeros(0)
    total = 0.0
    for k in range(n):
        out = np.append(out, a[k % len(a)])
        total += out.sum()
        out = out[::-1] if k % 2 else out
    return out, total


def shrinking(a):
    total = 0.0
    while len(a) > 1:
        total += a[0]
        a = a[1:] + a[:-1]
    return a, total


def grow_two_and_swap(a, n):
    b = a[:1]
    for _ in range(n):
        a, b = np.concatenate([b, a]), a
    return a, b


def carried_argument(u, n):
    for k in range(n):
        u[k % len(u)] += u[(k - 1) % len(u)]
    return u


def carried_argument_replaced(u, n):
    for _ in range(n):
        u[0] += 1.0
        u = u * 2
    return u


def break_between(a, b, n):
    a, b = a.copy(), b.copy()
    for k in range(n):
        a[k] = b[k]
        if a[k] > 1:
            break
        b += a
        if b[k] < -1:
            continue
        a[:] = b - a
    return a, b


N = [0, 1, 2, 3, 7]
A, B, C = numbers(5), numbers(5, seed=1), numbers(5, seed=2)
LOOPS = [
    (swap_two, (A, B)),
    (swap_and_write, (A, B)),
    (rotate_three, (A, B, C)),
    (rotate_three_and_compute, (A, B, C)),
    (leapfrog, (A,)),
    (ping_pong_buffers, (A,)),
    (duplicate, (A,)),
    (both_from_one, (A, B)),
    (both_become_one, (A, B)),
    (chain_of_four, (A,)),
    (fibonacci_of_arrays, (A,)),
    (swap_while, (A, B)),
    (swap_of_unequal_use, (A, B)),
    (reverse_each_trip, (A,)),
    (transpose_each_trip, (numbers(4, 4),)),
    (transposed_view_each_trip, (numbers(4, 4),)),
    (reshape_each_trip, (numbers(12),)),
    (nested_rebuild, (A,)),
    (nested_swaps, (A, B)),
    (inner_loop_carries_outer, (A,)),
    (zero_trips, (A, B)),
    (zero_trip_inner, (numbers(8),)),
    (growing, (A,)),
    (growing_and_summing, (A,)),
    (grow_two_and_swap, (A,)),
    (carried_argument, (A,)),
    (carried_argument_replaced, (A,)),
    (break_between, (numbers(8), numbers(8, seed=1))),
]


@pytest.mark.parametrize(("function", "args"), LOOPS, ids=lambda x: getattr(x, "__name__", ""))
def test_arrays_that_change_places_in_loops(function: Program, args: tuple[Any, ...]) -> None:
    compiled = dsl.jit(function)
    for n in N:
        plain, mine = copy.deepcopy(args), copy.deepcopy(args)
        expected, found = function(*plain, n), compiled(*mine, n)
        check_same(found, expected, f"result for {n} trips")
        check_same(mine, plain, f"arguments after {n} trips")


def test_two_memories_take_turns_and_their_edges_are_copied_once() -> None:
    """The copy of what a loop leaves as it is happens in the first trip: behind a variable that the trip sets."""

    def heat(u, n):
        for _ in range(n):
            u[1:-1] = (u[2:] + u[:-2]) * 0.5
        return u * 1.0

    def taken(u, n):
        total = 0.0
        for _ in range(n):
            old = u.copy()
            u[1:-1] = (old[2:] + old[:-2]) * 0.5
            total += np.sort(old)[2]  # which may be sorted where the old value was
        return total

    for n in (0, 1, 2, 5):
        check(heat, numbers(40), n)
        check(taken, numbers(40), n)
    text = dsl.jit(heat).ir(numbers(40), 3, stage="llvm")
    assert "store i1 true" in text
    assert "store i1 false" in text


def test_arrays_that_shrink_in_loops() -> None:
    check(shrinking, numbers(9))
    check(shrinking, numbers(1))


# -- branches ---------------------------------------------------------------------------------------------------------


def swapped_if(a, b, flag):
    if flag:
        a, b = b, a
    return a, b


def swapped_if_and_written(a, b, flag):
    if flag:
        a, b = b.copy(), a.copy()
    else:
        a, b = a.copy(), b.copy()
    a[0] = 9.0
    b[1] = a[0] + b[0]
    return a, b


def one_or_the_other(a, b, flag):
    c = a if flag else b
    return c + a, c.sum()


def updated_on_one_side(a, flag):
    b = a * 2
    if flag:
        b[1:] = b[:-1]
    return a, b


def updated_on_both_sides(a, flag):
    b = a + 1
    c = b.copy()
    if flag:
        b[0] = 5.0
    else:
        b[-1] = c[0]
        c = b
    return b, c


def broadcast_then_written(a, flag):
    b = np.broadcast_to(a * 2, (3, len(a))).copy()
    if flag:
        b[0] += 1.0
    return b


def view_then_written(m, flag):
    b = (m * 2)[1:, ::-1].copy()
    if flag:
        b[0, 0] = -1.0
    else:
        b = b + b[::-1]
    return b


def old_value_after_branch(a, flag):
    b = a * 3
    c = b
    if flag:
        c = b.copy()
        c[2] = 0.0
    return b, c + 0


def argument_in_branch(u, flag):
    if flag:
        u[1:] = u[:-1]
    else:
        u *= 2
    return u.sum()


def conditional_in_loop(a, b, n):
    for k in range(n):
        if a[k] > b[k]:
            a, b = b, a
        else:
            a = a + 0.5
        c = b.copy()
        c[k] = a[k]
        b = c
    return a, b


def three_ways_in_loop(a, b, c, n):
    for k in range(n):
        if k % 3 == 0:
            a, b, c = c, a, b
        elif k % 3 == 1:
            a = b + c
        else:
            c[k % len(c)] = a[0]
    return a, b, c


def update_under_nested_tests(u, n):
    for k in range(n):
        if u[k] > 0:
            if u[k - 1] < 0:
                u[k] = u[k - 1]
            else:
                u[k - 1] = -u[k]
    return u


def both_sides_return_each_other(a, b, flag):
    if flag:
        return b, a
    return a, b


def early_return(a, flag):
    b = a * 2
    if flag:
        return b
    b[0] = 1.0
    return b


def transposed_and_written(a, b, flag):
    """The memory of `a` is free in the branch before its new contents are there, and then no more."""
    a, b = np.stack([a, a]), np.stack([b, b])
    if flag:
        c, d = a.T, b.T
        c[0] = -c[0]
        d[0] = -d[0]
    return a, b


def computed_anew_one_after_the_other(a, b, flag):
    a, b = np.outer(a, b), np.outer(b, b)
    if flag:
        total = a.sum()
        a = np.sort(b.T, axis=0) + total
        b = np.cumsum(a, axis=0).T.copy()
    return a, b


BRANCHES = [
    (transposed_and_written, (A, B)),
    (computed_anew_one_after_the_other, (A, B)),
    (swapped_if, (A, B)),
    (swapped_if_and_written, (A, B)),
    (one_or_the_other, (A, B)),
    (updated_on_one_side, (A,)),
    (updated_on_both_sides, (A,)),
    (broadcast_then_written, (A,)),
    (view_then_written, (numbers(4, 5),)),
    (old_value_after_branch, (A,)),
    (argument_in_branch, (A,)),
    (both_sides_return_each_other, (A, B)),
    (early_return, (A,)),
]


@pytest.mark.parametrize(("function", "args"), BRANCHES, ids=lambda x: getattr(x, "__name__", ""))
def test_arrays_in_branches(function: Program, args: tuple[Any, ...]) -> None:
    compiled = dsl.jit(function)
    for flag in (np.True_, np.False_, np.True_):  # Python's would be known while tracing
        plain, mine = copy.deepcopy(args), copy.deepcopy(args)
        expected, found = function(*plain, flag), compiled(*mine, flag)
        check_same(found, expected, "result")
        check_same(mine, plain, "arguments")


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (conditional_in_loop, (A, B)),
        (three_ways_in_loop, (A, B, C)),
        (update_under_nested_tests, (numbers(8),)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_branches_in_loops(function: Program, args: tuple[Any, ...]) -> None:
    for n in (0, 1, 2, 5):
        check(function, *args, n, aliases=False)


# -- old values, names and views ---------------------------------------------------------------------------------------


def old_value_is_read_later(a):
    b = a * 2
    c = b.copy()
    c[1] = 7.0
    return b + c, b.sum()


def two_names(a):
    b = a * 2
    c = b
    c[0] = 1.0
    return b, c


def two_names_of_an_argument(u):
    v = u
    v[0] = 1.0
    w = u[1:]
    w[0] = 2.0
    return u + v, w


def view_of_view(m):
    v = m[1:]
    w = v[:, ::2]
    x = w.T
    x[1] = 0.0
    w[0] += 1.0
    return v.sum(), x


def view_of_view_of_local(m):
    n = m * 2
    v = n[1:][:, 1:]
    v[0] = -1.0
    v[:, 0] *= 2
    return n, v[0] + n[0, 1:]


def flattened_view(m):
    v = m.reshape(-1)
    v[1::2] = 0.0
    m[0] = v[-m.shape[1] :]
    return v[::-1]


def diagonal_through_flat(m):
    n = len(m)
    flat = m.reshape(-1)
    flat[:: n + 1] = 1.0
    return m.trace()


def read_between_writes(u):
    a = u[0]
    u[0] = 5.0
    b = u[0]
    u[0] = a + b
    s = u.sum()
    u[1] = s
    return a, b, s, u.max()


def array_between_writes(u):
    a = u + 0
    u[0] = 5.0
    b = u * 2
    u[1:] = a[:-1] + b[1:]
    return a, b


def returned_twice(a):
    b = a + 1
    return b, b, b[::-1]


def returned_and_updated(a):
    b = a + 1
    c = b.copy()
    c[0] = 0.0
    d = c.copy()
    d[1] = 0.0
    return b, c, d


def argument_returned(u):
    return u


def argument_returned_after_write(u):
    u[0] = 3.0
    return u


def argument_and_copy(u):
    return u, u.copy(), u + 0


def many_temporaries(a):
    b = a + 1
    c = b * a
    d = np.sort(c)
    e = d - b
    f = np.cumsum(e)
    b = f + c
    return b[::-1] + d, e.sum()


def write_then_argument_of_both(u, v):
    u[:] = v
    v[:] = u * 2
    u += v
    return u - v


def constants_are_not_written(n):
    a = np.array([1.0, 2.0, 3.0])
    for _ in range(n):
        a[0] += 1.0
    b = np.zeros(3)
    b[1] = a[0]
    return a, b, np.zeros(3)


def scatter_into_constant(i):
    table = np.array([[1, 2, 3], [4, 5, 6]])
    table[i] = 0
    return table


def integers_in_place_of_floats(a):
    b = (a * 10).astype(np.int64)
    c = b.view(np.float64).copy() if False else b * 2
    d = c / 3
    return d.astype(np.int64) + b


NAMES = [
    (old_value_is_read_later, (A,)),
    (two_names, (A,)),
    (two_names_of_an_argument, (A,)),
    (view_of_view, (numbers(4, 6),)),
    (view_of_view_of_local, (numbers(4, 6),)),
    (flattened_view, (numbers(4, 6),)),
    (diagonal_through_flat, (numbers(5, 5),)),
    (read_between_writes, (A,)),
    (array_between_writes, (A,)),
    (returned_twice, (A,)),
    (returned_and_updated, (A,)),
    (argument_returned, (A,)),
    (argument_returned_after_write, (A,)),
    (argument_and_copy, (A,)),
    (many_temporaries, (A,)),
    (write_then_argument_of_both, (A, B)),
    (constants_are_not_written, (3,)),
    (scatter_into_constant, (1,)),
    (integers_in_place_of_floats, (A,)),
]


@pytest.mark.parametrize(("function", "args"), NAMES, ids=lambda x: getattr(x, "__name__", ""))
def test_old_values_names_and_views(function: Program, args: tuple[Any, ...]) -> None:
    check(function, *args)


def test_the_same_array_for_two_arguments() -> None:
    plain, mine = numbers(9), numbers(9)
    compiled = dsl.jit(two_arguments)
    for _ in range(2):
        check_same(compiled(mine, mine), two_arguments(plain, plain), "result")
        check_same(mine, plain, "arguments")


@pytest.mark.parametrize("first", [True, False])
def test_arguments_that_overlap_are_refused_when_one_is_written(first: bool) -> None:
    compiled = dsl.jit(two_arguments)
    if not first:  # the entry is there already and must see it too
        compiled(numbers(8), numbers(8))
    for make in (lambda x: (x[1:], x[:-1]), lambda x: (x[:8], x[7::-1])):
        x = numbers(9)
        with pytest.raises(dsl.errors.AliasError, match="overlap"):
            compiled(*make(x))
        check_same(x, numbers(9), "arguments")


def view_kept_by_no_trip(m, x, n):
    row = m[1]
    for _ in range(n):
        row = np.abs(x)
    row[-2] = 9.0


def one_after_one_trip(a, b, n):
    for _ in range(n):
        a, b = b + 1, a
    b[0] = 50.0


def kept_by_a_branch(m, x, n):
    for k in range(n):
        if k == 1:
            m = np.abs(x)
    m[-2] = 9.0


def kept_by_a_jump(m, x, n):
    row = m[1]
    for k in range(n):
        if k != 1:
            continue
        row = np.abs(x)
    row[-2] = 9.0


def test_a_write_after_a_loop_reaches_the_callers_array() -> None:
    for n in range(3):
        check(view_kept_by_no_trip, numbers(3, 4), numbers(4), n)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (one_after_one_trip, (A, B)),
        (kept_by_a_branch, (A, B)),
        (kept_by_a_jump, (numbers(3, 5), B)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_write_after_a_loop_that_chose_the_array_is_refused(
    function: Program, args: tuple[Any, ...]
) -> None:
    with pytest.raises(dsl.errors.AliasError, match="may or may not share memory"):
        dsl.jit(function)(*copy.deepcopy(args), 2)


# -- memory ----------------------------------------------------------------------------------------------------------


def level() -> tuple[int, int]:
    gc.collect()
    found = memory.stats()
    return found.in_use, found.blocks


def raises_in_loop(u, n):
    out = u * 2
    for k in range(n):
        out = np.concatenate([out, u[k : k + 1]])
        out[0] += u[k]
    return out


def raises_after_allocating(u, n):
    a = np.sort(u)
    b = np.cumsum(a) + u
    c = u[u > 0]
    return a + b, c, b[n]


LEAKS = [
    (swap_and_write, (A, B, 3)),
    (growing, (A, 4)),
    (growing_and_summing, (A, 5)),
    (shrinking, (numbers(9),)),
    (chain_of_four, (A, 5)),
    (conditional_in_loop, (A, B, 4)),
    (returned_twice, (A,)),
    (many_temporaries, (numbers(1000),)),
    (matmul_onto_itself, (numbers(60, 60),)),
    (raises_in_loop, (A, 9)),
    (raises_after_allocating, (A, 5)),
    (raises_after_allocating, (A, 1)),
]


@pytest.mark.parametrize(("function", "args"), LEAKS, ids=lambda x: getattr(x, "__name__", ""))
def test_calls_leak_nothing(function: Program, args: tuple[Any, ...]) -> None:
    compiled = dsl.jit(function)

    def call() -> None:
        with contextlib.suppress(IndexError):
            compiled(*copy.deepcopy(args))

    for _ in range(3):
        call()
    before = level()
    for _ in range(20):
        call()
    assert level() == before


# -- loops that change places with their points ----------------------------------------------------------------------


def converges(x, steps):
    root, count = np.ones_like(x), np.zeros(x.shape, np.int32)
    for _ in range(steps):
        moving = np.abs(root * root - x) > 1e-9 * x
        root = np.where(moving, (root + x / root) / 2, root)
        count += moving
    return root, count


def counts_trips(x, steps):
    y = np.zeros_like(x)
    for k in range(steps):
        y = np.where(x > k, y + k, y)
    return y


def changes_places(x, steps):
    a, b = x, x + 1
    for _ in range(steps):
        a, b = b, a + 0.5
    return a, b


def fibonacci(x, steps):
    a, b = x, x + 1
    for _ in range(steps):
        a, b = b % 1000, (a + b) % 1000
    return a, b


def passes_one_on(x, steps):
    first, second, third = x, x * 2, x * 3
    for _ in range(steps):
        first, second, third = np.cos(third), first - second, third
    return first, second, third


def reads_a_neighbour(x, steps):
    y = x
    for _ in range(steps):
        y = np.roll(y, 1) * 0.5 + x
    return y


def reads_across(x, steps):
    y = x
    for _ in range(steps):
        y = y * 0.5 + x.T
    return y


def adds_a_row(x, steps):
    y = x
    for _ in range(steps):
        y = y * 0.5 + x[:1] + x[:, :1]
    return y


def changes_its_argument(x, steps):
    for _ in range(steps):
        x[...] = x * 0.5 + 1


REPEATS = (converges, counts_trips, changes_places, fibonacci, passes_one_on, reads_a_neighbour,
           reads_across, adds_a_row, changes_its_argument)  # fmt: skip


@pytest.mark.parametrize("steps", [0, 1, 64, 65, 150])
@pytest.mark.parametrize("function", REPEATS)
def test_loops_of_elementwise_trips(function: Program, steps: int) -> None:
    for size in (1, 7, 40):  # the last are compiled for any size
        check(function, np.abs(numbers(size, size)) + 0.1, steps, aliases=False)


@pytest.mark.parametrize("function", REPEATS)
def test_loops_of_elementwise_trips_for_sizes_known_and_unknown(function: Program) -> None:
    compiled = dsl.jit(function)
    for size in (33, 34, 70, 1):
        x = np.abs(numbers(size, size)) + 0.1
        plain, mine = x.copy(), x.copy()
        check_same(compiled(mine, 100), function(plain, 100), f"size {size}")
        check_same(mine, plain, "the argument")


def test_loops_of_elementwise_trips_have_the_same_bits_for_any_threads() -> None:
    compiled, x = dsl.jit(converges), np.abs(numbers(300, 301)) + 0.1
    found = []
    for threads in (1, 2, 4):
        with dsl.num_threads(threads):
            found.append([part.tobytes() for part in compiled(x, 80)])
    assert found[0] == found[1] == found[2]


def test_results_own_their_memory() -> None:
    compiled = dsl.jit(returned_twice)
    results = [compiled(np.full(100, float(k))) for k in range(20)]
    gc.collect()
    for k, (first, second, third) in enumerate(results):
        assert first.flags.writeable
        assert (first == k + 1).all()
        assert (second == k + 1).all()
        first[:] = -1
        assert (third == k + 1).all() or np.shares_memory(first, third)


def test_inputs_are_not_modified_unless_written() -> None:
    x = numbers(50)
    x.flags.writeable = False
    for function in (many_temporaries, returned_and_updated, old_value_is_read_later):
        before = x.copy()
        dsl.jit(function)(x)
        np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(
    "numbers",
    [[300, 300, 0.001, 0.001], [1e-4, 1e-4, 1e4, 1e4], [1.001] * 4000, np.linspace(0.5, 1.5, 20)],
    ids=["overflows", "underflows", "many", "few"],
)
@pytest.mark.parametrize("function", [np.sum, np.prod], ids=["sum", "prod"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
def test_sums_and_products_of_halves_are_rounded_once(
    dtype: Any, function: Any, numbers: Any
) -> None:
    halves = np.array(numbers).astype(dtype)
    want = float(function(halves.astype(np.float32)).astype(dtype))
    both = dsl.jit(lambda x: function(x, axis=0))(np.stack([halves, halves], axis=1))
    for got in (dsl.jit(function)(halves), *both):
        assert np.asarray(got).dtype == dtype
        assert float(got) == pytest.approx(want, rel=2.0**-10 if dtype == np.float16 else 2.0**-7)


def test_region_reads_an_array_whose_size_is_a_sum_of_sizes_that_the_data_decides() -> None:
    def in_a_branch(x, k):
        z = np.concatenate([x[: int(k[0])], x[: int(k[1])]])
        return z[k[0]] if x[0] > 0 else z[-1]

    def in_a_loop(x, k):
        z = np.concatenate([x[: int(k[0])], x[: int(k[1])]])
        j = 0
        while j < len(z) and z[j] < x[2]:
            z = z * 1.0
            j += 1
        return j, z

    for function in (in_a_branch, in_a_loop):
        compiled = dsl.jit(function)
        for x in (np.array([1.0, 2.0, 1.5]), np.array([-1.0, -2.0, 1.5, 3.0])):
            args = x, np.array([1, 2])
            check_same(compiled(*args), function(*args), "result")


def test_elements_at_known_places_are_loads_in_a_loop_that_looks_seldom_for_the_keyboard() -> None:
    def filtered(x, b):
        y = np.zeros_like(x)
        for i in range(1, len(x)):
            if x[i] > 0:
                y[i] = b[0] * x[i] + b[1] * y[i - 1]
        return y

    args = np.random.default_rng(0).normal(size=50), np.array([0.5, 0.25])
    compiled = dsl.jit(filtered)
    np.testing.assert_allclose(compiled(*args), filtered(*args))
    assert compiled.ir(*args, stage="kernels").count("kernel for") == 1
    large = np.zeros(100_000), args[1]
    assert "65536" in compiled.ir(*large, stage="llvm")


def test_long_programs_of_calls_are_left_as_they_are() -> None:
    """LLVM would look long for registers for all their pointers."""

    def layers(x, weights):
        for w in weights:
            x = np.tanh(x @ w)
        return x

    def formula(a, b):
        for k in dsl.unroll(range(100)):
            a, b = a * b + k, b - a * 0.001 * k
        return a, b

    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((16, 64)), [rng.standard_normal((64, 64)) / 8] * 90
    weights = [w + k / 1000 for k, w in enumerate(weights)]
    assert "optnone" in dsl.jit(layers).ir(x, weights, stage="llvm")
    np.testing.assert_allclose(dsl.jit(layers)(x, weights), layers(x, weights), rtol=1e-9)
    assert "optnone" not in dsl.jit(formula).ir(0.1, 0.2, stage="llvm")


def test_a_program_that_passes_its_loop_on_to_threads_is_left_as_it_is() -> None:
    """What it does itself takes nanoseconds, whatever LLVM makes of it; a loop of its own may take long."""

    def row_sums(x):
        return np.exp(x).sum(axis=1)

    def smoothed(x):
        y = np.exp(x)
        for _ in range(3):
            y[1:-1] = (y[:-2] + y[2:]) / 2
        return y

    x = np.random.default_rng(0).standard_normal((2000, 300))
    assert "optnone" in dsl.jit(row_sums).ir(x, stage="llvm")
    np.testing.assert_allclose(dsl.jit(row_sums)(x), row_sums(x), rtol=1e-12)
    assert "optnone" not in dsl.jit(smoothed).ir(x, stage="llvm")


def test_an_index_that_is_read_and_written_at_is_wrapped_once() -> None:
    """The store then goes to the very address that was loaded from, which is one instruction."""

    def counts(x, n):
        found = np.zeros(n, np.int64)
        for k in x:
            found[k] += 1
        return found

    compiled, x = dsl.jit(counts), np.array([0, 2, -1, -1, 2, 0, -3])
    np.testing.assert_array_equal(compiled(x, 4), counts(x, 4))
    text = compiled.ir(x, 4, stage="llvm")
    assert text.count("icmp uge") == 2  # of the index, and of a negative one from the end
    assert not re.search(r"icmp slt i64 %\w+, 0\b", text)
    with pytest.raises(IndexError, match="index -5 is out of bounds for axis 0 with size 4"):
        compiled(np.array([1, -5]), 4)


def searched(x, wanted):
    found = np.zeros(len(wanted), np.int64)
    for k in range(len(wanted)):
        low, high = 0, len(x)
        while low < high:
            middle = (low + high) // 2
            if x[middle] < wanted[k]:
                low = middle + 1
            else:
                high = middle
        found[k] = low
    return found


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="is about x86's instructions")  # fmt: skip
def test_a_search_moves_its_ends_by_conditional_moves_unless_memory_is_what_it_waits_for() -> None:
    rng = np.random.default_rng(0)
    for size, moves in ((1000, True), (1_000_000, False)):
        x, wanted = np.sort(rng.random(size)), rng.random(50)
        compiled = dsl.jit(searched)
        np.testing.assert_array_equal(compiled(x, wanted), searched(x, wanted))
        text = compiled.ir(x, wanted, stage="asm")
        inner = text.split("vucomisd")[1] if "vucomisd" in text else text.split("ucomisd")[1]
        assert ("cmov" in inner.partition("ret")[0]) == moves


def bits_of(x):
    count = 0
    for v in x:
        while v > 0:
            count += v & 1
            v >>= 1
    return count


def ones_of(x):
    count = 0
    for v in x:
        while v:
            v &= v - 1
            count += 1
    return count


def greatest_divisors(x):
    total = 0
    for v in x:
        a, b = v, 360
        while b:
            a, b = b, a % b
        total += a
    return total


def digits_of(x):
    count = 0
    for v in x:
        while v != 0:  # for ever, if it is negative
            v //= 10
            count += 1
    return count


@pytest.mark.parametrize(
    ("function", "low", "polls"),
    [(bits_of, -3, 0), (ones_of, -3, 0), (greatest_divisors, -3, 1), (digits_of, 0, 2)],
)
def test_loops_that_take_bits_from_a_number_do_not_look_for_interrupts_in_a_loop_that_does(
    function: Any, low: int, polls: int
) -> None:
    x = np.concatenate([np.arange(low, 200), [2**62, 2**63 - 1]])
    compiled = dsl.jit(function)
    with np.errstate(over="ignore"):
        assert compiled(x) == function(x)
    assert compiled.ir(x, stage="llvm").count("call i32 @dsl_poll") == polls


def test_digits_of_unsigned_numbers_end() -> None:
    x = np.array([0, 7, 10, 2**64 - 1], np.uint64)
    compiled = dsl.jit(digits_of)
    assert compiled(x) == digits_of(x) == 23


def test_short_columns_of_functions_leave_no_remark_of_the_compiler(capfd: Any) -> None:
    """LLVM prints one where it is told to make vectors of a loop and cannot."""
    for rows, columns in ((2, 2), (2, 3), (3, 2), (9, 2)):
        x = np.linspace(-1, 1, rows * columns).reshape(rows, columns)
        np.testing.assert_allclose(
            dsl.jit(lambda x: np.sum(np.exp(x), axis=0))(x), np.exp(x).sum(0), rtol=1e-15
        )
    assert capfd.readouterr().err == ""


_SINGLE = [np.exp, np.exp2, np.log, np.log2, np.sin, np.cos]


@pytest.mark.parametrize("function", _SINGLE, ids=lambda function: function.__name__)
def test_functions_of_single_numbers_in_a_loop_have_special_values_and_small_errors(
    function: Any,
) -> None:
    @dsl.jit
    def one_by_one(x):
        found, total = np.zeros_like(x), 0.0
        for i in range(len(x)):
            found[i] = function(x[i])
            total = 0.5 * total + found[i]
        return found, total

    ordinary = np.random.default_rng(0).uniform(-700, 700, 200)
    special = [0.0, -0.0, 1.0, -1.0, 5e-324, 1e-310, 1e22, 1e300, -1e300, np.inf, -np.inf, np.nan]
    x = np.concatenate([ordinary, ordinary / 700, special])
    with np.errstate(all="ignore"):
        wanted = function(x)
    np.testing.assert_allclose(one_by_one(x)[0], wanted, rtol=4.5e-16, atol=0)
    assert f"@{function.__name__}(double" in one_by_one.ir(x, stage="llvm")


def test_powers_of_single_numbers_in_a_loop_have_special_values() -> None:
    @dsl.jit
    def one_by_one(x, y):
        found, total = np.zeros_like(x), 0.0
        for i in range(len(x)):
            found[i] = x[i] ** y[i]
            total = 0.5 * total + found[i]
        return found, total

    some = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e300, np.inf, -np.inf, np.nan])
    x, y = (a.ravel() for a in np.meshgrid(some, some))
    with np.errstate(all="ignore"):
        wanted = x**y
    np.testing.assert_allclose(one_by_one(x, y)[0], wanted, rtol=4.5e-16, atol=0)


def test_loops_that_count_add_or_keep_the_largest_where_a_condition_holds_are_vectorised() -> None:
    def count(x):
        found = 0
        for i in range(len(x)):
            if x[i] > 4:
                found += 1
        return found

    def add(x):
        found = 0
        for i in range(len(x)):
            if x[i] > 4:
                found += x[i]
        return found

    def largest(x):
        found = x[0]
        for i in range(1, len(x)):
            if x[i] > found:
                found = x[i]
        return found

    x = np.random.default_rng(0).integers(0, 10, 1003)
    for function in (count, add, largest):
        compiled = dsl.jit(function)
        assert compiled(x) == function(x)
        if platform.machine() == "x86_64":
            assert re.search(
                r"vp?(add|max|cmpgt)\w* .*[yz]mm|padd\w*|pmax\w*",
                compiled.ir(x, stage="asm").replace("\t", " "),
            )
