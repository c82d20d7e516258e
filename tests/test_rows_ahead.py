"""Rows that are fetched while the ones before are computed: where that is done, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

import dsl
from dsl.codegen.kernels import ahead


@pytest.fixture(autouse=True)
def _older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this one is, take it for one that gains by fetching."""
    monkeypatch.setattr(ahead, "register_bytes", lambda: 32)


def layer_norm(x, gain, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * gain + bias


def softmax(x, gain, bias):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) * gain + bias


def operands(shape: tuple[int, ...], dtype: str = "f4") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=s).astype(dtype) for s in (shape, shape[-1:], shape[-1:])]


def check(function: object, jitted: object, arrays: list[np.ndarray]) -> None:
    tolerance = 1e-5 if arrays[0].dtype == np.float32 else 1e-12
    np.testing.assert_allclose(
        jitted(*arrays), function(*arrays), rtol=tolerance, atol=tolerance  # type: ignore[operator]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((512, 1024), 2),
        ((4, 128, 1024), 2),
        ((512, 16), 0),  # short rows are foreseen
        ((64, 16_384), 0),  # long ones push the present one out
        ((16, 1024), 0),  # the caches hold all of it
    ],
)
def test_where_rows_are_fetched(shape: tuple[int, ...], count: int) -> None:
    jitted, arrays = dsl.jit(layer_norm), operands(shape)
    assert jitted.ir(*arrays, stage="llvm").count("call void @llvm.prefetch") == count
    check(layer_norm, jitted, arrays)


def test_newer_processors_fetch_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "register_bytes", lambda: 64)
    jitted, arrays = dsl.jit(layer_norm), operands((512, 1024))
    assert "llvm.prefetch" not in jitted.ir(*arrays, stage="llvm")
    check(layer_norm, jitted, arrays)


@pytest.mark.parametrize("function", [layer_norm, softmax])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_sizes_known_when_it_runs(function: object, dtype: str) -> None:
    jitted = dsl.jit(function)  # type: ignore[arg-type]
    for shape in ((700, 500), (701, 500), (3, 7), (900, 511), (1, 1000), (2000, 257)):
        check(function, jitted, operands(shape, dtype))


def test_rows_of_views() -> None:
    x, gain, bias = operands((1024, 1200))
    jitted = dsl.jit(layer_norm)
    for view in (x[:, :1000], x[::2, 100:1100], x[::-1, :1000], x[:, 1000:0:-1]):
        check(layer_norm, jitted, [view, gain[:1000], bias[:1000]])
