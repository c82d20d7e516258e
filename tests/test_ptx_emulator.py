"""The PTX emulator against NumPy: every family of instructions, control flow, memory, and each error with its line.

Most PTX here is written by hand, one instruction in a kernel that loads its operands and stores its result; `ptxas`,
where it is installed, confirms that this is PTX. The rest is LLVM's, compiled from IR in the test.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
import pytest

from dsl.codegen.cuda.emulator import Counters, Memory, PtxError, PtxModule

Array = np.ndarray[Any, Any]
BF16 = np.dtype(ml_dtypes.bfloat16)

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"

# NumPy's type for each PTX type, and the register that holds it.
DTYPES = {
    "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "b32": "u4", "u32": "u4",
    "s32": "i4", "f32": "f4", "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8", "bf16": "u2", "f16x2": "u4",
    "bf16x2": "u4", "tf32": "u4",
}  # fmt: skip


def register_type(ptx_type: str) -> str:
    return f"b{max(16, 8 * np.dtype(DTYPES[ptx_type]).itemsize)}"


def move_type(ptx_type: str) -> str:
    """The type to load and store with."""
    return f"b{8 * np.dtype(DTYPES[ptx_type]).itemsize}"


def one_instruction(text: str, result: str, operands: list[str], name: str = "k") -> str:
    """A kernel that runs `text` with {d} and {a}, {b}, ... on one element per thread.

    A result type "pred" is stored as a byte.
    """
    lines = [f".visible .entry {name}(", "  .param .u64 out,", *[f"  .param .u64 in{k}," for k in range(len(operands))], "  .param .u32 n", ")", "{"]  # fmt: skip
    stored = "b16" if result == "pred" else register_type(result)
    lines += [".reg .pred %p, %q, %s;", ".reg .b32 %i, %n, %t;", ".reg .b64 %x, %o, %y;", f".reg .{stored} %d;"]
    lines += [f".reg .{register_type(t)} %v{k};" for k, t in enumerate(operands)]
    lines += ["mov.u32 %i, %ctaid.x;", "mov.u32 %t, %ntid.x;", "mov.u32 %n, %tid.x;", "mad.lo.u32 %i, %i, %t, %n;"]
    lines += ["ld.param.u32 %n, [n];", "setp.ge.u32 %p, %i, %n;", "@%p bra DONE;"]
    for k, t in enumerate(operands):
        size = np.dtype(DTYPES[t]).itemsize
        lines += [f"ld.param.u64 %x, [in{k}];", f"mad.wide.u32 %y, %i, {size}, %x;", f"ld.global.{move_type(t)} %v{k}, [%y];"]  # fmt: skip
    names = {chr(97 + k): f"%v{k}" for k in range(len(operands))}
    names["d"] = "%p" if result == "pred" else "%d"
    lines.append(text.format(**names))
    size = 1 if result == "pred" else np.dtype(DTYPES[result]).itemsize
    if result == "pred":
        lines.append("selp.b16 %d, 1, 0, %p;")
    lines += ["ld.param.u64 %o, [out];", f"mad.wide.u32 %y, %i, {size}, %o;", f"st.global.{'b8' if result == 'pred' else move_type(result)} [%y], %d;"]  # fmt: skip
    return "\n".join([*lines, "DONE:", "ret;", "}"])


@cache
def compiled(text: str) -> PtxModule:
    return PtxModule(text)


def evaluate(text: str, result: str, types: list[str], *inputs: Array, block: int = 64) -> Array:
    """What one instruction makes of arrays of operands."""
    n = inputs[0].size
    memory = Memory()
    dtype = "b1" if result == "pred" else DTYPES[result]
    out = memory.allocate(np.dtype(dtype).itemsize * n)
    places = []
    for array, t in zip(inputs, types):
        place = memory.allocate(array.nbytes)
        memory.write(place, array.view(DTYPES[t]))
        places.append(place)
    module = compiled(HEADER + one_instruction(text, result, types))
    module.launch(memory, "k", (-(-n // block),), (block,), [out, *places, n])
    return memory.read(out, dtype, n)


# Operands -------------------------------------------------------------------------------------------------------------

EDGES = {
    "u1": [0, 1, 127, 128, 255], "i1": [0, 1, -1, 127, -128], "u2": [0, 1, 2, 0x7FFF, 0x8000, 0xFFFF],
    "i2": [0, 1, -1, 2, 0x7FFF, -0x8000], "u4": [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
    "i4": [0, 1, -1, 2, 31, 32, 0x7FFFFFFF, -0x80000000],
    "u8": [0, 1, 63, 64, 0xFFFFFFFF, 0x100000000, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF],
    "i8": [0, 1, -1, 63, 64, 0x7FFFFFFFFFFFFFFF, -0x8000000000000000],
}  # fmt: skip
FLOAT_EDGES = [0.0, -0.0, 1.0, -1.0, 1.5, 2.5, -2.5, 0.1, 3e38, -3e38, 1e-40, -1e-45, np.inf, -np.inf, np.nan, 65504.0, 65520.0, 6e-8, 1e300, 1e-310]  # fmt: skip


def operands(dtype: str, count: int, seed: int) -> list[Array]:
    """`count` arrays: every combination of edge values, then random ones."""
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        if dtype[0] == "f":
            edges = np.array(FLOAT_EDGES).astype(dtype)
            bits = rng.integers(0, 2 ** (8 * int(dtype[1])), (count, 300), np.uint64)
            wild = bits.astype(f"u{dtype[1]}").view(dtype)
            tame = rng.normal(0, 10, (count, 300)).astype(dtype)
            random = np.concatenate([wild, tame], 1)
        else:
            edges = np.array(EDGES[dtype], dtype)
            info = np.iinfo(dtype)
            random = rng.integers(info.min, info.max, (count, 300), dtype, endpoint=True)
            small = rng.integers(0, 40, (count, 100)).astype(dtype)
            random = np.concatenate([random, small], 1)
    grid = np.meshgrid(*[edges] * count, indexing="ij")
    return [np.concatenate([g.ravel()[:1000], r]) for g, r in zip(grid, random)]


def same(got: Array, expected: Array) -> None:
    """Equal bits, or both NaN."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    bits = got.view(f"u{got.itemsize}") == expected.view(f"u{got.itemsize}")
    if got.dtype.kind == "f":
        bits |= np.isnan(got) & np.isnan(expected)
    wrong = np.flatnonzero(~bits)
    assert wrong.size == 0, f"{wrong.size} differ, first at {wrong[0]}: {got[wrong[0]]!r} not {expected[wrong[0]]!r}"


