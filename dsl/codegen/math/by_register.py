"""What AVX-512 has an instruction for, on a register of elements: scaling by powers of two, and a table of sixteen numbers.

Each is a call in the text of a function of one element. `DEFINITIONS` says what that means, for code that stays with single
elements or that LLVM vectorises; `write` says it by the instruction, where `dsl.codegen.widen` writes vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dsl.codegen.llvm import Value, float_constant

if TYPE_CHECKING:
    from dsl.codegen.math.reals import Body

__all__ = ["DEFINITIONS", "STEMS", "root", "scale", "write"]

STEMS = ("dsl.scale", "dsl.root")
"""The names, without the format behind them."""

_BITS = 512
_FORMATS = {"float": ("f32", "ps", 32, "i16"), "double": ("f64", "pd", 64, "i8")}
_ROOTS = [float_constant(2.0 ** (k / 16), "float").text for k in range(16)]
_LISTING = ", ".join(f"float {number}" for number in _ROOTS)
_PURE = "alwaysinline nounwind willreturn memory(none)"


def _scaling(type: str) -> str:
    name = _FORMATS[type][0]
    return (
        f"define internal {type} @dsl.scale.{name}({type} %x, {type} %n) {_PURE} {{\n"
        f"  %whole = call {type} @llvm.floor.{name}({type} %n)\n"
        f"  %cut = fptosi {type} %whole to i32\n"
        f"  %power = freeze i32 %cut\n"
        f"  %y = call {type} @llvm.ldexp.{name}.i32({type} %x, i32 %power)\n"
        f"  ret {type} %y\n}}"
    )


DEFINITIONS = {
    "dsl.scale.f32": _scaling("float"),
    "dsl.scale.f64": _scaling("double"),
    "dsl.root.f32": (
        f"@dsl.roots = internal unnamed_addr constant [16 x float] [{_LISTING}], align 64\n"
        f"define internal float @dsl.root.f32(i32 %k) {_PURE} {{\n"
        "  %last = and i32 %k, 15\n"
        "  %wide = zext i32 %last to i64\n"
        "  %place = getelementptr inbounds float, ptr @dsl.roots, i64 %wide\n"
        "  %y = load float, ptr %place, align 4\n"
        "  ret float %y\n}"
    ),
}


def scale(body: Body, x: Value, n: Value) -> Value:
    """Emit x * 2**floor(n); where x is a NaN, n may be anything."""
    name = _FORMATS[x.type][0]
    for function, args in (("floor", [x.type]), ("ldexp", [x.type, "i32"])):
        suffix = f"{name}.i32" if function == "ldexp" else name
        body.declarations[f"llvm.{function}.{suffix}"] = (x.type, args, "nounwind")
    return _call(body, f"dsl.scale.{name}", x.type, x, n)


def root(body: Body, k: Value) -> Value:
    """Emit 2**(k / 16), of the last four bits of k."""
    return _call(body, "dsl.root.f32", "float", k)


def _call(body: Body, name: str, type: str, *args: Value) -> Value:
    body.includes[name] = DEFINITIONS[name]
    listing = ", ".join(f"{arg.type} {arg.text}" for arg in args)
    return body.define(type, f"call {type} @{name}({listing})")


def write(
    stem: str, type: str, made: str, lanes: int, args: Sequence[str]
) -> tuple[list[str], dict[str, tuple[str, list[str]]]]:
    """Return lines that define a vector, register by register, and the types of what they call."""
    one = _BITS // _FORMATS[type][2]
    kinds = ["i32"] if stem == "dsl.root" else [type, type]
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
    if stem == "dsl.root":
        types = [wide, f"<{one} x i32>"]
        listing = f"{wide} <{_LISTING}>, {types[1]} {names[0]}"
        return "llvm.x86.avx512.permvar.sf.512", wide, types, listing
    types = [wide, wide, wide, mask, "i32"]
    listing = f"{wide} {names[0]}, {wide} {names[1]}, {wide} zeroinitializer, {mask} -1, i32 4"
    return f"llvm.x86.avx512.mask.scalef.{letters}.512", wide, types, listing


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
