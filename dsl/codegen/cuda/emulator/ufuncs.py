"""NumPy ufuncs from a few lines of LLVM IR.

In: a name, a signature such as "f4 f4 f4 -> f4" and the body of a scalar LLVM function with the parameters %a, %b,
%c, ... Out: a real `numpy.ufunc`, compiled for this machine on first use and kept for the process.

PTX has instructions that NumPy lacks or needs ten operations for (fma with one rounding, the high half of a product,
funnel shifts, saturating conversions, atomics in lane order). As ufuncs each costs about what `np.add` costs.
The inner loop visits lanes in order, so an operation with effects (a store, an atomic) applies them in lane order.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

__all__ = ["LLVM_TYPES", "build"]

# Kinds are NumPy's type strings; halves travel as their bits, because host code for them needs library calls.
LLVM_TYPES = {
    "b1": "i8", "u1": "i8", "i1": "i8", "u2": "i16", "i2": "i16", "f2": "i16", "u4": "i32", "i4": "i32",
    "f4": "float", "u8": "i64", "i8": "i64", "f8": "double",
}  # fmt: skip

_lock = threading.Lock()
_keep: list[object] = []
_engine: Any = None


def build(name: str, signature: str, body: str, declarations: str = "") -> np.ufunc:
    """Compile one ufunc; `body` ends in `ret` of the output, or of a struct when there are several outputs."""
    inputs, outputs = ([*part.split()] for part in signature.split("->"))
    text = _module_text(name, inputs, outputs, body, declarations)
    with _lock:
        address = _compile(text, name)
        return _make_ufunc(name, inputs + outputs, len(inputs), address)


def _module_text(
    name: str, inputs: list[str], outputs: list[str], body: str, declarations: str
) -> str:
    ins, outs = [LLVM_TYPES[k] for k in inputs], [LLVM_TYPES[k] for k in outputs]
    result = outs[0] if len(outs) == 1 else "{" + ", ".join(outs) + "}"
    parameters = ", ".join(f"{t} %{chr(97 + i)}" for i, t in enumerate(ins))
    setup, step = [], []
    for i in range(len(ins) + len(outs)):
        setup += [
            f"%ap{i} = getelementptr ptr, ptr %args, i64 {i}",
            f"%a{i} = load ptr, ptr %ap{i}",
            f"%sp{i} = getelementptr i64, ptr %steps, i64 {i}",
            f"%s{i} = load i64, ptr %sp{i}",
        ]
        step += [f"%o{i} = mul i64 %i, %s{i}", f"%p{i} = getelementptr i8, ptr %a{i}, i64 %o{i}"]
    step += [f"%v{i} = load {t}, ptr %p{i}, align 1" for i, t in enumerate(ins)]
    arguments = ", ".join(f"{t} %v{i}" for i, t in enumerate(ins))
    step.append(f"%result = call {result} @scalar({arguments})")
    for j, t in enumerate(outs):
        value = "%result"
        if len(outs) > 1:
            step.append(f"%r{j} = extractvalue {result} %result, {j}")
            value = f"%r{j}"
        step.append(f"store {t} {value}, ptr %p{len(ins) + j}, align 1")
    lines = [
        declarations,
        f"define internal {result} @scalar({parameters}) alwaysinline {{\n{body}\n}}",
        f"define void @{name}(ptr %args, ptr %dims, ptr %steps, ptr %data) {{",
        "%n = load i64, ptr %dims",
        *setup,
        "%some = icmp sgt i64 %n, 0",
        "br i1 %some, label %loop, label %done",
        "loop:",
        "%i = phi i64 [0, %0], [%next, %loop]",
        *step,
        "%next = add i64 %i, 1",
        "%more = icmp slt i64 %next, %n",
        "br i1 %more, label %loop, label %done",
        "done:",
        "ret void",
        "}",
    ]
    return "\n".join(lines)


def _compile(text: str, name: str) -> int:
    import llvmlite.binding as llvm

    global _engine
    module = llvm.parse_assembly(text)
    if _engine is None:
        _engine = _start_engine()
    engine, machine = _engine
    # Level 0 inlines @scalar and no more: as fast here as level 2, and four times quicker to compile (4 ms).
    tuning = llvm.create_pipeline_tuning_options(speed_level=0)
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    engine.add_module(module)
    engine.finalize_object()
    return int(engine.get_function_address(name))


def _start_engine() -> tuple[Any, Any]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        opt=2, cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
    )
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine), machine


def _make_ufunc(name: str, kinds: list[str], inputs: int, address: int) -> np.ufunc:
    functions = (ctypes.c_void_p * 1)(address)
    data = (ctypes.c_void_p * 1)(None)
    types = bytes(np.dtype(kind).num for kind in kinds)
    label, doc = name.encode(), b"An operation of the PTX emulator."
    _keep.append((functions, data, types, label, doc))
    result: np.ufunc = _from_func_and_data()(
        ctypes.cast(functions, ctypes.c_void_p),
        ctypes.cast(data, ctypes.c_void_p),
        types, 1, inputs, len(kinds) - inputs, -1, label, doc, 0,
    )  # fmt: skip
    return result


def _from_func_and_data() -> Any:
    """`PyUFunc_FromFuncAndData`, entry 1 of NumPy's ufunc C API (stable since NumPy 1.0)."""
    from numpy._core import _multiarray_umath as umath  # type: ignore[attr-defined]

    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(pointer_of(umath._UFUNC_API, None), ctypes.POINTER(ctypes.c_void_p))
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int,
        ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int,
    )  # fmt: skip
    return prototype(table[1])
