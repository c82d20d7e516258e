"""Loops of stencils are made band by band of rows: the same bits as the plain loop, for all sizes and numbers of trips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dsl

SHAPES_2 = [(70, 40), (257, 33), (3, 5), (1, 4), (400, 3), (16, 600)]


def heat(u: Any, steps: int) -> Any:
    u = u.copy()
    for _ in range(steps):
        u[1:-1, 1:-1] += 0.1 * (
            u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
        )
    return u


def jacobi(a: Any, b: Any, steps: int) -> None:
    """Two arrays of the caller, each computed from the other."""
    for _ in range(steps):
        b[1:-1, 1:-1] = 0.2 * (
            a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1]
        )
        a[1:-1, 1:-1] = 0.2 * (
            b[1:-1, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] + b[2:, 1:-1] + b[:-2, 1:-1]
        )


def swapped(u: Any, steps: int) -> Any:
    u = u.copy()
    v = u.copy()
    for _ in range(steps):
        v[1:-1, :] = 0.5 * (u[2:, :] + u[:-2, :])
        u, v = v, u
    return u


def wave(u: Any, steps: int) -> Any:
    """Three arrays that change places in turn."""
    before, now, after = u.copy(), 0.9 * u, np.zeros_like(u)
    for _ in range(steps):
        after[1:-1, 1:-1] = (
            2 * now[1:-1, 1:-1]
            - before[1:-1, 1:-1]
            + 0.1
            * (
                now[2:, 1:-1]
                + now[:-2, 1:-1]
                + now[1:-1, 2:]
                + now[1:-1, :-2]
                - 4 * now[1:-1, 1:-1]
            )
        )
        before, now, after = now, after, before
    return now, before


def copied(u: Any, steps: int) -> Any:
    """The old array by name, and edges that follow the inside."""
    u = u.copy()
    for _ in range(steps):
        old = u.copy()
        u[1:-1, 1:-1] = old[1:-1, 1:-1] + 0.2 * (
            old[2:, 1:-1] - 2 * old[1:-1, 1:-1] + old[:-2, 1:-1]
        )
        u[0, :] = u[1, :]
        u[-1, :] = u[-2, :]
        u[:, 0] = 0.0
        u[:, -1] = u[:, -2]
    return u


def fdtd(ex: Any, ey: Any, hz: Any, steps: int) -> None:
    for t in range(steps):
        ey[0, :] = 0.1 * t
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


def gray_scott(u: Any, v: Any, steps: int) -> Any:
    u, v = u.copy(), v.copy()
    for _ in range(steps):
        a, b = u[1:-1, 1:-1], v[1:-1, 1:-1]
        lu = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * a
        lv = v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:] - 4 * b
        reaction = a * b * b
        du = 0.1 * lu - reaction + 0.03 * (1 - a)
        dv = 0.05 * lv + reaction - 0.09 * b
        u[1:-1, 1:-1] += du
        v[1:-1, 1:-1] += dv
    return u, v


def padded(u: Any, steps: int) -> Any:
    """A new array in each trip, made from one with a border."""
    for _ in range(steps):
        p = np.pad(u, 1, mode="constant")
        u = 0.25 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2])
    return u


def fresh(u: Any, steps: int) -> Any:
    """The inside of a new array of zeros."""
    for _ in range(steps):
        new = np.zeros_like(u)
        new[1:-1, 1:-1] = 0.5 * (u[2:, 1:-1] + u[:-2, 1:-1])
        u = new
    return u


def sideways(u: Any, steps: int) -> Any:
    """Rows do not look at one another."""
    for _ in range(steps):
        u = 0.5 * (np.roll(u, 1, axis=1) + u)
    return u


def timed(u: Any, steps: int) -> Any:
    """The number of the trip and an array that stays the same."""
    u = u.copy()
    weights = np.arange(u.shape[0])[:, None] * 0.01
    for t in range(steps):
        u[2:-2] += weights[2:-2] * t + 0.1 * (u[4:] - u[:-4])
    return u


def coupled(u: Any, steps: int) -> Any:
    """Arrays of different dtypes, and one that is used in the same trip only."""
    u, hits = u.copy(), np.zeros(u.shape, np.int32)
    for _ in range(steps):
        slope = np.exp(-(u * u))
        u[1:-1] = u[1:-1] + 0.1 * (slope[2:] - slope[:-2])
        hits += u > 0
    return u, hits


def rounds(u: Any, steps: int) -> Any:
    """Loops within a loop."""
    u = u.copy()
    total = 0.0
    for k in range(3):
        for _ in range(steps):
            u[1:-1] = 0.5 * (u[2:] + u[:-2])
        total += u.sum() * k
    return u, total


def same(got: Any, want: Any) -> None:
    for a, b in zip(
        got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)
    ):
        if a is not None or b is not None:
            assert np.asarray(a).dtype == np.asarray(b).dtype
            np.testing.assert_array_equal(a, b)


def arrays(count: int, shape: tuple[int, ...], dtype: Any = np.float64) -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.uniform(0.1, 0.5, shape).astype(dtype) for _ in range(count)]


def compare(f: Any, plain: Callable[..., Any], given: list[Any], steps: int) -> None:
    mine, theirs = [x.copy() for x in given], [x.copy() for x in given]
    same(f(*mine, steps), plain(*theirs, steps))
    same(tuple(mine), tuple(theirs))


def is_banded(f: Any, *args: Any) -> bool:
    return "trips by bands of rows" in f.ir(*args, stage="kernels")


ONE = [heat, swapped, wave, copied, padded, fresh, sideways, timed]
MORE = [(jacobi, 2), (fdtd, 3), (gray_scott, 2)]
PROGRAMS = [(p, 1) for p in ONE] + MORE


@pytest.mark.parametrize(("program", "count"), PROGRAMS, ids=lambda p: getattr(p, "__name__", ""))
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 64, 131])
def test_all_sizes_and_numbers_of_trips(program: Any, count: int, steps: int) -> None:
    f = dsl.jit(program)
    for shape in SHAPES_2:
        if shape[0] < {timed: 4, copied: 2}.get(program, 0):
            continue
        compare(f, program, arrays(count, shape), steps)


@pytest.mark.parametrize(("program", "count"), PROGRAMS, ids=lambda p: getattr(p, "__name__", ""))
def test_they_are_made_by_bands(program: Any, count: int) -> None:
    for dynamic in (False, True):
        if dynamic and program is sideways:  # where elements come from is an array then
            continue
        f = dsl.jit(program, dynamic=dynamic)
        assert is_banded(f, *arrays(count, (200, 100)), 10), program


@pytest.mark.parametrize("program", [heat, wave, copied])
def test_float32_and_many_rows(program: Any) -> None:
    f = dsl.jit(program)
    compare(f, program, arrays(1, (3000, 20), np.float32), 50)
    compare(f, program, arrays(1, (20, 3000), np.float32), 50)


def test_the_same_bits_for_any_number_of_threads() -> None:
    (u,) = arrays(1, (500, 300))
    f, want = dsl.jit(wave), wave(u, 100)
    for threads in (1, 2, 3, 4):
        with dsl.num_threads(threads):
            same(f(u, 100), want)


def test_one_axis_and_three() -> None:
    def line(x: Any, steps: int) -> Any:
        x = x.copy()
        for _ in range(steps):
            x[1:-1] = (x[:-2] + x[1:-1] + x[2:]) / 3
        return x

    def box(x: Any, steps: int) -> Any:
        x = x.copy()
        for _ in range(steps):
            c = x[1:-1, 1:-1, 1:-1]
            x[1:-1, 1:-1, 1:-1] = c + 0.125 * (
                x[2:, 1:-1, 1:-1] - 2 * c + x[:-2, 1:-1, 1:-1]
                + x[1:-1, 2:, 1:-1] - 2 * c + x[1:-1, :-2, 1:-1]
                + x[1:-1, 1:-1, 2:] - 2 * c + x[1:-1, 1:-1, :-2]
            )  # fmt: skip
        return x

    f, g = dsl.jit(line), dsl.jit(box)
    for n in (100_000, 5000, 17, 3, 2):
        for steps in (1, 30, 200):
            compare(f, line, arrays(1, (n,)), steps)
    for shape in ((40, 30, 20), (130, 9, 11), (3, 3, 3)):
        for steps in (1, 2, 25):
            compare(g, box, arrays(1, shape), steps)
    assert is_banded(f, *arrays(1, (5000,)), 10)
    assert is_banded(g, *arrays(1, (40, 30, 20)), 10)


def test_bands_without_rows_of_a_fill_write_nothing() -> None:
    """The edges of a new array of zeros are a map of one row each, which most bands do not have."""

    def line(u: Any, steps: int) -> Any:
        before, now = u.copy(), u.copy()
        for _ in range(steps):
            after = np.zeros_like(now)
            after[1:-1] = 2 * now[1:-1] - before[1:-1] + 0.25 * (now[2:] - now[:-2])
            before, now = now, after
        return now, before

    for dynamic in (False, True):
        f = dsl.jit(line, dynamic=dynamic)
        assert is_banded(f, *arrays(1, (2000,)), 10)
        for n in (2000, 100_000, 257, 5):
            for steps in (1, 2, 50):
                compare(f, line, arrays(1, (n,)), steps)


def test_edges_of_one_axis() -> None:
    """Bands far from an edge have no element of it, and write none."""

    def driven(u: Any, steps: int) -> Any:
        before, now, after = u.copy(), 0.9 * u, np.zeros_like(u)
        for t in range(steps):
            after[1:-1] = 2 * now[1:-1] - before[1:-1] + 0.2 * (now[2:] - 2 * now[1:-1] + now[:-2])
            after[0] = 0.1 * t
            after[-1] = after[-2]
            before, now, after = now, after, before
        return before, now, after

    def limited(u: Any, steps: int) -> Any:
        u = u.copy()
        for _ in range(steps):
            slope = np.zeros_like(u)
            slope[2:-2] = (u[3:-1] - u[2:-2]) * (u[2:-2] - u[1:-3])
            u[1:] -= 0.1 * (slope[1:] - slope[:-1])
        return u

    for program in (driven, limited):
        f = dsl.jit(program)
        for n in (1000, 5000, 100_000, 5):
            for steps in (1, 30):
                compare(f, program, arrays(1, (n,)), steps)
        assert is_banded(f, *arrays(1, (1000,)), 10)


def test_what_is_used_in_one_trip_only_and_loops_in_loops() -> None:
    for program in (coupled, rounds):
        f = dsl.jit(program)
        for shape in ((300, 50), (50, 300), (4, 4)):
            (u,) = arrays(1, shape)
            for steps in (0, 3, 20):
                for a, b in zip(f(u, steps), program(u, steps)):
                    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        assert is_banded(f, u, 3)


def test_programs_that_look_further_are_left_as_they_are() -> None:
    def around(u: Any, steps: int) -> Any:
        for _ in range(steps):
            u = 0.5 * (np.roll(u, 1, axis=0) + u)
        return u

    def turned(u: Any, steps: int) -> Any:
        for _ in range(steps):
            u = 0.5 * (u.T + u)
        return u

    def summed(u: Any, steps: int) -> Any:
        u = u.copy()
        for _ in range(steps):
            u[1:-1] = 0.5 * (u[2:] + u[:-2]) / u.sum()
        return u

    def chosen(u: Any, steps: int) -> Any:
        u = u.copy()
        at = np.arange(u.shape[0])[::-1].copy()
        for _ in range(steps):
            u[1:-1] = 0.5 * (u[at][2:] + u[:-2])
        return u

    for program in (around, turned, summed, chosen):
        f = dsl.jit(program)
        (u,) = arrays(1, (60, 60))
        np.testing.assert_allclose(f(u, 9), program(u, 9), rtol=1e-12)
        assert not is_banded(f, u, 9), program


def test_derivatives_of_stencils_in_loops() -> None:
    (u,) = arrays(1, (40, 30))
    dsl.check_grads(lambda x: (heat(x, 5) ** 2).sum(), (u,), order=1)
    dsl.check_grads(lambda x: (wave(x, 4)[0] ** 2).sum(), (u,), order=1)


def test_an_argument_that_is_updated_is_the_callers() -> None:
    def relax(u: Any, steps: int) -> None:
        for _ in range(steps):
            u[1:-1, 1:-1] = 0.25 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2])

    f = dsl.jit(relax)
    for shape in SHAPES_2:
        for steps in (1, 2, 33):
            compare(f, relax, arrays(1, shape), steps)
    wide = arrays(1, (200, 100))[0]
    mine, theirs = wide.copy()[::2, ::2], wide.copy()[::2, ::2]
    f(mine, 5)
    relax(theirs, 5)
    np.testing.assert_array_equal(mine, theirs)


def test_rows_of_another_array_at_places_that_trips_tell() -> None:
    def driven(u: Any, history: Any) -> Any:
        u = u.copy()
        for t in range(history.shape[0] - 1):
            u[1:-1] = 0.5 * (u[2:] + u[:-2]) + history[t + 1, 1:-1] - history[-1 - t, 1:-1]
        return u

    def recorded(u: Any, steps: int) -> Any:
        seen = np.zeros((steps, *u.shape))
        u = u.copy()
        for t in range(steps):
            seen[t] = u
            u[1:-1] = 0.5 * (u[2:] + u[:-2])
        return seen, u

    (u,), (history,) = arrays(1, (400,)), arrays(1, (9, 400))
    same(dsl.jit(driven)(u, history), driven(u, history))
    same(dsl.jit(recorded)(u, 9), recorded(u, 9))
