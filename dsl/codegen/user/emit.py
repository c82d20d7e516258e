"""Emits calls of kernels that numba compiled: for one element inside a loop, or on whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dsl.codegen.arrays import Array, Scalar, load_scalar, store_scalar, zero
from dsl.codegen.cpu import jit
from dsl.codegen.library.call import Call, product
from dsl.codegen.llvm import Function, Module, Value
from dsl.codegen.user.adapt import math_module
from dsl.codegen.user.code import Code, numba_address
from dsl.codegen.user.retarget import Portable, retarget

__all__ = ["emit_element", "lower_arrays"]

_NULL = Value("null", "ptr")


def emit_element(
    code: Code, fn: Function, args: Sequence[Scalar], check: Callable[..., None]
) -> tuple[Scalar, ...]:
    """Emit a call on numbers and return its results; LLVM inlines it."""
    places, size = _layout(code.dtypes)
    results = fn.alloca(size)
    addresses = [fn.gep(results, place) for place in places]
    if code.errors:
        # A call that raises stores nothing, and the value of the element before would show: a dependence.
        for dtype, address in zip(code.dtypes, addresses):
            store_scalar(fn, dtype, zero(fn, dtype), address)
    _call(code, fn, results, [part for arg in args for part in _parts(fn, arg)], check)
    return tuple(load_scalar(fn, dtype, at) for dtype, at in zip(code.dtypes, addresses))


def lower_arrays(code: Code, call: Call) -> None:
    """Emit a call on whole arrays: the operands in C order, then the memory of the results."""
    fn, node = call.fn, call.node
    passed: list[Value] = []
    for k, value in enumerate(node.data_inputs):
        found = call.contiguous(k) if value.shape else call.inputs[k]
        passed += _described(fn, found) if isinstance(found, Array) else _parts(fn, found)
    outputs = [
        call.output(k) if value.shape else Array(value.dtype, fn.alloca(16), (), ())
        for k, value in enumerate(node.outputs)
    ]
    passed += [word for array in outputs for word in _described(fn, array)]
    _call(code, fn, fn.alloca(8), passed, call.fail)
    for k, array in enumerate(outputs):
        if not array.dims:
            call.set_output(k, load_scalar(fn, array.dtype, array.pointer))


def _call(
    code: Code, fn: Function, results: Value, args: Sequence[Value], check: Callable[..., None]
) -> None:
    _link(code, fn.module)
    raised = fn.alloca(8)
    fn.store(Value("0", "i64"), raised)
    status = fn.call("i32", code.symbol, results, raised, *args)
    if code.errors:
        check(fn.compare("ne", status, 0), "raised", fn.load("i64", raised))


def _link(code: Code, module: Module) -> None:
    """Make a kernel and what it calls part of a module."""
    links = module.links
    if module.device:
        found = retarget(code)
        assert isinstance(found, Portable), f"{code.symbol} is not for GPUs: {found.reason}"
        links[code.symbol] = found.text
        given = {"device": True, "libdevice": module.libdevice}
        links.update((name, math_module(name, **given)) for name in found.functions)
        return
    links[code.symbol] = code.text
    links.update((name, math_module(name)) for name in code.functions)
    for name in code.externals:
        jit.define(name, numba_address(name))


def _layout(dtypes: Sequence[np.dtype]) -> tuple[list[int], int]:
    """Return where the fields of a C struct start, and its size."""
    places, size = [], 0
    for dtype in dtypes:
        align = dtype.itemsize // (2 if dtype.kind == "c" else 1)
        places.append(-(-size // align) * align)
        size = places[-1] + dtype.itemsize
    return places, size


def _parts(fn: Function, scalar: Scalar) -> list[Value]:
    """Return a number as numba's functions take it."""
    if isinstance(scalar, tuple):
        return list(scalar)
    return [fn.convert("zext", scalar, "i8") if scalar.type == "i1" else scalar]


def _described(fn: Function, array: Array) -> list[Value]:
    """Return an array as numba's functions take it."""
    size = array.dtype.itemsize
    strides = [fn.mul(stride, size) for stride in array.strides]
    words = [fn.as_value(w, "i64") for w in (product(fn, array.dims), size, *array.dims, *strides)]
    return [_NULL, _NULL, *words[:2], array.pointer, *words[2:]]
