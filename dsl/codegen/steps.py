"""Reads lines of LLVM IR, as `Function` emits them, as steps: instructions on numbers, loads and stores, branches and their labels.

What is no such line, or calls another function than one that vectors have too, is read as None.

>>> parse("%y = fadd float %x, 0x3FF0000000000000")
Step(result='%y', op='fadd', type='float', args=(('float', '%x'), ('float', '0x3FF0000000000000')), more='')
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsl.codegen.math import by_register

__all__ = ["CONVERSIONS", "INTRINSICS", "MATH", "Step", "parse"]

CONVERSIONS = (
    "trunc", "zext", "sext", "fptrunc", "fpext", "bitcast", "sitofp", "uitofp", "fptosi",
)  # fmt: skip
_TYPE = r"(i1|i8|i16|i32|i64|half|float|double)\b"

_LOAD = re.compile(rf"(\S+) = load (ptr|{_TYPE[1:]}, ptr (%[\w.]+)(, align \d+)?")
_STORE = re.compile(rf"store {_TYPE} (\S+), ptr (%[\w.]+)(, align \d+)?")
_ADDRESS = re.compile(
    r"(\S+) = getelementptr inbounds (i8|i16|i32|i64|half|float|double), ptr (%[\w.]+), i64 (\S+)"
)
_BINARY = re.compile(
    rf"(\S+) = ((?:fadd|fsub|fmul|fdiv|add|sub|mul|and|or|xor|shl|lshr|ashr)(?: [a-z]+)*) {_TYPE} (\S+), (\S+)"
)
_COMPARE = re.compile(rf"(\S+) = ([if]cmp(?: [a-z]+)+) {_TYPE} (\S+), (\S+)")
_SELECT = re.compile(rf"(\S+) = select i1 (\S+), {_TYPE} (\S+), \S+ (\S+)")
_CONVERT = re.compile(rf"(\S+) = ({'|'.join(CONVERSIONS)}) {_TYPE} (\S+) to {_TYPE}")
_UNARY = re.compile(rf"(\S+) = (fneg|freeze) {_TYPE} (\S+)")
_LABEL = re.compile(r"([\w.]+):$")
_JUMP = re.compile(r"br label %([\w.]+)")
_BRANCH = re.compile(r"br i1 (\S+), label %([\w.]+), label %([\w.]+)")
_PHI = re.compile(r"(\S+) = phi i64 \[(\S+), %([\w.]+)\], \[(\S+), %([\w.]+)\]")
_CALL = re.compile(rf"(\S+) = call (?:([a-z ]+) )?{_TYPE} @([\w.]+)\(([^)]*)\)")

INTRINSICS = frozenset(
    f"llvm.{name}"
    for name in (
        "fabs", "sqrt", "floor", "ceil", "trunc", "rint", "copysign", "fma", "maximum", "minimum", "maxnum", "minnum",
        "smax", "smin", "umax", "umin",
    )
)  # fmt: skip
MATH = re.compile(r"dsl_math_(\w+)_x1_(f32|f64)")
_INLINED = re.compile(r"dsl\.(\w+)\.(f32|f64)")


@dataclass(frozen=True)
class Step:
    """One instruction: its result ("" if none), its operation with flags, operands with types, and what follows: labels, say."""

    result: str
    op: str
    type: str
    args: tuple[tuple[str, str], ...]
    more: str = ""


def parse(line: str) -> Step | None:
    if line.startswith("br ") or line.endswith(":") or " = phi " in line:
        return _parse_block(line)
    if m := _BINARY.match(line):
        return Step(m[1], m[2], m[3], ((m[3], m[4]), (m[3], m[5])))
    if m := _LOAD.match(line):
        return Step(m[1], "load", m[2], (("ptr", m[3]),), m[4] or "")
    if m := _STORE.match(line):
        return Step("", "store", m[1], ((m[1], m[2]), ("ptr", m[3])), m[4] or "")
    if m := _ADDRESS.match(line):
        return Step(m[1], "getelementptr", m[2], (("ptr", m[3]), ("i64", m[4])))
    if m := _CALL.match(line):
        return _parse_call(m)
    if m := _COMPARE.match(line):
        return Step(m[1], m[2], "i1", ((m[3], m[4]), (m[3], m[5])))
    if m := _SELECT.match(line):
        return Step(m[1], "select", m[3], (("i1", m[2]), (m[3], m[4]), (m[3], m[5])))
    if m := _CONVERT.match(line):
        return Step(m[1], m[2], m[5], ((m[3], m[4]),))
    if m := _UNARY.match(line):
        return Step(m[1], m[2], m[3], ((m[3], m[4]),))
    return None


def _parse_block(line: str) -> Step | None:
    """Read a line that says how blocks follow one another; `more` has their labels."""
    if m := _LABEL.match(line):
        return Step("", "label", "", (), m[1])
    if m := _PHI.match(line):
        return Step(m[1], "phi", "i64", (("i64", m[2]), ("i64", m[4])), f"{m[3]} {m[5]}")
    if m := _BRANCH.match(line):
        return Step("", "br", "", (("i1", m[1]),), f"{m[2]} {m[3]}")
    if m := _JUMP.match(line):
        return Step("", "br", "", (), m[1])
    return None


def _parse_call(m: re.Match[str]) -> Step | None:
    flags, type, name = m[2] or "", m[3], m[4]
    stem = name.rpartition(".")[0]
    args = tuple(tuple(arg.split(" ", 1)) for arg in m[5].split(", "))
    if stem in by_register.STEMS:
        return Step(m[1], stem, type, args)
    if inlined := _INLINED.fullmatch(name):  # the library has the same, for vectors too
        name = f"dsl_math_{inlined[1]}_x1_{inlined[2]}"
    if not (MATH.fullmatch(name) or stem in INTRINSICS):
        return None
    if any(arg[0] != type for arg in args):
        return None
    op = name if MATH.fullmatch(name) else stem
    return Step(m[1], f"{flags} {op}".strip(), type, args)