def shifted(x: Array, n: Array, left: bool) -> Array:
    """Shifts with the amount clamped, in Python integers."""
    bits = 8 * x.itemsize
    values = [
        (int(v) << min(int(k), bits)) & (2**bits - 1) if left else int(v) >> min(int(k), bits)
        for v, k in zip(x, n)
    ]
    return np.array([v & (2**bits - 1) for v in values], f"u{x.itemsize}").view(x.dtype)


def by_integers(function: Callable[..., int]) -> Callable[..., Array]:
    """A function of Python integers, per lane, modulo the width of the first operand."""

    def run(*arrays: Array) -> Array:
        first = arrays[0]
        mask = 2 ** (8 * first.itemsize) - 1
        values = [function(*(int(v) for v in lane)) & mask for lane in zip(*arrays)]
        return np.array(values, f"u{first.itemsize}").view(first.dtype)

    return run


def quotient(x: int, y: int) -> int:
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def remainder(x: int, y: int) -> int:
    return x if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)


INTEGER = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul.lo": lambda x, y: x * y, "min": min, "max": max,
    "div": quotient, "rem": remainder,
}  # fmt: skip


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("name", INTEGER)
def test_integer_arithmetic(name: str, t: str) -> None:
    x, y = operands(DTYPES[t], 2, 1)
    same(evaluate(f"{name}.{t} {{d}}, {{a}}, {{b}};", t, [t, t], x, y), by_integers(INTEGER[name])(x, y))


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_high_products(t: str) -> None:
    x, y = operands(DTYPES[t], 2, 2)
    bits = 8 * x.itemsize
    high = by_integers(lambda a, b: a * b >> bits)
    same(evaluate(f"mul.hi.{t} {{d}}, {{a}}, {{b}};", t, [t, t], x, y), high(x, y))
    z = operands(DTYPES[t], 3, 3)
    same(
        evaluate(f"mad.lo.{t} {{d}}, {{a}}, {{b}}, {{c}};", t, [t] * 3, *z),
        by_integers(lambda a, b, c: a * b + c)(*z),
    )


