"""NumPy's functions on traced values against NumPy itself.

Each line of the tables is a piece of NumPy code over a few named arrays. It runs three ways: by NumPy, traced with all
sizes known and interpreted, and traced with every size above 1 symbolic. Values agree to a few ulps; dtype, shape and
what the result is (array, NumPy scalar, Python number) agree exactly.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import dsl
import dsl.frontend.functions  # registers the functions
from dsl.errors import DslError
from dsl.frontend.library import NAMESPACES
from dsl.frontend.scopes import Storage, Trace, tracing
from dsl.frontend.traced import Kind, Traced, read
from dsl.ir.dims import Symbol
from dsl.ir.interpret import interpret
from dsl.ir.types import TensorType

# -- the arrays that the code below is about -----------------------------------------------------------------------


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(7)
    real = rng.normal(size=(3, 4))
    with_nan = real.copy()
    with_nan[0, 1] = with_nan[2, 1] = np.nan
    return {
        "x": real,
        "y": rng.normal(size=(3, 4)),
        "f": rng.normal(size=(3, 4)).astype(np.float32),
        "h": rng.normal(size=(3, 4)).astype(np.float16),
        "i": rng.integers(-9, 9, (3, 4)),
        "s": rng.integers(-99, 99, (3, 4)).astype(np.int8),
        "u": rng.integers(0, 200, (3, 4)).astype(np.uint8),
        "b": rng.random((3, 4)) < 0.5,
        "z": rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4)),
        "c": (rng.normal(size=(3, 4)) + 1j * rng.normal(size=(3, 4))).astype(np.complex64),
        "n": with_nan,
        "t": rng.normal(size=(2, 3, 4)),
        "q": rng.normal(size=(3, 3)),
        "v": rng.normal(size=6),
        "w": rng.normal(size=6),
        "o": np.array([0.5, 1.0, 2.5, 3.0, 3.5, 7.0]),
        "k": np.array([3, 1, 2, 1, 0, 3]),
        "m": np.array([True, False, True, True, False, True]),
        "d": np.array([1.5, np.nan, -0.0, 1.5, np.inf, -np.inf]),
        "e": np.zeros((0, 4)),
        "p": np.array([2, 0, 1]),
        "r": np.float64(2.5),
        "a0": np.array(1.25),
    }


ARRAYS = arrays()


class Functions:
    """The traced functions under NumPy's names."""

    def __getattr__(self, name: str) -> Any:
        return NAMESPACES["numpy"].get(name) or getattr(np, name)


# Functions that the code may name; a lambda inside the code would have no source text to convert.
GIVEN: dict[str, Any] = {
    "nan": np.nan, "inf": np.inf, "f8": np.float64, "f4": np.float32, "i4": np.int32,
    "minus": lambda a: -a, "twice": lambda a: a * 2, "total": lambda a: a.sum(), "start": lambda a: a[:2],
    "backwards": lambda a: a[::-1] * 2, "slope": lambda i, j: i + 2 * j, "same": lambda i, j: i == j,
}  # fmt: skip


def namespace(values: dict[str, Any], np_: Any) -> dict[str, Any]:
    return {**GIVEN, **values, "np": np_}


def named(code: str) -> dict[str, Any]:
    """The arrays that the code mentions."""
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return {name: array.copy() for name, array in ARRAYS.items() if name in names}


def leaves(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in leaves(item)]
    return [result]


