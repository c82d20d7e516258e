"""Floating point: every type computes in a *working* form and is rounded once at the end.

.f32 and .f64 work in themselves, .f16 in NumPy's half (which rounds single-precision results: exact for + - * / and
sqrt), .bf16 in double. Packed pairs work as arrays of lanes by two. fma rounds once: .f32 and .f64 by the host's fma,
the narrow types in double rounded to odd. Directed rounding (.rz, .rm, .rp) starts from double rounded to odd, too.
The .approx functions are computed more exactly than hardware does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsl.codegen.cuda.emulator import rounding
from dsl.codegen.cuda.emulator.emitter import Emitter
from dsl.codegen.cuda.emulator.syntax import Instruction, Operand

__all__ = [
    "EMIT", "FLOATS", "Emit", "Formula", "binary", "dot", "extreme", "finish", "fma", "is_float", "join2", "operands",
    "sign", "spread2",
]  # fmt: skip

Array = np.ndarray[Any, Any]
Emit = Callable[[Emitter, Instruction], None]
Formula = Callable[..., str]

FLOATS = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "f32x2", "tf32"}
_DIRECTED = ("rz", "rm", "rp")


def is_float(i: Instruction) -> bool:
    """Whether the instruction's type is a float."""
    return i.type in FLOATS


def spread2(x: Array) -> Array:
    """A packed register as lanes by two."""
    return np.ascontiguousarray(x).view(f"u{x.itemsize // 2}").reshape(-1, 2)


def join2(x: Array) -> Array:
    """Lanes by two as a packed register."""
    return np.ascontiguousarray(x).view(f"u{2 * x.itemsize}").reshape(-1)


def operands(e: Emitter, i: Instruction, sources: Sequence[Operand], ptx_type: str) -> list[str]:
    """Operands in their working form."""
    return [_operand(e, i, source, ptx_type) for source in sources]


def _operand(e: Emitter, i: Instruction, source: Operand, t: str) -> str:
    if t in ("f32", "tf32"):
        x = e.read(source, "f4")
        return e.let(f"{e.op('ftz')}({x})") if "ftz" in i.modifiers else x
    if t == "f64":
        return e.read(source, "f8")
    if t == "f16":
        return e.read(source, "f2")
    if t == "bf16":
        return e.let(f"{e.op('from_bf16')}({e.read(source, 'u2')})")
    spread = e.bind(spread2, "spread2")
    if t == "f32x2":
        return e.let(f"{spread}({e.read(source, 'u8')}).view(f4)")
    pair = e.let(f"{spread}({e.read(source, 'u4')})")
    return e.let(f"{pair}.view(f2)" if t == "f16x2" else f"{e.op('from_bf16')}({pair})")


def finish(e: Emitter, i: Instruction, target: Operand, t: str, result: str) -> None:
    """Round a result in working form (or double, for the narrow types) and write it."""
    if "sat" in i.modifiers:
        result = f"np.fmin(np.fmax({result}, 0), 1)"
    if "relu" in i.modifiers:
        result = f"np.fmax({result}, 0)"
    if t in ("f32", "tf32"):
        if "ftz" in i.modifiers:
            result = f"{e.op('ftz')}({result})"
        e.write(target, "f4", result)
    elif t == "f64":
        e.write(target, "f8", result)
    elif t == "f16":
        e.write(target, "f2", f"({result}).astype(f2)")
    elif t == "bf16":
        e.write(target, "u2", f"{e.op('to_bf16')}({result})")
    else:
        join = e.bind(join2, "join2")
        if t == "f32x2":
            e.write(target, "u8", f"{join}({result})")
        elif t == "f16x2":
            e.write(target, "u4", f"{join}(({result}).astype(f2))")
        else:
            e.write(target, "u4", f"{join}({e.op('to_bf16')}({result}))")


def _direction(i: Instruction) -> str:
    return next((m for m in i.modifiers if m in _DIRECTED), "")


def binary(e: Emitter, i: Instruction, symbol: str) -> None:
    """add, sub, mul, div."""
    if len(_types(i)) == 2:
        _mixed(e, i, symbol)
        return
    x, y = operands(e, i, i.operands[1:3], i.type)
    mode = _direction(i)
    if mode:
        name = e.bind(rounding.directed, "directed")
        result = f"{name}({symbol!r}, {mode!r}, {x}, {y})"
    else:
        result = f"{x} {symbol} {y}"
    finish(e, i, i.operands[0], i.type, result)


def _types(i: Instruction) -> list[str]:
    return [m for m in i.modifiers if m in FLOATS]