@pytest.mark.parametrize(("t", "wide"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")])
def test_wide_products(t: str, wide: str) -> None:
    x, y = operands(DTYPES[t], 2, 4)
    z = np.resize(operands(DTYPES[wide], 1, 5)[0], x.size)
    big = x.astype(DTYPES[wide]) * y.astype(DTYPES[wide])
    same(evaluate(f"mul.wide.{t} {{d}}, {{a}}, {{b}};", wide, [t, t], x, y), big)
    text = f"mad.wide.{t} {{d}}, {{a}}, {{b}}, {{c}};"
    same(evaluate(text, wide, [t, t, wide], x, y, z), big + z)


def clamp32(x: int) -> int:
    return min(max(x, -(2**31)), 2**31 - 1)


def find(x: int, bits: int) -> int:
    return (x if x >= 0 else ~x).bit_length() - 1


def field(x: int, p: int, l: int, bits: int, signed: bool) -> int:
    """bfe, from the PTX manual's loop."""
    p, l = p & 255, l & 255
    sign = 0 if not signed or l == 0 else x >> min(p + l - 1, bits - 1) & 1
    return sum((x >> p + k & 1 if k < l and p + k < bits else sign) << k for k in range(bits))


def inserted(x: int, y: int, p: int, l: int, bits: int) -> int:
    p, l = p & 255, l & 255
    for k in range(l):
        if p + k < bits:
            y = y & ~(1 << p + k) | (x >> k & 1) << p + k
    return y


def permuted(x: int, y: int, c: int) -> int:
    value = y << 32 | x
    result = 0
    for k in range(4):
        selector = c >> 4 * k & 15
        byte = value >> 8 * (selector & 7) & 255
        byte = (255 if byte & 128 else 0) if selector & 8 else byte
        result |= byte << 8 * k
    return result


def funnel(left: bool, clamp: bool) -> Callable[..., int]:
    def run(x: int, y: int, n: int) -> int:
        n = min(n, 32) if clamp else n & 31
        whole = y << 32 | x
        return (whole << n) >> 32 if left else whole >> n

    return run


# Instruction, type of the result, types of the operands, a function of Python integers.
BITS: list[tuple[str, str, list[str], Callable[..., int]]] = [
    ("and.b32", "b32", ["b32", "b32"], lambda x, y: x & y), ("or.b64", "b64", ["b64", "b64"], lambda x, y: x | y),
    ("xor.b16", "b16", ["b16", "b16"], lambda x, y: x ^ y), ("not.b32", "b32", ["b32"], lambda x: ~x),
    ("cnot.b32", "b32", ["b32"], lambda x: int(x == 0)), ("neg.s32", "s32", ["s32"], lambda x: -x),
    ("neg.s16", "s16", ["s16"], lambda x: -x), ("abs.s64", "s64", ["s64"], abs), ("abs.s32", "s32", ["s32"], abs),
    ("add.sat.s32", "s32", ["s32", "s32"], lambda x, y: clamp32(x + y)),
    ("sub.sat.s32", "s32", ["s32", "s32"], lambda x, y: clamp32(x - y)),
    ("sad.s32", "s32", ["s32"] * 3, lambda x, y, z: z + abs(x - y)),
    ("sad.u64", "u64", ["u64"] * 3, lambda x, y, z: z + abs(x - y)),
    ("brev.b32", "b32", ["b32"], lambda x: int(f"{x:032b}"[::-1], 2)),
    ("brev.b64", "b64", ["b64"], lambda x: int(f"{x:064b}"[::-1], 2)),
    ("popc.b32", "u32", ["b32"], lambda x: x.bit_count()), ("popc.b64", "u32", ["b64"], lambda x: x.bit_count()),
    ("clz.b32", "u32", ["b32"], lambda x: 32 - x.bit_length()),
    ("clz.b64", "u32", ["b64"], lambda x: 64 - x.bit_length()),
    ("bfind.u32", "u32", ["u32"], lambda x: find(x, 32)), ("bfind.s32", "u32", ["s32"], lambda x: find(x, 32)),
    ("bfind.u64", "u32", ["u64"], lambda x: find(x, 64)), ("bfind.s64", "u32", ["s64"], lambda x: find(x, 64)),
    ("bfind.shiftamt.u32", "u32", ["u32"], lambda x: 31 - find(x, 32) if x else -1),
    ("bfe.u32", "u32", ["u32", "u32", "u32"], lambda x, p, l: field(x, p, l, 32, False)),
    ("bfe.s32", "s32", ["s32", "u32", "u32"], lambda x, p, l: field(x, p, l, 32, True)),
    ("bfe.u64", "u64", ["u64", "u32", "u32"], lambda x, p, l: field(x, p, l, 64, False)),
    ("bfe.s64", "s64", ["s64", "u32", "u32"], lambda x, p, l: field(x, p, l, 64, True)),
    ("bfi.b32", "b32", ["b32", "b32", "u32", "u32"], lambda x, y, p, l: inserted(x, y, p, l, 32)),
    ("bfi.b64", "b64", ["b64", "b64", "u32", "u32"], lambda x, y, p, l: inserted(x, y, p, l, 64)),
    ("prmt.b32", "b32", ["b32"] * 3, permuted),
    ("prmt.b32.f4e", "b32", ["b32"] * 3, lambda x, y, c: (y << 32 | x) >> 8 * (c & 3)),
    ("prmt.b32.rc16", "b32", ["b32"] * 3, lambda x, y, c: (x >> 16 * (c & 1) & 0xFFFF) * 0x10001),
    ("shf.l.wrap.b32", "b32", ["b32", "b32", "u32"], funnel(True, False)),
    ("shf.r.wrap.b32", "b32", ["b32", "b32", "u32"], funnel(False, False)),
    ("shf.l.clamp.b32", "b32", ["b32", "b32", "u32"], funnel(True, True)),
    ("shf.r.clamp.b32", "b32", ["b32", "b32", "u32"], funnel(False, True)),
    ("mul24.lo.u32", "u32", ["u32", "u32"], lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF)),
    ("mul24.hi.u32", "u32", ["u32", "u32"], lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF) >> 16),
    ("dp4a.u32.u32", "u32", ["u32"] * 3, lambda x, y, z: z + sum((x >> k & 255) * (y >> k & 255) for k in (0, 8, 16, 24))),
]  # fmt: skip


