"""Special functions of one number by SciPy's loops, for elementwise ops that have no polynomials here."""

from __future__ import annotations

import numpy as np

from dsl.codegen.elementwise.casts import is_half, narrow, widen
from dsl.codegen.library.foreign import ufunc_symbol
from dsl.codegen.library.gufuncs import call_loop, loop_data
from dsl.codegen.llvm import Function, Value

__all__ = ["SPECIAL", "special"]

SPECIAL = {"erfinv": "erfinv", "gamma": "gamma", "lgamma": "gammaln", "digamma": "psi"}
"""Ops and the names that SciPy has for them."""


def special(fn: Function, op: str, dtype: np.dtype, x: Value) -> Value:
    """Emit an op of `SPECIAL` on one float in a register."""
    wide = widen(fn, dtype, x)
    letter, size = {"float": ("f", 4), "double": ("d", 8)}[wide.type]
    source, target = fn.alloca(8), fn.alloca(8)
    fn.store(wide, source)
    name, types = SPECIAL[op], f"{letter}->{letter}"
    data = loop_data(fn, "special", name, types)
    symbol = ufunc_symbol("special", name, types)
    call_loop(fn, symbol, [source, target], [1], [size, size], data)
    found = fn.load(wide.type, target)
    return narrow(fn, found, dtype) if is_half(dtype) else found
