"""What AVX-512 has an instruction for, on a register of elements: scaling by powers of two, and a table of thirty-two floats.

Each is a call in the text of a function of one element. `DEFINITIONS` says what that means, for code that stays with single
elements or that LLVM vectorises; `write` says it by the instruction, where `dsl.codegen.widen` writes vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dsl.codegen.llvm import Value, float_constant
from dsl.codegen.math.register_tables import SIZE, TABLES

if TYPE_CHECKING:
    from dsl.codegen.math.reals import Body

__all__ = ["DEFINITIONS", "STEMS", "look_up", "scale", "write"]

STEMS = ("dsl.scale", *(f"dsl.{name}" for name in TABLES))
"""The names, without the format behind them."""

_BITS = 512
_FORMATS = {"float": ("f32", "ps", 32, "i16"), "double": ("f64", "pd", 64, "i8")}
_LIMIT = 4096.0  # powers of two beyond which any number becomes infinite or zero
_PURE = "alwaysinline nounwind willreturn memory(none)"


def _scaling(type: str) -> str:
    name = _FORMATS[type][0]
    high, low = float_constant(_LIMIT, type).text, float_constant(-_LIMIT, type).text
    return (
        f"define internal {type} @dsl.scale.{name}({type} %x, {type} %n) {_PURE} {{\n"
        f"  %whole = call {type} @llvm.floor.{name}({type} %n)\n"
        f"  %down = call {type} @llvm.minnum.{name}({type} %whole, {type} {high})\n"
        f"  %near = call {type} @llvm.maxnum.{name}({type} %down, {type} {low})\n"
        f"  %power = fptosi {type} %near to i32\n"
        f"  %y = call {type} @llvm.ldexp.{name}.i32({type} %x, i32 %power)\n"
        f"  %no = fcmp uno {type} %n, %n\n"
        f"  %z = select i1 %no, {type} %n, {type} %y\n"
        f"  ret {type} %z\n}}"
    )


@functools.cache
def _listing(table: str, start: int, stop: int) -> str:
    """Return the numbers of a part of a table, as LLVM writes them."""
    numbers = (float_constant(number, "float").text for number in TABLES[table][start:stop])
    return ", ".join(f"float {number}" for number in numbers)


def _looking_up(table: str) -> str:
    return (
        f"@dsl.{table}s = internal unnamed_addr constant [{SIZE} x float] [{_listing(table, 0, SIZE)}], align 64\n"
        f"define internal float @dsl.{table}.f32(i32 %k) {_PURE} {{\n"
        f"  %last = and i32 %k, {SIZE - 1}\n"
        "  %wide = zext i32 %last to i64\n"
        f"  %place = getelementptr inbounds float, ptr @dsl.{table}s, i64 %wide\n"
        "  %y = load float, ptr %place, align 4\n"
        "  ret float %y\n}"
    )


DEFINITIONS = {
    "dsl.scale.f32": _scaling("float"),
    "dsl.scale.f64": _scaling("double"),
    **{f"dsl.{table}.f32": _looking_up(table) for table in TABLES},
}


def scale(body: Body, x: Value, n: Value) -> Value:
    """Emit x * 2**floor(n); a NaN where either is one."""
    name, type = _FORMATS[x.type][0], x.type
    for function, args in (("floor", [type]), ("minnum", [type, type]), ("maxnum", [type, type])):
        body.declarations[f"llvm.{function}.{name}"] = (type, args, "nounwind")
    body.declarations[f"llvm.ldexp.{name}.i32"] = (type, [type, "i32"], "nounwind")
    return _call(body, f"dsl.scale.{name}", type, x, n)


def look_up(body: Body, table: str, k: Value) -> Value:
    """Emit the number of a table that the last five bits of k tell."""
    return _call(body, f"dsl.{table}.f32", "float", k)


def _call(body: Body, name: str, type: str, *args: Value) -> Value:
    body.includes[name] = DEFINITIONS[name]
    listing = ", ".join(f"{arg.type} {arg.text}" for arg in args)
    return body.define(type, f"call {type} @{name}({listing})")


def write(
    stem: str, type: str, made: str, lanes: int, args: Sequence[str]
) -> tuple[list[str], dict[str, tuple[str, list[str]]]]:
    """Return lines that define a vector, register by register, and the types of what they call."""
    one = _BITS // _FORMATS[type][2]
    kinds = [type, type] if stem == "dsl.scale" else ["i32"]
    lines, parts, called = [], [], {}
    for k in range(max(1, lanes // one)):
        names = [f"{made}.r{k}.{j}" for j in range(len(args))]
        for name, kind, arg in zip(names, kinds, args):
            lines.append(_taken(name, kind, arg, lanes, one, k))
        callee, result, types, listing = _instruction(stem, type, one, names)
        called[callee] = result, types
        parts.append(f"{made}.r{k}")
        lines.append(f"  {parts[-1]} = call {result} @{callee}({listing})")
    return [*lines, *_joined(parts, type, made, lanes, one)], called


def _instruction(
    stem: str, type: str, one: int, names: Sequence[str]
) -> tuple[str, str, list[str], str]:
    """Return the name of LLVM's function, the types of its result and arguments, and the arguments."""
    wide, (_, letters, _, mask) = f"<{one} x {type}>", _FORMATS[type]
    if stem == "dsl.scale":
        types = [wide, wide, wide, mask, "i32"]
        listing = f"{wide} {names[0]}, {wide} {names[1]}, {wide} zeroinitializer, {mask} -1, i32 4"
        return f"llvm.x86.avx512.mask.scalef.{letters}.512", wide, types, listing
    table = stem.removeprefix("dsl.")
    first, second = (f"{wide} <{_listing(table, k, k + one)}>" for k in (0, one))
    listing = f"{first}, <{one} x i32> {names[0]}, {second}"
    return "llvm.x86.avx512.vpermi2var.ps.512", wide, [wide, f"<{one} x i32>", wide], listing


def _taken(name: str, kind: str, arg: str, lanes: int, one: int, k: int) -> str:
    """Return the line that takes a register of lanes from a vector, or fills one up with anything."""
    places = [k * one + lane for lane in range(one)]
    chosen = ", ".join(f"i32 {p}" if p < lanes else "i32 poison" for p in places)
    pair = f"<{lanes} x {kind}> {arg}, <{lanes} x {kind}> poison"
    return f"  {name} = shufflevector {pair}, <{one} x i32> <{chosen}>"


def _joined(parts: list[str], type: str, made: str, lanes: int, one: int) -> Iterator[str]:
    """Yield lines that put registers together, in pairs, or take the first lanes of one."""
    wide = one
    if lanes <= one:
        chosen = ", ".join(f"i32 {lane}" for lane in range(lanes))
        pair = f"<{one} x {type}> {parts[0]}, <{one} x {type}> poison"
        yield f"  {made} = shufflevector {pair}, <{lanes} x i32> <{chosen}>"
        return
    while len(parts) > 1:
        chosen = ", ".join(f"i32 {lane}" for lane in range(2 * wide))
        joined = [made if len(parts) == 2 else f"{a}.pair" for a in parts[::2]]
        for name, a, b in zip(joined, parts[::2], parts[1::2]):
            pair = f"<{wide} x {type}> {a}, <{wide} x {type}> {b}"
            yield f"  {name} = shufflevector {pair}, <{2 * wide} x i32> <{chosen}>"
        parts, wide = joined, 2 * wide
