"""Floating point in the PTX emulator: single rounding, directed rounding, half types, conversions, special values."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from ptx_kernels import DTYPES, evaluate, operands, same

BF16 = np.dtype(ml_dtypes.bfloat16)

# Floats -----------------------------------------------------------------------------------------------------------------

FLOAT = {
    "add.rn": np.add, "sub.rn": np.subtract, "mul.rn": np.multiply, "div.rn": np.divide, "min": np.fmin, "max": np.fmax,
    "min.NaN": np.minimum, "max.NaN": np.maximum,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "t"),
    [
        *((name, "f32") for name in FLOAT),
        *((name, "f64") for name in FLOAT if "NaN" not in name),
        *((name, "f16") for name in FLOAT if name != "div.rn"),
    ],
)
def test_float_arithmetic(name: str, t: str) -> None:
    x, y = operands(DTYPES[t], 2, 11)
    got = evaluate(f"{name}.{t} {{d}}, {{a}}, {{b}};", t, [t, t], x, y)
    expected = FLOAT[name](x, y)
    if name[:3] in ("min", "max"):
        # Which zero is returned for +0 and -0 is another test.
        got, expected = got + got.dtype.type(0), expected + expected.dtype.type(0)
    same(got, expected)


def test_min_orders_zeros() -> None:
    x, y = np.array([0.0, -0.0], "f4"), np.array([-0.0, 0.0], "f4")
    assert np.signbit(evaluate("min.f32 {d}, {a}, {b};", "f32", ["f32", "f32"], x, y)).all()
    assert not np.signbit(evaluate("max.f32 {d}, {a}, {b};", "f32", ["f32", "f32"], x, y)).any()


def exact_fma(x: float, y: float, z: float, dtype: str) -> float:
    """x*y + z rounded once, from fractions."""
    if not all(map(math.isfinite, (x, y, z))):
        return float("nan") if math.isnan(x * y + z) else x * y + z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return x * y + z if x * y == 0 else 0.0
    return rounded(exact, dtype)


# Digits, the exponent of the smallest number, the first power of two that overflows.
FORMATS = {
    "f8": (53, -1074, 1024),
    "f4": (24, -149, 128),
    "f2": (11, -24, 16),
    "bf": (8, -133, 128),
}


def rounded(exact: Fraction, dtype: str) -> float:
    """The nearest float of a type, ties to even; the caller's numbers are not zero."""
    digits, smallest, largest = FORMATS[dtype]
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - digits + 1, smallest)
    value = round(magnitude / unit) * unit
    result = math.inf if value >= Fraction(2) ** largest else float(value)
    return result if exact > 0 else -result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("t", ["f32", "f64", "f16", "bf16"])
def test_fma_rounds_once(t: str) -> None:
    dtype = DTYPES[t]
    rng = np.random.default_rng(12)
    if t == "bf16":
        x, y, z = (operands("u2", 3, 12)[k][-400:] for k in range(3))
        wide = [v.view(BF16).astype("f8") for v in (x, y, z)]
    else:
        x, y, z = operands(dtype, 3, 12)
        # Cancellation: z close to -x*y, and sums just beside a tie.
        tame = rng.normal(0, 1, (2, 500)).astype(dtype)
        near = (-tame[0] * tame[1]).astype(dtype)
        tiny = (near * rng.choice([1.0, 1 + 2.0**-9, 2.0**-13, 2.0**-26], 500)).astype(dtype)
        x, y, z = (np.concatenate(p) for p in ((x, tame[0]), (y, tame[1]), (z, tiny)))
        wide = [v.astype("f8") for v in (x, y, z)]
    got = evaluate(f"fma.rn.{t} {{d}}, {{a}}, {{b}}, {{c}};", t, [t] * 3, x, y, z)
    short = "bf" if t == "bf16" else dtype
    expected = np.array([exact_fma(*map(float, lane), short) for lane in zip(*wide)])
    if t == "bf16":
        same(got.view(BF16).astype("f8"), expected)
    else:
        same(got, expected.astype(dtype))


