"""setp, set, selp, slct, testp. Comparisons ending in u (equ, ltu, ...) are also true when an operand is NaN."""

from __future__ import annotations

from collections.abc import Callable

from dsl.codegen.cuda.emulator.emitter import KINDS, Emitter
from dsl.codegen.cuda.emulator.instructions import floats
from dsl.codegen.cuda.emulator.syntax import Instruction, Pair

__all__ = ["EMIT"]

Emit = Callable[[Emitter, Instruction], None]

_SYMBOLS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# An unordered comparison is the negation of the opposite ordered one.
_UNORDERED = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_ALL = {*_SYMBOLS, *_UNSIGNED, *_UNORDERED, "num", "nan"}
_BOOLEAN = {"and": "&", "or": "|", "xor": "^"}


def _comparison(e: Emitter, i: Instruction, ptx_type: str) -> str:
    """The comparison of operands 1 and 2 as an expression."""
    name = next(m for m in i.modifiers if m in _ALL)
    if ptx_type in floats.FLOATS:
        x, y = floats.operands(e, i, i.operands[1:3], ptx_type)
        return _float_comparison(name, x, y)
    kind = KINDS[ptx_type]
    if name in _UNSIGNED:
        kind, symbol = "u" + kind[1:], _UNSIGNED[name]
    else:
        symbol = _SYMBOLS[name]
    x, y = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
    return f"{x} {symbol} {y}"


def _float_comparison(name: str, x: str, y: str) -> str:
    if name == "num":
        return f"({x} == {x}) & ({y} == {y})"
    if name == "nan":
        return f"({x} != {x}) | ({y} != {y})"
    if name == "ne":
        return f"({x} < {y}) | ({x} > {y})"
    if name == "equ":
        return f"~(({x} < {y}) | ({x} > {y}))"
    if name == "neu":
        return f"{x} != {y}"
    if name in _UNORDERED:
        return f"~({x} {_SYMBOLS[_UNORDERED[name]]} {y})"
    return f"{x} {_SYMBOLS[name]} {y}"


def _setp(e: Emitter, i: Instruction) -> None:
    if i.type in ("f16x2", "bf16x2"):
        _setp_halves(e, i)
        return
    result = e.let(_comparison(e, i, i.type))
    target = i.operands[0]
    boolean = next((m for m in i.modifiers if m in _BOOLEAN), "")
    other = f"~{result}"
    if boolean:
        q = e.predicate(i.operands[3])
        other = f"(~{result}) {_BOOLEAN[boolean]} {q}"
        result = f"{result} {_BOOLEAN[boolean]} {q}"
    if isinstance(target, Pair):
        if target.second is not None:
            other = e.let(other)
        e.write(target.first, "b1", result)
        e.write(target.second, "b1", other)
    else:
        e.write(target, "b1", result)


def _setp_halves(e: Emitter, i: Instruction) -> None:
    name = next(m for m in i.modifiers if m in _ALL)
    if not isinstance(i.operands[0], Pair) or i.has("and", "or", "xor"):
        e.unsupported("only with two destinations and no boolean")
    x, y = floats.operands(e, i, i.operands[1:3], i.type)
    both = e.let(_float_comparison(name, x, y))
    e.write(i.operands[0].first, "b1", f"{both}[:, 0]")
    e.write(i.operands[0].second, "b1", f"{both}[:, 1]")


def _set(e: Emitter, i: Instruction) -> None:
    types = [m for m in i.modifiers if m in KINDS]
    result = e.let(_comparison(e, i, types[1]))
    boolean = next((m for m in i.modifiers if m in _BOOLEAN), "")
    if boolean:
        result = e.let(f"{result} {_BOOLEAN[boolean]} {e.predicate(i.operands[3])}")
    target, packed = types[0], types[1].endswith("x2")
    if target in floats.FLOATS:
        working = {"f32": "f4", "f16": "f2", "f16x2": "f2"}.get(target, "f8")
        floats.finish(e, i, i.operands[0], target, f"{result}.astype({working})")
    elif packed:
        e.write(i.operands[0], "u4", f"{e.bind(floats.join2, 'join2')}(-{result}.astype(u2))")
    else:
        bits = "u" + KINDS[target][1:]
        e.write(i.operands[0], bits, f"-{result}.astype({bits})")


def _select(e: Emitter, i: Instruction) -> None:
    kind = KINDS[i.type]
    if kind[0] == "i":
        kind = "u" + kind[1:]
    p = e.predicate(i.operands[3])
    x, y = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
    e.write(i.operands[0], kind, f"{e.op('select', kind)}({p}, {x}, {y})")


def _select_sign(e: Emitter, i: Instruction) -> None:
    """slct: the first operand where the third is not negative."""
    types = [m for m in i.modifiers if m in KINDS]
    kind = "u" + KINDS[types[0]][1:]
    test = e.read(i.operands[3], KINDS[types[1]])
    x, y = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
    e.write(i.operands[0], kind, f"{e.op('select', kind)}({test} >= 0, {x}, {y})")


_TESTS = {
    "finite": "np.isfinite({x})", "infinite": "np.isinf({x})", "number": "~np.isnan({x})", "notanumber": "np.isnan({x})",
    "normal": "np.isfinite({x}) & (abs({x}) >= {tiny})", "subnormal": "({x} != 0) & (abs({x}) < {tiny})",
}  # fmt: skip


def _test(e: Emitter, i: Instruction) -> None:
    kind = KINDS[i.type]
    x = e.read(i.operands[1], kind)
    tiny = e.const(2.0**-126 if kind == "f4" else 2.0**-1022, kind)
    name = next(m for m in i.modifiers if m in _TESTS)
    e.write(i.operands[0], "b1", _TESTS[name].format(x=x, tiny=tiny))


EMIT: dict[str, Emit] = {
    "setp": _setp, "set": _set, "selp": _select, "slct": _select_sign, "testp": _test,
}  # fmt: skip
