"""Rounding that is not to nearest: .rz (towards zero), .rm (down), .rp (up), and single-sided tricks.

Works from a value in double and the sign of what it leaves out. For results of 24 bits or fewer a double rounded to
odd keeps that sign inside itself.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from dsl.codegen.cuda.emulator.operations import operation

__all__ = ["directed", "round_to", "upper_half"]

Array = np.ndarray[Any, Any]


def round_to(x: Array, dtype: Any, mode: str) -> Array:
    """A double to a narrower type in a rounding mode ("rn" for nearest even)."""
    near = x.astype(dtype)
    if mode == "rn":
        return near
    back = near.astype(np.float64)
    if mode == "rz":
        return np.where(abs(back) > abs(x), np.nextafter(near, np.zeros_like(near)), near)
    limit = np.full_like(near, -np.inf if mode == "rm" else np.inf)
    wrong = back > x if mode == "rm" else back < x
    return np.where(wrong, np.nextafter(near, limit), near)


def directed(name: str, mode: str, *operands: Array) -> Array:
    """An operation on singles (through double, to odd) or doubles, rounded in a direction."""
    dtype = operands[0].dtype
    if dtype == np.float64:
        return _directed_double(name, mode, *operands)
    wide = [x.astype(np.float64) for x in operands]
    return round_to(_odd(name, *wide), dtype, mode)


def _odd(name: str, *x: Array) -> Array:
    one = np.ones(1)
    result: Array
    if name in "+-":
        result = operation("fma_odd")(x[0], one, x[1] if name == "+" else -x[1])
    elif name == "*":
        result = x[0] * x[1]
    elif name == "/":
        result = operation("div_odd")(x[0], x[1])
    elif name == "fma":
        result = operation("fma_odd")(*x)
    elif name == "rcp":
        result = operation("div_odd")(one, x[0])
    else:
        result = operation("sqrt_odd")(x[0])
    return result


def _directed_double(name: str, mode: str, *operands: Array) -> Array:
    """Doubles: nearest first, then one step where it lies on the wrong side."""
    fma = operation("fma", "f8")
    one = np.ones(1)
    x = operands[0]
    rest: Array
    if name == "rcp":
        name, operands = "/", (one, x)
    if name == "fma":
        return _exact_fma(mode, *operands)
    if name in "+-":
        y = operands[1] if name == "+" else -operands[1]
        near = x + y
        part = near - x
        rest = (x - (near - part)) + (y - part)
    elif name == "*":
        near = x * operands[1]
        rest = fma(x, operands[1], -near)
    elif name == "/":
        near = operands[0] / operands[1]
        rest = fma(-near, operands[1], operands[0]) * np.copysign(1.0, operands[1])
    else:
        near = np.sqrt(x)
        rest = fma(-near, near, x)
    return _step(near, rest, mode)


def _step(near: Array, rest: Array, mode: str) -> Array:
    """One step towards `mode` where the remainder says that `near` is past the exact value."""
    if mode == "rz":
        wrong, limit = (rest != 0) & (np.signbit(rest) != np.signbit(near)), np.zeros(1)
    elif mode == "rm":
        wrong, limit = rest < 0, np.full(1, -np.inf)
    else:
        wrong, limit = rest > 0, np.full(1, np.inf)
    return np.where(wrong, np.nextafter(near, limit), near)


def _exact_fma(mode: str, *operands: Array) -> Array:
    """One lane after the other, with fractions; rare."""
    near: Array = operation("fma", "f8")(*operands)
    whole = np.broadcast_arrays(*operands, near)
    rest = np.zeros(near.shape)
    for k, (x, y, z, r) in enumerate(zip(*(array.tolist() for array in whole))):
        if math.isfinite(r):
            difference = Fraction(x) * Fraction(y) + Fraction(z) - Fraction(r)
            rest[k] = (difference > 0) - (difference < 0)
    return _step(near, rest, mode)


def upper_half(x: Array) -> Array:
    """A double with its lower 32 bits cleared, as the approximate double functions give it."""
    bits: Array = x.view(np.uint64) & np.uint64(0xFFFF_FFFF_0000_0000)
    return bits.view(np.float64)
