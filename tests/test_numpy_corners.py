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
