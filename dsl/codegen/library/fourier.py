"""Fourier transforms by NumPy's own loops (pocketfft), lanes shared out among threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dsl.codegen.arrays import register_type
from dsl.codegen.library.call import Call, around, constant_of
from dsl.codegen.library.foreign import ufunc_symbol
from dsl.codegen.library.gufuncs import call_loop, loop_data
from dsl.codegen.library.routines import at, parallel, per_thread
from dsl.codegen.library.vectors import constant
from dsl.codegen.llvm import Function, Operand, Value

__all__ = ["LOWERINGS"]

_GRAIN = 1 << 13  # elements that are worth a thread
_LETTER = {"f4": "f", "f8": "d", "c8": "F", "c16": "D"}

Loop = Callable[[Function, list[Value], list[Operand], list[Operand]], None]


def _lower(call: Call) -> None:
    fn, x, y = call.fn, call.contiguous(0), call.output()
    axis = call.node.attrs["axis"]
    outer, n_in, inner = around(fn, x.dims, axis)
    _, n_out, _ = around(fn, y.dims, axis)
    _check_length(call, n_in)
    loop = _loop(call, x.dtype, y.dtype)
    x_step, y_step = x.dtype.itemsize, y.dtype.itemsize
    if constant_of(inner) == 1:
        with parallel(fn, outer, per_thread(fn, _GRAIN, n_in)) as (part, lo, hi):
            pointers = [
                at(part, x.dtype, x.pointer, part.mul(lo, n_in)),
                at(part, y.dtype, y.pointer, part.mul(lo, n_out)),
            ]
            rows = [part.mul(n_in, x_step), 0, part.mul(n_out, y_step), x_step, y_step]
            loop(part, pointers, [part.binary("sub", hi, lo), n_in, n_out], rows)
        return
    with fn.loop(0, outer) as index:
        x_base = at(fn, x.dtype, x.pointer, fn.mul(index, fn.mul(n_in, inner)))
        y_base = at(fn, y.dtype, y.pointer, fn.mul(index, fn.mul(n_out, inner)))
        with parallel(fn, inner, per_thread(fn, _GRAIN, n_in)) as (part, lo, hi):
            pointers = [at(part, x.dtype, x_base, lo), at(part, y.dtype, y_base, lo)]
            columns = [x_step, 0, y_step, part.mul(inner, x_step), part.mul(inner, y_step)]
            loop(part, pointers, [part.binary("sub", hi, lo), n_in, n_out], columns)


LOWERINGS = dict.fromkeys(("fft", "rfft", "irfft"), _lower)


def _check_length(call: Call, found: Value) -> None:
    """Compare at run time a size that the type rule could not."""
    name, attrs = call.node.op.name, call.node.attrs
    length, axis = attrs["n"], attrs["axis"]
    expected = length // 2 + 1 if name == "irfft" else length
    if isinstance(length, int) and call.node.inputs[0].shape[axis] == expected:
        return
    fn, n, wanted = call.fn, call.size(length), call.size(expected)
    invalid = "value:Invalid number of FFT data points ({}) specified."
    call.fail(fn.compare("slt", n, 1), invalid, n)
    message = f"value:{name}: length {{}} takes size {{}} on axis {axis}, got {{}}"
    call.fail(fn.compare("ne", wanted, found), message, n, wanted, found)


def _loop(call: Call, x: np.dtype, y: np.dtype) -> Loop:
    """Return what emits a call of the op's loop on lanes."""
    name, attrs = call.node.op.name, call.node.attrs
    real = f"f{x.itemsize // (2 if x.kind == 'c' else 1)}"
    x_letter, y_letter = _LETTER[x.str[1:]], _LETTER[y.str[1:]]
    types = f"{x_letter}{_LETTER[real]}->{y_letter}"

    def emit(
        fn: Function, pointers: list[Value], dims: list[Operand], steps: list[Operand]
    ) -> None:
        factor = fn.alloca(8)
        fn.store(constant(1.0, register_type(np.dtype(real))), factor)
        arguments = [pointers[0], factor, pointers[1]]

        def run(ufunc: str) -> None:
            data = loop_data(fn, "fft", ufunc, types) if name == "fft" else None
            call_loop(fn, ufunc_symbol("fft", ufunc, types), arguments, dims, steps, data)

        if name == "rfft":
            n = dims[1]
            odd = fn.compare("eq", fn.binary("and", n, 1), 1)
            fn.if_else(odd, lambda: run("rfft_n_odd"), lambda: run("rfft_n_even"))
        else:
            run("ifft" if name == "fft" and attrs["inverse"] else name)

    return emit
