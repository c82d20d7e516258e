"""`dsl.kernel`: functions compiled by numba mean what Python says, fuse into programs, and fail with the user's line."""

from __future__ import annotations

import doctest
import importlib.metadata
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsl
import dsl.user_kernels
from dsl.codegen.cpu import jit
from dsl.codegen.user import code, fingerprint
from dsl.config import config
from dsl.errors import ShapeError, TypeRuleError, UnsupportedError
from dsl.ir.registry import OPS, Trait
from dsl.ir.types import BFLOAT16

numba = pytest.importorskip("numba")

LIMIT = 2.0
TABLE = np.array([2.0, 3.0, 5.0])
TABLE.setflags(write=False)
CHANGING = np.array([1.0, 2.0])


@dsl.kernel
def softclip(x, limit):
    """Values above a limit grow slowly."""
    if x > limit:
        return limit + math.log1p(x - limit)
    return x


@dsl.kernel
def root(x):
    if x < 0:
        raise ValueError("negative")
    if x > 100:
        raise OverflowError("large")
    return math.sqrt(x)


@dsl.kernel
def blend(a, b, share=0.5):
    return share * a + (1 - share) * b


@dsl.kernel(out=lambda x, decay: x)
def smooth(x, decay, y):
    last = 0.0
    for i in range(x.shape[0]):
        last = decay * last + (1 - decay) * x[i]
        y[i] = last


def softclipped(x: np.ndarray, limit: float) -> np.ndarray:
    return np.where(x > limit, limit + np.log1p(np.maximum(x, limit) - limit), x)


def smoothed(x: np.ndarray, decay: float) -> np.ndarray:
    y, last = np.empty_like(x), 0.0
    for i in range(len(x)):
        last = y[i] = decay * last + (1 - decay) * x[i]
    return y


