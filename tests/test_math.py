"""The elementary functions of compiled code against wider arithmetic, NumPy and SciPy.

Errors are in units of the last place of the exact result. Single precision is compared with NumPy's and SciPy's double
precision, double precision with the 80-bit long double of NumPy and of libm (which code compiled here calls), and where
neither has a function, with mpmath. `DSL_MATH_SAMPLES=4000000` makes the sweep dense; the maxima in the docstring of
`dsl.codegen.math` are from such a run.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

from dsl.codegen import math
from dsl.codegen.cpu import jit
from dsl.codegen.library import routines
from dsl.codegen.llvm import Module
from dsl.codegen.vector_unit import register_bytes

SAMPLES = int(os.environ.get("DSL_MATH_SAMPLES", "20000"))
SINGLE, DOUBLE = np.dtype("f4"), np.dtype("f8")
BOTH = pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
X86 = platform.machine() == "x86_64"
EXTENDED = np.finfo(np.longdouble).nmant == 63

BINARY = {"pow", "arctan2", "hypot", "fmod", "logaddexp", "logaddexp2"}
SCIPY = {
    "erf": "erf",
    "erfc": "erfc",
    "erfinv": "erfinv",
    "gamma": "gamma",
    "lgamma": "gammaln",
    "digamma": "digamma",
}
LIBM = {"erf": "erfl", "erfc": "erfcl", "gamma": "tgammal", "lgamma": "lgammal"}

# The largest error allowed, single and double.
BOUNDS = {
    "exp": (1.75, 0.95), "exp2": (1.05, 0.95), "expm1": (1.15, 1.25), "log": (0.95, 0.9),
    "log2": (1.2, 1.05), "log10": (1, 0.95), "log1p": (1.05, 0.9), "pow": (1.05, 1.2),
    "logaddexp": (0.95, 0.8), "logaddexp2": (1, 0.9), "sin": (0.6, 1.1), "cos": (0.6, 1.15),
    "tan": (1.25, 1.3), "arcsin": (1.15, 1.3), "arccos": (1.15, 1.25), "arctan": (1.3, 1.25),
    "arctan2": (1.55, 1.6), "sinh": (0.95, 0.9), "cosh": (0.8, 0.9), "tanh": (1.75, 1.9),
    "arcsinh": (1.25, 1.25), "arccosh": (1.3, 1.25), "arctanh": (1.15, 1.1), "erf": (1.15, 1.2),
    "erfc": (1.1, 1.15), "erfinv": (1.65, 1.4), "gamma": (0.51, 1.5), "lgamma": (0.51, 1.75),
    "digamma": (0.51, 1.8), "cbrt": (0.75, 0.51), "hypot": (1.05, 1.05), "fmod": (0, 0),
}  # fmt: skip


# --- Kernels -------------------------------------------------------------------------------------


def loop_text(name: str, dtype: np.dtype, lanes: int = 0) -> str:
    """A module with a loop that applies a function to arrays, by a routine for so many elements if asked for."""
    type, arity = ("float" if dtype == SINGLE else "double"), 1 + (name in BINARY)
    module = Module("test")
    params = [("ptr noalias", f"p{i}") for i in range(arity + 1)]
    fn = module.function("kernel", "void", [*params, ("i64", "n")])
    *sources, target, count = fn.params
    width = module.metadata(f'!{{!"llvm.loop.vectorize.width", i32 {lanes}}}')
    metadata = module.metadata(f"distinct !{{%self, {width}}}")
    fn.lanes = (lanes,) if lanes else None
    with fn.loop(0, count, metadata=metadata if lanes else "") as i:
        loaded = [fn.load(type, fn.gep(source, i, type)) for source in sources]
        fn.store(math.call(fn, name, *loaded), fn.gep(target, i, type))
    fn.ret()
    return module.text()


@functools.cache
def kernel(name: str, dtype: np.dtype) -> Callable[..., np.ndarray]:
    """The function applied to arrays, compiled."""
    return runner(jit.load(loop_text(name, dtype)), dtype, 1 + (name in BINARY))


def runner(code: jit.Code, dtype: np.dtype, arity: int) -> Callable[..., np.ndarray]:
    prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (arity + 1), ctypes.c_int64)
    function = prototype(code.address("kernel"))

    def run(*arrays: np.ndarray) -> np.ndarray:
        sources = [np.ascontiguousarray(array, dtype) for array in arrays]
        result = np.empty_like(sources[0])
        function(*(array.ctypes.data for array in (*sources, result)), result.size)
        assert code is not None  # lives as long as the function
        return result

    return run


# --- References ----------------------------------------------------------------------------------


def exact(name: str, dtype: np.dtype, *arrays: np.ndarray) -> np.ndarray:
    """The results in a wider format."""
    with np.errstate(all="ignore"):
        if dtype == SINGLE:
            return rounded_by(name)(*(array.astype(DOUBLE) for array in arrays))
        if name in ("digamma", "erfinv"):
            return with_mpmath(name, arrays[0])
        wide = [array.astype(np.longdouble) for array in arrays]
        return long_double(LIBM[name])(*wide) if name in LIBM else rounded_by(name)(*wide)


def rounded_by(name: str) -> Callable[..., Any]:
    """NumPy's or SciPy's function."""
    if name in SCIPY:
        return getattr(scipy.special, SCIPY[name])
    return getattr(np, "power" if name == "pow" else name)


@functools.cache
def long_double(function: str) -> Callable[..., np.ndarray]:
    """A function of libm on arrays of 80-bit numbers."""
    module = Module("libm")
    fn = module.function("kernel", "void", [("ptr", "source"), ("ptr", "target"), ("i64", "n")])
    source, target, count = fn.params
    with fn.loop(0, count) as i:
        loaded = fn.load("x86_fp80", fn.gep(source, i, "x86_fp80"))
        fn.store(fn.call("x86_fp80", function, loaded), fn.gep(target, i, "x86_fp80"))
    fn.ret()
    return runner(jit.load(module.text()), np.dtype(np.longdouble), 1)


def with_mpmath(name: str, x: np.ndarray) -> np.ndarray:
    mpmath = pytest.importorskip("mpmath")
    result = np.empty(x.shape, np.longdouble)
    with mpmath.workprec(100):
        for i, number in enumerate(x.tolist()):
            value = getattr(mpmath, name)(mpmath.mpf(number))
            result[i] = np.longdouble(float(value)) + np.longdouble(float(value - float(value)))
    return result


def ulps(got: np.ndarray, want: np.ndarray, least: float = 0.0) -> np.ndarray:
    """The errors in units of the last place of what was wanted, or of `least` if that is larger."""
    info = np.finfo(got.dtype)
    wide = want.astype(np.longdouble)
    with np.errstate(all="ignore"):
        size = np.clip(np.abs(wide), max(least, float(info.tiny)), np.longdouble(info.max))
        unit = np.ldexp(np.longdouble(1), np.frexp(size)[1] - 1 - info.nmant)
        # An infinity in place of what rounds to the largest number, or the other way round, is off by little.
        limit = np.ldexp(np.longdouble(1), int(info.maxexp))
        finite = np.where(np.isinf(got), np.copysign(limit, got), got.astype(np.longdouble))
        error = np.abs(finite - np.clip(wide, -limit, limit)) / unit
    both = np.isnan(got) & np.isnan(wide)
    return np.where(both, 0, np.where(np.isnan(error), np.inf, error))


# --- Samples -------------------------------------------------------------------------------------

WIDE = {SINGLE: (-149.0, 128.0), DOUBLE: (-1074.0, 1024.0)}
CLOSE = {SINGLE: -24.0, DOUBLE: -52.0}  # the exponent of what just counts beside 1
rng = np.random.default_rng(20240607)


def uniform(low: float, high: float) -> np.ndarray:
    return rng.uniform(low, high, SAMPLES)


def spread(low: float, high: float) -> np.ndarray:
    """Numbers of both signs with uniform exponents."""
    with np.errstate(over="ignore"):
        return np.exp2(rng.uniform(low, high, SAMPLES)) * rng.choice([-1.0, 1.0], SAMPLES)


def around(*centres: float) -> Callable[[np.dtype], np.ndarray]:
    """The hundred numbers next to each centre, and to its opposite."""

    def numbers(dtype: np.dtype) -> np.ndarray:
        steps = np.arange(-50, 51) * np.finfo(dtype).eps
        found = np.concatenate([centre * (1 + steps) for centre in centres])
        return np.concatenate([found, -found])

    return numbers


# Numerators of the continued fraction of pi: whole numbers that are nearly multiples of it.
NEARLY_PI = np.array([
    22, 355, 103993, 104348, 208341, 312689, 833719, 1146408, 4272943, 5419351, 80143857, 165707065, 245850922,
    411557987, 1068966896, 2549491779, 6167950454, 14885392687, 21053343141, 1783366216531, 3587785776203,
], float)  # fmt: skip


def angles(dtype: np.dtype) -> np.ndarray:
    multiples = np.concatenate([np.arange(1, 5000) * (np.pi / 4), NEARLY_PI, NEARLY_PI / 2])
    boundary = around(2.0**40, np.pi / 4, np.pi / 2)(dtype)
    parts = uniform(-10, 10), uniform(-1e5, 1e5), spread(-20, 45), spread(*WIDE[dtype])
    return np.concatenate([*parts, multiples.astype(dtype), boundary])


def unit(dtype: np.dtype) -> np.ndarray:
    near = 1 - np.abs(spread(CLOSE[dtype], -1))
    parts = uniform(-1, 1), spread(WIDE[dtype][0], 0), near, -near, around(0.5)(dtype)
    return np.concatenate(parts)


def near_one(dtype: np.dtype) -> np.ndarray:
    return np.abs(1 + spread(CLOSE[dtype], -1))


def ranges(*parts: Callable[[np.dtype], np.ndarray]) -> Callable[[np.dtype], np.ndarray]:
    return lambda dtype: np.concatenate([part(dtype) for part in parts])


def between(low: float, high: float) -> Callable[[np.dtype], np.ndarray]:
    return lambda dtype: uniform(low, high)


def over(
    single: tuple[float, float], double: tuple[float, float]
) -> Callable[[np.dtype], np.ndarray]:
    """Ranges that depend on the format."""
    return lambda dtype: uniform(*(single if dtype == SINGLE else double))


def everywhere(dtype: np.dtype) -> np.ndarray:
    return spread(*WIDE[dtype])


def positive(part: Callable[[np.dtype], np.ndarray]) -> Callable[[np.dtype], np.ndarray]:
    return lambda dtype: np.abs(part(dtype))


LOGS = ranges(between(0.4, 2.5), positive(everywhere), near_one, positive(around(0.5**0.5, 2**0.5)))
FEW = slice(None, None, max(1, SAMPLES // 1000))  # for mpmath

DOMAINS: dict[str, Callable[[np.dtype], np.ndarray]] = {
    "exp": ranges(over((-110, 95), (-750, 715)), lambda d: spread(-40, 7)),
    "exp2": ranges(over((-155, 130), (-1080, 1026)), lambda d: spread(-40, 7)),
    "expm1": ranges(between(-5, 5), over((-30, 95), (-50, 715)), everywhere),
    "log": LOGS, "log2": LOGS, "log10": LOGS,
    "log1p": ranges(between(-1, 3), positive(everywhere), lambda d: spread(WIDE[d][0], 0), unit),
    "sin": angles, "cos": angles, "tan": angles,
    "arcsin": unit, "arccos": unit, "arctanh": unit,
    "arctan": ranges(between(-3, 3), everywhere, around(1.0)),
    "sinh": ranges(between(-3, 3), over((-95, 95), (-715, 715)), everywhere),
    "cosh": ranges(between(-3, 3), over((-95, 95), (-715, 715)), everywhere),
    "tanh": ranges(between(-1, 1), between(-22, 22), everywhere, around(0.625, 1.0)),
    "arcsinh": ranges(between(-3, 3), lambda d: spread(-30, 30), everywhere),
    "arccosh": ranges(between(1, 3), lambda d: 1 + np.abs(spread(CLOSE[d], 1)),
                      lambda d: np.abs(spread(0, WIDE[d][1]))),
    "erf": ranges(between(-1.5, 1.5), between(-7, 7), everywhere, around(1.0)),
    "erfc": ranges(between(-3, 3), over((-7, 11), (-7, 28)), everywhere, around(0.75)),
    "erfinv": unit,
    "gamma": ranges(between(-10, 12), over((-45, 37), (-187, 173)), lambda d: spread(WIDE[d][0], 5), around(8.0)),
    "lgamma": ranges(between(0, 12), positive(everywhere), lambda d: near_one(d) + 1, near_one,
                     positive(around(0.5, 1.5, 2.5, 8.0))),
    "digamma": ranges(between(0, 8), positive(lambda d: spread(-20, 60)), between(1.4, 1.5)),
    "cbrt": ranges(between(-3, 3), everywhere),
}  # fmt: skip


def pairs(name: str, dtype: np.dtype) -> list[np.ndarray]:
    if name == "pow":
        return powers(dtype)
    if name.startswith("logaddexp"):
        return [np.concatenate([uniform(-3, 3), uniform(-100, 100)]) for _ in range(2)]
    whole = [np.round(uniform(0, 1e6)), np.round(uniform(1, 100))]
    return [np.concatenate([uniform(-3, 3), spread(-10, 10), everywhere(dtype), w]) for w in whole]


def powers(dtype: np.dtype) -> list[np.ndarray]:
    """Bases, and exponents that do not take them far out of the range."""
    x = LOGS(dtype).astype(dtype).astype(np.longdouble)
    with np.errstate(all="ignore"):
        steps = np.log2(x)
        y = rng.uniform(*(1.04 * limit for limit in WIDE[dtype]), x.size) / np.where(
            steps == 0, 1, steps
        )
    return [x, np.where(np.isfinite(y), y, 1)]


def samples(name: str, dtype: np.dtype) -> list[np.ndarray]:
    arrays = pairs(name, dtype) if name in BINARY else [DOMAINS[name](dtype)]
    if dtype == DOUBLE and name in ("digamma", "erfinv"):
        arrays = [arrays[0][FEW]]
    with np.errstate(all="ignore"):
        return [array.astype(dtype) for array in arrays]


def need_exact(dtype: np.dtype) -> None:
    if dtype == DOUBLE and not (EXTENDED and X86):
        pytest.skip("needs a long double of 80 bits")


# --- Tests ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("name", math.FUNCTIONS)
def test_error_is_within_the_bound(name: str, dtype: np.dtype) -> None:
    need_exact(dtype)
    arrays = samples(name, dtype)
    # Where log(e**x + e**y) crosses 0 the sum cancels, in NumPy's too.
    least = 1.0 if name.startswith("logaddexp") else 0.0
    errors = ulps(kernel(name, dtype)(*arrays), exact(name, dtype, *arrays), least)
    worst = int(np.argmax(errors))
    print(f"{name} {dtype} {errors[worst]:.3f}")
    bound = BOUNDS[name][dtype == DOUBLE]
    assert errors[worst] <= bound, (errors[worst], [array[worst] for array in arrays])


@BOTH
def test_tanh_beside_one_is_exact_to_the_last_place_of_one(dtype: np.dtype) -> None:
    x = samples("tanh", dtype)[0]
    got, want = kernel("tanh_beside_one", dtype)(x), np.tanh(x.astype(np.longdouble))
    assert np.nanmax(np.abs(got - want)) <= 2 * np.finfo(dtype).eps
    x = special(dtype)
    np.testing.assert_allclose(
        kernel("tanh_beside_one", dtype)(x), np.tanh(x), rtol=0, atol=2 * np.finfo(dtype).eps
    )
    assert np.all(np.abs(kernel("tanh_beside_one", dtype)(np.array([30, -30], dtype))) == 1)


@BOTH
@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_negative_arguments_are_good_to_the_size_of_the_terms(name: str, dtype: np.dtype) -> None:
    need_exact(dtype)
    x = np.concatenate([uniform(-8, 0), -np.abs(spread(-30, 6))])[
        FEW if name == "digamma" else slice(None)
    ]
    x = x.astype(dtype)
    errors = ulps(kernel(name, dtype)(x), exact(name, dtype, x), least=4.0)
    worst = int(np.argmax(errors))
    assert errors[worst] <= 2, (errors[worst], x[worst])


def special(dtype: np.dtype) -> np.ndarray:
    info = np.finfo(dtype)
    numbers = [
        0, np.inf, np.nan, 1, 2, 3, 0.25, 0.5, 0.75, 1.5, 2.5, 4, 5, 8, 10, 20, 100, 200, 1000, 1e-5, 1e5, 1e20,
        info.tiny, info.tiny / 2, info.smallest_subnormal, info.max, info.eps, 1 - info.epsneg, 1 + info.eps,
        88.72284, 103.98, 709.78, 745.2, 2.0**23, 2.0**24, 2.0**24 + 2, 2.0**52, 2.0**53, 2.0**53 + 2, 36.5,
    ]  # fmt: skip
    found = np.array(numbers, dtype)
    return np.concatenate([found, -found, nans(dtype)])


def nans(dtype: np.dtype) -> np.ndarray:
    """Quiet NaNs with the lowest and with all bits of the payload set."""
    if dtype == SINGLE:
        return np.array([0x7FC00001, 0x7FFFFFFF], "u4").view(SINGLE)
    return np.array([0x7FF8000000000001, 0x7FFFFFFFFFFFFFFF], "u8").view(DOUBLE)


# SciPy errs there: it has infinity for lgamma of subnormal numbers, 2e-16 where it is 6e-17 beside 1, and loses
# digits of lgamma and digamma of negative numbers.
DOUBTFUL = {
    "lgamma": lambda x: (np.abs(x) < np.finfo(x.dtype).tiny) | (np.abs(x - 1) < 1e-6) | (x < 0),
    "digamma": lambda x: x < 0,
}


@BOTH
@pytest.mark.parametrize("name", [name for name in math.FUNCTIONS if name not in BINARY])
def test_special_values_are_those_of_numpy(name: str, dtype: np.dtype) -> None:
    x = special(dtype)
    with np.errstate(all="ignore"):
        want = rounded_by(name)(x)
    got = kernel(name, dtype)(x)
    judged = np.ones(x.shape, bool)
    if name in DOUBTFUL:  # their poles are beyond doubt
        judged = ~DOUBTFUL[name](x) | ~np.isfinite(x) | ~np.isfinite(want) & (x == np.rint(x))
    assert_agree(got[judged], want[judged], x[judged])


@BOTH
@pytest.mark.parametrize("name", sorted(BINARY))
def test_special_pairs_are_those_of_numpy(name: str, dtype: np.dtype) -> None:
    x, y = (grid.ravel() for grid in np.meshgrid(special(dtype), special(dtype)))
    with np.errstate(all="ignore"):
        want = rounded_by(name)(x, y)
    least = 1.0 if name.startswith("logaddexp") else 0.0
    assert_agree(kernel(name, dtype)(x, y), want, x, y, least=least)


def assert_agree(
    got: np.ndarray, want: np.ndarray, *arguments: np.ndarray, least: float = 0.0
) -> None:
    """Check that NaN, infinity, zero, and the signs are the same, and the rest within NumPy's and our error."""
    same = (got == want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
    near = np.isfinite(got) & np.isfinite(want) & (ulps(got, want, least) <= 5)
    if not least:
        near &= (np.signbit(got) == np.signbit(want)) & ((got == 0) == (want == 0))
    for place in np.flatnonzero(~(same | near)):
        pytest.fail(
            f"{[a[place] for a in arguments]}: got {got[place]!r}, NumPy has {want[place]!r}"
        )


@pytest.mark.skipif(not X86, reason="looks for instructions of x86")
@BOTH
@pytest.mark.parametrize("name", math.FUNCTIONS)
def test_loops_are_vectorised(name: str, dtype: np.dtype) -> None:
    suffix = "p[sd]" if dtype == SINGLE else "pd"
    wanted = rf"\tv(fn?m(add|sub)\d+|rndscale|round|mul){suffix}\t.*%[yz]mm"
    assert re.search(wanted, jit.assembly(loop_text(name, dtype)))


@BOTH
@pytest.mark.parametrize("registers", [1, 4])
@pytest.mark.parametrize("name", math.FUNCTIONS)
def test_routines_for_vectors_give_the_same_bits(
    name: str, registers: int, dtype: np.dtype
) -> None:
    lanes = registers * register_bytes() // dtype.itemsize
    text = loop_text(name, dtype, lanes)
    routines.provide(text)
    run = runner(jit.load(text), dtype, math.arity(name))
    extremes = [np.resize(special(dtype), 131), np.resize(special(dtype)[::-1], 131)]
    arrays = [
        np.concatenate([a[:: len(a) // 997], b]) for a, b in zip(samples(name, dtype), extremes)
    ]
    bits = np.dtype(f"u{dtype.itemsize}")
    expected, found = kernel(name, dtype)(*arrays), run(*arrays)
    same = (found.view(bits) == expected.view(bits)) | (np.isnan(found) & np.isnan(expected))
    assert same.all()
    assert f"_x{lanes}_" in jit.optimized_text(text, 2).partition("vector.body:")[2]


def test_nothing_but_the_rare_branch_calls_libm() -> None:
    rare = {"sin", "cos", "tan", "fmod"}
    for name in math.FUNCTIONS:
        called = {
            c for c in re.findall(r"call \w+ @([\w.]+)", loop_text(name, DOUBLE)) if "." not in c
        }
        assert called == ({name} & rare), name


def test_a_function_is_defined_once_in_a_module() -> None:
    module = Module("test")
    fn = module.function("twice", "double", [("double", "x")])
    fn.ret(math.call(fn, "exp", math.call(fn, "exp", fn.params[0])))
    assert module.text().count("define internal double @dsl.exp.f64") == 1
    assert jit.load(module.text()).address("twice")


@pytest.mark.skipif(register_bytes() < 64, reason="this CPU has no instruction for it")
@BOTH
@pytest.mark.parametrize("name", ["exp", "exp2", "pow", "erf"])
def test_without_an_instruction_that_scales_by_powers_of_two(
    name: str, dtype: np.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_exact(dtype)
    with_one = "llvm.ldexp" in loop_text(name, dtype)
    monkeypatch.setattr(math, "HAS_SCALING", False)
    text = loop_text(name, dtype)
    assert with_one
    assert "llvm.ldexp" not in text
    arrays = samples(name, dtype)
    run = runner(jit.load(text), dtype, len(arrays))
    bound = BOUNDS[name][dtype is DOUBLE]
    assert ulps(run(*arrays), exact(name, dtype, *arrays)).max() <= bound
    extremes = [np.resize(special(dtype), 131) for _ in arrays]
    last = np.finfo(dtype)
    np.testing.assert_allclose(
        run(*extremes),
        kernel(name, dtype)(*extremes),
        rtol=2 * last.eps,
        atol=last.smallest_subnormal,
    )


@pytest.fixture
def _without_fma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "HAS_FMA", False)


@pytest.mark.usefixtures("_without_fma")
@BOTH
@pytest.mark.parametrize("name", math.FUNCTIONS)
def test_without_fused_multiply_add(name: str, dtype: np.dtype) -> None:
    need_exact(dtype)
    text = loop_text(name, dtype)
    assert "llvm.fma" not in text
    arrays = [array[::10] for array in samples(name, dtype)]
    least = 1.0 if name.startswith("logaddexp") else 0.0
    got = runner(jit.load(text), dtype, len(arrays))(*arrays)
    assert ulps(got, exact(name, dtype, *arrays), least).max() <= 3
