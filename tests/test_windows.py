"""Loads of neighbours are put together from vectors that were read before: the same numbers, and nothing outside of arrays is read."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import dsl
from dsl.codegen import widen, windows

SIZES = [3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 64, 65, 100, 1000]


def body(*places: str, ops: int = 1) -> Any:
    """A step of a loop that adds up elements of an array at some places."""
    lines = []
    for k, place in enumerate(places):
        lines += [
            f"  %m{k} = mul nsw i64 %row, 500",
            f"  %n{k} = add nsw i64 %m{k}, %i",
            f"  %a{k} = add nsw i64 %n{k}, {place}",
            f"  %p{k} = getelementptr inbounds double, ptr %x, i64 %a{k}",
            f"  %x{k} = load double, ptr %p{k}, align 8",
        ]
    total = "%x0"
    for k in range(1, len(places)):
        lines.append(f"  %s{k} = fadd double {total}, %x{k}")
        total = f"%s{k}"
    for k in range(ops):
        lines.append(f"  %t{k} = fmul double {total}, %c")
        total = f"%t{k}"
    lines += ["  %q = getelementptr inbounds double, ptr %y, i64 %i"]
    lines += [f"  store double {total}, ptr %q, align 8"]
    found = widen.read(lines, "%i")
    assert found is not None
    return found


def found(given: Any, lanes: int = 8) -> list[dict[str, int]]:
    return [dict(w.behind) for w in windows.find(given.steps, given.vectors, lanes)]


def test_neighbours_are_a_window_and_other_rows_are_not() -> None:
    assert found(body("500", "501", "499", "1000", "0")) == [{"%x1": 0, "%x0": 1, "%x2": 2}]
    assert found(body("1", "1")) == []
    assert found(body("0", "8")) == []
    assert found(body("0", "8"), lanes=16) == [{"%x1": 0, "%x0": 8}]


def test_there_are_no_more_shuffles_than_arithmetic_has_time_for() -> None:
    assert sum(len(w) - 1 for w in found(body("0", "1", "2", "3", "4"))) == 3
    assert found(body("0", "1", "2", ops=20)) == []


def test_the_foremost_alone_is_read() -> None:
    text = "\n".join(body("0", "1", "2").widened(8, start="%low").body)
    assert text.count("= load <8 x double>, ptr %i.8.x") == 2  # the vector, and the one before it
    assert text.count("shufflevector") == 3


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.int32, np.int64, np.float16, np.uint8]
)
def test_neighbours_in_one_axis(dtype: Any) -> None:
    def near(x: Any) -> Any:
        return x[2:] - x[1:-1] + x[:-2]

    def far(x: Any) -> Any:
        return x[:-7] + x[7:] * x[3:-4]

    def reached(x: Any) -> Any:
        return np.abs(x[1:] - x[:-1]).max(), (x[1:] * x[:-1] + x[:-1]).sum()

    rng = np.random.default_rng(0)
    for size in SIZES:
        x = (rng.random(size + 8) * 9).astype(dtype)
        for function in (near, far):
            np.testing.assert_array_equal(dsl.jit(function)(x), function(x))
        for got, want in zip(dsl.jit(reached)(x), reached(x)):
            np.testing.assert_allclose(
                np.float64(got), np.float64(want), rtol=1e-2 if dtype == np.float16 else 1e-5
            )


def test_neighbours_in_two_axes_and_views() -> None:
    def blurred(x: Any) -> Any:
        y = np.zeros_like(x)
        y[1:-1, 1:-1] = (
            x[:-2, :-2] + x[:-2, 1:-1] + x[:-2, 2:] + x[1:-1, :-2] + x[1:-1, 1:-1]
            + x[1:-1, 2:] + x[2:, :-2] + x[2:, 1:-1] + x[2:, 2:]
        )  # fmt: skip
        return y

    rng = np.random.default_rng(1)
    f = dsl.jit(blurred)
    for rows in (3, 20):
        for columns in SIZES:
            x = rng.random((rows, columns))
            np.testing.assert_array_equal(f(x), blurred(x))
            wide = rng.random((2 * rows, 2 * columns + 5))
            for view in (wide[::2, 3 : 3 + columns], wide[::-2, :columns], wide.T[:columns]):
                np.testing.assert_array_equal(f(view), blurred(view))


def test_nothing_outside_of_an_array_is_read() -> None:
    """Arrays that begin and end where a page does that nobody may read."""
    code = """
import ctypes, mmap
import numpy as np
import dsl

PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 6 * PAGE)
whole = np.frombuffer(memory, np.uint8)
libc = ctypes.CDLL(None, use_errno=True)
for page in (0, 5):
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + page * PAGE), ctypes.c_size_t(PAGE), 0) == 0

@dsl.jit
def near(x):
    return x[2:] - 2 * x[1:-1] + x[:-2]

@dsl.jit
def apart(x):
    return x[:-7] + x[7:] * x[3:-4]

for dtype in (np.float32, np.float64):
    for size in (9, 16, 17, 40, 127, 500):
        bytes = size * np.dtype(dtype).itemsize
        for start in (PAGE, 5 * PAGE - bytes):
            x = whole[start : start + bytes].view(dtype)
            x[:] = np.arange(size)
            near(x), apart(x)
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