@pytest.fixture(params=["native", "interpreter"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with config.override(backend=request.param):
        yield request.param


def node_of(fn: Any, *args: Any) -> Any:
    """The one node of a function's graph whose op is a user kernel."""
    (found,) = [n for n in fn.lower(*args).graph().nodes if n.op.emit or n.op.lower]
    return found


# -- functions of numbers: fusion ---------------------------------------------------------------------------------------


def test_a_kernel_between_ops_is_one_loop_without_calls() -> None:
    @dsl.jit
    def total(x):
        return (softclip(x * 2, 1.0) + 1).sum()

    x = np.linspace(0, 3, 10_000)
    np.testing.assert_allclose(total(x), (softclipped(x * 2, 1.0) + 1).sum(), rtol=1e-13)
    lowered = total.lower(x)
    assert lowered.fallbacks() == []
    native = lowered.executable.native
    assert sum("kernel" in line and "_softclip_" not in line for line in native.report.lines) == 1
    assert not any("library" in line for line in native.report.lines)
    optimized = jit.optimized_text(native.text, link=native.link)
    assert "vector.body" in optimized
    assert "@dsl.user." not in optimized


def test_a_kernel_that_may_raise_is_vectorised_too() -> None:
    native = root.lower(np.ones(1000)).executable.native
    optimized = jit.optimized_text(native.text, link=native.link)
    assert "vector.body" in optimized
    assert "@dsl.user." not in optimized


def test_a_kernel_is_computed_once_for_two_readers() -> None:
    @dsl.jit
    def both(x):
        y = softclip(x, 1.0)
        return y + 1, y * 2

    x = np.linspace(0, 3, 100)
    assert len([n for n in both.lower(x).graph().nodes if n.op.emit]) == 1
    for got, expected in zip(both(x), (softclipped(x, 1.0) + 1, softclipped(x, 1.0) * 2)):
        np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_the_graph_prints_parses_and_verifies() -> None:
    @dsl.jit
    def f(x):
        return softclip(x, 1.0), root(x)

    lowered = f.lower(np.ones(3))
    for stage in ("traced", "optimized", "lowered"):
        graph = dsl.ir.parse(lowered.text(stage))
        assert graph == lowered.graph(stage)
        dsl.ir.verify(graph)
    names = [n.op.name for n in lowered.graph().nodes if n.op.emit]
    assert names[0].startswith("kernel_softclip_")
    assert names[1].endswith("_checked")
    assert OPS[names[0]].doc == "Values above a limit grow slowly."
    assert not OPS[names[0]].has(Trait.CHECKED)
    assert OPS[names[1]].has(Trait.CHECKED)


# -- functions of numbers: meaning ----------------------------------------------------------------------------------------


@dsl.kernel
def transcend(x):
    return (
        math.exp(-x) + math.sin(x) * math.cos(x) + math.tanh(x) + math.atan2(x, 2.0) + math.erf(x)
        + math.log(1 + x) + math.sqrt(x) + x**1.5 + math.hypot(x, 1.0) + math.expm1(x) + math.lgamma(1 + x)
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_of_math(backend: str, dtype: Any) -> None:
    x = np.linspace(0.1, 3, 200).astype(dtype)
    expected = [transcend.py_func(float(v)) for v in x]
    got = dsl.jit(lambda x: transcend(x))(x)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=30 * np.finfo(dtype).eps)


@dsl.kernel
def arithmetic(a, b):
    return a * b - a, a == b, a if a > b else b


@pytest.mark.parametrize("dtype", ["i1", "i4", "i8", "u2", "u8", "f4", "f8"])
def test_dtypes(backend: str, dtype: str) -> None:
    a, b = np.array([1, 2, 3, 100], dtype), np.array([3, 2, 1, 100], dtype)
    product, same, larger = dsl.jit(lambda a, b: arithmetic(a, b))(a, b)
    np.testing.assert_array_equal(product, a.astype("f8") * b - a)
    np.testing.assert_array_equal(same, a == b)
    np.testing.assert_array_equal(larger, np.maximum(a, b))
    assert same.dtype == bool
    assert larger.dtype == a.dtype


@dsl.kernel
def polar(z):
    return abs(z), z.conjugate() * 1j, z.real > 0


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_and_several_results(backend: str, dtype: Any) -> None:
    z = np.array([1 + 1j, -2, 3j], dtype)
    radius, turned, right = dsl.jit(lambda z: polar(z))(z)
    np.testing.assert_allclose(radius, np.abs(z), rtol=1e-6)
    np.testing.assert_allclose(turned, z.conj() * 1j, rtol=1e-6)
    np.testing.assert_array_equal(right, [True, False, False])
    assert radius.dtype == np.abs(z).dtype


def test_bools_go_in_and_out(backend: str) -> None:
    implies = dsl.kernel(lambda a, b: b or not a)
    a, b = np.array([True, True, False]), np.array([True, False, False])
    np.testing.assert_array_equal(dsl.jit(lambda a, b: implies(a, b))(a, b), b | ~a)


def test_a_tuple_of_one_stays_a_tuple(backend: str) -> None:
    single = dsl.kernel(lambda x: (x + 1,))
    (got,) = dsl.jit(lambda x: single(x))(np.arange(3))
    np.testing.assert_array_equal(got, [1, 2, 3])


def test_arguments_broadcast_and_have_names_and_defaults(backend: str) -> None:
    column, row = np.arange(3.0)[:, None], np.arange(4.0)
    np.testing.assert_array_equal(
        dsl.jit(lambda a, b: blend(a, b))(column, row), (column + row) / 2
    )
    got = dsl.jit(lambda a, b: blend(b=b, a=a, share=0.25))(column, row)
    np.testing.assert_array_equal(got, 0.25 * column + 0.75 * row)
    with pytest.raises(
        ShapeError, match=r"could not be broadcast together with shapes \(3,\) \(4,\)"
    ):
        blend(np.ones(3), np.ones(4))
    with pytest.raises(TypeError, match="missing a required argument: 'b'"):
        blend(row)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (2, 0), (3, 4), (2, 3, 4)])
def test_shapes(backend: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).uniform(0, 3, shape)
    got = dsl.jit(lambda x: softclip(x, 1.0))(x)
    np.testing.assert_allclose(got, softclipped(x, 1.0), rtol=1e-14)
    assert np.shape(got) == shape


def test_layouts() -> None:
    x = np.arange(24.0).reshape(4, 6)
    for view in (x.T, x[::-1, ::2], x[1], np.broadcast_to(x[0], (3, 6)), np.asfortranarray(x)):
        np.testing.assert_allclose(softclip(view, 5.0), softclipped(view, 5.0), rtol=1e-14)


