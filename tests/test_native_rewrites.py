"""Short loops over arrays become one kernel, arrays put together twice are written once, constant divisors are cheap.

What these do to the plan is looked at in the text of the kernels; that they change no result, against NumPy.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import dsl


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(-2, 2, shape)


# -- short loops ---------------------------------------------------------------------------------------------------


def convolve(image, kernel):
    rows, columns = image.shape[0] - 2, image.shape[1] - 2
    out = np.zeros((rows, columns), image.dtype)
    for i in range(3):
        for j in range(3):
            out += kernel[i, j] * image[i : i + rows, j : j + columns]
    return out


def newton(x):
    y = np.ones_like(x)
    for _ in range(4):
        y = 0.5 * (y + np.abs(x) / y)
    return y


def two_carried(x):
    a, b = x, x * 0
    for k in range(3):
        a, b = b + k, a * 2
    return a, b


def in_place(x):
    for k in range(3):
        x += k * x
    return x.sum()


def normalized(x):
    for _ in range(3):
        x = x / x.sum()
    return x


def long(x):
    for k in range(50):
        x = x * 0.5 + k
    return x


def beyond(x):
    total = np.zeros(4)
    for k in range(4):
        total = total + x[2 * k : 2 * k + 4]  # shorter than 4 in the end
    return total


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (convolve, (numbers(9, 11), numbers(3, 3))),
        (newton, (numbers(40),)),
        (two_carried, (numbers(5),)),
        (in_place, (numbers(6),)),
        (normalized, (numbers(7),)),
        (long, (numbers(8),)),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_loops_over_arrays_are_as_numpys(function, args) -> None:
    expected = function(*(x.copy() for x in args))
    found = dsl.jit(function)(*(x.copy() for x in args))
    for f, e in zip(found, expected) if isinstance(expected, tuple) else [(found, expected)]:
        np.testing.assert_allclose(f, e, rtol=1e-13)


@pytest.mark.parametrize(
    ("function", "args", "loops"),
    [
        (convolve, (numbers(9, 11), numbers(3, 3)), 0),
        (newton, (numbers(40),), 0),
        (normalized, (numbers(7),), 1),
        (long, (numbers(8),), 1),
    ],
)
def test_short_loops_of_elements_are_unrolled(function, args, loops) -> None:
    text = dsl.jit(function).ir(*args, stage="kernels")
    assert text.count("scan(") == loops
    assert loops or text.count("kernel for") == 1


def test_a_slice_that_leaves_its_array_in_a_short_loop_raises_as_before() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        beyond(numbers(9))
    with pytest.raises(ValueError, match="broadcast"):
        dsl.jit(beyond)(numbers(9))


# -- arrays put together along several axes ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 5)])
def test_padding_along_all_axes(mode: str, shape: tuple[int, ...]) -> None:
    x, width = numbers(*shape), ((2, 1),) * len(shape)
    for function in (
        lambda x: np.pad(x, width, mode=mode),
        lambda x: np.pad(np.sin(x), width, mode=mode) * 2,
    ):
        np.testing.assert_allclose(dsl.jit(function)(x), function(x), rtol=1e-14)
        of_any_size = dsl.jit(function, dynamic=True)
        for part in (x, x[:2]):
            np.testing.assert_allclose(of_any_size(part), function(part), rtol=1e-14)


def largest(x):
    return np.lib.stride_tricks.sliding_window_view(x, (2, 2))[::2, ::2].max(axis=(2, 3))


def energies(x):
    return (np.lib.stride_tricks.sliding_window_view(x[0], 5)[::3] ** 2).sum(axis=1)


@pytest.mark.parametrize("function", [largest, energies])
def test_windows_in_steps_are_read_where_they_lie_whatever_their_number(function) -> None:
    compiled = dsl.jit(function, dynamic=True)
    for size in (5, 6, 7, 8, 100):
        x = numbers(size, size)
        np.testing.assert_allclose(compiled(x), function(x), rtol=1e-14)
    assert "?" not in compiled.ir(numbers(9, 9), stage="kernels")


def test_paddings_of_sizes_that_are_not_known_are_joined() -> None:
    text = dsl.jit(lambda x: np.pad(x, 3, mode="edge"), dynamic=True).ir(
        numbers(20), stage="kernels"
    )
    assert text.count("%x[i0]") == 1


def test_padded_edges_are_written_once() -> None:
    text = dsl.jit(lambda x: np.pad(x, 3, mode="edge")).ir(numbers(20, 20), stage="kernels")
    assert text.count("[pieces]") == 1


def test_a_joined_array_that_is_returned_too_is_in_memory() -> None:
    def function(x):
        tall = np.concatenate((x, x[:1]))
        return tall, np.concatenate((tall[:, 1:], tall[:, :2]), axis=1)

    x = numbers(4, 5)
    for found, expected in zip(dsl.jit(function)(x), function(x), strict=True):
        np.testing.assert_array_equal(found, expected)


# -- constant divisors ---------------------------------------------------------------------------------------------


DIVISORS = (3, 7, 10, 641, 2**31 - 1, 2**32 + 1, 2**62 + 1, 2**63 - 1)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_words_are_divided_by_constants_without_the_instruction(dtype: type) -> None:
    def function(x):
        divisors = [np.array(d, dtype)[()] for d in DIVISORS]
        return [(x // d, x % d) for d in divisors]

    info = np.iinfo(dtype)
    near = [d * k + r for d in DIVISORS for k in (-1, 1, 2) for r in (-1, 0, 1)]
    ends = [info.min, info.min + 1, info.max - 1, info.max, info.max // 2 + 1]
    x = np.array([n for n in (*near, *ends) if info.min <= n <= info.max], dtype)
    compiled = dsl.jit(function)
    np.testing.assert_array_equal(compiled(x), function(x))
    assert "div i64" not in compiled.ir(x, stage="llvm")


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 64, 100])
def test_division_by_a_positive_constant_rounds_down(dtype: type, divisor: int) -> None:
    info, d = np.iinfo(dtype), np.array(divisor, dtype)[()]
    x = np.array(
        [info.min, info.min + 1, -100, -65, -64, -7, -1, 0, 1, 6, 7, 63, 64, info.max], dtype
    )
    np.testing.assert_array_equal(dsl.jit(lambda x: x // d)(x), x // d)
    np.testing.assert_array_equal(dsl.jit(lambda x: x % d)(x), x % d)
    np.testing.assert_array_equal(dsl.jit(lambda x: np.divmod(x, d))(x), np.divmod(x, d))
    one = dsl.jit(lambda x, k: (x[k] // d, x[k] % d))
    for k in range(len(x)):
        assert one(x, k) == (x[k] // d, x[k] % d)


# --- What is written into an array and read again ------------------------------------------------


def test_what_is_written_into_an_array_is_read_from_there() -> None:
    def both(a: Any, b: Any) -> None:
        b[1:-1] = 0.2 * (a[:-2] + a[1:-1] + a[2:] - a[1:-1] * a[:-2])
        a[1:-1] = 0.2 * (b[:-2] + b[1:-1] + b[2:] - b[1:-1] * b[:-2])

    def overwritten(a: Any, b: Any) -> Any:
        b[1:-1] = np.exp(a[:-2]) + a[2:]
        seen = b[1:-1] * 2.0
        b[1:-1] = 0.0
        return seen + b[1:-1]

    a, b = np.linspace(0.0, 1.0, 3000), np.zeros(3000)
    for program in (both, overwritten):
        f = dsl.jit(program)
        mine, theirs = (a.copy(), b.copy()), (a.copy(), b.copy())
        got, want = f(*mine), program(*theirs)
        np.testing.assert_allclose(np.array(got, float), np.array(want, float), rtol=1e-14)
        np.testing.assert_array_equal(mine, theirs)
    assert "0 arrays of workspace" in str(dsl.jit(both).lower(a, b).memory_report())


# -- sizes that are known when the program runs only --------------------------------------------------------------


def windows(image, kernel):
    rows, columns = image.shape[0] - 4, image.shape[1] - kernel.shape[1] + 1
    out = np.zeros((rows, columns))
    for i in range(5):
        for j in range(5):
            out += kernel[i, j] * image[i : i + rows, j : j + columns]
    return out


def test_slices_that_move_in_loops_are_one_kernel_for_all_sizes() -> None:
    f, kernel = dsl.jit(windows), numbers(5, 5)
    for shape in ((30, 40), (33, 47), (5, 5), (4, 9), (64, 8)):
        image = numbers(*shape)
        np.testing.assert_allclose(f(image, kernel), windows(image, kernel), rtol=1e-12)
    text = f.ir(numbers(90, 80), kernel, stage="kernels")
    assert "scan" not in text
    assert text.count("kernel for") == 1
    for shape in ((3, 9), (9, 2)):
        with pytest.raises(ValueError, match="negative dimensions are not allowed"):
            f(numbers(*shape), kernel)


# -- reductions along the last axes and some before them -------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c16", "i1", "i8", "?"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((9, 5, 4), (0, 2)), ((9, 3, 4, 2), (0, 2, 3)), ((3, 4, 10, 6), (0, 2)), ((2, 10, 3, 3), (1, 3)), ((2, 3, 4), (0, 2)),
     ((9, 0, 4), (0, 2)), ((70, 4, 1000), (0, 2))],
)  # fmt: skip
def test_rows_are_reduced_before_columns(dtype: str, shape: Any, axes: Any) -> None:
    x = (numbers(*shape) * 4).astype(int).astype(dtype)
    names = ["sum", "any", "all"] + ["max", "min"] * (dtype != "c16") + ["prod"] * (dtype in "i1i8")
    for name, dynamic in itertools.product(names, (False, True)):
        program = lambda x, name=name: getattr(np, name)(x, axis=axes)
        np.testing.assert_array_equal(
            dsl.jit(program, dynamic=dynamic)(x), program(x), err_msg=name
        )
    x = x.real.astype("f8")
    x.reshape(-1)[3:4] = np.nan
    np.testing.assert_array_equal(dsl.jit(lambda x: x.max(axes))(x), x.max(axes))


def test_which_reductions_are_two() -> None:
    count = lambda x, axes: dsl.jit(lambda x: x.sum(axes)).ir(x, stage="kernels").count("sum(")
    x = np.ones((90, 50, 40))
    assert [count(x, axes) for axes in [(0, 2), (1, 2), (0, 1), (2,), None]] == [2, 1, 1, 1, 1]
    assert count(np.ones((2, 500, 400)), (0, 2)) == 1
    assert count(x[:9], (0, 2)) == 1


def test_no_elements_have_no_largest_along_either_axis() -> None:
    for shape in [(0, 5, 4), (9, 5, 0)]:
        with pytest.raises(ValueError, match="zero-size array to reduction operation maximum"):
            dsl.jit(lambda x: x.max((0, 2)), dynamic=True)(np.ones(shape))
