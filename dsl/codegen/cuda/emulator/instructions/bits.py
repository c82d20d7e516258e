"""Logic, shifts and bit fields. Shift amounts are unsigned and clamp to the width, as NumPy's do."""

from __future__ import annotations

from collections.abc import Callable

from dsl.codegen.cuda.emulator.emitter import KINDS, Emitter
from dsl.codegen.cuda.emulator.operations import lookup3, permute
from dsl.codegen.cuda.emulator.syntax import Immediate, Instruction

__all__ = ["EMIT"]

Emit = Callable[[Emitter, Instruction], None]


def _bits(i: Instruction) -> str:
    kind = KINDS[i.type]
    return kind if kind == "b1" else "u" + kind[1:]


def _logic(symbol: str) -> Emit:
    def emit(e: Emitter, i: Instruction) -> None:
        kind = _bits(i)
        x, y = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
        e.write(i.operands[0], kind, f"{x} {symbol} {y}")

    return emit


def _not(e: Emitter, i: Instruction) -> None:
    kind = _bits(i)
    e.write(i.operands[0], kind, f"~{e.read(i.operands[1], kind)}")


def _cnot(e: Emitter, i: Instruction) -> None:
    kind = _bits(i)
    e.write(i.operands[0], kind, f"({e.read(i.operands[1], kind)} == 0).astype({kind})")


def _shift(e: Emitter, i: Instruction) -> None:
    """The amount is a 32-bit operand whatever the type; NumPy needs it in the type of the value."""
    symbol = "<<" if i.opcode == "shl" else ">>"
    kind = KINDS[i.type] if i.opcode == "shr" else _bits(i)
    x, amount = e.read(i.operands[1], kind), i.operands[2]
    if isinstance(amount, Immediate):
        y = e.const(min(int(amount.value) & 0xFFFFFFFF, 64), kind)
    elif kind[1] == "4":
        y = e.read(amount, kind)
    elif kind[1] == "8":
        y = e.let(f"{e.read(amount, 'u4')}.astype({kind})")
    else:
        y = e.let(f"np.minimum({e.read(amount, 'u4')}, {e.const(16, 'u4')}).astype({kind})")
    e.write(i.operands[0], kind, f"{x} {symbol} {y}")


def _call(name: str, result: str = "") -> Emit:
    """One operand to one ufunc; `result` is the kind of the result where it differs."""

    def emit(e: Emitter, i: Instruction) -> None:
        kind = _bits(i)
        e.write(i.operands[0], result or kind, f"{e.op(name, kind)}({e.read(i.operands[1], kind)})")

    return emit


def _find(e: Emitter, i: Instruction) -> None:
    """bfind: the highest set bit (for signed: that differs from the sign), all ones for none."""
    kind = KINDS[i.type]
    name = "bfind_s" if kind[0] == "i" else "bfind_u"
    found = e.let(f"{e.op(name, _bits(i))}({e.read(i.operands[1], _bits(i))})")
    if "shiftamt" in i.modifiers:
        top = e.const(8 * int(kind[1:]) - 1, "u4")
        none = e.const(0xFFFFFFFF, "u4")
        found = f"np.where({found} == {none}, {none}, {top} - {found})"
    e.write(i.operands[0], "u4", found)


def _extract(e: Emitter, i: Instruction) -> None:
    kind = KINDS[i.type]
    name = "bfe_s" if kind[0] == "i" else "bfe_u"
    x = e.read(i.operands[1], _bits(i))
    p, l = e.read(i.operands[2], "u4"), e.read(i.operands[3], "u4")
    e.write(i.operands[0], _bits(i), f"{e.op(name, _bits(i))}({x}, {p}, {l})")


def _insert(e: Emitter, i: Instruction) -> None:
    kind = _bits(i)
    x, y = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
    p, l = e.read(i.operands[3], "u4"), e.read(i.operands[4], "u4")
    e.write(i.operands[0], kind, f"{e.op('bfi', kind)}({x}, {y}, {p}, {l})")


def _mask(e: Emitter, i: Instruction) -> None:
    """bmsk: `length` ones from `position` on."""
    p, l = e.read(i.operands[1], "u4"), e.read(i.operands[2], "u4")
    if "wrap" in i.modifiers:
        p, l = e.let(f"{p} & {e.const(31, 'u4')}"), e.let(f"{l} & {e.const(31, 'u4')}")
    zero, ones = e.const(0, "u4"), e.const(0xFFFFFFFF, "u4")
    e.write(i.operands[0], "u4", f"{e.op('bfi', 'u4')}({ones}, {zero}, np.minimum({p}, 255), np.minimum({l}, 255))")  # fmt: skip


def _funnel(e: Emitter, i: Instruction) -> None:
    mode = "clamp" if "clamp" in i.modifiers else "wrap"
    name = e.op(f"shf_{'l' if 'l' in i.modifiers else 'r'}_{mode}", "u4")
    x, y, n = (e.read(o, "u4") for o in i.operands[1:4])
    e.write(i.operands[0], "u4", f"{name}({x}, {y}, {n})")


def _lookup(e: Emitter, i: Instruction) -> None:
    table = i.operands[4]
    if not isinstance(table, Immediate) or i.has("and", "or"):
        e.unsupported("only an immediate table and no predicate")
    x, y, z = (e.read(o, "u4") for o in i.operands[1:4])
    name = e.bind(lookup3(int(table.value) & 255), "lop3")
    e.write(i.operands[0], "u4", f"{name}({x}, {y}, {z})")


# The selectors that the special modes of prmt stand for, by the low two bits of the control operand.
_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def _permute(e: Emitter, i: Instruction) -> None:
    x, y, control = (e.read(o, "u4") for o in i.operands[1:4])
    for mode, selectors in _MODES.items():
        if mode in i.modifiers:
            table = e.bind(_table(selectors), "selectors")
            control = e.let(f"{table}.take({control} & 3)")
    e.write(i.operands[0], "u4", f"{e.bind(permute(), 'prmt')}({x}, {y}, {control})")


def _table(values: tuple[int, ...]) -> object:
    import numpy as np

    return np.array(values, np.uint32)


EMIT: dict[str, Emit] = {
    "and": _logic("&"), "or": _logic("|"), "xor": _logic("^"), "not": _not, "cnot": _cnot, "shl": _shift,
    "shr": _shift, "brev": _call("brev"), "clz": _call("clz", "u4"), "popc": _call("popc", "u4"), "bfind": _find,
    "bfe": _extract, "bfi": _insert, "bmsk": _mask, "shf": _funnel, "lop3": _lookup, "prmt": _permute,
}  # fmt: skip