def test_python_numbers_are_as_precise_as_the_arrays() -> None:
    assert softclip(np.ones(2, np.float32), 0.5).dtype == np.float32
    assert softclip(np.ones(2), 0.5).dtype == np.float64
    assert blend(np.ones(2, np.complex64), 2.0, 1j).dtype == np.complex64
    assert dsl.kernel(lambda x, n: n)(np.ones(2, np.int32), 3).dtype == np.int32
    assert dsl.kernel(lambda x, n: n)(np.ones(2, np.float32), 3).dtype == np.int64
    assert (
        dsl.kernel(lambda a, b: a + b)(np.ones(1, np.uint8), np.ones(1, np.uint8)).dtype
        == np.uint64
    )


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_half_precisions_are_rounded_once(backend: str, dtype: Any) -> None:
    x = np.array([0.5, 2.0], dtype)
    got = dsl.jit(lambda x: softclip(x, 1.0))(x)
    np.testing.assert_array_equal(got, softclipped(x.astype(np.float32), 1.0).astype(dtype))
    assert got.dtype == dtype
    assert smooth(x, 0.5).dtype == np.float32


def test_numbers_and_lists() -> None:
    assert softclip(0.5, 1.0) == 0.5
    assert isinstance(softclip(0.5, 1.0), np.float64)
    np.testing.assert_array_equal(softclip([0.25, 0.5], 1.0), [0.25, 0.5])


# -- in programs ------------------------------------------------------------------------------------------------------------


def test_in_loops_and_branches(backend: str) -> None:
    @dsl.jit
    def f(x, n):
        for i in range(n):
            x = blend(x, np.sin(x) + i)
            if x.sum() > 4:
                x = softclip(x, 1.0)
        return x

    def plain(x: np.ndarray, n: int) -> np.ndarray:
        for i in range(n):
            x = (x + np.sin(x) + i) / 2
            if x.sum() > 4:
                x = softclipped(x, 1.0)
        return x

    x = np.linspace(0, 2, 7)
    np.testing.assert_allclose(f(x, 5), plain(x, 5), rtol=1e-13)


def test_on_numbers_in_a_while_loop(backend: str) -> None:
    @dsl.jit
    def f(x):
        total, i = 0.0, 0
        while total < 10.0 and i < 100:
            total += root(x[i])
            i += 1
        return total, i

    total, count = f(np.arange(100.0))
    assert count == 7
    np.testing.assert_allclose(total, np.sqrt(np.arange(7)).sum())


def test_sizes_that_change_compile_twice() -> None:
    @dsl.jit
    def f(x, y):
        return softclip(x, y).sum(axis=0)

    for n in (3, 4, 5, 17):
        x = np.linspace(0, 4, 2 * n).reshape(n, 2)
        np.testing.assert_allclose(f(x, x[0]), softclipped(x, x[0]).sum(axis=0), rtol=1e-13)
    assert f.cache_info().entries == 2


def test_an_eager_kernel_compiles_once_for_all_sizes() -> None:
    fresh = dsl.kernel(lambda x: x * 3 + 1)
    for n in (2, 3, 50):
        np.testing.assert_array_equal(fresh(np.arange(n)), np.arange(n) * 3 + 1)
    assert fresh.cache_info().entries == 1


def test_a_long_iteration_is_spread_over_threads() -> None:
    @dsl.kernel
    def escape(re, im):
        x = y = 0.0
        for k in range(200):
            x, y = x * x - y * y + re, 2 * x * y + im
            if x * x + y * y > 4:
                return k
        return 200

    re, im = np.linspace(-2, 1, 60), np.linspace(-1, 1, 40)[:, None]
    got = escape(re, im)
    expected = [[escape.py_func(a, b) for a in re] for b in im[:, 0]]
    np.testing.assert_array_equal(got, expected)
    assert "@dsl_parallel" in escape.lower(re, im).executable.native.text


