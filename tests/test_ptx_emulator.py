"""The PTX emulator against Python's integers and NumPy: integer, bit and comparison instructions.

Each is written by hand, in a kernel that loads its operands and stores its result; `ptxas`, where it is installed,
confirms that this is PTX. Floats, programs, errors and LLVM's own output have files of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptx_kernels import DTYPES, HEADER, evaluate, of_types, one_instruction, operands, same

Array = np.ndarray[Any, Any]


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
    same(
        evaluate(f"{name}.{t} {{d}}, {{a}}, {{b}};", t, [t, t], x, y),
        by_integers(INTEGER[name])(x, y),
    )


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


@pytest.mark.parametrize(
    ("t", "wide"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")]
)
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


@pytest.mark.parametrize(
    ("name", "result", "types", "function"), BITS, ids=[row[0] for row in BITS]
)
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
    same(
        evaluate(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};", "b32", ["b32"] * 3, x, y, z),
        expected,
    )


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
    borrow = """{{ .reg .b64 %u; sub.cc.u64 %u, {a}, {b}; addc.u64 {d}, 0, 0; }}"""
    same(evaluate(borrow, "u64", ["u64", "u64"], x, y), (x >= y).astype("u8"))
    low = np.uint64(0xFFFFFFFF)
    same(evaluate(mad, "u64", ["u64", "u64"], x, y), (x & low) * (y & low) + np.uint64(7))


# Comparisons --------------------------------------------------------------------------------------------------------------

ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integer_comparisons(t: str) -> None:
    x, y = operands(DTYPES[t], 2, 25)
    for name, function in ORDERED.items():
        same(
            evaluate(f"setp.{name}.{t} {{d}}, {{a}}, {{b}};", "pred", [t, t], x, y), function(x, y)
        )


@pytest.mark.parametrize("t", ["f32", "f64", "f16"])
def test_float_comparisons(t: str) -> None:
    x, y = operands(DTYPES[t], 2, 26)
    x[::7] = y[::7]
    nan = np.isnan(x) | np.isnan(y)
    for name, function in ORDERED.items():
        run = lambda n: evaluate(f"setp.{n}.{t} {{d}}, {{a}}, {{b}};", "pred", [t, t], x, y)
        same(run(name), function(x, y) & ~nan)
        same(run(name + "u"), function(x, y) | nan)
    same(evaluate(f"setp.num.{t} {{d}}, {{a}}, {{b}};", "pred", [t, t], x, y), ~nan)
    same(evaluate(f"setp.nan.{t} {{d}}, {{a}}, {{b}};", "pred", [t, t], x, y), nan)


def test_combined_and_dual_predicates() -> None:
    x, y = operands("i4", 2, 27)
    base = "setp.gt.s32 %q, {a}, 5;\n"
    for name, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        got = evaluate(
            base + f"setp.lt.{name}.s32 {{d}}, {{a}}, {{b}}, %q;", "pred", ["s32", "s32"], x, y
        )
        same(got, function(x < y, x > 5))
        got = evaluate(
            base + f"setp.lt.{name}.s32 %s|{{d}}, {{a}}, {{b}}, !%q;", "pred", ["s32", "s32"], x, y
        )
        same(got, function(~(x < y), ~(x > 5)))


def test_selections() -> None:
    x, y = operands("i4", 2, 28)
    got = evaluate(
        "setp.lt.s32 %q, {a}, {b};\nselp.b32 {d}, {a}, {b}, %q;", "s32", ["s32", "s32"], x, y
    )
    same(got, np.minimum(x, y))
    got = evaluate("slct.s32.s32 {d}, {a}, {b}, {a};", "s32", ["s32", "s32"], x, y)
    same(got, np.where(x >= 0, x, y))
    got = evaluate("set.lt.u32.s32 {d}, {a}, {b};", "u32", ["s32", "s32"], x, y)
    same(got, np.where(x < y, 0xFFFFFFFF, 0).astype("u4"))
    h, g = operands("f2", 2, 28)
    packed = [np.ascontiguousarray(v[: v.size // 2 * 2]).view("u4") for v in (h, g)]
    got = evaluate("set.lt.f16x2.f16x2 {d}, {a}, {b};", "f16x2", ["f16x2", "f16x2"], *packed)
    same(got.view("f2"), (h < g)[: got.size * 2].astype("f2"))
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
    same(
        evaluate(text, "b64", ["b64"], x),
        x >> np.uint64(32) | (x & np.uint64(0xFFFF)) << np.uint64(32),
    )


def all_snippets() -> list[str]:
    """Kernels of the tables above, for the assembler."""
    result = []
    for name, t, types, _ in BITS:
        letters = ", ".join(f"%v{k}" for k in range(len(types)))
        result.append(one_instruction(f"{name} {{d}}, {letters};", t, types, f"k{len(result)}"))
    for name in ("rcp.rn", "sqrt.approx", "ex2.approx", "tanh.approx"):
        result.append(
            one_instruction(f"{name}.f32 {{d}}, {{a}};", "f32", ["f32"], f"k{len(result)}")
        )
    return result


def ptxas() -> str | None:
    places = [Path(p) / "triton/backends/nvidia/bin/ptxas" for p in sys.path]
    return shutil.which("ptxas") or next((str(p) for p in places if p.exists()), None)


def test_the_tables_are_ptx(tmp_path: Path) -> None:
    tool = ptxas()
    if tool is None:
        pytest.skip("no ptxas")
    (tmp_path / "k.ptx").write_text(HEADER + "\n".join(all_snippets()))
    done = subprocess.run(
        [tool, "-arch=sm_90", "-O0", "k.ptx", "-o", "k.cubin"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