def of_types(types: list[str], seed: int) -> list[Array]:
    arrays = [operands(DTYPES[t], 2, seed + k)[0] for k, t in enumerate(types)]
    n = max(a.size for a in arrays)
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.resize(a, n)) for a in arrays]


@pytest.mark.parametrize(("name", "result", "types", "function"), BITS, ids=[row[0] for row in BITS])
def test_bits(name: str, result: str, types: list[str], function: Callable[..., int]) -> None:
    arrays = of_types(types, 6)
    text = f"{name} {{d}}, " + ", ".join(f"{{{chr(97 + k)}}}" for k in range(len(types))) + ";"
    if name.startswith("bfi."):
        text = f"{name} {{d}}, {{a}}, {{b}}, {{c}}, %v3;"
    mask = 2 ** (8 * np.dtype(DTYPES[result]).itemsize) - 1
    values = [function(*(int(v) for v in lane)) & mask for lane in zip(*arrays)]
    expected = np.array(values, f"u{DTYPES[result][1]}").view(DTYPES[result])
    same(evaluate(text, result, types, *arrays), expected)


@pytest.mark.parametrize("t", ["b16", "b32", "b64"])
def test_left_shifts_clamp(t: str) -> None:
    x, n = of_types([t, "u32"], 7)
    same(evaluate(f"shl.{t} {{d}}, {{a}}, {{b}};", t, [t, "u32"], x, n), shifted(x, n, True))


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_right_shifts_clamp(t: str) -> None:
    x, n = of_types([t, "u32"], 8)
    same(evaluate(f"shr.{t} {{d}}, {{a}}, {{b}};", t, [t, "u32"], x, n), shifted(x, n, False))


