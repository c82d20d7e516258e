"""Gradients of functions where they are easily NaN, and of some that are easily wrong.

Tables of functions, points, and the gradient there, which both executors and both modes give; then plain functions,
against finite differences, each executor, and JAX if it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dsl


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def floats(*x: Any) -> np.ndarray:
    return np.array(x, float)


# -- special points -----------------------------------------------------------------------------------------------

inf, nan, pi = np.inf, np.nan, np.pi
norm, nn = np.linalg.norm, dsl.nn
masked = np.array([True, False])
origin, plane = floats(0, 0), np.zeros((2, 2))
POINT = floats(0, 1e3, -1e3)


def second(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: dsl.grad(fn)(x).sum()


def summed(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: fn(x).sum()


def erasing(
    write: Callable[[Any], None], fn: Callable[[Any], Any] = lambda x: 1 / x
) -> Callable[[Any], Any]:
    """Return a function that writes into its result."""

    def written(x: Any) -> Any:
        y = fn(x)
        write(y)
        return y

    return written


def at(index: Any, value: Any = 0.0) -> Callable[[Any], None]:
    return lambda y: y.__setitem__(index, value)


# What is not chosen has no say, however it comes to `where`.
CHOSEN: dict[str, tuple[Any, Any, Any]] = {
    "sqrt": (lambda x: np.where(x > 0, np.sqrt(x), 0), floats(0, -1, 4), floats(0, 0, 0.25)),
    "log": (lambda x: np.where(x > 0, np.log(x), 0), floats(0, 2), floats(0, 0.5)),
    "minus log": (lambda x: np.where(x > 0, 1 - np.log(x), 0), floats(0, 2), floats(0, -0.5)),
    "reciprocal": (lambda x: np.where(x != 0, 1 / x, 0), floats(0, 2), floats(0, -0.25)),
    "overflow": (lambda x: np.where(x < 10, np.exp(x * x) * x, x), floats(1e3, 0), floats(1, 1)),
    "softplus": (lambda x: np.where(x > 20, x, np.log1p(np.exp(x))), floats(0, 1e3), floats(0.5, 1)),
    "exponent": (lambda y: np.where(masked, floats(2, -2) ** y, 0), floats(1, 1), floats(np.log(4), 0)),
    "other type": (lambda x: np.where(x > 0, np.sqrt(x).astype(np.float32), 0), floats(0, 4), floats(0, 0.25)),
    "slice": (lambda x: np.where(x[1:] > 0, np.log(x)[1:], 0), floats(1, 0, 2), floats(0, 0, 0.5)),
    "reversed": (lambda x: np.where(x[::-1] > 0, np.log(x)[::-1], 0), floats(0, 2), floats(0, 0.5)),
    "gathered": (lambda x: np.where(masked, np.log(x)[np.array([1, 0])], 0), floats(0, 2), floats(0, 0.5)),
    "transposed": (lambda x: np.where(x.T > 0, np.log(x).T, 0), floats([0, 1], [2, 4]), floats([0, 1], [0.5, 0.25])),
    "joined": (lambda x: np.where([False, *masked], np.concatenate([np.log(x), x[1:]]), 0), floats(0, 2), floats(0, 0.5)),
    "row sums": (lambda x: np.where(x.sum(1) > 2, np.log(x).sum(1), 0), floats([0, 1], [2, 4]), floats([0, 0], [0.5, 0.25])),
    "nested": (lambda x: np.where(x > 0, np.where(x < 3, np.log(x), x), 0), floats(0, 2, 5), floats(0, 0.5, 1)),
    "twice": (lambda x: np.where(x > 0, y := np.log(x), 0) + np.where(x > 1, y, 0), floats(0, 2), floats(0, 1)),
    "select": (lambda x: np.select([x < 0, x > 0], [-x, np.log(x)], 0.0), floats(-1, 0, 2), floats(-1, 0, 0.5)),
    "summed": (lambda x: np.where([[True, False], [False, False]], np.log(x)[:, None], 0), floats(2, 0), floats(0.5, 0)),
    "of a length": (lambda x: np.where(masked, 1 / norm(x[::-1], axis=1), 0), floats([2, 0], [0, 0])[::-1], floats([0, 0], [-0.25, 0])),
    "NaN": (lambda x: np.where(np.isnan(x), 0, abs(x) * x), floats(nan, 2), floats(0, 4)),
    "imaginary part": (lambda z: np.where(z != 0, np.log(z).imag, 0), np.array([0j, 2]), np.array([0, -0.5j])),
    "of a maximum": (lambda x: np.where(np.isnan(x.max()), 0, x.max()), floats(nan, 2), floats(0, 0)),
    "nan_to_num": (lambda x: np.nan_to_num(np.log(x)), floats(-1, 2, 0), floats(0, 0.5, 0)),
    "nansum": (lambda x: np.nansum(x * x), floats(nan, 2), floats(0, 4)),
    "nanmean": (np.nanmean, floats(nan, 2, 1), floats(0, 0.5, 0.5)),
    "nanmax": (np.nanmax, floats(nan, 2, 1), floats(0, 1, 0)),
    "nanprod": (np.nanprod, floats(nan, 2, 3), floats(0, 3, 2)),
    "nanvar": (np.nanvar, floats(nan, 2, 4), floats(0, -1, 1)),
    "nanmedian": (np.nanmedian, floats(nan, 2, 4), floats(0, 0.5, 0.5)),
}  # fmt: skip
# Nor has what is overwritten.
ERASED: dict[str, tuple[Any, Any, Any]] = {
    "element": (erasing(at(0, 5.0)), floats(0, 2), floats(0, -0.25)),
    "slice": (erasing(at(slice(0, None, 2))), floats(0, 2, 0), floats(0, -0.25, 0)),
    "mask": (erasing(at(masked)), floats(0, 2), floats(0, -0.25)),
    "indices": (erasing(at(np.array([0, 2]))), floats(0, 2, 0), floats(0, -0.25, 0)),
    "infinite": (erasing(lambda y: y.__setitem__(np.isinf(y), 0)), floats(0, 2), floats(0, -0.25)),
    "diagonal": (erasing(lambda y: np.fill_diagonal(y, 0)), floats([0, 1], [2, 0]), floats([0, -1], [-0.25, 0])),
    "in sums": (erasing(at(0), lambda x: (y := 1 / x) * y * y + y), floats(0, 1), floats(0, -4)),
    "transposed": (erasing(at((0, 1)), lambda x: (1 / x).T), floats([1, 2], [0, 1]), floats([-1, -0.25], [0, -1])),
    "twice": (erasing(lambda y: (at(0)(y), at(-1)(y))), floats(0, 2, 0), floats(0, -0.25, 0)),  # type: ignore[func-returns-value]
    "scaled": (erasing(at(0), lambda x: 3 * (2 * (1 / x))), floats(0, 1), floats(0, -6)),
    "scaled by infinity": (erasing(at(0), lambda x: floats(inf, 2) * (1 / x)), floats(0, 1), floats(0, -2)),
    "second order": (second(lambda x: erasing(at(0))(x).sum()), floats(0, 1), floats(0, 2)),
}  # fmt: skip
# A length has a kink at 0, not a pole; the mean of all its slopes there is 0.
LENGTHS: dict[str, tuple[Any, Any, Any]] = {
    "sqrt(x * x)": (lambda x: np.sqrt(x * x), floats(0, 2), floats(0, 1)),
    "sqrt(x**2)": (lambda x: np.sqrt((x**2).sum()), origin, origin),
    "x.x ** 0.5": (lambda x: (x @ x) ** 0.5, origin, origin),
    "einsum": (lambda x: np.sqrt(np.einsum("ij,ij->i", x, x)), plane, plane),
    "of differences": (lambda x: np.sqrt(((x[:, None] - x) ** 2).sum(-1)), plane, plane),
    "root of |x|": (lambda x: np.sqrt(np.abs(x)), floats(0, 4), floats(0, 0.25)),
    "norm": (norm, origin, origin),
    "norm of rows": (lambda x: norm(x, axis=1), floats([0, 0], [3, 4]), floats([0, 0], [0.6, 0.8])),
    "norm 3": (lambda x: norm(x, 3), origin, origin),
    "norm 1.5": (lambda x: norm(x, 1.5), floats(0, 2), floats(0, 1)),
    "norm 1": (lambda x: norm(x, 1), floats(0, 2), floats(0, 1)),
    "norm inf": (lambda x: norm(x, inf), origin, origin),
    "norm fro": (lambda x: norm(x, "fro"), plane, plane),
    "complex norm": (norm, np.zeros(2, complex), np.zeros(2, complex)),
    "complex norm 3": (lambda x: norm(x, 3), np.zeros(2, complex), np.zeros(2, complex)),
    "complex abs": (np.abs, np.array([0j, 3 + 4j]), np.array([0, 0.6 - 0.8j])),
    "hypot": (lambda x: np.hypot(x, 2 * x), floats(0, 1), floats(0, 5**0.5)),
    "std": (np.std, floats(1, 1, 1), floats(0, 0, 0)),
    "complex std": (np.std, np.ones(3, complex), np.zeros(3)),
    "nanstd": (lambda x: np.nanstd(x, ddof=1), floats(1, 1, nan), floats(0, 0, 0)),
    "rms": (lambda x: np.sqrt(np.mean(x**2, axis=-1)), plane, plane),
    "second order": (second(norm), origin, origin),
    "not a length": (lambda x: np.sqrt(x * x - 1), floats(1, 2), floats(inf, 2 / 3**0.5)),
    "nor this": (lambda x: np.sqrt((x * x * floats(1, -1)).sum()), floats(1, 1), floats(inf, -inf)),
}  # fmt: skip
# At a kink, the mean of both sides; at an isolated point, what the neighbours have.
POINTS: dict[str, tuple[Any, Any, Any]] = {
    "abs": (np.abs, floats(0, 2, -1), floats(0, 1, -1)),
    "copysign": (lambda x: np.copysign(x, -1.0), floats(0, 2), floats(0, -1)),
    "maximum": (lambda x: np.maximum(x, 1), floats(1, 2, 0), floats(0.5, 1, 0)),
    "minimum": (lambda x: np.minimum(x, 1), floats(1, 2, 0), floats(0.5, 0, 1)),
    "fmax": (lambda x: np.fmax(x, floats(1, nan, 1)), floats(nan, 2, 1), floats(0, 1, 0.5)),
    "clip": (lambda x: np.clip(x, 0, 1), floats(-1, 0, 0.5, 1, 2), floats(0, 0.5, 1, 0.5, 0)),
    "max": (np.max, floats(1, 1, 0), floats(0.5, 0.5, 0)),
    "sort": (lambda x: np.sort(x) * floats(1, 2, 3), floats(1, 1, 0), floats(2, 3, 1)),
    "x**2": (lambda x: x**2, floats(0, 1), floats(0, 2)),
    "x**2.0": (lambda x: x**2.0, floats(0, 1), floats(0, 2)),
    "x**0": (lambda x: x**0 + x**0.0, floats(0, 1), floats(0, 0)),
    "x**1": (lambda x: x**1 + x**1.0, floats(0, 1), floats(2, 2)),
    "x**y": (lambda x: x ** floats(2, 0, 1), floats(0, 0, 0), floats(0, 0, 1)),
    "0**y": (lambda y: 0.0**y, floats(0, 1, 2.5), floats(0, 0, 0)),
    "powers again": (second(lambda x: (x ** floats(2, 0, 1, 3)).sum()), np.zeros(4), floats(2, 0, 0, 0)),
    "x**y by both": (lambda y: dsl.grad(lambda x: (x**y).sum())(floats(2, 4)), origin, floats(0.5, 0.25)),
    "x / x": (lambda x: x / x, floats(1, 2), floats(0, 0)),
    "arctan2": (lambda x: np.arctan2(x, 3 * x), floats(0, 1), floats(0, 0)),
    "angle": (np.angle, np.array([0j, 1j]), np.array([0, -1])),
    "sinc": (np.sinc, floats(0, 1), floats(0, -1)),
    "sinc again": (second(summed(np.sinc)), floats(0, 1), floats(-(pi**2) / 3, 2)),
    "i0 again": (second(summed(np.i0)), floats(0), floats(0.5)),
    "prod": (np.prod, floats(0, 2, 3), floats(6, 0, 0)),
    "prod of zeros": (lambda x: dsl.grad(np.prod)(x) * floats(1, 2, 3), floats(0, 0, 3), floats(6, 3, 0)),
    "cumprod": (np.cumprod, floats(2, 0, 3), floats(1, 8, 0)),
    "det": (np.linalg.det, floats([1, 2], [2, 4]), floats([4, -2], [-2, 1])),
    "logaddexp": (lambda x: np.logaddexp(x, floats(-inf, inf, 0, 0, 0)), floats(-inf, inf, inf, -inf, 0), floats(0.5, 0.5, 1, 0, 0.5)),
    "logaddexp2": (lambda x: np.logaddexp2(x, x), floats(-inf, inf, 0), floats(1, 1, 1)),
    "relu": (nn.relu, POINT, floats(0, 1, 0)),
    "leaky_relu": (nn.leaky_relu, POINT, floats(1, 1, 0.01)),
    "elu": (nn.elu, POINT, floats(1, 1, 0)),
    "elu again": (second(summed(nn.elu)), POINT, floats(1, 0, 0)),
    "selu": (nn.selu, POINT, floats(1.0507009873554805 * 1.6732632423543772, 1.0507009873554805, 0)),
    "softplus": (nn.softplus, POINT, floats(0.5, 1, 0)),
    "softplus again": (second(summed(nn.softplus)), POINT, floats(0.25, 0, 0)),
    "gelu": (nn.gelu, POINT, floats(0.5, 1, 0)),
    "gelu again": (second(summed(nn.gelu)), POINT, floats((2 / pi) ** 0.5, 0, 0)),
    "silu": (nn.silu, POINT, floats(0.5, 1, 0)),
    "silu again": (second(summed(nn.silu)), POINT, floats(0.5, 0, 0)),
    "sigmoid": (nn.sigmoid, POINT, floats(0.25, 0, 0)),
    "logsumexp": (nn.logsumexp, floats(-inf, 0, 0, -1e3), floats(0, 0.5, 0.5, 0)),
    "logsumexp again": (second(nn.logsumexp), floats(-inf, 1e3, -1e3), floats(0, 0, 0)),
    "softmax": (lambda x: nn.softmax(x)[1], floats(-inf, 0, 0, -1e3), floats(0, 0.25, -0.25, 0)),
    "log_softmax": (lambda x: nn.log_softmax(x)[1], floats(-inf, 0, 0, -1e3), floats(0, 0.5, -0.5, 0)),
}  # fmt: skip
SPECIAL = {
    f"{kind} {name}": row
    for kind, table in (
        ("chosen", CHOSEN),
        ("erased", ERASED),
        ("length", LENGTHS),
        ("point", POINTS),
    )
    for name, row in table.items()
}
FINITE = [name for name, row in SPECIAL.items() if np.isfinite(row[2]).all()]


@pytest.mark.parametrize("backend", ["interpreter", "native"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_points(name: str, backend: str) -> None:
    fn, x, expected = SPECIAL[name]
    with dsl.config.override(backend=backend):
        found = dsl.grad(lambda x: fn(x).sum())(x)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FINITE)
def test_special_points_forward(name: str) -> None:
    fn, x, expected = SPECIAL[name]
    tangent = (0.5 ** np.arange(x.size)).reshape(x.shape).astype(x.dtype)
    with dsl.config.override(backend="interpreter"):
        moved = dsl.jvp(lambda x: fn(x).sum(), (x,), (tangent,))[1]
    np.testing.assert_allclose(moved, np.sum(expected * tangent).real, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in FINITE if not name.startswith("point")])
def test_special_points_again(name: str) -> None:
    """The second derivative is a number, too, and the same whichever mode comes first."""
    fn, x, _ = SPECIAL[name]
    way = (0.5 ** np.arange(x.size)).reshape(x.shape).astype(x.dtype)
    slope = dsl.grad(lambda x: fn(x).sum())
    with dsl.config.override(backend="interpreter"):
        curved = dsl.grad(lambda x: (slope(x) * way).real.sum())(x)
        moved = dsl.jvp(slope, (x,), (way,))[1]
    assert np.isfinite(curved).all()
    np.testing.assert_allclose(moved, curved, rtol=1e-12, atol=1e-12)


def test_what_is_not_chosen_has_no_say_in_a_jacobian_of_a_jacobian() -> None:
    rooted = lambda x: np.where(x > 0, np.sqrt(x), 0)
    with dsl.config.override(backend="interpreter"):
        found = dsl.jacrev(dsl.jacfwd(rooted))(floats(0, 4))
    expected = np.zeros((2, 2, 2))
    expected[1, 1, 1] = -1 / 32
    np.testing.assert_allclose(found, expected)


# -- functions ----------------------------------------------------------------------------------------------------


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


V, M, S = _normal(5), _normal(3, 4), _normal(3, 3)
PLAIN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "interp": (lambda y: np.interp(floats(0.3, 1.7, 3.2), np.arange(5.0), y), (V,)),
    "trapezoid": (lambda y, x: np.trapezoid(y, x), (V, np.cumsum(V**2))),
    "cross": (lambda x, y: np.cross(x, y), (S, V[:3])),
    "kron": (lambda x, y: np.kron(x, y), (S, V)),
    "einsum": (lambda x, y: np.einsum("ij,jk,ik->i", x, y, y), (S, S.T)),
    "convolve": (lambda x, y: np.convolve(x, y, "same"), (V, M[0])),
    "diff": (lambda x: np.diff(x, 2), (V,)),
    "gradient": (lambda x: np.gradient(x, axis=1), (M,)),
    "median": (lambda x: np.median(x, axis=1), (M,)),
    "percentile": (lambda x: np.percentile(x, 30.0), (V,)),
    "std": (lambda x: np.std(x, axis=0, ddof=1), (M,)),
    "norm": (lambda x: norm(x, 3, axis=0), (M,)),
    "power": (lambda x, y: np.abs(x) ** y, (V, V[::-1].copy())),
    "irfft": (lambda x: np.fft.irfft(x), (V[:4] + 1j * V[1:],)),
    "spectrum": (lambda x: np.abs(np.fft.rfft(x)) ** 2, (V,)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_functions_to_second_order(name: str) -> None:
    fn, args = PLAIN[name]
    with dsl.config.override(backend="interpreter"):
        dsl.check_grads(fn, args, order=2)


@pytest.mark.parametrize("name", PLAIN)
def test_native_interpreted_and_jax_gradients_agree(name: str) -> None:
    fn, args = PLAIN[name]
    every = tuple(range(len(args)))
    loss = lambda *args: np.sin(fn(*args)).sum()
    native = dsl.grad(loss, every)(*args)
    with dsl.config.override(backend="interpreter"):
        interpreted = dsl.grad(loss, every)(*args)
    for x, y in zip(native, interpreted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-14)
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        patch.setitem(fn.__globals__, "np", jax.numpy)
        patch.setitem(fn.__globals__, "norm", jax.numpy.linalg.norm)
        expected = jax.grad(lambda *args: jax.numpy.sin(fn(*args)).sum(), every)(*args)
    for x, y in zip(native, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)