EXACT: dict[str, Callable[..., Fraction]] = {
    "add": lambda x, y: x + y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "fma": lambda x, y, z: x * y + z,
    "rcp": lambda x: 1 / x,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("t", ["f32", "f64"])
@pytest.mark.parametrize("name", ["add", "mul", "div", "fma", "sqrt", "rcp"])
def test_directed_rounding(name: str, t: str, mode: str) -> None:
    rng = np.random.default_rng(13)
    x, y, z = rng.normal(0, 3, (3, 200)).astype(DTYPES[t])
    if name == "sqrt":
        x = abs(x)
    inputs = {"fma": [x, y, z], "sqrt": [x], "rcp": [x]}.get(name, [x, y])
    letters = ", ".join(f"{{{chr(97 + k)}}}" for k in range(len(inputs)))
    got = evaluate(f"{name}.{mode}.{t} {{d}}, {letters};", t, [t] * len(inputs), *inputs)
    step = {"rz": 0.0, "rm": -np.inf, "rp": np.inf}[mode]
    for k, lane in enumerate(zip(*inputs)):
        f = [Fraction(float(v)) for v in lane]
        r = Fraction(float(got[k]))
        inside = Fraction(
            float(np.nextafter(got[k], -step if mode != "rz" else np.copysign(np.inf, got[k])))
        )
        if name == "sqrt":
            exact, value, further = f[0], r * r, inside * inside
        else:
            exact = EXACT[name](*f)
            value, further = r, inside
        if mode == "rm" or (mode == "rz" and exact > 0):
            assert value <= exact < further
        else:
            assert further < exact <= value


# Approximate functions: NumPy's in double, and how far off a result may be.
FUNCTIONS = {
    "rcp.rn": lambda x: 1 / x, "rcp.approx.ftz": lambda x: 1 / x, "sqrt.rn": np.sqrt, "sqrt.approx": np.sqrt,
    "rsqrt.approx": lambda x: 1 / np.sqrt(x), "ex2.approx": np.exp2, "lg2.approx": np.log2, "sin.approx": np.sin,
    "cos.approx": np.cos, "tanh.approx": np.tanh,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_single(name: str) -> None:
    x = np.concatenate(
        [np.random.default_rng(14).normal(0, 5, 500), [0.0, -0.0, 1, np.inf, -np.inf, np.nan]]
    ).astype("f4")
    got = evaluate(f"{name}.f32 {{d}}, {{a}};", "f32", ["f32"], x)
    np.testing.assert_allclose(got, FUNCTIONS[name](x.astype("f8")).astype("f4"), rtol=3e-7)


@pytest.mark.filterwarnings("ignore")
def test_functions_double_and_half() -> None:
    x = abs(np.random.default_rng(15).normal(0, 5, 500)) + 0.1
    same(evaluate("sqrt.rn.f64 {d}, {a};", "f64", ["f64"], x), np.sqrt(x))
    same(evaluate("rcp.rn.f64 {d}, {a};", "f64", ["f64"], x), 1 / x)
    got = evaluate("rcp.approx.ftz.f64 {d}, {a};", "f64", ["f64"], x)
    np.testing.assert_allclose(got, 1 / x, rtol=1e-6)
    assert not (got.view("u8") & np.uint64(0xFFFFFFFF)).any()
    h = x.astype("f2")
    got16 = evaluate("tanh.approx.f16 {d}, {a};", "f16", ["f16"], h)
    same(got16, np.tanh(h.astype("f8")).astype("f2"))
    same(
        evaluate("ex2.approx.f16 {d}, {a};", "f16", ["f16"], -h),
        np.exp2(-h.astype("f8")).astype("f2"),
    )


@pytest.mark.filterwarnings("ignore")
def test_flush_to_zero_and_saturate() -> None:
    x = np.array([1e-40, -1e-40, 1e-38, 3e-38, 0.5, 2.0, -1.0, np.nan, np.inf], "f4")
    one = np.ones_like(x)
    flushed = np.where(abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x)
    same(evaluate("mul.rn.ftz.f32 {d}, {a}, {b};", "f32", ["f32", "f32"], x, one), flushed)
    got = evaluate("mul.rn.f32 {d}, {a}, {b};", "f32", ["f32", "f32"], x, one)
    same(got, x)
    sat = evaluate("mul.rn.sat.f32 {d}, {a}, {b};", "f32", ["f32", "f32"], x, one)
    same(sat, np.nan_to_num(np.clip(x, np.float32(0), np.float32(1))))


@pytest.mark.parametrize("name", ["add.rn", "sub.rn", "mul.rn"])
def test_bfloat16(name: str) -> None:
    x, y = (v.view(BF16) for v in operands("u2", 2, 16))
    got = evaluate(
        f"{name}.bf16 {{d}}, {{a}}, {{b}};", "bf16", ["bf16", "bf16"], x.view("u2"), y.view("u2")
    )
    with np.errstate(all="ignore"):
        expected = FLOAT[name](x.astype("f8"), y.astype("f8")).astype("f4").astype(BF16)
    same(got.view(BF16).astype("f4"), expected.astype("f4"))


@pytest.mark.filterwarnings("ignore")
def test_packed_halves() -> None:
    x, y, z = operands("f2", 3, 17)
    n = x.size // 2 * 2
    a, b, c = (v[:n] for v in (x, y, z))
    pack = lambda v: np.ascontiguousarray(v).view("u4")
    got = evaluate("add.rn.f16x2 {d}, {a}, {b};", "f16x2", ["f16x2"] * 2, pack(a), pack(b))
    same(got.view("f2"), a + b)
    got = evaluate(
        "fma.rn.f16x2 {d}, {a}, {b}, {c};", "f16x2", ["f16x2"] * 3, pack(a), pack(b), pack(c)
    )
    alone = evaluate("fma.rn.f16 {d}, {a}, {b}, {c};", "f16", ["f16"] * 3, a, b, c)
    same(got.view("f2"), alone)
    got = evaluate("max.bf16x2 {d}, {a}, {b};", "bf16x2", ["bf16x2"] * 2, pack(a), pack(b))
    wide = np.fmax(a.view(BF16).astype("f4"), b.view(BF16).astype("f4"))
    np.testing.assert_array_equal(got.view(BF16).astype("f4"), wide)


def test_packed_singles() -> None:
    x, y, z = (operands("f4", 3, 17)[k][-600:] for k in range(3))
    pack = lambda v: np.ascontiguousarray(v).view("u8")
    got = evaluate(
        "fma.rn.f32x2 {d}, {a}, {b}, {c};", "b64", ["b64"] * 3, pack(x), pack(y), pack(z)
    )
    alone = evaluate("fma.rn.f32 {d}, {a}, {b}, {c};", "f32", ["f32"] * 3, x, y, z)
    same(got.view("f4"), alone)


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_signs(t: str) -> None:
    x, y = operands(DTYPES[t], 2, 18)
    same(evaluate(f"abs.{t} {{d}}, {{a}};", t, [t], x), abs(x))
    same(evaluate(f"neg.{t} {{d}}, {{a}};", t, [t], x), -x)
    same(evaluate(f"copysign.{t} {{d}}, {{a}}, {{b}};", t, [t, t], x, y), np.copysign(y, x))


# Conversions -------------------------------------------------------------------------------------------------------------

INTEGERS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]
WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", WHOLE)
@pytest.mark.parametrize("source", ["f32", "f64", "f16"])
def test_float_to_integer_saturates(source: str, mode: str) -> None:
    x = operands(DTYPES[source], 1, 19)[0]
    x = np.concatenate([x, (np.arange(-40, 40) / 4).astype(x.dtype)])
    for target in ("u16", "s16", "u32", "s32", "u64", "s64"):
        info = np.iinfo(DTYPES[target])
        exact = [
            0 if math.isnan(v) else min(max(v, info.min), info.max) for v in WHOLE[mode](x).tolist()
        ]
        expected = np.array([int(v) for v in exact], DTYPES[target])
        same(evaluate(f"cvt.{mode}.{target}.{source} {{d}}, {{a}};", target, [source], x), expected)


@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_float(source: str) -> None:
    x = operands(DTYPES[source], 1, 20)[0]
    for target in ("f32", "f64"):
        got = evaluate(f"cvt.rn.{target}.{source} {{d}}, {{a}};", target, [source], x)
        same(got, x.astype(DTYPES[target]))
    half = evaluate(f"cvt.rn.f16.{source} {{d}}, {{a}};", "f16", [source], x)
    short = {"f2": [0.0 if v == 0 else rounded(Fraction(v), "f2") for v in x.tolist()]}
    same(half, np.array(short["f2"]).astype("f2"))
    down = evaluate(f"cvt.rm.f32.{source} {{d}}, {{a}};", "f32", [source], x)
    next_up = np.nextafter(down, np.float32(np.inf))
    assert all(
        Fraction(float(r)) <= v < Fraction(float(u)) for r, u, v in zip(down, next_up, x.tolist())
    )


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer(source: str, target: str) -> None:
    x = operands(DTYPES[source], 1, 21)[0]
    if source != target:
        same(
            evaluate(f"cvt.{target}.{source} {{d}}, {{a}};", target, [source], x),
            x.astype(DTYPES[target]),
        )
    info = np.iinfo(DTYPES[target])
    expected = np.array([min(max(int(v), info.min), info.max) for v in x], DTYPES[target])
    if info.bits < np.iinfo(x.dtype).bits or source[0] != target[0]:
        same(evaluate(f"cvt.sat.{target}.{source} {{d}}, {{a}};", target, [source], x), expected)


@pytest.mark.filterwarnings("ignore")
def test_float_to_float() -> None:
    d, s, h = (operands(k, 1, 22)[0] for k in ("f8", "f4", "f2"))
    same(evaluate("cvt.rn.f32.f64 {d}, {a};", "f32", ["f64"], d), d.astype("f4"))
    same(evaluate("cvt.f64.f32 {d}, {a};", "f64", ["f32"], s), s.astype("f8"))
    same(evaluate("cvt.rn.f16.f32 {d}, {a};", "f16", ["f32"], s), s.astype("f2"))
    same(evaluate("cvt.f32.f16 {d}, {a};", "f32", ["f16"], h), h.astype("f4"))
    same(evaluate("cvt.f64.f16 {d}, {a};", "f64", ["f16"], h), h.astype("f8"))
    b = operands("u2", 1, 22)[0]
    same(evaluate("cvt.f32.bf16 {d}, {a};", "f32", ["bf16"], b), b.view(BF16).astype("f4"))
    got = evaluate("cvt.rn.bf16.f32 {d}, {a};", "bf16", ["f32"], s)
    same(got.view(BF16).astype("f4"), s.astype(BF16).astype("f4"))
    for mode, function in WHOLE.items():
        same(evaluate(f"cvt.{mode}.f32.f32 {{d}}, {{a}};", "f32", ["f32"], s), function(s))
    same(
        evaluate("cvt.sat.f32.f32 {d}, {a};", "f32", ["f32"], s),
        np.fmin(np.fmax(s, np.float32(0)), np.float32(1)),
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_float_to_float_directed(mode: str) -> None:
    d = np.random.default_rng(23).normal(0, 100, 300)
    got = evaluate(f"cvt.{mode}.f32.f64 {{d}}, {{a}};", "f32", ["f64"], d)
    near = d.astype("f4")
    below = np.where(near > d, np.nextafter(near, np.float32(-np.inf)), near)
    above = np.where(near < d, np.nextafter(near, np.float32(np.inf)), near)
    same(got, {"rm": below, "rp": above, "rz": np.where(d > 0, below, above)}[mode])


def test_packed_conversion() -> None:
    x, y = np.random.default_rng(24).normal(0, 100, (2, 100)).astype("f4")
    got = (
        evaluate("cvt.rn.f16x2.f32 {d}, {a}, {b};", "f16x2", ["f32", "f32"], x, y)
        .view("f2")
        .reshape(-1, 2)
    )
    np.testing.assert_array_equal(got, np.stack([y, x], 1).astype("f2"))
    got = (
        evaluate("cvt.rn.bf16x2.f32 {d}, {a}, {b};", "bf16x2", ["f32", "f32"], x, y)
        .view(BF16)
        .reshape(-1, 2)
    )
    np.testing.assert_array_equal(got, np.stack([y, x], 1).astype(BF16))