def _mixed(e: Emitter, i: Instruction, symbol: str) -> None:
    """add.f32.f16 and friends (sm_100): narrow first operand, result and last operand in single."""
    wide, narrow = _types(i)
    x = e.let(f"{_operand(e, i, i.operands[1], narrow)}.astype(f4)")
    y = _operand(e, i, i.operands[2], wide)
    finish(e, i, i.operands[0], wide, f"{x} {symbol} {y}")


def fma(e: Emitter, i: Instruction) -> None:
    """fma and mad of floats, one rounding."""
    x, y, z = operands(e, i, i.operands[1:4], i.type)
    mode = _direction(i)
    if mode:
        name = e.bind(rounding.directed, "directed")
        result = f"{name}('fma', {mode!r}, {x}, {y}, {z})"
    elif i.type in ("f32", "f64", "f32x2"):
        result = f"{e.op('fma', 'f8' if i.type == 'f64' else 'f4')}({x}, {y}, {z})"
    else:
        result = f"{e.op('fma_odd')}({x}, {y}, {z})"
    finish(e, i, i.operands[0], i.type, result)


def extreme(e: Emitter, i: Instruction, name: str) -> None:
    """min and max: a NaN gives way to a number, unless .NaN."""
    values = operands(e, i, i.operands[1:], i.type)
    nan = "NaN" in i.modifiers
    if "xorsign" in i.modifiers:
        x, y = values
        signs = f"np.where(np.signbit({x}) ^ np.signbit({y}), -1.0, 1.0).astype({x}.dtype)"
        values = [e.let(f"abs({x})"), e.let(f"abs({y})")]
        finish(e, i, i.operands[0], i.type, f"np.f{name}({values[0]}, {values[1]}) * {signs}")
        return
    if "abs" in i.modifiers:
        values = [e.let(f"abs({v})") for v in values]
    if i.type in ("f32", "f64"):
        kind = "f4" if i.type == "f32" else "f8"
        function = e.op(f"f{name}{'_nan' if nan else ''}", kind)
    else:
        function = f"np.{name}imum" if nan else f"np.f{name}"
    result = values[0]
    for value in values[1:]:
        result = f"{function}({result}, {value})"
    finish(e, i, i.operands[0], i.type, result)


def sign(e: Emitter, i: Instruction, symbol: str) -> None:
    """abs and neg, by the sign bit alone."""
    x = operands(e, i, i.operands[1:2], i.type)[0]
    finish(e, i, i.operands[0], i.type, f"{symbol}({x})")


# Functions of one operand, in double; single-precision .rn forms are rounded from it (sqrt and 1/x safely so).
_FUNCTIONS = {
    "rcp": lambda x: 1.0 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1.0 / np.sqrt(x), "ex2": np.exp2, "lg2": np.log2,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
}  # fmt: skip


def _function(e: Emitter, i: Instruction) -> None:
    t = i.type
    x = operands(e, i, i.operands[1:2], t)[0]
    mode = _direction(i)
    if mode:
        name = e.bind(rounding.directed, "directed")
        result = f"{name}({i.opcode!r}, {mode!r}, {x})"
    elif t == "f64" and "approx" in i.modifiers:
        result = (
            f"{e.bind(rounding.upper_half, 'upper')}({e.bind(_FUNCTIONS[i.opcode], i.opcode)}({x}))"
        )
    elif i.opcode == "sqrt" and t in ("f32", "f64"):
        result = f"np.sqrt({x})"
    else:
        function = e.bind(_FUNCTIONS[i.opcode], i.opcode)
        result = f"{function}({x}.astype(f8))"
        result = f"{result}.astype(f4)" if t == "f32" else result
    finish(e, i, i.operands[0], t, result)


def _copysign(e: Emitter, i: Instruction) -> None:
    """The magnitude of the second operand with the sign of the first."""
    kind = "f4" if i.type == "f32" else "f8"
    x, y = e.read(i.operands[1], kind), e.read(i.operands[2], kind)
    e.write(i.operands[0], kind, f"np.copysign({y}, {x})")


def dot(
    x: Array, y: Array, z: Array, lanes: int, x_signed: bool, y_signed: bool, high: bool
) -> Array:
    """dp4a and dp2a: products of bytes (and of 16-bit halves with bytes) added to z."""
    b = np.ascontiguousarray(y).view("i1" if y_signed else "u1").reshape(-1, 4).astype(np.int64)
    if lanes == 4:
        a = np.ascontiguousarray(x).view("i1" if x_signed else "u1").reshape(-1, 4)
    else:
        a = np.ascontiguousarray(x).view("i2" if x_signed else "u2").reshape(-1, 2)
        b = b[:, 2:] if high else b[:, :2]
    total: Array = (a.astype(np.int64) * b).sum(1)
    result: Array = z + total.astype(z.dtype)
    return result


EMIT: dict[str, Emit] = {**dict.fromkeys(_FUNCTIONS, _function), "copysign": _copysign}