def test_disabled_jit_runs_python(capsys: pytest.CaptureFixture[str]) -> None:
    @dsl.kernel
    def loud(x):
        print("element", x)
        return x + 1

    @dsl.jit
    def f(x):
        return softclip(x, 1.0), polar(x)[0], smooth(x, 0.5)

    x = np.array([0.5, 2.0], np.float32)
    with config.override(disable_jit=True):
        clipped, size, even = f(x)
        np.testing.assert_array_equal(loud(np.arange(2)), [1, 2])
        assert softclip(0.5, 1) == 0.5
        assert softclip(np.ones((0, 2)), 1).shape == (0, 2)
        with pytest.raises(ValueError, match="read-only"):
            dsl.kernel(out=lambda x: x)(lambda x, y: x.fill(0))(x)
    np.testing.assert_allclose(clipped, softclipped(x, 1.0), rtol=1e-6)
    assert clipped.dtype == size.dtype == np.float32
    np.testing.assert_allclose(even, smoothed(x, 0.5))
    assert capsys.readouterr().out == "element 0\nelement 1\n"


# -- what is read from outside ------------------------------------------------------------------------------------------------


def test_a_changed_global_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    capped = dsl.kernel(lambda x: min(x, LIMIT))
    f = dsl.jit(lambda x: capped(x).sum())
    x = np.arange(5.0)
    assert (f(x), capped(x).max()) == (7.0, 2.0)
    monkeypatch.setitem(globals(), "LIMIT", 3.0)
    assert (f(x), capped(x).max()) == (9.0, 3.0)


def test_closures_of_one_function_are_different_kernels() -> None:
    def scaled(factor: Any) -> Any:
        @dsl.kernel
        def by(x):
            return x * factor

        return by

    two, half = scaled(2), scaled(0.5)
    np.testing.assert_array_equal(dsl.jit(lambda x: two(x) + half(x))(np.arange(3)), [0, 2.5, 5])
    assert node_of(two, np.arange(3)).op is not node_of(half, np.arange(3)).op
    assert node_of(two, np.arange(3)).op is node_of(scaled(2), np.arange(3)).op


def test_a_redefined_kernel_replaces_the_old_one_in_compiled_functions() -> None:
    scope: dict[str, Any] = {"dsl": dsl}
    define = "@dsl.kernel\ndef step(x):\n    return x {}\n"
    exec(define.format("+ 1"), scope)
    f = dsl.jit(lambda x: scope["step"](x))
    assert f(1.0) == 2.0
    exec(define.format("* 10"), scope)
    assert f(1.0) == 10.0


def test_constant_arrays_are_tables() -> None:
    prime = dsl.kernel(lambda i: TABLE[i])
    np.testing.assert_array_equal(prime(np.array([2, 0, -1])), [5.0, 2.0, 5.0])
    with pytest.raises(IndexError, match="index is out of bounds"):
        prime(np.array([0, 3]))


def test_arrays_that_may_change_are_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"reads an array from outside.*\n.*\n.*\nFix: .*setflags"
    ):
        dsl.kernel(lambda i: CHANGING[i])(0)


def test_kernels_call_kernels_and_numbas_functions() -> None:
    @numba.njit
    def twice(x):
        return 2 * x

    @dsl.kernel
    def both(x):
        return twice(root(x)) + 1

    np.testing.assert_allclose(both(np.array([4.0, 9.0])), [5.0, 7.0])
    with pytest.raises(ValueError, match="negative") as info:
        both(-1.0)
    assert "in root" in info.value.__notes__[0]


def test_a_helper_of_another_value_is_another_kernel() -> None:
    def made(number: float) -> Any:
        @numba.njit
        def inner(x):
            return x + number

        return dsl.kernel(lambda x: inner(x))

    assert made(1.0)(1.0) == 2.0
    assert made(2.0)(1.0) == 3.0


def test_a_kernel_may_call_itself() -> None:
    got = factorial(np.arange(6))
    np.testing.assert_array_equal(got, [1, 1, 2, 6, 24, 120])


@dsl.kernel
def factorial(n):
    if n < 2:
        return 1
    return n * factorial(n - 1)


def test_fingerprints_look_into_modules_of_the_user(tmp_path: Path) -> None:
    module = type(sys)("settings_of_the_user")
    module.SCALE, module.unused = 2.0, object()
    scope: dict[str, Any] = {"settings": module}
    exec("def f(x):\n    return x * settings.SCALE", scope)
    first = fingerprint.fingerprint(scope["f"]).digest
    assert fingerprint.fingerprint(scope["f"]).digest == first
    module.SCALE = 3.0
    assert fingerprint.fingerprint(scope["f"]).digest != first


# -- exceptions -------------------------------------------------------------------------------------------------------------


