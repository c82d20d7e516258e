"""Fourier transforms: many lanes of smooth lengths by vectors, see `fourier_lanes`, others by NumPy's own loops (pocketfft).

Lanes are shared out among threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import numpy as np

from dsl.codegen.arrays import Array, register_type
from dsl.codegen.library.call import Call, around, constant_of
from dsl.codegen.library.foreign import ufunc_symbol
from dsl.codegen.library.fourier_lanes import group_of, is_smooth, smooth, space_of, table_bytes
from dsl.codegen.library.gufuncs import call_loop, loop_data
from dsl.codegen.library.routines import at, call_routine, parallel, per_thread
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
    lanes = Lanes(x, y, outer, n_in, n_out, inner)
    suits = _suits(fn, lanes, call.node.op.name)
    if isinstance(suits, bool):
        (_by_groups if suits else _by_lanes)(call, lanes)
    else:
        fn.if_else(suits, lambda: _by_groups(call, lanes), lambda: _by_lanes(call, lanes))


class Lanes(NamedTuple):
    """What is transformed: `outer x n x inner` elements."""

    x: Array
    y: Array
    outer: Value
    n_in: Value
    n_out: Value
    inner: Value

    @property
    def dtype(self) -> np.dtype:
        """That of the complex numbers."""
        return self.x.dtype if self.x.dtype.kind == "c" else self.y.dtype

    def length(self, name: str) -> Value:
        """Return the length of a transform: that of its real side, if it has one."""
        return self.n_out if name == "irfft" else self.n_in

    def ends(self, fn: Function, outside: Operand, start: Operand) -> list[list[Operand]]:
        """Return, for each side, where a lane is, and the bytes from element to element and from lane to lane."""
        rows, found = constant_of(self.inner) == 1, []
        for array, n in ((self.x, self.n_in), (self.y, self.n_out)):
            size = array.dtype.itemsize
            lane = fn.mul(n, size) if rows else size
            place = fn.add(
                fn.mul(outside, fn.mul(fn.mul(n, self.inner), size)), fn.mul(start, lane)
            )
            found.append([fn.gep(array.pointer, place), fn.mul(self.inner, size), lane])
        return found


def _by_lanes(call: Call, lanes: Lanes) -> None:
    """Transform lane after lane."""
    fn, (x, y, outer, n_in, n_out, inner) = call.fn, lanes
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


def _suits(fn: Function, lanes: Lanes, name: str) -> Value | bool:
    """Return whether lanes are transformed by groups: they fill vectors, and their length has small factors.

    That of real ones is even.
    """
    rows, many, n = constant_of(lanes.inner) == 1, group_of(lanes.dtype), lanes.length(name)
    row, least = (lanes.outer, many) if rows else (lanes.inner, many // 2 + 1)
    sizes = constant_of(row), constant_of(n)
    tests: list[Value | bool] = [
        fn.compare("sge", row, least) if sizes[0] is None else sizes[0] >= least,
        is_smooth(fn, n) if sizes[1] is None else smooth(sizes[1]),
    ]
    if name != "fft":
        odd = fn.binary("and", n, 1) if sizes[1] is None else sizes[1] % 2
        tests.append(fn.compare("eq", odd, 0) if isinstance(odd, Value) else not odd)
    if any(test is False for test in tests):
        return False
    open_ones = [test for test in tests if isinstance(test, Value)]
    return reduce(fn.both, open_ones) if open_ones else True


def _by_groups(call: Call, lanes: Lanes) -> None:
    """Transform as many lanes at once as a vector has elements."""
    fn, dtype, name = call.fn, lanes.dtype, call.node.op.name
    n, many, rows = lanes.length(name), group_of(dtype), constant_of(lanes.inner) == 1
    row = lanes.outer if rows else lanes.inner
    groups = fn.binary("sdiv", fn.add(row, many - 1), many)
    table = call.scratch(table_bytes(fn, dtype, n))
    call_routine(fn, "fft_table", dtype, table, n)
    stem = "ifft" if name == "fft" and call.node.attrs["inverse"] else name
    loop = _loop(call, lanes.x.dtype, lanes.y.dtype)
    total = groups if rows else fn.mul(lanes.outer, groups)
    with parallel(fn, total, per_thread(fn, _GRAIN, fn.mul(n, many))) as (part, lo, hi):
        space = part.call("ptr", "dsl_alloc", space_of(part, dtype, n))
        with part.loop(lo, hi) as group:
            start = part.mul(part.binary("urem", group, groups), many)
            count = part.as_value(part.minimum(part.sub(row, start), many), "i64")
            here, there = lanes.ends(part, part.binary("udiv", group, groups), start)

            def together(part: Function = part) -> None:
                args = *here, *there, n, count, table, space
                call_routine(part, f"{stem}_lanes", dtype, *args)

            def alone(part: Function = part) -> None:
                steps = [here[2], 0, there[2], here[1], there[1]]
                pointers = [part.as_value(end[0], "ptr") for end in (here, there)]
                loop(part, pointers, [count, lanes.n_in, lanes.n_out], steps)

            missing = part.compare("eq", space, Value("null", "ptr"))
            part.if_else(missing, alone, together)
        part.call("void", "dsl_free", space)


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
