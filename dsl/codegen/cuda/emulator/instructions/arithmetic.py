"""add, sub, mul, mad, fma, div, rem, min, max, abs, neg, sad: integers here, floats by `floats`.

Integers wrap, unless `.sat`. Division by zero gives all ones (the remainder: the dividend), as the hardware does.
"""

from __future__ import annotations

from dsl.codegen.cuda.emulator.emitter import KINDS, Emitter
from dsl.codegen.cuda.emulator.instructions import floats
from dsl.codegen.cuda.emulator.syntax import Instruction, Operand

__all__ = ["EMIT"]

_WIDER = {"u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}


def _kind(i: Instruction) -> str:
    return KINDS[i.type]


def _bits(kind: str) -> str:
    return "u" + kind[1:]


def _binary(symbol: str) -> floats.Emit:
    def emit(e: Emitter, i: Instruction) -> None:
        if floats.is_float(i):
            floats.binary(e, i, symbol)
            return
        if i.type in ("u16x2", "s16x2"):
            _halves(e, i, lambda x, y: f"{x} {symbol} {y}")
            return
        kind = _kind(i)
        if "sat" in i.modifiers:
            name = {"+": "add_sat", "-": "sub_sat"}[symbol]
            x, y = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
            e.write(i.operands[0], kind, f"{e.op(name, kind)}({x}, {y})")
            return
        kind = _bits(kind)
        x, y = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
        if "cc" in i.modifiers or i.opcode in ("addc", "subc"):
            _carry(e, i, symbol, kind, x, y)
        else:
            e.write(i.operands[0], kind, f"{x} {symbol} {y}")

    return emit


def _halves(e: Emitter, i: Instruction, formula: floats.Formula) -> None:
    """Two 16-bit integers in one register."""
    kind = "i2" if i.type[0] == "s" else "u2"
    packed = [e.let(f"spread2({e.read(o, 'u4')}).view({kind})") for o in i.operands[1:]]
    e.program.names.setdefault("spread2", floats.spread2)
    e.program.names.setdefault("join2", floats.join2)
    e.write(i.operands[0], "u4", f"join2({formula(*packed)})")


def _carry(e: Emitter, i: Instruction, symbol: str, kind: str, x: str, y: str) -> None:
    """add.cc, addc, sub.cc, subc: the carry flag is a register of the function.

    As in hardware a subtraction adds the complement, so the flag is set when there was *no* borrow; code that reads
    with addc what sub.cc left (NVIDIA's own 128-bit division) relies on it.
    """
    flag = e.program.carry
    if symbol == "-":
        y = e.let(f"~{y}")
    total = e.let(f"{x} + {y}")
    out = e.let(f"{total} < {x}")
    if symbol == "-" or i.opcode == "addc":
        one = e.const(1, kind)
        carry = one if i.opcode == "sub" else e.let(f"{e.register(flag, 'b1')}.astype({kind})")
        result = e.let(f"{total} + {carry}")
        out, total = e.let(f"{out} | ({result} < {total})"), result
    e.write(i.operands[0], kind, total)
    if "cc" in i.modifiers:
        e.write(flag, "b1", out)


def _multiply(e: Emitter, i: Instruction) -> None:
    if floats.is_float(i):
        floats.binary(e, i, "*")
        return
    kind = _kind(i)
    sign = "s" if kind[0] == "i" else "u"
    x, y = e.read(i.operands[1], _bits(kind)), e.read(i.operands[2], _bits(kind))
    if "wide" in i.modifiers:
        wide = _WIDER[kind]
        e.write(i.operands[0], _bits(wide), f"{e.op(f'mul_wide_{sign}', _bits(kind))}({x}, {y})")
    elif "hi" in i.modifiers:
        e.write(i.operands[0], _bits(kind), f"{e.op(f'mul_hi_{sign}', _bits(kind))}({x}, {y})")
    else:
        e.write(i.operands[0], _bits(kind), f"{x} * {y}")


def _multiply_add(e: Emitter, i: Instruction) -> None:
    if floats.is_float(i):
        floats.fma(e, i)
        return
    kind = _kind(i)
    bits, sign = _bits(kind), "s" if kind[0] == "i" else "u"
    x, y = e.read(i.operands[1], bits), e.read(i.operands[2], bits)
    if "wide" in i.modifiers:
        wide = _bits(_WIDER[kind])
        z = e.read(i.operands[3], wide)
        e.write(i.operands[0], wide, f"{e.op(f'mad_wide_{sign}', bits)}({x}, {y}, {z})")
        return
    z = e.read(i.operands[3], bits)
    if "hi" in i.modifiers:
        product = e.let(f"{e.op(f'mul_hi_{sign}', bits)}({x}, {y})")
    elif "cc" in i.modifiers or i.opcode == "madc":
        product = e.let(f"{x} * {y}")
    else:
        e.write(i.operands[0], bits, f"{e.op('mad', bits)}({x}, {y}, {z})")
        return
    if "cc" in i.modifiers or i.opcode == "madc":
        opcode = "addc" if i.opcode == "madc" else "add"
        step = Instruction(i.line, opcode, i.modifiers, i.operands)
        _carry(e, step, "+", bits, product, z)
    elif "sat" in i.modifiers:
        signed = e.let(f"{product}.view({kind})")
        e.write(i.operands[0], kind, f"{e.op('add_sat', kind)}({signed}, {z}.view({kind}))")
    else:
        e.write(i.operands[0], bits, f"{product} + {z}")


def _divide(name: str) -> floats.Emit:
    def emit(e: Emitter, i: Instruction) -> None:
        if floats.is_float(i):
            floats.binary(e, i, "/")
            return
        kind = _kind(i)
        x, y = e.read(i.operands[1], _bits(kind)), e.read(i.operands[2], _bits(kind))
        sign = "s" if kind[0] == "i" else "u"
        e.write(i.operands[0], _bits(kind), f"{e.op(f'{name}_{sign}', _bits(kind))}({x}, {y})")

    return emit


def _extreme(name: str) -> floats.Emit:
    def emit(e: Emitter, i: Instruction) -> None:
        if floats.is_float(i):
            floats.extreme(e, i, name)
            return
        function = f"np.{name}imum"
        if i.type in ("u16x2", "s16x2"):
            _halves(e, i, lambda x, y: f"{function}({x}, {y})")
            return
        kind = _kind(i)
        x, y = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
        result = f"{function}({x}, {y})"
        if "relu" in i.modifiers:
            result = f"np.maximum({result}, {e.const(0, kind)})"
        e.write(i.operands[0], kind, result)

    return emit


def _unary(symbol: str) -> floats.Emit:
    def emit(e: Emitter, i: Instruction) -> None:
        if floats.is_float(i):
            floats.sign(e, i, symbol)
            return
        kind = _kind(i)
        e.write(i.operands[0], kind, f"{symbol}({e.read(i.operands[1], kind)})")

    return emit


def _sad(e: Emitter, i: Instruction) -> None:
    kind = _kind(i)
    x, y = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
    z = e.read(i.operands[3], kind)
    sign = "s" if kind[0] == "i" else "u"
    e.write(i.operands[0], kind, f"{e.op(f'sad_{sign}', kind)}({x}, {y}, {z})")


def _low24(e: Emitter, operand: Operand, kind: str, wide: str) -> str:
    """The low 24 bits of an operand, extended."""
    eight = e.const(8, kind)
    return e.let(f"(({e.read(operand, kind)} << {eight}) >> {eight}).astype({wide})")


def _multiply24(e: Emitter, i: Instruction) -> None:
    """mul24 and mad24: 24-bit operands, the low or (hi) bits 16 to 47 of the product."""
    kind = _kind(i)
    wide = "i8" if kind == "i4" else "u8"
    x, y = (_low24(e, o, kind, wide) for o in i.operands[1:3])
    product = e.let(f"{x} * {y}")
    if "hi" in i.modifiers:
        product = e.let(f"{product} >> {e.const(16, wide)}")
    result = f"{product}.astype({kind})"
    if i.opcode == "mad24":
        result = f"{result} + {e.read(i.operands[3], kind)}"
    e.write(i.operands[0], kind, result)


def _dot(e: Emitter, i: Instruction) -> None:
    """dp4a and dp2a."""
    types = [m for m in i.modifiers if m in ("u32", "s32")]
    signed = [t == "s32" for t in types]
    lanes = 4 if i.opcode == "dp4a" else 2
    high = "hi" in i.modifiers
    kind = "i4" if any(signed) else "u4"
    z = e.read(i.operands[3], kind)
    name = e.bind(floats.dot, "dot")
    x, y = e.read(i.operands[1], "u4"), e.read(i.operands[2], "u4")
    e.write(
        i.operands[0], kind, f"{name}({x}, {y}, {z}, {lanes}, {signed[0]}, {signed[1]}, {high})"
    )


EMIT: dict[str, floats.Emit] = {
    "add": _binary("+"), "sub": _binary("-"), "addc": _binary("+"), "subc": _binary("-"), "mul": _multiply,
    "mad": _multiply_add, "madc": _multiply_add, "fma": _multiply_add, "div": _divide("div"), "rem": _divide("rem"),
    "min": _extreme("min"), "max": _extreme("max"), "abs": _unary("abs"), "neg": _unary("-"), "sad": _sad,
    "mul24": _multiply24, "mad24": _multiply24, "dp4a": _dot, "dp2a": _dot,
}  # fmt: skip