def test_an_exception_comes_out_with_the_line_that_raised_it() -> None:
    f = dsl.jit(lambda x: root(x) + 1)
    with pytest.raises(ValueError, match=r"^negative") as info:
        f(np.array([4.0, -1.0]))
    assert "raised by the kernel root" in info.value.__notes__[0]
    assert 'raise ValueError("negative")' in info.value.__notes__[0]
    assert "root(x) + 1" in info.value.__notes__[1]
    np.testing.assert_array_equal(f(np.array([4.0, 9.0])), [3.0, 4.0])


def test_the_exception_is_that_of_the_first_element(backend: str) -> None:
    f = dsl.jit(lambda x: root(x))
    x = np.ones(100_000)
    x[[50, 99_999]] = 200.0, -1.0
    with pytest.raises(OverflowError, match="large"):
        f(x)
    x[20] = -1.0
    with pytest.raises(ValueError, match="negative"):
        f(x)


def test_an_exception_in_a_reduction_and_in_numbers(backend: str) -> None:
    for f in (dsl.jit(lambda x: root(x).sum()), dsl.jit(lambda x: root(x[1]))):
        with pytest.raises(ValueError, match="negative"):
            f(np.array([1.0, -1.0]))


def test_an_exception_where_memory_is_used_again() -> None:
    """The search for the element that raised reads the operands once more, so they are not overwritten."""

    @dsl.jit
    def loop(x, n):
        for _ in range(n):
            x = root(x) + 1
        return x

    @dsl.jit
    def update(x):
        x[...] = root(x)

    with pytest.raises(ValueError, match="negative"):
        loop(np.arange(5.0) - 3, 3)
    with pytest.raises(ValueError, match="negative"):
        update(np.arange(5.0) - 3)


def test_an_index_out_of_bounds_where_memory_is_used_again() -> None:
    @dsl.jit
    def follow(links, x, n):
        for _ in range(n):
            x = links[x]
        return x

    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        follow(np.arange(3), np.array([5, 0]), 3)


def test_what_the_program_does_not_reach_does_not_raise(backend: str) -> None:
    @dsl.jit
    def f(x, go):
        y = x
        if go:
            y = root(x)
        for _ in range(0):
            y = root(x - 10)
        return y

    np.testing.assert_array_equal(f(-np.ones(2), False), [-1, -1])


def test_of_a_message_made_at_run_time_the_class_remains() -> None:
    @dsl.kernel
    def raising_values(x):
        if x > 0:
            raise KeyError(x)
        return x

    with pytest.raises(KeyError, match="a message that is made at run time") as info:
        raising_values(np.array([0.0, 1.0]))
    assert "raise KeyError(x)" in info.value.__notes__[0]
    assert raising_values(-1.0) == -1.0


def test_a_caught_exception_is_refused_as_elsewhere() -> None:
    @dsl.jit
    def f(x):
        try:
            return root(x)
        except ValueError:
            return x

    with pytest.raises(dsl.DslError):
        f(np.ones(2))


# -- functions of arrays ----------------------------------------------------------------------------------------------------


def test_an_array_kernel(backend: str) -> None:
    x = np.random.default_rng(0).normal(size=30)
    f = dsl.jit(lambda x, d: smooth(x[::2] * 2, d).sum())
    np.testing.assert_allclose(f(x, 0.5), smoothed(x[::2] * 2, 0.5).sum(), rtol=1e-13)
    np.testing.assert_allclose(smooth(x[::-1], 0.25), smoothed(x[::-1], 0.25), rtol=1e-13)
    assert smooth(np.ones(0), 0.5).shape == (0,)
    if backend == "native":
        assert f.lower(x, 0.5).fallbacks() == []


def test_an_array_kernel_in_a_loop_with_symbolic_sizes() -> None:
    @dsl.jit
    def f(x, n):
        for _ in range(n):
            x = smooth(x, 0.5) + 1
        return x

    for n in (3, 5, 8):
        x = expected = np.arange(float(n))
        for _ in range(4):
            expected = smoothed(expected, 0.5) + 1
        np.testing.assert_allclose(f(x, 4), expected, rtol=1e-13)
    assert f.cache_info().entries == 2


