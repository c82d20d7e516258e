"""cvt: integers wrap (or saturate), floats round once, float to integer saturates and takes NaN to 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.codegen.cuda.emulator.emitter import KINDS, Emitter
from dsl.codegen.cuda.emulator.instructions import floats
from dsl.codegen.cuda.emulator.operations import convert_saturating, operation
from dsl.codegen.cuda.emulator.rounding import round_to
from dsl.codegen.cuda.emulator.syntax import TYPE_BYTES, Instruction

__all__ = ["EMIT"]

Array = np.ndarray[Any, Any]
Emit = Callable[[Emitter, Instruction], None]

_WHOLE: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip


def _convert(e: Emitter, i: Instruction) -> None:
    types = [m for m in i.modifiers if m in TYPE_BYTES]
    if (
        len(types) != 2
        or "pack" in i.modifiers
        or "stochastic" in i.modifiers
        or "rs" in i.modifiers
    ):
        e.unsupported()
    target, source = types
    if target in ("f16x2", "bf16x2") and source == "f32":
        _pack(e, i, target)
    elif source in floats.FLOATS and target in floats.FLOATS:
        _float_to_float(e, i, target, source)
    elif source in floats.FLOATS:
        _float_to_integer(e, i, target, source)
    elif target in floats.FLOATS:
        _integer_to_float(e, i, target, source)
    else:
        _integer_to_integer(e, i, target, source)


def _pack(e: Emitter, i: Instruction, target: str) -> None:
    """cvt.rn.f16x2.f32 d, a, b: a is the upper half."""
    half = target[:-2]
    mode = _mode(i)
    high, low = floats.operands(e, i, i.operands[1:3], "f32")
    convert = e.bind(_narrow, "narrow")
    parts = [
        e.let(f"{convert}({x}, {half!r}, {mode!r}, {i.has('relu')}, {i.has('satfinite')})")
        for x in (low, high)
    ]
    e.write(i.operands[0], "u4", f"{e.bind(_pair, 'pair')}({parts[0]}, {parts[1]})")


def _pair(low: Array, high: Array) -> Array:
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def _mode(i: Instruction) -> str:
    return next((m for m in i.modifiers if m in ("rz", "rm", "rp")), "rn")


def _narrow(x: Array, half: str, mode: str, relu: bool = False, finite: bool = False) -> Array:
    """A single or double as the bits of a half."""
    wide = x.astype(np.float64)
    if relu:
        wide = np.fmax(wide, 0.0)
    if finite:
        limit = 65504.0 if half == "f16" else 3.3895313892515355e38
        wide = np.where(np.isnan(wide), wide, np.clip(wide, -limit, limit))
    if half == "f16":
        return round_to(wide, np.float16, mode).view(np.uint16)
    if mode == "rn":
        bits: Array = operation("to_bf16")(wide)
        return bits
    return _bf16_directed(wide, mode)


def _bf16_directed(x: Array, mode: str) -> Array:
    """Truncate to 16 bits after rounding to single in the same direction, then step away from zero if due."""
    single = round_to(x, np.float32, mode).view(np.uint32)
    away = {"rz": np.zeros(single.shape, bool), "rm": single >> 31 == 1, "rp": single >> 31 == 0}[
        mode
    ]
    inexact = (single & np.uint32(0xFFFF) != 0) & np.isfinite(single.view(np.float32))
    top: Array = (single >> np.uint32(16)) + (away & inexact)
    return top.astype(np.uint16)


def _float_to_float(e: Emitter, i: Instruction, target: str, source: str) -> None:
    x = floats.operands(e, i, i.operands[1:2], source)[0]
    whole = next((m for m in i.modifiers if m in _WHOLE), "")
    if whole:
        x = e.let(f"{e.bind(_WHOLE[whole], whole)}({x})")
    if target in ("f16", "bf16") and source != target:
        convert = e.bind(_narrow, "narrow")
        if "sat" in i.modifiers:
            x = e.let(f"np.fmin(np.fmax({x}, 0), 1)")
        bits = f"{convert}({x}, {target!r}, {_mode(i)!r}, {i.has('relu')}, {i.has('satfinite')})"
        e.write(i.operands[0], "u2", bits)
        return
    if target == "tf32":
        e.write(i.operands[0], "f4", f"{e.bind(_tf32, 'tf32')}({x}, {_mode(i)!r}, {i.has('rna')})")
        return
    kind = "f8" if target == "f64" else "f4"
    if target == "f32" and source == "f64" and _mode(i) != "rn":
        x = f"{e.bind(round_to, 'round_to')}({x}, f4, {_mode(i)!r})"
    elif target in ("f32", "f64") and KINDS[source] != kind:
        x = f"{x}.astype({kind})"
    floats.finish(e, i, i.operands[0], target, x)


def _tf32(x: Array, mode: str, away: bool) -> Array:
    """Ten bits of mantissa, ties away from zero for .rna."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    if mode == "rz":
        moved = bits
    elif away:
        moved = bits + np.uint32(0x1000)
    else:
        moved = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
    cut: Array = np.where(np.isfinite(x), moved & np.uint32(0xFFFF_E000), bits)
    return cut.view(np.float32)


