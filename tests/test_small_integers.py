"""Python numbers meet integer dtypes that cannot hold them: refused, wrapped, promoted or compared as NumPy does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dsl

MASK = np.array([True, False, True])


def store_element(a: Any) -> None:
    a[1] = 200


def store_everywhere(a: Any) -> None:
    a[...] = 300


def store_where(a: Any) -> None:
    a[a > 1] = 300


def store_at(a: Any) -> None:
    a[[0, 2]] = 300


def store_list(a: Any) -> None:
    a[:] = [1, 300, 2]


def store_list_of_both(a: Any) -> None:
    a[:] = [1, 300, a[0]]


def store_float(a: Any) -> None:
    a[:] = 300.0


def store_nan(a: Any) -> None:
    a[0] = np.nan


def store_complex(a: Any) -> None:
    a[0] = 3j


def store_numpy_scalar(a: Any) -> None:
    a[0] = np.int64(300)


def add_in_place(a: Any) -> None:
    a += 300


def fill(a: Any) -> None:
    a.fill(-300)


def add_at(a: Any) -> None:
    np.add.at(a, [0], 300)


WRITES = [
    store_element, store_everywhere, store_where, store_at, store_list, store_list_of_both, store_float, store_nan,
    store_complex, store_numpy_scalar, add_in_place, fill, add_at,
    lambda a: np.put(a, [0], 300),
    lambda a: np.put(a, [0], [300]),
    lambda a: np.place(a, MASK, [300]),
    lambda a: np.putmask(a, MASK, 300),
    lambda a: np.copyto(a, 300),
    lambda a: np.copyto(a, 300.0),
    lambda a: np.copyto(a, 300.0, casting="unsafe"),
]  # fmt: skip

RESULTS = [
    lambda a: a + 300,
    lambda a: -300 - a,
    lambda a: a & 0x1FF,
    lambda a: a[0] + 300,
    lambda a: a == 300,
    lambda a: a > -300,
    lambda a: a / 300,
    lambda a: np.maximum(a, 300),
    lambda a: np.clip(a, -300, 300),
    lambda a: a.sum(dtype=a.dtype, initial=300),
    lambda a: a.max(initial=300),
    lambda a: np.full(3, 300, a.dtype),
    lambda a: np.full(3, 300.0, a.dtype),
    lambda a: np.full_like(a, -300),
    lambda a: np.array(300, a.dtype),
    lambda a: np.array([1, 300], a.dtype),
    lambda a: np.array([a[0], 300], a.dtype),
    lambda a: np.insert(a, 0, [300]),
    lambda a: np.append(a, 300),
    lambda a: np.pad(a, 1, constant_values=300),
    lambda a: np.where(a > 1, a, 300),
    lambda a: np.where(a > 1, -1, a),
    lambda a: np.select([a > 1], [a], 300),
    lambda a: np.choose(np.array([0, 1, 0]), [a, 300]),
    lambda a: np.searchsorted(a, 300),
    lambda a: np.add.outer(a, 300),
    lambda a: sum(a),
    lambda a: sum(a, 300),
    lambda a: sum(a > 1),
]


def outcome(function: Callable[[Any], Any], a: np.ndarray) -> Any:
    try:
        with np.errstate(all="ignore"):
            return function(a), a
    except Exception as error:
        return error


def check(function: Callable[[Any], Any], dtype: type) -> None:
    want = outcome(function, np.array([1, 2, 3], dtype))
    got = outcome(dsl.jit(function), np.array([1, 2, 3], dtype))
    if isinstance(want, Exception):
        assert isinstance(got, type(want)), got
        assert isinstance(got, dsl.DslError)
        assert got.location is not None
        assert got.message == str(want)
    else:
        assert not isinstance(got, Exception), got
        for actual, expected in zip(got, want, strict=True):
            np.testing.assert_array_equal(actual, expected, strict=expected is not None)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("function", WRITES, ids=lambda f: f.__name__)
def test_writes_of_numbers_do_as_numpys(function: Callable[[Any], Any], dtype: type) -> None:
    check(function, dtype)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.uint8, np.int8], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("function", RESULTS)
def test_functions_of_numbers_do_as_numpys(function: Callable[[Any], Any], dtype: type) -> None:
    check(function, dtype)


def test_the_message_names_the_line_and_a_remedy() -> None:
    with pytest.raises(dsl.errors.NumberError) as caught:
        dsl.jit(store_element)(np.zeros(3, np.int8))
    assert str(caught.value).splitlines()[0] == "Python integer 200 out of bounds for int8"
    assert "a[1] = 200" in str(caught.value)
    assert "Fix: use a dtype that holds the number" in str(caught.value)


def test_a_number_that_does_not_fit_is_reported_though_tracing_needed_other_values() -> None:
    def count(image: Any, bins: int) -> Any:
        names = [0] * bins  # needs the value of `bins`
        return image * 300 + len(names)

    with pytest.raises(OverflowError, match="300 out of bounds for uint8"):
        dsl.jit(count)(np.zeros(3, np.uint8), 16)


def test_what_does_not_fit_into_64_bits_is_refused_at_its_line() -> None:
    with pytest.raises(OverflowError, match="does not fit into 64 bits") as caught:
        dsl.jit(lambda x: np.where(x > 0, x, 2**70))(np.zeros(3))
    assert isinstance(caught.value, dsl.errors.NumberError)
    assert caught.value.location is not None


# -- numbers that are known when the program runs -------------------------------------------------


def compare_with_number(a: Any, n: int) -> Any:
    return a < n, a <= n, a > n, a >= n, a == n, a != n, n < a, n == a, np.greater(n, a)


def compare_elements(a: Any, n: int) -> Any:
    below = equal = above = 0
    for k in range(len(a)):
        if a[k] < n:
            below += 1
        elif a[k] == n:
            equal += 1
        above += n < a[k]
    return below, equal, above


def count_levels(a: Any, n: int) -> Any:
    counts = np.zeros(300, np.int64)
    for level in range(300):
        counts[level] = (a >= level).sum() + (a == n % 500 - level).sum()
    return counts


def compare_into(a: Any, n: int) -> Any:
    found, always = np.ones(len(a), bool), np.zeros(len(a), bool)
    np.greater(a, n, out=found)
    np.less(a, 2**70, out=always)
    return found, always


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize(
    "function", [compare_with_number, compare_elements, count_levels, compare_into]
)
def test_comparisons_with_numbers_of_the_run_are_exact(function: Any, dtype: str) -> None:
    info, compiled = np.iinfo(dtype), dsl.jit(function)
    a = np.array([info.min, info.max, 0, 1, 44, 127], dtype)
    for n in (44, -1, 300, 256, 65580, 2**32 + 44, -(2**31) - 1, 2**63 - 1, -(2**63)):
        for found, expected in zip(
            np.atleast_2d(compiled(a, n)), np.atleast_2d(function(a, n)), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("low", "high"), [(3, 300), (-1, 70), (-1, 2**40), (-(2**40), 5)])
@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u8"])
def test_limits_of_the_run_that_a_dtype_does_not_hold_limit_nothing(
    low: int, high: int, dtype: str
) -> None:
    a = np.array([0, 1, 44, 127], dtype)
    found = dsl.jit(lambda a, low, high: np.clip(a, low, high))(a, low, high)
    expected = np.clip(a, low, high)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


# -- numbers that a variable has before a loop or on another path -----------------------------------


def last_above(a: Any, least: int) -> Any:
    last = -1
    for k in range(len(a)):
        if a[k] > least:
            last = a[k]
    return last


def greatest(a: Any, least: int) -> Any:
    top = -1
    for k in range(len(a)):
        top = max(top, a[k])
    return top


def smallest(a: Any, least: int) -> Any:
    low, k = 1000, 0
    while k < len(a) and a[k] > least:
        low = min(low, a[k])
        k += 1
    return low


def first_if_above(a: Any, least: int) -> Any:
    return a[0] if a[0] > least else -1


def chosen_or_last(a: Any, least: int) -> Any:
    last = -1
    if a[0] > least:
        last = -2
    if a[1] > least + 1:
        last = a[1]
    return last


FIRST_VALUES = [last_above, greatest, smallest, first_if_above, chosen_or_last]


@pytest.mark.parametrize("dtype", ["i1", "u1", "u4"])
@pytest.mark.parametrize("function", FIRST_VALUES)
def test_a_first_value_that_elements_cannot_have_is_kept(function: Any, dtype: str) -> None:
    a, compiled = np.array([3, 2, 5], dtype), dsl.jit(function)
    for least in (1, 100):
        assert compiled(a, least) == function(a, least)


def test_a_first_value_that_fits_has_the_dtype_of_the_elements() -> None:
    def top(a: Any) -> Any:
        top = 0
        for k in range(len(a)):
            top = max(top, a[k])
        return top

    assert type(dsl.jit(top)(np.array([3, 7], np.uint8))) is np.uint8


def test_a_number_that_no_dtype_has_beside_the_elements_is_refused() -> None:
    with pytest.raises(dsl.errors.BranchError, match=r"no dtype of integers has all values of u64"):
        dsl.jit(last_above)(np.zeros(3, np.uint64), 1)