@dsl.kernel(
    out=lambda x, k: [((x.shape[0] // 2, x.shape[1] + 1), x.dtype), ((), np.int64), (x.shape, bool)]
)
def several(x, k, sums, count, mask):
    scratch = np.zeros(x.shape[1] + 1)
    count[()] = 0
    for i in range(sums.shape[0]):
        for j in range(x.shape[1]):
            scratch[j] = x[2 * i, j] + k * x[2 * i + 1, j]
        sums[i] = scratch
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            mask[i, j] = x[i, j] > 0
            count[()] += mask[i, j]


def test_several_results_of_other_shapes_and_memory_of_its_own(backend: str) -> None:
    f = dsl.jit(lambda x: several(x, 3))
    for n in (4, 5, 7):
        x = np.random.default_rng(n).normal(size=(n, 3)).astype(np.float32)
        sums, count, mask = f(x)
        pairs = x[: n // 2 * 2].reshape(n // 2, 2, 3)
        np.testing.assert_allclose(sums[:, :3], pairs[:, 0] + 3 * pairs[:, 1], rtol=1e-5)
        assert sums.dtype == np.float32
        assert (sums[:, 3] == 0).all()
        np.testing.assert_array_equal(mask, x > 0)
        assert count == (x > 0).sum()


def test_bounds_are_checked_unless_told_otherwise() -> None:
    def shifted(x, y):
        for i in range(x.shape[0]):
            y[i] = x[i + 1]

    with pytest.raises(IndexError, match="index is out of bounds") as info:
        dsl.kernel(out=lambda x: x)(shifted)(np.arange(3.0))
    assert "def shifted(x, y):" in info.value.__notes__[0]
    unchecked = dsl.kernel(out=lambda x: x, boundscheck=False)(shifted)
    assert not node_of(unchecked, np.arange(3.0)).op.has(Trait.CHECKED)
    with config.override(bounds_checks="off"):
        unchecked = dsl.kernel(out=lambda x: x)(shifted)
        assert not node_of(unchecked, np.arange(3.0)).op.has(Trait.CHECKED)


def test_operands_cannot_be_written() -> None:
    @dsl.kernel(out=lambda x: x)
    def careless(x, y):
        x[0] = 1.0

    with pytest.raises(
        TypeRuleError, match=r"careless\(f64\[:\], f64\[:\] out\).*readonly(.|\n)*x\[0\] = 1.0"
    ):
        careless(np.ones(3))


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (lambda x: 3, "`out` returned 3"),
        (lambda x: (3, "f8"), "`out` returned"),
        (lambda x: ((3.5,), "f8"), "`out` returned"),
        (lambda x: ((3,), "M8[s]"), "`out` returned"),
        (lambda x: [x, x], r"describes 2 results, the function fills 1 \(y\)"),
    ],
)
def test_results_that_are_described_wrongly(out: Callable[..., Any], message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        dsl.kernel(out=out)(lambda x, y: None)(np.ones(3))


# -- refusals ---------------------------------------------------------------------------------------------------------------


@dsl.kernel
def concatenating(x):
    y = x + 1
    return "y is " + y


def test_what_numba_refuses_is_refused_with_its_reason_and_the_line() -> None:
    with pytest.raises(TypeRuleError) as info:
        dsl.jit(lambda x: concatenating(x))(np.ones(2))
    message = str(info.value)
    assert message.startswith("the kernel concatenating(f64) cannot be compiled: No implementation")
    assert "\n" not in info.value.message
    assert 'return "y is " + y' in message
    assert "Fix: kernels are written in the part of Python" in message


def helper(x):
    return x


def leaving(x):
    if x > 0:
        return x
    return None


class OwnError(Exception):
    pass


def raising_own(x):
    if x > 0:
        raise OwnError("x")
    return x


def printing(x):
    print(x)
    return x


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: helper(x), "Untyped global name 'helper'"),
        (lambda x: missing(x), "name 'missing' is not defined"),  # noqa: F821
        (leaving, "must return a number, or a tuple of numbers, on every path, got Optional"),
        (lambda x: [x], "must return a number"),
        (lambda x: (), "must return a number"),
        (printing, "uses Python objects"),
        (lambda x: x + np.random.random(), "calls `numba_get_np_random_state`"),  # noqa: NPY002
    ],
)
def test_what_a_kernel_cannot_do(fn: Callable[..., Any], message: str) -> None:
    with pytest.raises((TypeRuleError, UnsupportedError), match=message) as info:
        dsl.kernel(fn)(1.0)
    assert "test_kernel.py" in str(info.value)


