"""Scalar operations of PTX that NumPy lacks, as ufuncs: `operation("fma", "f4")`.

One entry of `_TABLE` is one operation: its signature with K for the kind, and its LLVM body with {t} for the LLVM
type, {bits} for its width, {w} for the type twice as wide. Semantics are PTX's: shifts clamp, float to integer
saturates with NaN to 0, min and max ignore a NaN, fma rounds once.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from dsl.codegen.cuda.emulator.ufuncs import LLVM_TYPES, build

__all__ = ["convert_saturating", "lookup3", "operation", "permute"]

_TABLE: dict[str, tuple[str, str]] = {
    "fma": ("K K K -> K", "%r = call {t} @llvm.fma.{m}({t} %a, {t} %b, {t} %c)\nret {t} %r"),
    "select": ("b1 K K -> K", "%p = icmp ne i8 %a, 0\n%r = select i1 %p, {t} %b, {t} %c\nret {t} %r"),
    "mad": ("K K K -> K", "%m = mul {t} %a, %b\n%r = add {t} %m, %c\nret {t} %r"),
    # Products twice as wide.
    "mul_wide_u": ("K K -> W", "%x = zext {t} %a to {w}\n%y = zext {t} %b to {w}\n%r = mul {w} %x, %y\nret {w} %r"),
    "mul_wide_s": ("K K -> W", "%x = sext {t} %a to {w}\n%y = sext {t} %b to {w}\n%r = mul {w} %x, %y\nret {w} %r"),
    "mad_wide_u": (
        "K K W -> W",
        "%x = zext {t} %a to {w}\n%y = zext {t} %b to {w}\n%m = mul {w} %x, %y\n%r = add {w} %m, %c\nret {w} %r",
    ),
    "mad_wide_s": (
        "K K W -> W",
        "%x = sext {t} %a to {w}\n%y = sext {t} %b to {w}\n%m = mul {w} %x, %y\n%r = add {w} %m, %c\nret {w} %r",
    ),
    "mul_hi_u": (
        "K K -> K",
        "%x = zext {t} %a to {w}\n%y = zext {t} %b to {w}\n%m = mul {w} %x, %y\n%h = lshr {w} %m, {bits}\n"
        "%r = trunc {w} %h to {t}\nret {t} %r",
    ),
    "mul_hi_s": (
        "K K -> K",
        "%x = sext {t} %a to {w}\n%y = sext {t} %b to {w}\n%m = mul {w} %x, %y\n%h = lshr {w} %m, {bits}\n"
        "%r = trunc {w} %h to {t}\nret {t} %r",
    ),
    # Division by zero gives all ones, as on NVIDIA hardware; the smallest over -1 wraps.
    "div_u": (
        "K K -> K",
        "%z = icmp eq {t} %b, 0\n%d = select i1 %z, {t} 1, {t} %b\n%q = udiv {t} %a, %d\n"
        "%r = select i1 %z, {t} -1, {t} %q\nret {t} %r",
    ),
    "rem_u": (
        "K K -> K",
        "%z = icmp eq {t} %b, 0\n%d = select i1 %z, {t} 1, {t} %b\n%q = urem {t} %a, %d\n"
        "%r = select i1 %z, {t} %a, {t} %q\nret {t} %r",
    ),
    "div_s": (
        "K K -> K",
        "%z = icmp eq {t} %b, 0\n%m = icmp eq {t} %b, -1\n%e = or i1 %z, %m\n%d = select i1 %e, {t} 1, {t} %b\n"
        "%q = sdiv {t} %a, %d\n%n = sub {t} 0, %a\n%x = select i1 %m, {t} %n, {t} %q\n"
        "%r = select i1 %z, {t} -1, {t} %x\nret {t} %r",
    ),
    "rem_s": (
        "K K -> K",
        "%z = icmp eq {t} %b, 0\n%m = icmp eq {t} %b, -1\n%e = or i1 %z, %m\n%d = select i1 %e, {t} 1, {t} %b\n"
        "%q = srem {t} %a, %d\n%r = select i1 %z, {t} %a, {t} %q\nret {t} %r",
    ),
    "add_sat": ("K K -> K", "%r = call {t} @llvm.sadd.sat.{t}({t} %a, {t} %b)\nret {t} %r"),
    "sub_sat": ("K K -> K", "%r = call {t} @llvm.ssub.sat.{t}({t} %a, {t} %b)\nret {t} %r"),
    "sad_s": (
        "K K K -> K",
        "%l = icmp slt {t} %a, %b\n%x = sub {t} %a, %b\n%y = sub {t} %b, %a\n%d = select i1 %l, {t} %y, {t} %x\n"
        "%r = add {t} %c, %d\nret {t} %r",
    ),
    "sad_u": (
        "K K K -> K",
        "%l = icmp ult {t} %a, %b\n%x = sub {t} %a, %b\n%y = sub {t} %b, %a\n%d = select i1 %l, {t} %y, {t} %x\n"
        "%r = add {t} %c, %d\nret {t} %r",
    ),
    # Bits.
    "brev": ("K -> K", "%r = call {t} @llvm.bitreverse.{t}({t} %a)\nret {t} %r"),
    "clz": ("K -> u4", "%x = call {t} @llvm.ctlz.{t}({t} %a, i1 0)\n%r = {to32}\nret i32 %r"),
    "popc": ("K -> u4", "%x = call {t} @llvm.ctpop.{t}({t} %a)\n%r = {to32}\nret i32 %r"),
    "bfind_u": (
        "K -> u4",
        "%y = call {t} @llvm.ctlz.{t}({t} %a, i1 0)\n%x = sub {t} {top}, %y\n%r = {to32}\nret i32 %r",
    ),
    "bfind_s": (
        "K -> u4",
        "%n = ashr {t} %a, {top}\n%q = xor {t} %a, %n\n%y = call {t} @llvm.ctlz.{t}({t} %q, i1 0)\n"
        "%x = sub {t} {top}, %y\n%r = {to32}\nret i32 %r",
    ),
    "shf_l_wrap": ("K K u4 -> K", "%r = call {t} @llvm.fshl.{t}({t} %b, {t} %a, {t} %c)\nret {t} %r"),
    "shf_r_wrap": ("K K u4 -> K", "%r = call {t} @llvm.fshr.{t}({t} %b, {t} %a, {t} %c)\nret {t} %r"),
    "shf_l_clamp": (
        "K K u4 -> K",
        "%k = icmp uge i32 %c, 32\n%x = call {t} @llvm.fshl.{t}({t} %b, {t} %a, {t} %c)\n"
        "%r = select i1 %k, {t} %a, {t} %x\nret {t} %r",
    ),
    "shf_r_clamp": (
        "K K u4 -> K",
        "%k = icmp uge i32 %c, 32\n%x = call {t} @llvm.fshr.{t}({t} %b, {t} %a, {t} %c)\n"
        "%r = select i1 %k, {t} %b, {t} %x\nret {t} %r",
    ),
    "bfe_u": (
        "K u4 u4 -> K",
        "%p = and i32 %b, 255\n%l = and i32 %c, 255\n%pz = icmp uge i32 %p, {bits}\n%lz = icmp uge i32 %l, {bits}\n"
        "%ps = select i1 %pz, i32 0, i32 %p\n%ls = select i1 %lz, i32 0, i32 %l\n%pw = {p_cast}\n%lw = {l_cast}\n"
        "%s = lshr {t} %a, %pw\n%one = shl {t} 1, %lw\n%m = sub {t} %one, 1\n%mm = select i1 %lz, {t} -1, {t} %m\n"
        "%x = and {t} %s, %mm\n%r = select i1 %pz, {t} 0, {t} %x\nret {t} %r",
    ),
    "bfe_s": (
        "K u4 u4 -> K",
        # The field ends at min(p + l, bits) - 1, whose bit is the sign.
        "%p0 = and i32 %b, 255\n%l0 = and i32 %c, 255\n%e0 = add i32 %p0, %l0\n"
        "%e1 = call i32 @llvm.umin.i32(i32 %e0, i32 {bits})\n%p = call i32 @llvm.umin.i32(i32 %p0, i32 {top})\n"
        "%none = icmp eq i32 %l0, 0\n%past = icmp uge i32 %p0, {bits}\n%up = sub i32 {bits}, %e1\n%len = sub i32 %e1, %p\n"
        "%down = sub i32 {bits}, %len\n%pw = {up_cast}\n%lw = {down_cast}\n%s = shl {t} %a, %pw\n%x = ashr {t} %s, %lw\n"
        "%sign = ashr {t} %a, {top}\n%y = select i1 %past, {t} %sign, {t} %x\n%r = select i1 %none, {t} 0, {t} %y\n"
        "ret {t} %r",
    ),
    "bfi": (
        "K K u4 u4 -> K",
        "%p = and i32 %c, 255\n%l = and i32 %d, 255\n%pz = icmp uge i32 %p, {bits}\n%lz = icmp uge i32 %l, {bits}\n"
        "%ps = select i1 %pz, i32 0, i32 %p\n%ls = select i1 %lz, i32 0, i32 %l\n%pw = {p_cast}\n%lw = {l_cast}\n"
        "%one = shl {t} 1, %lw\n%m0 = sub {t} %one, 1\n%m1 = select i1 %lz, {t} -1, {t} %m0\n%m = shl {t} %m1, %pw\n"
        "%v = shl {t} %a, %pw\n%vm = and {t} %v, %m\n%n = xor {t} %m, -1\n%k = and {t} %b, %n\n%x = or {t} %vm, %k\n"
        "%r = select i1 %pz, {t} %b, {t} %x\nret {t} %r",
    ),
    # Floats. min and max return the number beside a NaN; the _nan forms return NaN; -0 < +0.
    "fmin": ("K K -> K", "%r = call {t} @llvm.minimumnum.{m}({t} %a, {t} %b)\nret {t} %r"),
    "fmax": ("K K -> K", "%r = call {t} @llvm.maximumnum.{m}({t} %a, {t} %b)\nret {t} %r"),
    "fmin_nan": ("K K -> K", "%r = call {t} @llvm.minimum.{m}({t} %a, {t} %b)\nret {t} %r"),
    "fmax_nan": ("K K -> K", "%r = call {t} @llvm.maximum.{m}({t} %a, {t} %b)\nret {t} %r"),
    "sat01": (
        "K -> K",
        "%g = fcmp ogt {t} %a, 0.0\n%x = select i1 %g, {t} %a, {t} 0.0\n%l = fcmp olt {t} %x, 1.0\n"
        "%r = select i1 %l, {t} %x, {t} 1.0\nret {t} %r",
    ),
    "ftz": (
        "f4 -> f4",
        "%x = bitcast float %a to i32\n%e = and i32 %x, 2139095040\n%z = icmp eq i32 %e, 0\n%s = and i32 %x, -2147483648\n"
        "%y = select i1 %z, i32 %s, i32 %x\n%r = bitcast i32 %y to float\nret float %r",
    ),
    # a*b + c in double, rounded to odd, so that rounding it once more to 24 bits or fewer is exact. For products
    # that double holds exactly.
    "fma_odd": (
        "f8 f8 f8 -> f8",
        "%p = fmul double %a, %b\n%s = fadd double %p, %c\n%t1 = fsub double %s, %p\n%t2 = fsub double %s, %t1\n"
        "%t3 = fsub double %p, %t2\n%t4 = fsub double %c, %t1\n%e = fadd double %t3, %t4\n{odd}",
    ),
    "div_odd": (
        "f8 f8 -> f8",
        "%s = fdiv double %a, %b\n%n = fneg double %s\n"
        "%e0 = call double @llvm.fma.f64(double %n, double %b, double %a)\n"
        "%bs = call double @llvm.copysign.f64(double 1.0, double %b)\n%e = fmul double %e0, %bs\n{odd}",
    ),
    "sqrt_odd": (
        "f8 -> f8",
        "%s = call double @llvm.sqrt.f64(double %a)\n%n = fneg double %s\n"
        "%e = call double @llvm.fma.f64(double %n, double %s, double %a)\n{odd}",
    ),
    # bfloat16, as bits.
    "from_bf16": (
        "u2 -> f8",
        "%x = zext i16 %a to i32\n%y = shl i32 %x, 16\n%f = bitcast i32 %y to float\n"
        "%r = fpext float %f to double\nret double %r",
    ),
    "to_bf16": (
        "f8 -> u2",
        # Double to single rounded to odd, then single to bfloat16 to nearest even; NaN to 0x7fff.
        "%n = fcmp uno double %a, 0.0\n%f = fptrunc double %a to float\n%b = fpext float %f to double\n"
        "%bits = bitcast float %f to i32\n%exact = fcmp oeq double %b, %a\n%fa = call double @llvm.fabs.f64(double %a)\n"
        "%fb = call double @llvm.fabs.f64(double %b)\n%over = fcmp ogt double %fb, %fa\n%less = sub i32 %bits, 1\n"
        "%down = select i1 %over, i32 %less, i32 %bits\n%odd = or i32 %down, 1\n"
        "%s = select i1 %exact, i32 %bits, i32 %odd\n%half = lshr i32 %s, 16\n%lsb = and i32 %half, 1\n"
        "%bias = add i32 %lsb, 32767\n%sum = add i32 %s, %bias\n%top = lshr i32 %sum, 16\n%t16 = trunc i32 %top to i16\n"
        "%r = select i1 %n, i16 32767, i16 %t16\nret i16 %r",
    ),
}  # fmt: skip

# %s is a rounded result and %e the sign of what it leaves out: nudge an inexact, even %s towards %e.
_ODD = """
%z = fcmp oeq double %e, 0.0
%u = fcmp uno double %e, 0.0
%inf = call i1 @llvm.is.fpclass.f64(double %s, i32 516)
%q = or i1 %z, %u
%x0 = or i1 %q, %inf
%i = bitcast double %s to i64
%l = and i64 %i, 1
%isodd = icmp eq i64 %l, 1
%x = or i1 %x0, %isodd
%neg = icmp slt i64 %i, 0
%eneg = fcmp olt double %e, 0.0
%away = icmp eq i1 %neg, %eneg
%zero = fcmp oeq double %s, 0.0
%up = add i64 %i, 1
%dn = sub i64 %i, 1
%k = select i1 %away, i64 %up, i64 %dn
%j = bitcast i64 %k to double
%keep = or i1 %x, %zero
%r = select i1 %keep, double %s, double %j
ret double %r
"""

_WIDER = {"u1": "u2", "i1": "i2", "u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}


@cache
def operation(name: str, kind: str = "") -> np.ufunc:
    """The ufunc of an operation for a kind."""
    signature, body = _TABLE[name]
    text = LLVM_TYPES[kind] if kind else "i32"
    bits = 8 * np.dtype(kind).itemsize if kind else 32
    values = {
        "t": text, "bits": bits, "top": bits - 1, "w": f"i{2 * bits}", "m": f"f{bits}",
        "to32": {16: "zext i16 %x to i32", 32: "add i32 %x, 0", 64: "trunc i64 %x to i32"}.get(bits, ""),
        "p_cast": _resize("%ps", bits, text), "l_cast": _resize("%ls", bits, text),
        "up_cast": _resize("%up", bits, text), "down_cast": _resize("%down", bits, text), "odd": _ODD,
    }  # fmt: skip
    body = body.format(**values)
    signature = signature.replace("K", kind).replace("W", _WIDER.get(kind, ""))
    return build(f"{name}_{kind}", signature, body, _declare(body))


def _resize(source: str, bits: int, text: str) -> str:
    if bits == 64:
        return f"zext i32 {source} to i64"
    return f"add i32 {source}, 0" if bits == 32 else f"trunc i32 {source} to {text}"


def _declare(body: str) -> str:
    """The declarations of the intrinsics that a body calls."""
    found = {}
    for result, name, arguments in re.findall(r"call (\S+) @(llvm\.[\w.]+)\(([^)]*)\)", body):
        types = ", ".join(argument.split()[0] for argument in arguments.split(","))
        found[name] = f"declare {result} @{name}({types})"
    return "\n".join(found.values())


@cache
def convert_saturating(source: str, target: str) -> np.ufunc:
    """Float (already a whole number) to integer: out of range to the nearest end, NaN to 0."""
    s, t = LLVM_TYPES[source], LLVM_TYPES[target]
    name = f"llvm.fpto{'ui' if target[0] == 'u' else 'si'}.sat.{t}.f{8 * np.dtype(source).itemsize}"
    body = f"%r = call {t} @{name}({s} %a)\nret {t} %r"
    return build(f"cvt_{source}_{target}", f"{source} -> {target}", body, _declare(body))


@cache
def lookup3(table: int) -> np.ufunc:
    """`lop3`: the bitwise function of three operands with this truth table."""
    terms = ["%r0 = add i32 0, 0"]
    for i in range(8):
        a, b, c = (f"%{'' if i >> k & 1 else 'n'}{x}" for x, k in (("a", 2), ("b", 1), ("c", 0)))
        terms.append(f"%x{i} = and i32 {a}, {b}\n%y{i} = and i32 %x{i}, {c}")
        terms.append(f"%r{i + 1} = or i32 %r{i}, {f'%y{i}' if table >> i & 1 else '0'}")
    inverse = "\n".join(f"%n{x} = xor i32 %{x}, -1" for x in "abc")
    body = inverse + "\n" + "\n".join(terms) + "\nret i32 %r8"
    return build(f"lop3_{table}", "u4 u4 u4 -> u4", body)


@cache
def permute() -> np.ufunc:
    """`prmt`, the default mode: each nibble of %c picks a byte of b:a, bit 3 replicates its sign."""
    lines = ["%x = zext i32 %a to i64", "%y = zext i32 %b to i64", "%z = shl i64 %y, 32", "%w = or i64 %x, %z"]  # fmt: skip
    result = "0"
    for i in range(4):
        lines += [
            f"%n{i} = lshr i32 %c, {4 * i}",
            f"%i{i} = and i32 %n{i}, 7",
            f"%j{i} = shl i32 %i{i}, 3",
            f"%k{i} = zext i32 %j{i} to i64",
            f"%s{i} = lshr i64 %w, %k{i}",
            f"%b{i} = trunc i64 %s{i} to i8",
            f"%f{i} = and i32 %n{i}, 8",
            f"%g{i} = icmp ne i32 %f{i}, 0",
            f"%m{i} = ashr i8 %b{i}, 7",
            f"%v{i} = select i1 %g{i}, i8 %m{i}, i8 %b{i}",
            f"%e{i} = zext i8 %v{i} to i32",
            f"%h{i} = shl i32 %e{i}, {8 * i}",
            f"%r{i} = or i32 {result}, %h{i}",
        ]
        result = f"%r{i}"
    lines.append(f"ret i32 {result}")
    return build("prmt", "u4 u4 u4 -> u4", "\n".join(lines))