def by_numpy(code: str) -> list[Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return leaves(eval(code, namespace(named(code), np)))


def traced(code: str, symbolic: bool) -> list[Any]:
    """Trace the code, interpret the graph, and return arrays with the kind of value that they stand for."""
    given = named(code)
    trace = Trace("test")
    sizes: dict[int, Any] = {}
    with tracing(trace):
        handles = {
            name: handle(trace, name, array, sizes if symbolic else None)
            for name, array in given.items()
        }
        found = leaves(eval(code, namespace(handles, Functions())))
        graph = trace.root.finish([read(leaf) for leaf in found if isinstance(leaf, Traced)])
    results = iter(interpret(graph, list(given.values())))
    return [(leaf.kind, next(results)) if isinstance(leaf, Traced) else leaf for leaf in found]


def handle(trace: Trace, name: str, array: Any, sizes: dict[int, Any] | None) -> Traced:
    dims = [
        d if sizes is None or d < 2 else sizes.setdefault(d, Symbol(f"n{d}"))
        for d in np.shape(array)
    ]
    value = trace.root.param(TensorType(array.dtype, tuple(dims)), name)
    kind = Kind.SCALAR if isinstance(array, np.generic) else Kind.ARRAY
    return Traced(Storage(value, trace.root), kind=kind)


def compare(expected: Any, got: Any, ulps: float) -> None:
    if not isinstance(got, tuple):
        assert (type(got), got) == (type(expected), expected)
        return
    kind, array = got
    assert kind is kind_of(expected), f"{kind} where NumPy returns {type(expected).__name__}"
    wanted = np.asarray(expected)
    assert array.shape == wanted.shape
    if kind is not Kind.PYTHON:
        assert array.dtype == wanted.dtype
    if ulps and wanted.dtype.kind in "fc":
        eps = float(np.finfo(wanted.dtype).eps)
        np.testing.assert_allclose(array, wanted, rtol=ulps * eps, atol=ulps * eps)
    else:
        np.testing.assert_array_equal(array, wanted)


def kind_of(expected: Any) -> Kind:
    if isinstance(expected, np.ndarray):
        return Kind.ARRAY
    return Kind.SCALAR if isinstance(expected, np.generic) else Kind.PYTHON


def check(code: str, symbolic: bool) -> None:
    expected = by_numpy(code)
    got = traced(code, symbolic)
    assert len(got) == len(expected)
    for wanted, found in zip(expected, got, strict=True):
        compare(wanted, found, 8)


def table(text: str) -> list[str]:
    return [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]


# -- the tables ----------------------------------------------------------------------------------------------------

CREATION = table("""
    np.array([1, 2, 3])
    np.array([[1, 2.5], [3, 4]], dtype=f4)
    np.array([x[0, 0], 1, x[1, 2]])
    np.array([[v[0], v[1]], [1, 2]])
    np.array([v, w])
    np.array([f[0, 0], 2])
    np.array(v, ndmin=2)
    np.array(5)
    np.array([True, x[0, 0] > 0])
    np.array(x, dtype=i4)
    np.array([[b[0, 0], 1], [2.5, s[0, 0]]])
    np.array([])
    np.asarray(x)
    np.asarray([1, 2], dtype=f4)
    np.copy(x)
    np.zeros(3)
    np.zeros((2, 3), dtype=int)
    np.zeros(())
    np.ones((2, 2), dtype=bool)
    np.ones(3, dtype=complex)
    np.empty((0, 3))
    np.full(3, 7)
    np.full((2, 3), 1.5, dtype=f4)
    np.full((2, 3), [1, 2, 3])
    np.full(3, r)
    np.zeros_like(i)
    np.zeros_like(x, dtype=int)
    np.zeros_like(x, shape=(2, 2))
    np.ones_like(s)
    np.ones_like(x[0, 0])
    np.full_like(i, 2.7)
    np.full_like(x, inf)
    np.arange(5)
    np.arange(2, 9, 3)
    np.arange(9, 2, -2)
    np.arange(3, 3)
    np.arange(5, 2)
    np.arange(0, 1, 0.1)
    np.arange(1.5)
    np.arange(3, dtype=f4)
    np.arange(1, 2, 0.3, dtype=np.float16)
    np.arange(5.0, dtype=int)
    np.arange(v.shape[0])
    np.arange(1, v.shape[0] - 1)
    np.arange(k[0])
    np.arange(-k[0])
    np.arange(k[4], k[0] * 3, k[2])
    np.arange(r)
    np.arange(0.5, r * 3, 0.7)
    np.arange(np.int8(3))
    np.linspace(0, 1)
    np.linspace(0, 1, 5)
    np.linspace(2.0, 3.0, num=5, endpoint=False)
    np.linspace(0, 10, 4, dtype=int)
    np.linspace(-3.5, 3.5, 4, dtype=int)
    np.linspace(0, 1, 1)
    np.linspace(0, 1, 0)
    np.linspace(0, 1, 3, retstep=True)
    np.linspace(x[0], x[1], 3)
    np.linspace(x[0], x[1], 3, axis=-1)
    np.linspace(f[0, 0], f[0, 1], 4)
    np.linspace(0, r, 5)
    np.linspace(1j, 2, 3)
    np.linspace(3, 3, 4)
    np.linspace(v[0], v[1], v.shape[0])
    np.logspace(0, 3, 4)
    np.logspace(0, 3, 4, base=2)
    np.logspace(v[0], v[1], 3)
    np.geomspace(1, 1000, 4)
    np.geomspace(-1, -8, 4)
    np.geomspace(1, 256, 9, dtype=int)
    np.geomspace(r, 20, 5, endpoint=False)
    np.eye(3)
    np.eye(2, 4, 1)
    np.eye(3, k=-1, dtype=int)
    np.eye(v.shape[0])
    np.identity(3)
    np.identity(2, dtype=bool)
    np.tri(3)
    np.tri(3, 5, 2, dtype=int)
    np.tri(3, k=-1)
    np.tril(x)
    np.tril(x, -1)
    np.triu(x, 1)
    np.triu(t)
    np.tril(v)
    np.triu(i)
    np.diag(v)
    np.diag(v, 2)
    np.diag(k, -1)
    np.diag(x)
    np.diag(x, 1)
    np.diagflat(q)
    np.diagflat(q, 1)
    np.vander(v)
    np.vander(v, 3)
    np.vander(k, 4, increasing=True)
    np.meshgrid(v, p)
    np.meshgrid(v, p, indexing='ij')
    np.meshgrid(v, p, sparse=True)
    np.meshgrid(v, p, k)
    np.indices((2, 3))
    np.indices((2, 3), dtype=float)
    np.indices((2, 3), sparse=True)
    np.indices(x.shape)
    np.fromfunction(slope, (2, 3))
    np.fromfunction(same, (3, 3), dtype=int)
    np.tril_indices(3)
    np.triu_indices(3, 1)
    np.triu_indices(3, 1, 4)
    np.tril_indices_from(q)
    np.triu_indices_from(x, 1)
    np.diag_indices(3)
    np.diag_indices_from(q)
    np.hanning(7)
    np.hamming(6)
    np.blackman(5)
    np.bartlett(5)
    np.bartlett(8)
    np.kaiser(5, 14.0)
    np.hanning(1)
    np.hanning(0)
    np.kaiser(1, 3.0)
    np.hanning(v.shape[0])
""")

ELEMENTWISE = table("""
    np.add(x, y)
    np.add(x, 1)
    np.add(f, 1.5)
    np.add(i, 1.5)
    np.add(x, y, dtype=f4)
    np.add(x, y, where=b, out=np.zeros_like(x))
    (np.add(x, y, out=x), x)
    np.multiply(s, s)
    np.subtract(u, 1)
    np.divide(i, 3)
    np.floor_divide(i, 3)
    np.mod(i, -4)
    np.divmod(i, 3)
    np.power(x, 2)
    np.pow(f, 2)
    np.maximum(n, 0)
    np.fmax(n, 0)
    np.hypot(x, y)
    np.atan2(x, y)
    np.arctan2(x, y)
    np.sin(x)
    np.acos(x / 10)
    np.sqrt(i + 10)
    np.exp(h)
    np.abs(z)
    np.absolute(s)
    np.conj(z)
    np.conjugate(x)
    np.sign(x)
    np.sign(z)
    np.heaviside(x, 0.5)
    np.floor(i)
    np.ceil(f)
    np.trunc(u)
    np.rint(x)
    np.isnan(n)
    np.isfinite(d)
    np.logical_and(b, x > 0)
    np.logical_not(i)
    np.bitwise_and(i, 3)
    np.bitwise_invert(u)
    np.bitwise_left_shift(i, 2)
    np.bitwise_not(b)
    np.bitwise_count(i)
    np.modf(x)
    np.frexp(x)
    np.ldexp(x, 2)
    np.logaddexp(x, y)
    np.copysign(x, y)
    np.gcd(i, 6)
    np.lcm(i, 4)
    np.square(s)
    np.sin(a0)
    np.sin(r)
    np.add([1, 2], [3, 4])
    np.add(v, [1, 2, 3, 4, 5, 6])
    np.where(x > 0, x, y)
    np.where(x > 0, x, 0)
    np.where(b, f, 1.0)
    np.where(b, i, 1.5)
    np.where(b, 1, 2)
    np.where(True, 1, 2)
    np.where(b)
    np.where(x, s, u)
    np.where(b, x[0], 0)
    np.where(v > 0, v[:1], z[0, 0])
    np.select([x > 1, x > 0], [x, y], 7)
    np.select([b, ~b], [i, f])
    np.piecewise(x, [x < 0, x >= 0], [minus, twice])
    np.piecewise(x, [x < 0], [-1, 1])
    np.piecewise(v, v < 0, [minus, 3])
    np.piecewise(i, [i < 0, i > 3], [twice, 1, 7])
    np.clip(x, -0.5, 0.5)
    np.clip(x, None, 0.5)
    np.clip(x, 0, None)
    np.clip(i, -2, 3)
    np.clip(u, 10, 300)
    np.clip(s, -5, 2.5)
    np.clip(n, 0, 1)
    np.clip(x, x[0], 1)
    np.clip(x, min=0)
    np.clip(x, max=0.1, min=-0.1)
    np.clip(r, 0, 1)
    (np.clip(x, 0, 1, out=x), x)
    x.clip(0, 1)
    np.clip(x, None, None)
    np.round(x, 1)
    np.round(x)
    np.around(x, -1)
    np.round(i, -1)
    np.round(i, 2)
    np.round(s, -1)
    np.round(b)
    np.round(z, 2)
    np.round(f, 3)
    np.round(r, 1)
    x.round(2)
    np.fix(x)
    np.astype(x, np.int32)
    np.real(z)
    np.imag(z)
    np.real(x)
    np.imag(x)
    np.angle(z)
    np.angle(x)
    np.angle(z, deg=True)
    np.nan_to_num(n)
    np.nan_to_num(d)
    np.nan_to_num(d, nan=1.0, posinf=2.0, neginf=3.0)
    np.nan_to_num(i)
    np.nan_to_num(d * (1 + 2j))
    (np.nan_to_num(d, copy=False), d)
    np.nan_to_num(r)
    np.isposinf(d)
    np.isneginf(d)
    np.isposinf(i)
    np.isreal(z)
    np.isreal(x)
    np.iscomplex(z * 0)
    np.iscomplexobj(z)
    np.isrealobj(z)
    np.isscalar(r)
    np.isscalar(x)
    np.isscalar(3)
    np.isclose(x, x + 1e-9)
    np.isclose(x, y, atol=1)
    np.isclose(n, n, equal_nan=True)
    np.isclose(d, d)
    np.isclose(i, 3)
    np.isclose(f, f)
    np.isclose(r, 2.5)
    np.isclose(x, 1)
    np.allclose(x, x)
    np.allclose(x, y)
    np.allclose(n, n)
    np.allclose(n, n, equal_nan=True)
    np.array_equal(x, x)
    np.array_equal(x, y)
    np.array_equal(x, x * 1.0)
    np.array_equal(n, n, equal_nan=True)
    np.array_equiv(x, x[:1])
    np.array_equiv(x[:1], np.zeros((3, 4)) + x[0])
    np.sinc(x)
    np.sinc(f)
    np.sinc(i)
    np.sinc(np.zeros(3))
    np.i0(x)
    np.i0(i)
    np.i0(f * 10)
    np.unwrap(v * 5)
    np.unwrap(x * 5, axis=0)
    np.unwrap(k, period=4)
    np.unwrap(v * 5, discont=4)
    np.interp(v, o, w)
    np.interp(v * 5, o, w)
    np.interp(2.0, o, w)
    np.interp(x * 3, o, w, left=-1, right=7)
    np.interp(v * 9, o, w, period=5)
    np.interp(d, o, w)
    np.interp(o, o, w)
    np.interp(v * 3, o, z[0, 0] * w)
    np.result_type(x, f)
    np.result_type(f, 1.0)
    np.result_type(s, u)
    np.can_cast(np.int8, np.int16)
    np.promote_types('f4', 'i4')
    np.isdtype(x.dtype, 'real floating')
    np.common_type(f, i)
""")

REDUCE = table("""
    np.sum(x)
    np.sum(x, axis=0)
    np.sum(x, axis=-1, keepdims=True)
    np.sum(x, axis=(0, 1))
    np.sum(x, axis=())
    np.sum(t, axis=(0, -1))
    np.sum(t, axis=(0, -1), keepdims=True)
    np.sum(s)
    np.sum(u, axis=0)
    np.sum(b)
    np.sum(b, axis=1)
    np.sum(f)
    np.sum(h)
    np.sum(z)
    np.sum(i, dtype=f8)
    np.sum(x, dtype=f4)
    np.sum(s, dtype=np.int8)
    np.sum(x, initial=3)
    np.sum(x, where=b)
    np.sum(x, axis=0, where=b, initial=1)
    np.sum(e)
    np.sum(e, axis=0)
    np.sum(e, axis=1)
    np.sum(a0)
    np.sum(r)
    np.sum([1, 2, 3])
    np.sum(a0, axis=0)
    (np.sum(x, axis=0, out=x[0]), x)
    x.sum()
    x.sum(0)
    x.sum(axis=1, keepdims=True)
    np.prod(v)
    np.prod(k, axis=0)
    np.prod(s[:1])
    np.prod(e)
    np.prod(x, axis=1, where=b)
    np.max(x)
    np.max(x, axis=1)
    np.amax(i, axis=0, keepdims=True)
    np.max(n, axis=0)
    np.max(x, initial=0.5)
    np.max(x, axis=0, where=b, initial=-1)
    np.max(e, axis=1)
    np.max(e, axis=0, initial=-inf)
    np.max(e, initial=3.0)
    np.max(b)
    np.max(z)
    x.max(1)
    np.min(x)
    np.amin(s, axis=0)
    np.min(n)
    np.min(v, initial=0)
    np.ptp(x)
    np.ptp(i, axis=1)
    np.ptp(x, axis=0, keepdims=True)
    np.argmax(x)
    np.argmax(x, axis=1)
    np.argmin(x, axis=0)
    np.argmin(n)
    np.argmax(n, axis=0)
    np.argmax(x, axis=1, keepdims=True)
    np.argmax(x, keepdims=True)
    np.argmin(k)
    np.argmax(b, axis=0)
    np.argmax(a0)
    x.argmax()
    np.any(x > 1)
    np.any(b, axis=0)
    np.all(b, axis=1, keepdims=True)
    np.all(i)
    np.any(e)
    np.all(e)
    np.all(e, axis=0)
    np.any(b, where=x > 0)
    np.all(b, axis=0, where=x > 0)
    np.mean(x)
    np.mean(x, axis=0)
    np.mean(i)
    np.mean(s, axis=1)
    np.mean(b)
    np.mean(f)
    np.mean(f, axis=1)
    np.mean(h)
    np.mean(h, axis=0)
    np.mean(z)
    np.mean(c, axis=0)
    np.mean(x, axis=(0, 1), keepdims=True)
    np.mean(x, where=b)
    np.mean(x, axis=0, where=b, keepdims=True)
    np.mean(i, dtype=f4)
    np.mean(h, dtype=f8)
    np.mean(e, axis=0)
    np.mean(e, axis=1)
    np.mean(3)
    x.mean(0)
    np.var(x)
    np.var(x, axis=0)
    np.var(x, axis=1, ddof=1)
    np.var(i)
    np.var(f, axis=0)
    np.var(h)
    np.var(z)
    np.var(c, axis=1)
    np.var(b)
    np.var(x, keepdims=True)
    np.var(x, axis=0, where=b | (x > 0))
    np.var(x, axis=0, correction=1)
    np.var(x, axis=0, mean=np.mean(x, axis=0, keepdims=True))
    np.std(x)
    np.std(x, axis=1, ddof=1, keepdims=True)
    np.std(i, axis=0)
    np.std(f)
    np.std(z, axis=0)
    np.std(v, ddof=6)
    np.average(x)
    np.average(x, axis=0)
    np.average(x, axis=1, weights=np.arange(1.0, 5.0))
    np.average(x, weights=y * y)
    np.average(i, axis=0, weights=p + 1)
    np.average(x, axis=0, weights=p + 1, returned=True)
    np.average(x, axis=0, returned=True)
    np.average(x, axis=1, weights=y, keepdims=True)
    np.median(x)
    np.median(x, axis=0)
    np.median(x, axis=1)
    np.median(x, axis=1, keepdims=True)
    np.median(i, axis=0)
    np.median(v)
    np.median(k)
    np.median(f, axis=1)
    np.median(n)
    np.median(n, axis=0)
    np.median(t, axis=(0, 2))
    np.median(t, axis=(0, 2), keepdims=True)
    np.median(h)
    np.percentile(x, 30)
    np.percentile(x, 30, axis=0)
    np.percentile(x, [10, 50, 90], axis=1)
    np.percentile(x, [10, 50], axis=(0, 1))
    np.percentile(x, [10, 50], axis=0, keepdims=True)
    np.percentile(f, 30)
    np.percentile(f, [25, 75])
    np.percentile(i, 50)
    np.percentile(n, 50, axis=0)
    np.quantile(x, 0.25)
    np.quantile(x, 0)
    np.quantile(x, 1)
    np.quantile(x, 1.0, axis=0)
    np.quantile(v, [[0.1, 0.2], [0.3, 1.0]])
    np.quantile(v, v[:2] ** 2 / 10)
    np.quantile(v, 0.3, method='lower')
    np.quantile(v, 0.3, method='higher')
    np.quantile(v, 0.3, method='nearest')
    np.quantile(v, 0.3, method='midpoint')
    np.quantile(v, 0.3, method='inverted_cdf')
    np.quantile(v, 0.5, method='averaged_inverted_cdf')
    np.quantile(v, 0.5, method='closest_observation')
    np.quantile(v, 0.3, method='hazen')
    np.quantile(v, 0.03, method='weibull')
    np.quantile(v, 0.3, method='median_unbiased')
    np.quantile(v, 0.3, method='normal_unbiased')
    np.quantile(v, 0.3, method='interpolated_inverted_cdf')
    np.nansum(n)
    np.nansum(n, axis=0)
    np.nansum(i)
    np.nanprod(n, axis=1)
    np.nanmean(n)
    np.nanmean(n, axis=0)
    np.nanmean(n, axis=1, keepdims=True)
    np.nanmean(i)
    np.nanmean(n.astype(f4), axis=0)
    np.nanmean(np.full(3, nan))
    np.nanvar(n, axis=0)
    np.nanvar(n, ddof=1)
    np.nanstd(n, axis=1)
    np.nanstd(i)
    np.nanvar(n, axis=0, dtype=f4)
    np.nanstd(n, dtype=np.float16, axis=1)
    np.nanmax(n)
    np.nanmax(n, axis=0)
    np.nanmax(np.full((2, 2), nan), axis=0)
    np.nanmin(n, axis=1, keepdims=True)
    np.nanmin(i, axis=0)
    np.nanargmax(n)
    np.nanargmax(n, axis=0)
    np.nanargmin(n, axis=1)
    np.nanmedian(n)
    np.nanmedian(e, axis=0)
    np.nanquantile(f, np.float32(0.5))
    np.nanquantile(e, 0.5)
    np.nanmedian(n, axis=0)
    np.nanmedian(n, axis=1, keepdims=True)
    np.nanmedian(x, axis=0)
    np.nanpercentile(n, 30)
    np.nanpercentile(n, 30, axis=0)
    np.nanpercentile(n, [30, 60], axis=1)
    np.nanquantile(n, 0.5, axis=0, keepdims=True)
    np.cumsum(x)
    np.cumsum(x, axis=0)
    np.cumsum(s, axis=1)
    np.cumsum(b)
    np.cumsum(a0, axis=0)
    np.cumsum(f, axis=-1)
    np.cumsum(i, dtype=f8)
    np.cumprod(v)
    np.cumprod(k, axis=0)
    x.cumsum(1)
    np.nancumsum(n, axis=0)
    np.nancumprod(n)
    np.cumulative_sum(v)
    np.cumulative_sum(x, axis=1, include_initial=True)
    np.cumulative_prod(k, include_initial=True)
    np.count_nonzero(x > 0)
    np.count_nonzero(i, axis=0)
    np.count_nonzero(x, keepdims=True)
    np.trace(x)
    np.trace(x, offset=1)
    np.trace(t, axis1=1, axis2=2)
    np.trace(s)
    np.diff(v)
    np.diff(x, axis=0)
    np.diff(x, n=2)
    np.diff(b)
    np.diff(u)
    np.diff(v, prepend=0)
    np.diff(x, axis=0, append=y)
    np.diff(v, n=0)
    np.ediff1d(x)
    np.ediff1d(k, to_end=[7, 8], to_begin=-1)
    np.trapezoid(v)
    np.trapezoid(w, o)
    np.trapezoid(x, dx=0.5, axis=0)
    np.trapezoid(x, p, axis=0)
    np.gradient(v)
    np.gradient(x)
    np.gradient(x, axis=1)
    np.gradient(x, 0.5)
    np.gradient(x, 0.5, 2.0)
    np.gradient(w, o)
    np.gradient(w, o, edge_order=2)
    np.gradient(v, edge_order=2)
    np.gradient(k)
    np.gradient(f, axis=0)
    np.add.reduce(x)
    np.add.reduce(x, axis=1, keepdims=True)
    np.maximum.reduce(x, axis=0)
    np.bitwise_or.reduce(i, axis=1)
    np.add.accumulate(x, axis=1)
    np.multiply.outer(v, p)
    np.logical_and.reduce(b)
""")

SHAPE = table("""
    np.reshape(x, (4, 3))
    np.reshape(x, -1)
    np.reshape(x, (2, -1))
    np.reshape(x, (4, 3), order='F')
    np.reshape(x.T, (2, 6))
    np.reshape(x, (x.shape[1], x.shape[0]))
    np.reshape(3, (1, 1))
    x.reshape(2, 6)
    np.ravel(x)
    np.ravel(x.T)
    np.ravel(x, order='F')
    np.transpose(t)
    np.transpose(r)
    np.squeeze(r)
    np.flip(a0)
    np.imag(r)
    np.transpose(t, (1, 0, 2))
    np.transpose(t, (-1, 0, 1))
    np.permute_dims(t, (2, 0, 1))
    np.matrix_transpose(t)
    np.swapaxes(t, 0, -1)
    x.swapaxes(0, 1)
    np.moveaxis(t, 0, -1)
    np.moveaxis(t, [0, 1], [-1, -2])
    np.rollaxis(t, 2)
    np.rollaxis(t, 0, 3)
    np.squeeze(x[:1])
    np.squeeze(x[:, :1], axis=1)
    np.squeeze(x[None, :1])
    x[:1].squeeze()
    np.expand_dims(x, 0)
    np.expand_dims(x, (0, -1))
    np.expand_dims(3.5, 0)
    np.atleast_1d(3.5)
    np.atleast_1d(x, v)
    np.atleast_2d(v)
    np.atleast_3d(v)
    np.atleast_3d(x)
    np.shape(x)[2:]
    np.ndim(x)
    np.ndim(3)
    np.broadcast_to(v, (2, 6))
    np.broadcast_to(3, (2, 2))
    np.broadcast_to(x[0], x.shape)
    np.broadcast_arrays(x, x[0], 3)
    np.broadcast_shapes((3, 1), (1, 4))
    np.concatenate([x, y])
    np.concatenate([x, i], axis=1)
    np.concatenate((x, y), axis=None)
    np.concatenate([v, [1, 2]])
    np.concatenate([f, s])
    np.concatenate([x, y], dtype=f4)
    np.concat([v, w])
    np.concatenate([e, x])
    np.concatenate(t)
    np.stack([x, y])
    np.stack(t)
    np.stack(t, axis=-1)
    np.vstack(x)
    np.vstack(v)
    np.hstack(x)
    np.hstack(t)
    (np.stack(x).fill(1), x)[1]
    np.stack([x, y], axis=-1)
    np.stack([x, i], axis=1)
    np.stack([v[0], v[1], 3])
    np.vstack([v, w])
    np.vstack([x, x[0]])
    np.hstack([v, w])
    np.hstack([x, y])
    np.hstack([v, 3.0])
    np.dstack([x, y])
    np.dstack([v, w])
    np.column_stack([v, w])
    np.column_stack([x, x[:, 0]])
    np.block([[q, np.zeros((3, 1))], [np.ones((1, 3)), 7]])
    np.block([v, w])
    np.block([[x], [y]])
    np.split(v, 3)
    np.split(v, [2, 3])
    np.split(x, 2, axis=1)
    np.array_split(v, 4)
    np.array_split(x, 2)
    np.array_split(v, [1, 9])
    np.hsplit(x, 2)
    np.hsplit(v, 2)
    np.vsplit(x, 3)
    np.dsplit(t, 2)
    np.tile(v, 2)
    np.tile(x, (2, 1))
    np.tile(x, (2, 1, 1))
    np.tile(v, (2, 2))
    np.tile(3, 4)
    np.repeat(v, 2)
    np.repeat(x, 2)
    np.repeat(x, 2, axis=0)
    np.repeat(x, [1, 2, 0], axis=0)
    np.repeat(v, k)
    np.repeat(x, p, axis=0)
    np.repeat(v, k[0])
    np.repeat(3, 4)
    x.repeat(2, axis=1)
    np.flip(x)
    np.flip(x, 0)
    np.flip(t, (0, 2))
    np.fliplr(x)
    np.flipud(x)
    np.rot90(x)
    np.rot90(x, 2)
    np.rot90(x, -1)
    np.rot90(t, 1, (1, 2))
    np.rot90(x, 4)
    np.roll(v, 2)
    np.roll(v, -1)
    np.roll(x, 1)
    np.roll(x, 1, axis=0)
    np.roll(x, (1, 2), axis=(0, 1))
    np.roll(x, 1, axis=(0, 1))
    np.roll(v, k[0])
    np.roll(v, -9)
    np.roll(e, 2)
    np.resize(v, (2, 3))
    np.resize(v, 4)
    np.resize(p, (2, 4))
    np.append(v, 3.0)
    np.append(x, y)
    np.append(x, y, axis=0)
    np.pad(v, 2)
    np.pad(v, (1, 2))
    np.pad(x, ((1, 0), (2, 1)))
    np.pad(x, 1, constant_values=7)
    np.pad(v, (1, 2), constant_values=(3, 4))
    np.pad(x, 1, constant_values=((1, 2), (3, 4)))
    np.pad(x, {-1: (1, 2)})
    np.pad(v, 2, mode='edge')
    np.pad(x, ((1, 2), (0, 3)), mode='edge')
    np.pad(v, 2, mode='reflect')
    np.pad(v, (3, 2), mode='symmetric')
    np.pad(v, 3, mode='wrap')
    np.pad(x, 2, mode='reflect')
    np.pad(v, (1, 2), mode='maximum')
    np.pad(x, 1, mode='mean')
    np.pad(i, 1, mode='mean')
    np.pad(x, 1, mode='minimum', stat_length=2)
    np.pad(x, 1, mode='median')
    np.pad(v, (2, 3), mode='linear_ramp')
    np.pad(k, (2, 3), mode='linear_ramp', end_values=(9, -4))
    np.pad(x, 0, mode='edge')
    np.delete(v, 1)
    np.delete(v, -1)
    np.delete(v, [0, 3])
    np.delete(v, slice(1, 4))
    np.delete(x, 1, axis=0)
    np.delete(x, [0, -1], axis=1)
    np.delete(x, 3)
    np.delete(v, k[1])
    np.delete(v, m)
    np.insert(v, 1, 9.5)
    np.insert(v, -1, 9)
    np.insert(v, 6, [1, 2])
    np.insert(x, 1, 5, axis=0)
    np.insert(x, 1, x[0], axis=0)
    np.insert(x, 2, [1, 2, 3], axis=1)
    np.insert(k, 2, 2.9)
    np.insert(v, k[1], 3.0)
    np.unstack(x)
    np.unstack(x, axis=1)
    np.trim_zeros(np.array([0, 0, 3, 0, 1, 0]))
    np.trim_zeros(np.maximum(v, 0))
    np.trim_zeros(v * 0)
    (np.copyto(x, y), x)[1]
    (np.copyto(x, 3), x)[1]
    (np.copyto(x, y, where=b), x)[1]
    (np.copyto(f, x), f)[1]
    (np.put(v, [0, 2], [7, 8]), v)[1]
    (np.put(x, [1, -1], 5), x)[1]
    (np.put(v, [1, 20], 3, mode='clip'), v)[1]
    (np.put(x.T, [1, 2], [8, 9]), x)[1]
    (np.place(x, x > 0, [1, 2]), x)[1]
    (np.putmask(v, v > 0, [1, 2, 3, 4, 5, 6]), v)[1]
    (np.putmask(x, b, 7), x)[1]
    (np.fill_diagonal(q, 0), q)[1]
    (np.fill_diagonal(x, [1, 2, 3]), x)[1]
    (np.fill_diagonal(q, v[:3]), q)[1]
""")

VIEWS = table("""
    (np.reshape(x, (4, 3)).fill(1), x)[1]
    (np.reshape(x.T, -1).fill(1), x)[1]
    (np.ravel(x).fill(1), x)[1]
    (np.transpose(x)[0].fill(1), x)[1]
    (np.squeeze(x[:1]).fill(1), x)[1]
    (np.expand_dims(x, 0)[0, 1].fill(1), x)[1]
    (np.swapaxes(x, 0, 1)[1].fill(1), x)[1]
    (np.moveaxis(t, 0, -1)[0].fill(1), t)[1]
    (np.flip(v)[:2].fill(1), v)[1]
    (np.rot90(x)[0].fill(1), x)[1]
    (np.real(z).fill(1), z)[1]
    (np.imag(z)[0].fill(1), z)[1]
    (np.split(v, 2)[1].fill(1), v)[1]
    (np.atleast_2d(v)[0, 1:].fill(1), v)[1]
    (np.asarray(x)[0].fill(1), x)[1]
    (np.array(x)[0].fill(1), x)[1]
    (np.unstack(x)[1].fill(1), x)[1]
    (np.broadcast_arrays(v, v)[0].fill(1), v)[1]
    (np.take(x, [0, 1], axis=0).fill(1), x)[1]
    (np.concatenate([v, v]).fill(1), v)[1]
    (np.roll(v, 0).fill(1), v)[1]
    (np.tile(v, 1).fill(1), v)[1]
    (np.pad(v, 0).fill(1), v)[1]
    (np.nan_to_num(v).fill(1), v)[1]
    (np.clip(v, None, None).fill(1), v)[1]
    [d_ := np.diagonal(q), q.fill(2), d_][::2]
    [d_ := np.broadcast_to(v, (2, 6)), v.fill(2), d_][::2]
    [d_ := np.real(z), z.fill(2), d_][::2]
""")

INDEX = table("""
    np.take(v, [0, 2])
    np.take(x, [0, 2])
    np.take(x, [0, 2], axis=1)
    np.take(x, [[0, 1], [2, -1]], axis=1)
    np.take(x, 1, axis=0)
    np.take(v, 2)
    np.take(v, [1.5, 2.5])
    np.take(v, k)
    np.take(v, [7, -8], mode='wrap')
    np.take(v, [7, -8], mode='clip')
    x.take([1, 2])
    np.take_along_axis(x, np.argsort(x, axis=1), axis=1)
    np.take_along_axis(x, np.argmax(x, axis=0)[None], axis=0)
    np.take_along_axis(x, k, axis=None)
    (np.put_along_axis(x, np.argmax(x, axis=1)[:, None], 0, axis=1), x)[1]
    np.choose(p, [v[:3], w[:3], 7.0])
    np.choose(k, [10, 20, 30, 40])
    np.choose(k, [10, 20], mode='wrap')
    np.choose(k, [10, 20], mode='clip')
    np.compress([True, False, True], x, axis=0)
    np.compress(m, v)
    x.compress([True, False, True], axis=0)
    np.extract(x > 0, x)
    np.extract(m, k)
    np.diagonal(x)
    np.diagonal(x, 1)
    np.diagonal(x, -1)
    np.diagonal(x, -3)
    np.diagonal(t, 0, 1, 2)
    np.diagonal(t, 1, 0, 2)
    x.diagonal()
    np.nonzero(x > 0)
    np.nonzero(k)
    np.flatnonzero(i)
    np.argwhere(x > 0)
    np.argwhere(k)
    np.unravel_index(5, (3, 4))
    np.unravel_index([5, 7], (3, 4))
    np.unravel_index([5, 7], (3, 4), order='F')
    np.unravel_index(k, (2, 2))
    np.unravel_index(np.argmax(x), x.shape)
    np.ravel_multi_index(([1, 2], [0, 3]), (3, 4))
    np.ravel_multi_index((k, k), (4, 5))
    np.ravel_multi_index((k, k), (2, 2), mode='clip')
    np.ravel_multi_index((k, k), (2, 2), mode=('wrap', 'clip'))
    np.ravel_multi_index(([1, 2], [0, 3]), (3, 4), order='F')
    np.ix_([0, 1], [1, 2])
    np.ix_(k, m)
    x[np.ix_([0, 2], [1, 3])]
    np.searchsorted(o, v)
    np.searchsorted(o, v, side='right')
    np.searchsorted(o, 3)
    np.searchsorted(o, x)
    np.searchsorted(np.sort(k), o)
    np.searchsorted(v, w, sorter=np.argsort(v))
    np.searchsorted([1, 2, 3], k)
    np.digitize(v, [-1.0, 0.0, 1.0])
    np.digitize(v, [1.0, 0.0, -1.0])
    np.digitize(x, o)
    np.digitize(o, o, right=True)
    np.digitize(o, o[::-1])
    (np.add.at(v, k, 1), v)[1]
    (np.maximum.at(v, [0, 0], [5, 6]), v)[1]
""")

SORT = table("""
    np.sort(x)
    np.sort(x, axis=0)
    np.sort(x, axis=None)
    np.sort(d)
    np.sort(z)
    np.sort(b)
    np.sort(k, kind='stable')
    np.sort(v, stable=True)
    (v.sort(), v)[1]
    np.argsort(v)
    np.argsort(x, axis=0)
    np.argsort(x, axis=None)
    np.argsort(k, stable=True)
    np.argsort(d, kind='stable')
    np.partition(v, 2)[2]
    np.partition(x, 1, axis=0)[1]
    np.take(v, np.argpartition(v, 3))[3]
    np.lexsort((v, k))
    np.lexsort([k, np.round(v), w])
    np.sort_complex(v)
    np.sort_complex(z[0])
    np.unique(k)
    np.unique(x)
    np.unique(k, return_index=True)
    np.unique(k, return_inverse=True, return_counts=True)
    np.unique(i, return_inverse=True)
    np.unique(d)
    np.unique(d, return_counts=True)
    np.unique(d[:0], return_counts=True)
    np.unique(d, equal_nan=False)
    np.unique(np.stack([k, k, v > 0]), axis=0)
    np.unique(np.stack([k, k]), axis=0, return_index=True, return_inverse=True, return_counts=True)
    np.unique_values(np.array([3, 1, 3]))[-1:]
    np.unique_counts(np.array([3, 1, 3])).counts.sum()
    np.unique_all(k)
    np.unique_inverse(k)
    np.isin(k, [1, 3])
    np.isin(x, y)
    np.isin(i, k, invert=True)
    np.isin(d, [nan, 1.5])
    np.isin(3, k)
    np.union1d(k, p)
    np.union1d(v, k)
    np.intersect1d(k, p)
    np.intersect1d(k, [3, 7, 1], return_indices=True)
    np.setdiff1d(k, [1])
    np.setdiff1d(v, v[:2])
    np.setxor1d(k, p)
    np.setxor1d(k, [1, 9])
""")

STATS = table("""
    np.bincount(k)
    np.bincount(k, minlength=8)
    np.bincount(k, weights=v)
    np.bincount(np.array([], dtype=int), minlength=2)
    np.bincount(u[0])
    np.histogram(v)
    np.histogram(v, bins=4)
    np.histogram(v, bins=4, range=(-1, 1))
    np.histogram(v, bins=[-1, 0, 0.5, 2])
    np.histogram(v, bins=[-1, 0, 0.5, 2], weights=w)
    np.histogram(v, bins=3, weights=w)
    np.histogram(x, bins=5, density=True)
    np.histogram(v, bins=[-1, 0, 2], density=True)
    np.histogram(k, bins=3)
    np.histogram(f, bins=3)
    np.histogram(k, bins=np.arange(5))
    np.histogram(np.full(3, 2.0), bins=2)
    np.histogram(o, bins=13)
    np.histogram_bin_edges(v, 3)
    np.histogram2d(v, w, bins=3)
    np.histogram2d(v, w, bins=[2, 3], range=[[-1, 1], [-2, 2]])
    np.histogram2d(v, w, bins=[[-2, 0, 2], [-3, 0, 1, 3]], density=True)
    np.histogram2d(v, w, bins=2, weights=o)
    np.histogramdd(np.stack([v, w]).T, bins=2)
    np.cov(x)
    np.cov(v)
    np.cov(v, w)
    np.cov(x, rowvar=False)
    np.cov(x, bias=True)
    np.cov(x, ddof=0)
    np.cov(z)
    np.cov(x, fweights=[1, 2, 1, 3])
    np.cov(x, aweights=[1.0, 2.0, 0.5, 3.0])
    np.cov(f, dtype=f4)
    np.cov(i)
    np.corrcoef(x)
    np.corrcoef(v, w)
    np.corrcoef(v)
    np.corrcoef(z)
    np.convolve(v, [1, 2, 3])
    np.convolve(v, [1, 2, 3], mode='same')
    np.convolve(v, [1.0, 2.0], mode='valid')
    np.convolve(v, w)
    np.convolve(v, d)
    np.convolve(d, [1.0, inf], 'same')
    np.convolve(np.arange(20.0), np.where(np.arange(18) == 3, nan, 1.0))
    np.convolve(k, [1, 1])
    np.convolve(z[0], [1j, 2])
    np.convolve(np.arange(40.0), np.arange(20.0))
    np.convolve(np.arange(40.0), np.arange(20.0), 'same')
    np.convolve(s[0], s[1])
    np.correlate(v, [1, 2, 3])
    np.correlate(v, w, 'full')
    np.correlate(v, [1, 2], 'same')
    np.correlate(z[0], z[1], 'full')
    np.polyval([1, 2, 3], x)
    np.polyval([1.5, 2], k)
    np.polyval(np.array([3, 0, 1]), 2)
    np.polyder(v)
    np.polyder([3, 2, 1], 2)
    np.polyint([3, 2, 1])
    np.polyint(v, 2, k=[1, 2])
    np.apply_along_axis(np.sum, 0, np.ones((2, 3)))
""")

# Sizes must be known: unrolled over elements, or reshaped to numbers that fit.
STATIC = table("""
    np.size(x)
    np.size(x, 0)
    np.shape(x)
    np.cov([x[0], x[1]])
    np.polyval(v, 2.0)
    np.polyadd(v, [1, 2])
    np.polysub([1], v)
    np.polymul(v, [1, 2])
    np.polyfit(o, w, 2)
    np.apply_along_axis(total, 0, x)
    np.apply_along_axis(backwards, 0, x)
    np.apply_along_axis(start, 1, t)
    np.apply_over_axes(np.sum, t, [0, 2])
    np.array_equal(x, v)
    np.array_equiv(x, v)
    np.insert(v, [0, 2], [7, 8])
    np.insert(v, [1, 1, 4], 5)
    np.insert(x, slice(0, 2), 5.0, axis=0)
    np.pad(v, 2, mode='reflect', reflect_type='odd')
    np.pad(p, 7, mode='wrap')
    np.pad(p, 5, mode='reflect')
    np.unique(x, axis=0)
    np.unique(np.array([[1, 2], [3, 4], [1, 2]]), axis=1, return_index=True)
    np.histogram(e)
    (np.fill_diagonal(np.zeros((2, 2, 2)), 1), 1)[1]
    np.full_like(x, 1, shape=(2, 2))
    np.column_stack([np.arange(3), p])
    np.unstack(t, axis=2)
    np.asfortranarray(x)
    np.argwhere(np.array(3.0))
""")

_SYMBOLIC = CREATION + ELEMENTWISE + REDUCE + SHAPE + VIEWS + INDEX + SORT + STATS


@pytest.mark.parametrize("code", _SYMBOLIC + STATIC)
def test_agrees_with_numpy(code: str) -> None:
    check(code, symbolic=False)


# These need a size that is not known here, or that it is not 1.
_NEED_SIZES = set(
    table("""
    (np.reshape(x.T, -1).fill(1), x)[1]
    np.squeeze(x[:1])
    np.squeeze(x[None, :1])
    x[:1].squeeze()
    np.unstack(x)
    np.unstack(x, axis=1)
    (np.unstack(x)[1].fill(1), x)[1]
    np.unique(np.stack([k, k, v > 0]), axis=0)
    np.unique(np.stack([k, k]), axis=0, return_index=True, return_inverse=True, return_counts=True)
""")
)


@pytest.mark.parametrize("code", [code for code in _SYMBOLIC if code not in _NEED_SIZES])
def test_agrees_with_numpy_for_sizes_known_at_run_time(code: str) -> None:
    check(code, symbolic=True)


ERRORS = table("""
    np.sum(x, axis=2)
    np.sum(x, axis=(0, 0))
    np.max(e)
    np.max(x, where=b)
    np.argmax(e)
    np.mean(x, axis=-3)
    np.mean(a0, axis=0)
    np.median(a0, axis=0)
    np.gradient(a0, 1.0, 2.0)
    np.full(3, x)
    np.histogram(n)
    np.concatenate([x, a0])
    np.searchsorted(x, 1)
    np.interp(z, o, w)
    np.reshape(x, (5, 2))
    np.reshape(x, (-1, -1))
    np.transpose(x, (0, 0))
    np.transpose(x, (0,))
    np.squeeze(x, axis=0)
    np.expand_dims(x, 5)
    np.moveaxis(x, 0, 5)
    np.moveaxis(x, [0, 1], [0])
    np.swapaxes(x, 0, 3)
    np.concatenate([])
    np.concatenate([x, v])
    np.concatenate([x, x[:2, :2]])
    np.concatenate([1, 2])
    np.concatenate([v, v], axis=1)
    np.stack([])
    np.stack([v, p])
    np.split(v, 4)
    np.hsplit(a0, 2)
    np.vsplit(v, 2)
    np.broadcast_to(v, (2, 5))
    np.broadcast_arrays(v, p)
    np.broadcast_shapes((2,), (3,))
    np.take(v, 9)
    np.take(v, v[:2])
    np.take(v, [0], mode='bad')
    np.choose([0, 5], [1, 2])
    np.compress(x > 0, x)
    np.diagonal(v)
    np.nonzero(a0)
    np.diff(a0)
    np.diff(v, n=-1)
    np.quantile(v, 1.5)
    np.percentile(v, -1)
    np.percentile(z, 1)
    np.quantile(v, 0.5, method='bad')
    np.searchsorted(v, 1, side='middle')
    np.digitize(v, [0, 2, 1])
    np.bincount(-k)
    np.bincount(v)
    np.bincount(k, weights=v[:2])
    np.histogram(v, bins=0)
    np.histogram(v, bins=[2, 1])
    np.histogram(v, range=(2, 1))
    np.pad(v, -1)
    np.pad(v, 1, mode='bad')
    np.pad(v, 1, mode='edge', constant_values=3)
    np.pad(e, 1, mode='edge')
    np.delete(v, 9)
    np.insert(v, 9, 1)
    np.tril(a0)
    np.diag(t)
    np.linspace(0, 1, -1)
    np.geomspace(0, 1)
    np.zeros(-1)
    np.arange()
    np.meshgrid(v, indexing='zz')
    np.array([v, p])
    np.array([[1, 2], [3]])
    np.where(b, x)
    np.select([b], [x, y])
    np.interp(v, o, w[:3])
    np.ravel_multi_index(([5], [0]), (3, 4))
    np.unravel_index(12, (3, 4))
    np.repeat(v, -1)
    np.repeat(v, [1, 2])
    np.repeat(v, v)
    np.roll(x, (1, 2, 3), axis=(0, 1))
    np.rot90(x, axes=(0, 0))
    np.nanargmax(np.full(3, nan))
    np.average(v, weights=v[:2])
    np.average(v, weights=np.zeros(6))
    np.convolve(v, [])
    np.convolve(v, x)
    np.correlate(v, w, 'bad')
    np.sort(x, axis=2)
    np.sort(v, kind='bad')
    np.take_along_axis(x, k, axis=1)
    np.isposinf(z)
    np.put_along_axis(x, np.array([[0.5]]), 1, axis=1)
    np.copyto(i, x)
    np.fill_diagonal(v, 1)
    np.place(x, b, [])
    np.cumsum(x, axis=4)
    np.cumulative_sum(x)
    np.vander(x)
    np.sum(x, axis='a')
    np.broadcast_to(v, (2, 6)).fill(1)
    np.diagonal(q).fill(1)
    np.add(x, v)
""")


@pytest.mark.parametrize("code", ERRORS)
def test_errors_are_numpys(code: str) -> None:
    with pytest.raises(Exception) as expected:
        by_numpy(code)
    with pytest.raises(Exception) as got:
        traced(code, symbolic=False)
    wanted = expected.value
    assert isinstance(got.value, type(wanted)), f"{got.value!r} where NumPy raises {wanted!r}"
    words = got.value.message if isinstance(got.value, DslError) else str(got.value)
    assert first_words(words) == first_words(str(wanted))


def first_words(message: str) -> str:
    """The part of a message that names the mistake, up to details such as a listing of shapes."""
    return " ".join(message.split()).rstrip(".")


def test_most_of_numpy_is_there() -> None:
    public = [name for name in NAMESPACES["numpy"] if not name.startswith("_")]
    assert len([name for name in public if hasattr(np, name)]) >= 300


def test_the_functions_bring_what_traced_arrays_do() -> None:
    code = "import dsl.frontend.functions; from dsl.frontend.traced import _UFUNCS; print({'getitem', 'operator'} - set(_UFUNCS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


_OWN = {"kind", "storage", "type", "views"}


def test_traced_arrays_have_no_methods_but_those_of_arrays() -> None:
    public = {name for name in dir(Traced) if not name.startswith("_")}
    assert public - set(dir(np.ndarray)) == _OWN


def test_a_method_that_numpy_took_away_names_the_function() -> None:
    def program(x: Any) -> Any:
        return x.max() if hasattr(x, "ptp") else np.ptp(x)

    assert dsl.jit(program)(ARRAYS["x"]) == np.ptp(ARRAYS["x"])
    with pytest.raises(AttributeError, match=r"call `np.ptp`"):
        dsl.jit(lambda x: x.ptp())(ARRAYS["x"])


@pytest.mark.parametrize("name", ["nanmean", "nanvar", "nanstd"])
def test_integers_do_not_hold_moments_of_floats(name: str) -> None:
    function = getattr(np, name)
    for program in (
        function,
        dsl.jit(lambda x, dtype: function(x, dtype=dtype), static_argnames="dtype"),
    ):
        with pytest.raises(TypeError, match="dtype must be inexact"):
            program(np.ones(3), dtype=int)
