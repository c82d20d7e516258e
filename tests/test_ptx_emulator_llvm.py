"""The PTX emulator on what LLVM's NVPTX backend emits, libdevice included."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from ptx_kernels import run


@cache
def target_machine(sm: str, ptx: str) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple("nvptx64-nvidia-cuda").create_target_machine(
        opt=3, cpu=sm, features=ptx
    )


def compile_ir(text: str, sm: str = "sm_80", ptx: str = "+ptx78", library: bytes = b"") -> str:
    machine = target_machine(sm, ptx)
    module = llvm.parse_assembly('target triple = "nvptx64-nvidia-cuda"\n' + text)
    if library:
        device = llvm.parse_bitcode(library)
        device.triple, device.data_layout = module.triple, module.data_layout
        module.link_in(device)
        for function in module.functions:
            if not function.is_declaration and function.name != "k":
                function.linkage = "internal"
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


PROLOGUE = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
define internal i32 @index() alwaysinline {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %b = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %w = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %m = mul i32 %b, %w
  %i = add i32 %m, %t
  ret i32 %i
}
"""


def elementwise(t: str, body: str, declarations: str = "") -> str:
    """IR of a kernel that maps %v to %r."""
    return f"""{declarations}{PROLOGUE}
define ptx_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %in, i32 %n) {{
  %i = call i32 @index()
  %c = icmp slt i32 %i, %n
  br i1 %c, label %go, label %done
go:
  %j = sext i32 %i to i64
  %a = getelementptr {t}, ptr addrspace(1) %in, i64 %j
  %o = getelementptr {t}, ptr addrspace(1) %out, i64 %j
  %v = load {t}, ptr addrspace(1) %a
{body}
  store {t} %r, ptr addrspace(1) %o
  br label %done
done:
  ret void
}}"""


@pytest.mark.parametrize(
    ("sm", "ptx"),
    [("sm_75", "+ptx63"), ("sm_80", "+ptx78"), ("sm_90", "+ptx80"), ("sm_100", "+ptx86")],
)
@pytest.mark.parametrize(("t", "dtype"), [("float", "f4"), ("double", "f8"), ("half", "f2")])
def test_llvm_elementwise(t: str, dtype: str, sm: str, ptx: str) -> None:
    body = f"  %s = fmul {t} %v, %v\n  %q = fadd {t} %s, 1.0\n  %r = fdiv {t} %v, %q"
    x = np.random.default_rng(1).normal(0, 3, 1000).astype(dtype)
    got = run(compile_ir(elementwise(t, body), sm, ptx), x, 8, 128)
    np.testing.assert_allclose(got, x / (x * x + x.dtype.type(1)), rtol=4 * np.finfo(dtype).eps)


def test_llvm_integers_and_loops() -> None:
    body = """  br label %loop
loop:
  %x = phi i32 [%v, %go], [%y, %loop]
  %k = phi i32 [0, %go], [%k1, %loop]
  %h = lshr i32 %x, 3
  %m = mul i32 %h, 747796405
  %s = call i32 @llvm.fshl.i32(i32 %m, i32 %m, i32 7)
  %q = sdiv i32 %s, 1000
  %y = xor i32 %q, %x
  %k1 = add i32 %k, 1
  %and = and i32 %v, 15
  %again = icmp ult i32 %k1, %and
  br i1 %again, label %loop, label %end
end:
  %r = call i32 @llvm.ctpop.i32(i32 %y)"""
    x = np.random.default_rng(2).integers(0, 2**32, 500, dtype="u4")
    expected = []
    for v in x.tolist():
        y = v
        for _ in range(max(1, v & 15)):
            m = (y >> 3) * 747796405 & 0xFFFFFFFF
            s = (m << 7 | m >> 25) & 0xFFFFFFFF
            s = s - 2**32 if s >= 2**31 else s
            y ^= int(s / 1000) & 0xFFFFFFFF
        expected.append(y.bit_count())
    text = elementwise(
        "i32", body, "declare i32 @llvm.fshl.i32(i32, i32, i32)\ndeclare i32 @llvm.ctpop.i32(i32)\n"
    )
    assert run(compile_ir(text), x, 4, 128).tolist() == expected


def libdevice() -> Path | None:
    places = [Path(p) / "triton/backends/nvidia/lib/libdevice.10.bc" for p in sys.path]
    places += list(Path("/usr/local").glob("cuda*/nvvm/libdevice/libdevice.10.bc"))
    for p in sys.path:
        places += list(Path(p).glob("nvidia/*/nvvm/libdevice/libdevice.10.bc"))
    return next((p for p in places if p.exists()), None)


@pytest.mark.parametrize(
    ("name", "t", "dtype", "function", "ulps"),
    [("sin", "double", "f8", np.sin, 4), ("exp", "double", "f8", np.exp, 4), ("log", "double", "f8", np.log, 4),
     ("sinf", "float", "f4", np.sin, 8), ("expf", "float", "f4", np.exp, 8), ("tanhf", "float", "f4", np.tanh, 8),
     ("powf", "float", "f4", lambda v: np.power(v, v), 16)],
)  # fmt: skip
def test_libdevice(name: str, t: str, dtype: str, function: Any, ulps: int) -> None:
    path = libdevice()
    if path is None:
        pytest.skip("no libdevice")
    arguments = f"{t} %v, {t} %v" if name == "powf" else f"{t} %v"
    types = f"{t}, {t}" if name == "powf" else t
    text = elementwise(
        t, f"  %r = call {t} @__nv_{name}({arguments})", f"declare {t} @__nv_{name}({types})\n"
    )
    text += '\n!llvm.module.flags = !{!0}\n!0 = !{i32 4, !"nvvm-reflect-ftz", i32 0}'
    x = (abs(np.random.default_rng(3).normal(0, 3, 300)) + 0.01).astype(dtype)
    got = run(compile_ir(text, library=path.read_bytes()), x, 3, 128)
    np.testing.assert_allclose(got, function(x.astype("f8")), rtol=ulps * np.finfo(dtype).eps)
