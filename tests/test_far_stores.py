"""Results that no cache holds are written past the caches: the same bits, whatever their dtype, and however many threads write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsl
from dsl.codegen.kernels import maps, panels, tiles
from dsl.codegen.vector_unit import last_cache_bytes, register_bytes

pytestmark = pytest.mark.skipif(register_bytes() < 32, reason="needs instructions of AVX")


def add(x, y):
    return x + y


def two(x, y):
    return x + y, np.exp(x) * y


def mixed(x, y):
    return (x > y) * 1.5, (x + y).astype(np.int32)


def row_by_row(x, y):
    return x * y[..., :1] + y[..., -1:]


def same(x, y):
    x += y
    return x * 2


def ones(x, y):
    return np.ones(x.shape, x.dtype)


def is_past(f: Any, *args: Any) -> bool:
    return "!nontemporal" in f.ir(*args, stage="llvm")


def test_large_results_are_written_past_the_caches() -> None:
    size = max(1 << 25, last_cache_bytes()) // 4
    x, y = np.random.default_rng(0).random((2, size), dtype=np.float32)
    f = dsl.jit(two)
    assert is_past(f, x, y)
    for threads in (1, 2, 3):
        with dsl.num_threads(threads):
            first, second = f(x, y)
        np.testing.assert_array_equal(first, x + y)
        np.testing.assert_allclose(second, np.exp(x) * y, rtol=1e-6)
    assert not is_past(dsl.jit(two), x[:1000], y[:1000])


@pytest.mark.skipif(register_bytes() < 64, reason="needs lines in registers")
def test_large_arrays_are_turned_round_past_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "last_cache_bytes", lambda: 0)
    x = np.random.default_rng(0).random((1040, 4041))
    for part, far in ((x, True), (x[:1039], False)):  # whose rows become whole lines
        turn = dsl.jit(lambda x: x.T.copy())
        assert ("turn_far" in turn.ir(part, stage="llvm")) == far
        np.testing.assert_array_equal(turn(part), part.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("program", [add, two, mixed, row_by_row, same, ones])
@pytest.mark.parametrize("shape", [(100_003,), (317, 411), (64, 1024)])
def test_all_dtypes_and_sizes(
    program: Any, dtype: Any, shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "_FAR", 1 << 16)
    monkeypatch.setattr(maps, "last_cache_bytes", lambda: 0)
    x, y = (10 * np.random.default_rng(1).random((2, *shape))).astype(dtype)
    f = dsl.jit(program)
    mine, theirs = x.copy(), x.copy()
    got, want = f(mine, y), program(theirs, y)
    for a, b in zip(
        got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)
    ):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6)
    np.testing.assert_array_equal(mine, theirs)
    others = program is same or (program is two and dtype is np.int64)
    cut = len(shape) > 1 and shape[-1] % 64 > 0  # rows do not start with a line
    others |= program is row_by_row and (cut or dtype is np.int64)
    assert is_past(f, mine, y) is not others


def test_what_is_updated_in_place_or_carried_by_a_loop_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maps, "_FAR", 1 << 16)
    monkeypatch.setattr(maps, "last_cache_bytes", lambda: 0)

    def in_place(x):
        x += 1

    def carried(x, n):
        for _ in range(n):
            x = np.tanh(x) + 1
        return x

    x = np.random.default_rng(1).random(100_001)[1:]  # of a caller, and not at the start of a line
    assert not is_past(dsl.jit(in_place), x)
    f = dsl.jit(carried)
    assert not is_past(f, x, 3)
    np.testing.assert_allclose(f(x, 3), carried(x, 3))


def softmax(x):
    e = np.exp(x - x.max(axis=-2, keepdims=True))
    return e / e.sum(axis=-2, keepdims=True)


def normalize(x):
    centred = x - x.mean(axis=-2, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=-2, keepdims=True) + 1e-5)


def two_of_columns(x):
    total = x.sum(axis=-2, keepdims=True)
    return x / total, x - total


def turned(x):
    return normalize(x).swapaxes(-1, -2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("program", [softmax, normalize, two_of_columns, turned])
@pytest.mark.parametrize("shape", [(300, 1024), (64, 160), (65, 1040), (41, 100), (3, 50, 320)])
def test_columns(program: Any, dtype: Any, shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "_FAR", 1 << 10)
    monkeypatch.setattr(panels, "last_cache_bytes", lambda: 0)
    x = np.random.default_rng(2).random(shape).astype(dtype)
    f, want = dsl.jit(program), program(x)
    for threads in (1, 3):
        with dsl.num_threads(threads):
            got = f(x)
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    assert is_past(f, x) is (shape[-1] * x.itemsize % 64 == 0)