def _float_to_integer(e: Emitter, i: Instruction, target: str, source: str) -> None:
    x = floats.operands(e, i, i.operands[1:2], source)[0]
    whole = next((m for m in i.modifiers if m in _WHOLE), "rzi")
    kind = KINDS[source] if source in ("f32", "f64") else "f8"
    if source == "f16":
        x = e.let(f"{x}.astype(f8)")
    x = x if whole == "rzi" else e.let(f"{e.bind(_WHOLE[whole], whole)}({x})")
    # Narrower than 32 bits: saturates to the range of the target.
    integer = KINDS[target]
    e.write(i.operands[0], integer, f"{e.bind(convert_saturating(kind, integer), 'cvt')}({x})")


def _integer_to_float(e: Emitter, i: Instruction, target: str, source: str) -> None:
    kind = KINDS[source]
    x = e.read(i.operands[1], kind)
    name = e.bind(_from_integer, "from_integer")
    result = e.let(f"{name}({x}, {target!r}, {_mode(i)!r})")
    if target in ("f16", "bf16"):
        e.write(i.operands[0], "u2", result)
    else:
        floats.finish(e, i, i.operands[0], target, result)


def _from_integer(x: Array, target: str, mode: str) -> Array:
    if mode == "rn" and target in ("f32", "f64"):
        return x.astype(np.float32 if target == "f32" else np.float64)
    wide = _odd_double(x)
    if target in ("f16", "bf16"):
        return _narrow(wide, target, mode)
    if target == "f64":
        return _directed_double(x, mode)
    return round_to(wide, np.float32, mode)


def _odd_double(x: Array) -> Array:
    """An integer as a double rounded to odd: the bits that do not fit become the last bit."""
    if x.itemsize < 8:
        return x.astype(np.float64)
    low = x & np.array(0x7FF, x.dtype)
    high: Array = (x - low).astype(np.float64)
    odd: Array = operation("fma_odd")(high, np.ones(1), low.astype(np.float64))
    return odd


def _directed_double(x: Array, mode: str) -> Array:
    near = x.astype(np.float64)
    if x.itemsize < 8:
        return near
    result = [_directed_integer(int(v), float(n), mode) for v, n in zip(x, near)]
    return np.array(result)


def _directed_integer(value: int, near: float, mode: str) -> float:
    limit = {"rm": -np.inf, "rp": np.inf, "rz": 0.0}[mode]
    wrong = {"rm": int(near) > value, "rp": int(near) < value, "rz": abs(int(near)) > abs(value)}[
        mode
    ]
    return float(np.nextafter(near, limit)) if wrong else near


def _integer_to_integer(e: Emitter, i: Instruction, target: str, source: str) -> None:
    have, want = KINDS[source], KINDS[target]
    x = e.read(i.operands[1], have)
    if "sat" in i.modifiers:
        e.write(i.operands[0], want, f"{e.bind(_saturate, 'saturate')}({x}, {want})")
        return
    if have[1] == want[1]:
        e.write(i.operands[0], want, x if have == want else f"{x}.view({want})")
        return
    e.write(i.operands[0], want, f"{x}.astype({want})")


def _saturate(x: Array, dtype: Any) -> Array:
    info, own = np.iinfo(dtype), np.iinfo(x.dtype)
    low, high = max(info.min, own.min), min(info.max, own.max)
    return np.clip(x, low, high).astype(dtype)


EMIT: dict[str, Emit] = {"cvt": _convert}
