"""Parts of arrays at places that integers of the program tell: `a[i, 1:-1]`, `a[k, k + 1 :]`, `a[5:, i]`.

Reading one reads the part and writing one writes the part, however large the array is, and views of it are views.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from plainly import check_as_plain

import dsl
from dsl.config import config

Program = Callable[..., Any]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(1, 2, shape)


def waves(u):
    u = u.copy()
    for t in range(1, len(u) - 1):
        u[t + 1, 1:-1] = 2 * u[t, 1:-1] - u[t - 1, 1:-1] + 0.1 * (u[t, 2:] - u[t, :-2])
    return u


def eliminate(a):
    a = a.copy()
    for k in range(len(a)):
        for i in range(k + 1, len(a)):
            a[i, k:] -= a[i, k] / a[k, k] * a[k, k:]
    return a


def ends_of_rows(a):
    a = a.copy()
    for k in range(1, len(a)):
        a[k, 5:] -= 0.5 * a[0, 5:]
    return a


def columns(a):
    a = a.copy()
    for i in range(1, a.shape[1]):
        a[5:, i] += a[5:, i - 1]
    return a


def inner_squares(a):
    a = a.copy()
    for i in range(len(a)):
        a[i, 1:-1, 1:-1] *= 2
    return a


def lines(a):
    a = a.copy()
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            a[i, j, 2:] = a[i, j, 2:] * i - j
    return a


def views_of_views(a):
    a = a.copy()
    for i in range(len(a)):
        row = a[i, 1:-1]
        row += 1
        row[::2] *= a[i, 0]
    return a


def turned(a):
    a = a.copy()
    for i in range(len(a)):
        column = a.T[1:, i]
        column -= 1
        a.transpose(1, 0)[i : i + 2, i] *= 3
    return a


def from_the_end(a):
    a = a.copy()
    for i in range(len(a)):
        a[-i - 1, 1:-1] = a[-i, 1:-1] + i
    return a


def reversed_rows(a):
    a = a.copy()
    for i in range(len(a)):
        a[i, 1:-1] = a[i, ::-1][1:-1]
    return a


def trailing_blocks(a):
    a = a.copy()
    for k in range(len(a) - 1):
        a[k + 1 :, k + 1 :] -= 0.1 * a[k + 1 :, k : k + 1] * a[k, k + 1 :]
    return a


def new_axes(a):
    a = a.copy()
    for i in range(len(a)):
        a[i, None, 1:] += a[None, i, 1:]
    return a


def places_in_rows(a):
    a, at = a.copy(), np.array([3, 1, 3])
    for i in range(len(a)):
        row = a[i]
        row[at] = row[2:5] + i
        np.add.at(row, at, 1.5)
    return a


def swapped(a):
    a = a.copy()
    for i in range(len(a) - 1):
        old = a[i, 1:].copy()
        a[i, 1:] = a[i + 1, 1:]
        a[i + 1, 1:] = old
    return a


def elements_of_rows(a):
    """Elements are picked from rows, columns and parts of them, one subscript after the other."""
    a = a.copy()
    for i in range(1, len(a)):
        row = a[i]
        for j in range(1, len(a[0])):
            a[i][j] += np.sin(row[j - 1] * a[i - 1, :][j]) + a[i - 1][::-1][1:][j - 1] - a.T[j][-i]
            a[:, j][i] *= np.cos(a[:, 0][i] * row[1:][-1])
    return a


def elements_of_blocks(a):
    a = a.copy()
    for i in range(len(a)):
        for j in range(a.shape[1]):
            for k in range(a.shape[2]):
                a[i][j][k] += a[:, :, k][i][j - 1] + a[i, :, k][j] * a.transpose(2, 0, 1)[k][i][j]
    return a


PROGRAMS = [
    (elements_of_rows, (9, 12)), (elements_of_blocks, (9, 5, 6)),
    (waves, (9, 12)), (eliminate, (12, 12)), (ends_of_rows, (9, 12)), (columns, (9, 12)), (inner_squares, (9, 5, 6)),
    (lines, (5, 6, 7)), (views_of_views, (9, 12)), (turned, (9, 12)), (from_the_end, (9, 12)), (reversed_rows, (9, 12)),
    (trailing_blocks, (9, 9)), (new_axes, (9, 12)), (places_in_rows, (9, 12)), (swapped, (9, 12)),
]  # fmt: skip
each = pytest.mark.parametrize(("function", "shape"), PROGRAMS, ids=lambda x: getattr(x, "__name__", ""))  # fmt: skip


@each
@pytest.mark.parametrize("backend", ["native", "interpreter"])
def test_parts_are_read_and_written_as_in_numpy(
    function: Program, shape: tuple[int, ...], backend: str
) -> None:
    with config.override(backend=backend):
        check_as_plain(function, numbers(*shape))


@pytest.mark.parametrize(("function", "shape"), [PROGRAMS[k] for k in (0, 2, 5, 8, 9)])
def test_parts_on_the_emulated_device(function: Program, shape: tuple[int, ...]) -> None:
    with config.override(device="cuda-emulator:0"):
        np.testing.assert_allclose(dsl.jit(function)(numbers(*shape)), function(numbers(*shape)))


@each
def test_sizes_may_be_open(function: Program, shape: tuple[int, ...]) -> None:
    a = numbers(*shape)
    compiled = dsl.jit(function, dynamic=True)
    np.testing.assert_allclose(compiled(a), function(a), rtol=1e-13)
    np.testing.assert_allclose(compiled(a[:6]), function(a[:6]), rtol=1e-13)


@each
def test_a_trip_moves_no_more_than_the_part(function: Program, shape: tuple[int, ...]) -> None:
    report = str(dsl.jit(function).lower(numbers(*shape)).memory_report())
    sizes = sorted(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) B  workspace", report))
    whole = int(np.prod(shape)) * 8
    assert re.findall(r"B  (?!workspace)(.*?)  \(", report) == [
        "the first value of a loop's array, which is read elsewhere too"
    ]
    assert sizes[-1] == whole
    assert all(size * 4 <= whole for size in sizes[:-1])


@each
def test_derivatives_go_through_parts(function: Program, shape: tuple[int, ...]) -> None:
    dsl.check_grads(lambda a: (function(a) ** 2).sum(), (numbers(*shape),), order=1)


@each
def test_parts_of_batches(function: Program, shape: tuple[int, ...]) -> None:
    batch = numbers(3, *shape)
    expected = np.stack([function(a) for a in batch])
    np.testing.assert_allclose(dsl.vmap(function)(batch), expected, rtol=1e-12)


@pytest.mark.parametrize("place", [4, -5, 100])
def test_a_place_outside_is_an_error_of_its_axis(place: int) -> None:
    def read(a, i):
        return a[1:, i, 1:-1]

    def write(a, i):
        a[1:, i, 1:-1] = 0.0

    a = numbers(3, 4, 5)
    for function in (read, write):
        with pytest.raises(IndexError, match=f"index {place} is out of bounds for axis 1 with size 4"):  # fmt: skip
            dsl.jit(function)(a, place)


@pytest.mark.parametrize("backend", ["native", "interpreter"])
@pytest.mark.parametrize(("i", "j"), [(7, 0), (1, 9), (-1, -5)])
def test_a_place_outside_of_a_row_is_an_error_of_the_rows_axis(
    i: int, j: int, backend: str
) -> None:
    def read(a, i, j):
        return a[i][j]

    def turned(a, i, j):
        return a.T[j][i] + a.T[j, i]

    def write(a, i, j):
        a[i][j] = 0.0

    for function in (read, turned, write):
        with pytest.raises(IndexError) as plain:
            function(numbers(3, 4), i, j)
        with config.override(backend=backend), pytest.raises(IndexError) as mine:
            dsl.jit(function)(numbers(3, 4), i, j)
        assert str(mine.value).startswith(str(plain.value))


def test_a_permuted_write_of_an_array_computed_from_itself() -> None:
    def permute(a, at):
        a = a.copy()
        for _ in range(2):
            a[at] = a * 2
        return a

    check_as_plain(permute, numbers(3), np.array([2, 0, 1]))
    check_as_plain(permute, numbers(3, 4), np.array([2, 0, 1]))


def test_what_goes_to_indexed_places_is_looked_up_within_bounds() -> None:
    def put(a, at, b, there):
        a[at] = b[there]

    def add(a, at, b, there):
        np.add.at(a, at, b[there])

    at = np.array([0, 1])
    for function in (put, add):
        for place in (3, -4):
            a = np.zeros((3, 4))
            with pytest.raises(IndexError, match=f"index {place} is out of bounds for axis 0 with size 3"):  # fmt: skip
                dsl.jit(function)(a, at, numbers(3, 4), np.array([0, place]))
            assert not a.any()


def test_what_is_looked_up_and_written_lies_apart_from_a_copy_of_the_array() -> None:
    """Both need memory: the array is still wanted as it was, and what is written is computed aside."""

    @dsl.jit
    def f(x, w, at, there):
        total, steps = np.zeros_like(x), 0
        while steps < 3:
            y = np.sin(x + steps)
            z = y.copy()
            np.add.at(z, at, w[there] * (1.0 + steps))
            total += y * z.sum() + z[::-1] * y.max()
            steps += 1
        return total

    rng = np.random.default_rng(0)
    x, w = rng.normal(size=50), rng.normal(size=50)
    at, there = rng.integers(0, 50, 50), rng.integers(0, 50, 50)
    expected = np.zeros(50)
    for step in range(3):
        y = np.sin(x + step)
        z = y.copy()
        np.add.at(z, at, w[there] * (1.0 + step))
        expected += y * z.sum() + z[::-1] * y.max()
    np.testing.assert_allclose(f(x, w, at, there), expected, rtol=1e-12, atol=1e-12)


def behind_the_pivot(a):
    for k in range(len(a) - 1):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])


def before_the_row(a):
    for k in range(1, len(a)):
        a[:k] += 0.1 * a[k]


def with_the_pivot(a):
    for k in range(len(a) - 1):
        a[k:, k:] -= 0.1 * np.outer(a[k:, k], a[k, k:])


def up_to_the_row(a):
    for k in range(1, len(a)):
        a[: k + 1] += 0.1 * a[k]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [behind_the_pivot, before_the_row])
def test_parts_apart_from_what_is_read_are_written_at_once(program: Program, dynamic: bool) -> None:
    compiled = dsl.jit(program, dynamic=dynamic)
    for size in (5, 8):
        want, got = numbers(size, size), numbers(size, size)
        program(want)
        compiled(got)
        np.testing.assert_allclose(got, want)
    if program is behind_the_pivot:
        report = str(compiled.lower(numbers(8, 8)).memory_report())
        assert "overlapping" not in report


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [with_the_pivot, up_to_the_row])
def test_parts_that_hold_what_is_read_are_computed_first(program: Program, dynamic: bool) -> None:
    compiled = dsl.jit(program, dynamic=dynamic)
    for size in (5, 8):
        want, got = numbers(size, size), numbers(size, size)
        program(want)
        compiled(got)
        np.testing.assert_allclose(got, want)
    assert "overlapping" in str(compiled.lower(numbers(8, 8)).memory_report())


# -- steps that the data decides ---------------------------------------------------------------------------------------


def every(x, start, stop, step, value):
    x[start:stop:step] = value
    return x


def every_more(x, start, stop, step, value):
    x[start:stop:step] += value
    return x


def every_row(x, start, stop, step, value):
    x[1, start:stop:step] = value
    x[start:stop:step] *= 2
    return x


def on_a_line(x, start, step, count):
    x[start + step * np.arange(count)] = 7
    return x


def twice_there(x, start, step, count):
    np.add.at(x, start + step * np.arange(count), 1)
    return x


STEPS = [
    (0, 40, 1), (3, 40, 7), (5, 5, 2), (9, 2, 3), (39, None, -1), (30, 2, -4), (-1, 0, -6), (-30, -3, 5), (0, 100, 39),
]  # fmt: skip


@pytest.mark.parametrize("program", [every, every_more, every_row])
def test_parts_in_steps_that_the_data_decides(program: Any) -> None:
    f = dsl.jit(program)
    shape = (40, 40) if program is every_row else (40,)
    for start, stop, step in STEPS:
        for dtype in (np.float64, np.bool_, np.int8):
            if dtype is np.bool_ and program is not every:
                continue
            mine = np.zeros(shape, dtype)
            theirs = mine.copy()
            f(mine, start, stop, step, 1)
            program(theirs, start, stop, step, 1)
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("program", [on_a_line, twice_there])
def test_index_arrays_that_go_on_in_even_steps(program: Any) -> None:
    f = dsl.jit(program)
    for start, step, count in [
        (0, 1, 40), (3, 5, 7), (39, -1, 40), (-1, -1, 40), (-20, 1, 40), (5, 0, 9), (2, 3, 0), (2, 3, 1),
    ]:  # fmt: skip
        mine, theirs = np.zeros(40), np.zeros(40)
        np.testing.assert_array_equal(
            f(mine, start, step, count), program(theirs, start, step, count)
        )
        np.testing.assert_array_equal(mine, theirs)
    for start, step, count in [
        (0, 1, 41),
        (40, -1, 3),
        (-41, 1, 2),
        (0, 2**62, 5),
        (5, 2**63 - 1, 3),
    ]:
        x = np.zeros(40)
        with pytest.raises(IndexError) as ours:
            f(x, start, step, count)
        with pytest.raises(IndexError) as numpys:
            program(np.zeros(40), start, step, count)
        assert str(numpys.value).split(" for axis")[0] in str(ours.value)
        assert not x.any()