def test_an_exception_class_that_other_processes_cannot_find() -> None:
    class Local(Exception):
        pass

    def fn(x):
        if x > 0:
            raise Local("x")
        return x

    with pytest.raises(
        UnsupportedError, match=r"raises .*Local, a class that other processes cannot find"
    ):
        dsl.kernel(fn)(1.0)


def test_what_is_no_kernel() -> None:
    with pytest.raises(UnsupportedError, match="takes a Python function, got 3"):
        dsl.kernel(3)  # type: ignore[call-overload]
    with pytest.raises(UnsupportedError, match="fixed number of arguments"):
        dsl.kernel(lambda *x: 1)
    with pytest.raises(UnsupportedError, match="fixed number of arguments"):
        dsl.kernel(lambda: 1)
    with pytest.raises(UnsupportedError, match="`out` must be a function of the operands' types"):
        dsl.kernel(out="x")(lambda x, y: None)  # type: ignore[call-overload]
    with pytest.raises(UnsupportedError, match="takes x, y, but `out` takes 2: nothing is left"):
        dsl.kernel(out=lambda x, y: x)(lambda x, y: None)
    with pytest.raises(UnsupportedError, match="a str cannot be used as an array"):
        softclip("a", 1.0)


def test_without_numba_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    code.numba_version.cache_clear()
    with pytest.raises(
        UnsupportedError, match=r"dsl.kernel needs numba\n(.|\n)*Fix: pip install numba"
    ):
        dsl.kernel(lambda x: x + 7.25)(1.0)
    monkeypatch.undo()
    code.numba_version.cache_clear()


# -- the object, the disk ---------------------------------------------------------------------------------------------------


def test_a_kernel_is_a_compiled_function() -> None:
    assert repr(softclip) == "<dsl.kernel softclip>"
    assert softclip.__doc__ == "Values above a limit grow slowly."
    assert softclip.__name__ == "softclip"
    assert "kernel_softclip_" in softclip.ir(np.ones(3), 1.0)
    assert isinstance(softclip, dsl.Kernel)


def test_short_kernels_are_cheap_and_loops_dear() -> None:
    """`root` has branches to a block that LLVM puts before them, which is no loop."""

    @dsl.kernel
    def newton(x):
        y = 1.0
        while abs(y * y - x) > 1e-9:
            y = (y + x / y) / 2
        return y

    short, long = (node_of(k, np.ones(3)).op.cost([np.dtype(float)]) for k in (root, newton))
    assert short < 20 < 100 < long
    np.testing.assert_allclose(newton(np.array([4.0, 2.0])), np.sqrt([4.0, 2.0]))


def test_functions_of_math_and_of_numpy_together() -> None:
    """Numba calls `exp` for one and `llvm.exp.f64` for the other."""
    both = dsl.kernel(lambda x: np.exp(x) + math.exp(x) + np.sin(x) + math.sin(x))
    x = np.linspace(0, 1, 10)
    np.testing.assert_allclose(both(x), 2 * np.exp(x) + 2 * np.sin(x), rtol=1e-15)


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(dsl.user_kernels).failed == 0


SCRIPT = """
    import math, sys
    import numpy as np
    import dsl
    from dsl.codegen.cpu import jit

    @dsl.kernel
    def wave(x, k):
        if x < -100: raise ValueError("far")
        return math.exp(-x) * math.sin(k * x)

    @dsl.kernel(out=lambda x: x)
    def walk(x, y):
        for i in range(x.shape[0]): y[i] = x[i] + i

    f = dsl.jit(lambda x: walk(wave(x, 2)).sum())
    print(f(np.linspace(0, 1, 10)), jit.stats().llvm_compiles, "numba" in sys.modules)
    try: f(np.full(10, -200.0))
    except ValueError as error: print(error, "wave" in error.__notes__[0])
"""


def test_a_second_process_compiles_nothing_and_does_not_import_numba(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    paths = [str(Path(dsl.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "DSL_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    run = [sys.executable, str(script)]
    first, second = (
        subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    )
    assert first[0] == second[0]
    assert int(first[1]) > 0
    assert first[2] == "True"
    assert second[1:3] == ["0", "False"]
    assert first[3:] == second[3:] == ["far", "True"]