@pytest.mark.parametrize("table", [0x00, 0x96, 0xE8, 0xCA, 0x1B, 0xFF])
def test_lop3(table: int) -> None:
    x, y, z = of_types(["b32"] * 3, 9)
    expected = np.zeros_like(x)
    for k in range(8):
        if table >> k & 1:
            a, b, c = (v if k >> s & 1 else ~v for v, s in ((x, 2), (y, 1), (z, 0)))
            expected |= a & b & c
    same(evaluate(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};", "b32", ["b32"] * 3, x, y, z), expected)


def test_carries_chain() -> None:
    """A 128-bit sum and difference of two 64-bit halves, and a 64-bit product from 32-bit ones."""
    x, y = of_types(["u64", "u64"], 10)
    text = """{{ .reg .b32 %a0, %a1, %b0, %b1, %c0, %c1;
    mov.b64 {{%a0, %a1}}, {a}; mov.b64 {{%b0, %b1}}, {b};
    OP.cc.u32 %c0, %a0, %b0; OPc.u32 %c1, %a1, %b1; mov.b64 {d}, {{%c0, %c1}}; }}"""
    same(evaluate(text.replace("OP", "add"), "u64", ["u64", "u64"], x, y), x + y)
    same(evaluate(text.replace("OP", "sub"), "u64", ["u64", "u64"], x, y), x - y)
    mad = """{{ .reg .b32 %a0, %a1, %b0, %b1, %c0, %c1;
    mov.b64 {{%a0, %a1}}, {a}; mov.b64 {{%b0, %b1}}, {b};
    mad.lo.cc.u32 %c0, %a0, %b0, 7; madc.hi.u32 %c1, %a0, %b0, 0; mov.b64 {d}, {{%c0, %c1}}; }}"""
    low = np.uint64(0xFFFFFFFF)
    same(evaluate(mad, "u64", ["u64", "u64"], x, y), (x & low) * (y & low) + np.uint64(7))


# Floats -----------------------------------------------------------------------------------------------------------------

FLOAT = {
    "add.rn": np.add, "sub.rn": np.subtract, "mul.rn": np.multiply, "div.rn": np.divide, "min": np.fmin, "max": np.fmax,
    "min.NaN": np.minimum, "max.NaN": np.maximum,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("t", ["f32", "f64", "f16"])
@pytest.mark.parametrize("name", FLOAT)
def test_float_arithmetic(name: str, t: str) -> None:
    if t == "f16" and name == "div.rn" or t == "f64" and "NaN" in name:
        pytest.skip("PTX has no such instruction")
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


def rounded(exact: Fraction, dtype: str) -> float:
    """The nearest float of a type, ties to even; the caller's numbers are not zero."""
    digits, smallest, largest = {"f8": (53, -1074, 1024), "f4": (24, -149, 128), "f2": (11, -24, 16), "bf": (8, -133, 128)}[dtype]  # fmt: skip
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
        inside = Fraction(float(np.nextafter(got[k], -step if mode != "rz" else np.copysign(np.inf, got[k]))))
        if name == "sqrt":
            exact, value, further = f[0], r * r, inside * inside
        else:
            exact = {"add": lambda: f[0] + f[1], "mul": lambda: f[0] * f[1], "div": lambda: f[0] / f[1],
                     "fma": lambda: f[0] * f[1] + f[2], "rcp": lambda: 1 / f[0]}[name]()  # fmt: skip
            value, further = r, inside
        if mode == "rm" or mode == "rz" and exact > 0:
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
    x = np.concatenate([np.random.default_rng(14).normal(0, 5, 500), [0.0, -0.0, 1, np.inf, -np.inf, np.nan]]).astype("f4")
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
    same(evaluate("ex2.approx.f16 {d}, {a};", "f16", ["f16"], -h), np.exp2(-h.astype("f8")).astype("f2"))


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
    got = evaluate(f"{name}.bf16 {{d}}, {{a}}, {{b}};", "bf16", ["bf16", "bf16"], x.view("u2"), y.view("u2"))
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
    got = evaluate("fma.rn.f16x2 {d}, {a}, {b}, {c};", "f16x2", ["f16x2"] * 3, pack(a), pack(b), pack(c))
    alone = evaluate("fma.rn.f16 {d}, {a}, {b}, {c};", "f16", ["f16"] * 3, a, b, c)
    same(got.view("f2"), alone)
    got = evaluate("max.bf16x2 {d}, {a}, {b};", "bf16x2", ["bf16x2"] * 2, pack(a), pack(b))
    wide = np.fmax(a.view(BF16).astype("f4"), b.view(BF16).astype("f4"))
    np.testing.assert_array_equal(got.view(BF16).astype("f4"), wide)


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
        exact = [0 if math.isnan(v) else min(max(v, info.min), info.max) for v in WHOLE[mode](x).tolist()]
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
    assert all(int(r) <= v < int(np.nextafter(r, np.float32(np.inf))) + (abs(r) < 2**23) for r, v in zip(down, x.tolist()))


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer(source: str, target: str) -> None:
    x = operands(DTYPES[source], 1, 21)[0]
    if source != target:
        same(evaluate(f"cvt.{target}.{source} {{d}}, {{a}};", target, [source], x), x.astype(DTYPES[target]))
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
    same(evaluate("cvt.sat.f32.f32 {d}, {a};", "f32", ["f32"], s), np.fmin(np.fmax(s, np.float32(0)), np.float32(1)))


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
    got = evaluate("cvt.rn.f16x2.f32 {d}, {a}, {b};", "f16x2", ["f32", "f32"], x, y).view("f2").reshape(-1, 2)
    np.testing.assert_array_equal(got, np.stack([y, x], 1).astype("f2"))
    got = evaluate("cvt.rn.bf16x2.f32 {d}, {a}, {b};", "bf16x2", ["f32", "f32"], x, y).view(BF16).reshape(-1, 2)
    np.testing.assert_array_equal(got, np.stack([y, x], 1).astype(BF16))


# Comparisons --------------------------------------------------------------------------------------------------------------

ORDERED = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integer_comparisons(t: str) -> None:
    x, y = operands(DTYPES[t], 2, 25)
    for name, function in ORDERED.items():
        same(evaluate(f"setp.{name}.{t} {{d}}, {{a}}, {{b}};", "pred", [t, t], x, y), function(x, y))


@pytest.mark.parametrize("t", ["f32", "f64", "f16"])
def test_float_comparisons(t: str) -> None:
    x, y = operands(DTYPES[t], 2, 26)
    x[::7] = y[::7]
    nan = np.isnan(x) | np.isnan(y)
    for name, function in ORDERED.items():
        run = lambda n: evaluate(f"setp.{n}.{t} {{d}}, {{a}}, {{b}};", "pred", [t, t], x, y)  # noqa: B023
        same(run(name), function(x, y) & ~nan)
        same(run(name + "u"), function(x, y) | nan)
    same(evaluate(f"setp.num.{t} {{d}}, {{a}}, {{b}};", "pred", [t, t], x, y), ~nan)
    same(evaluate(f"setp.nan.{t} {{d}}, {{a}}, {{b}};", "pred", [t, t], x, y), nan)


def test_combined_and_dual_predicates() -> None:
    x, y = operands("i4", 2, 27)
    base = "setp.gt.s32 %q, {a}, 5;\n"
    for name, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        got = evaluate(base + f"setp.lt.{name}.s32 {{d}}, {{a}}, {{b}}, %q;", "pred", ["s32", "s32"], x, y)
        same(got, function(x < y, x > 5))
        got = evaluate(base + f"setp.lt.{name}.s32 %s|{{d}}, {{a}}, {{b}}, !%q;", "pred", ["s32", "s32"], x, y)
        same(got, function(~(x < y), ~(x > 5)))


def test_selections() -> None:
    x, y = operands("i4", 2, 28)
    got = evaluate("setp.lt.s32 %q, {a}, {b};\nselp.b32 {d}, {a}, {b}, %q;", "s32", ["s32", "s32"], x, y)
    same(got, np.minimum(x, y))
    got = evaluate("slct.s32.s32 {d}, {a}, {b}, {a};", "s32", ["s32", "s32"], x, y)
    same(got, np.where(x >= 0, x, y))
    got = evaluate("set.lt.u32.s32 {d}, {a}, {b};", "u32", ["s32", "s32"], x, y)
    same(got, np.where(x < y, 0xFFFFFFFF, 0).astype("u4"))
    f = operands("f4", 1, 28)[0]
    for name, expected in (("finite", np.isfinite(f)), ("infinite", np.isinf(f)), ("notanumber", np.isnan(f)),
                           ("subnormal", (f != 0) & (abs(f) < 2.0**-126)), ("normal", np.isfinite(f) & (abs(f) >= 2.0**-126))):  # fmt: skip
        same(evaluate(f"testp.{name}.f32 {{d}}, {{a}};", "pred", ["f32"], f), expected)


def test_guarded_instructions_keep_the_register() -> None:
    x, y = operands("u4", 2, 29)
    text = "mov.b32 {d}, {a};\nsetp.lt.u32 %q, {a}, {b};\n@%q add.u32 {d}, {d}, 1;\n@!%q mov.b32 {d}, 9;"
    same(evaluate(text, "u32", ["u32", "u32"], x, y), np.where(x < y, x + 1, np.uint32(9)))


def test_vectors_of_registers() -> None:
    x = operands("u8", 1, 30)[0]
    text = """{{ .reg .b32 %lo, %hi; .reg .b16 %h<4>;
    mov.b64 {{%lo, %hi}}, {a}; mov.b64 {{%h0, %h1, %h2, %h3}}, {a};
    cvt.u32.u16 %lo, %h0; mov.b64 {d}, {{%hi, %lo}}; }}"""
    same(evaluate(text, "b64", ["b64"], x), x >> np.uint64(32) | (x & np.uint64(0xFFFF)) << np.uint64(32))


def all_snippets() -> list[str]:
    """Kernels of the tables above, for the assembler."""
    result = []
    for name, t, types, _ in BITS:
        letters = ", ".join(f"%v{k}" for k in range(len(types)))
        result.append(one_instruction(f"{name} {{d}}, {letters};", t, types, f"k{len(result)}"))
    for name in FUNCTIONS:
        result.append(one_instruction(f"{name}.f32 {{d}}, {{a}};", "f32", ["f32"], f"k{len(result)}"))
    return result


def ptxas() -> str | None:
    places = [Path(p) / "triton/backends/nvidia/bin/ptxas" for p in sys.path]
    return shutil.which("ptxas") or next((str(p) for p in places if p.exists()), None)


def test_the_tables_are_ptx(tmp_path: Path) -> None:
    tool = ptxas()
    if tool is None:
        pytest.skip("no ptxas")
    (tmp_path / "k.ptx").write_text(HEADER + "\n".join(all_snippets()))
    done = subprocess.run([tool, "-arch=sm_90", "-O0", "k.ptx", "-o", "k.cubin"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
