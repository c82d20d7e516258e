"""Kernels in PTX for the emulator's tests: one instruction on arrays of operands, or a body with its usual prologue."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from dsl.codegen.cuda.emulator import Counters, Memory, PtxError, PtxModule

Array = np.ndarray[Any, Any]

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"

# NumPy's type for each PTX type, and the register that holds it.
DTYPES = {
    "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "b32": "u4", "u32": "u4",
    "s32": "i4", "f32": "f4", "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8", "bf16": "u2", "f16x2": "u4",
    "bf16x2": "u4", "tf32": "u4",
}  # fmt: skip


def register_type(ptx_type: str) -> str:
    return f"b{max(16, 8 * np.dtype(DTYPES[ptx_type]).itemsize)}"


def move_type(ptx_type: str) -> str:
    """The type to load and store with."""
    return f"b{8 * np.dtype(DTYPES[ptx_type]).itemsize}"


def one_instruction(text: str, result: str, operands: list[str], name: str = "k") -> str:
    """A kernel that runs `text` with {d} and {a}, {b}, ... on one element per thread.

    A result type "pred" is stored as a byte.
    """
    inputs = [f"  .param .u64 in{k}," for k in range(len(operands))]
    lines = [f".visible .entry {name}(", "  .param .u64 out,", *inputs, "  .param .u32 n", ")", "{"]
    stored = "b16" if result == "pred" else register_type(result)
    lines += [
        ".reg .pred %p, %q, %s;",
        ".reg .b32 %i, %n, %t;",
        ".reg .b64 %x, %o, %y;",
        f".reg .{stored} %d;",
    ]
    lines += [f".reg .{register_type(t)} %v{k};" for k, t in enumerate(operands)]
    lines += [
        "mov.u32 %i, %ctaid.x;",
        "mov.u32 %t, %ntid.x;",
        "mov.u32 %n, %tid.x;",
        "mad.lo.u32 %i, %i, %t, %n;",
    ]
    lines += ["ld.param.u32 %n, [n];", "setp.ge.u32 %p, %i, %n;", "@%p bra DONE;"]
    for k, t in enumerate(operands):
        size = np.dtype(DTYPES[t]).itemsize
        lines += [f"ld.param.u64 %x, [in{k}];", f"mad.wide.u32 %y, %i, {size}, %x;", f"ld.global.{move_type(t)} %v{k}, [%y];"]  # fmt: skip
    names = {chr(97 + k): f"%v{k}" for k in range(len(operands))}
    names["d"] = "%p" if result == "pred" else "%d"
    lines.append(text.format(**names))
    size = 1 if result == "pred" else np.dtype(DTYPES[result]).itemsize
    width = "b8" if result == "pred" else move_type(result)
    if result == "pred":
        lines.append("selp.b16 %d, 1, 0, %p;")
    lines += [
        "ld.param.u64 %o, [out];",
        f"mad.wide.u32 %y, %i, {size}, %o;",
        f"st.global.{width} [%y], %d;",
    ]
    return "\n".join([*lines, "DONE:", "ret;", "}"])


@cache
def compiled(text: str) -> PtxModule:
    return PtxModule(text)


def evaluate(text: str, result: str, types: list[str], *inputs: Array, block: int = 64) -> Array:
    """What one instruction makes of arrays of operands."""
    n = inputs[0].size
    memory = Memory()
    dtype = "b1" if result == "pred" else DTYPES[result]
    out = memory.allocate(np.dtype(dtype).itemsize * n)
    places = []
    for array, t in zip(inputs, types):
        place = memory.allocate(array.nbytes)
        memory.write(place, array.view(DTYPES[t]))
        places.append(place)
    module = compiled(HEADER + one_instruction(text, result, types))
    module.launch(memory, "k", (-(-n // block),), (block,), [out, *places, n])
    return memory.read(out, dtype, n)


# Operands -------------------------------------------------------------------------------------------------------------

EDGES = {
    "u1": [0, 1, 127, 128, 255], "i1": [0, 1, -1, 127, -128], "u2": [0, 1, 2, 0x7FFF, 0x8000, 0xFFFF],
    "i2": [0, 1, -1, 2, 0x7FFF, -0x8000], "u4": [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
    "i4": [0, 1, -1, 2, 31, 32, 0x7FFFFFFF, -0x80000000],
    "u8": [0, 1, 63, 64, 0xFFFFFFFF, 0x100000000, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF],
    "i8": [0, 1, -1, 63, 64, 0x7FFFFFFFFFFFFFFF, -0x8000000000000000],
}  # fmt: skip
FLOAT_EDGES = [
    0.0, -0.0, 1.0, -1.0, 1.5, 2.5, -2.5, 0.1, 3e38, -3e38, 1e-40, -1e-45, np.inf, -np.inf, np.nan, 65504.0, 65520.0,
    6e-8, 1e300, 1e-310,
]  # fmt: skip


def operands(dtype: str, count: int, seed: int) -> list[Array]:
    """`count` arrays: every combination of edge values, then random ones."""
    rng = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        if dtype[0] == "f":
            edges = np.array(FLOAT_EDGES).astype(dtype)
            bits = rng.integers(0, 2 ** (8 * int(dtype[1])), (count, 300), np.uint64)
            wild = bits.astype(f"u{dtype[1]}").view(dtype)
            tame = rng.normal(0, 10, (count, 300)).astype(dtype)
            random = np.concatenate([wild, tame], 1)
        else:
            edges = np.array(EDGES[dtype], dtype)
            info = np.iinfo(dtype)
            random = rng.integers(info.min, info.max, (count, 300), dtype, endpoint=True)
            small = rng.integers(0, 40, (count, 100)).astype(dtype)
            random = np.concatenate([random, small], 1)
    grid = np.meshgrid(*[edges] * count, indexing="ij")
    return [np.concatenate([g.ravel()[:1000], r]) for g, r in zip(grid, random)]


def same(got: Array, expected: Array) -> None:
    """Equal bits, or both NaN."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    bits = got.view(f"u{got.itemsize}") == expected.view(f"u{got.itemsize}")
    if got.dtype.kind == "f":
        bits |= np.isnan(got) & np.isnan(expected)
    wrong = np.flatnonzero(~bits)
    assert wrong.size == 0, (
        f"{wrong.size} differ, first at {wrong[0]}: {got[wrong[0]]!r} not {expected[wrong[0]]!r}"
    )


def of_types(types: list[str], seed: int) -> list[Array]:
    arrays = [operands(DTYPES[t], 2, seed + k)[0] for k, t in enumerate(types)]
    n = max(a.size for a in arrays)
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.resize(a, n)) for a in arrays]


# Whole kernels ------------------------------------------------------------------------------------------------------------


def kernel(
    body: str, before: str = "", params: str = ".param .u64 out, .param .u64 in, .param .u32 n"
) -> str:
    """A kernel with %t the thread, %i the global index, %x and %o the element's addresses in `in` and `out`."""
    return f"""{HEADER}{before}
.visible .entry k({params})
{{
.reg .pred %p<20>; .reg .b16 %h<20>; .reg .b32 %r<60>; .reg .b64 %rd<60>;
.reg .b32 %t, %i, %n, %b, %w; .reg .b64 %x, %o, %in, %out;
mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %w, %ntid.x; mad.lo.u32 %i, %b, %w, %t;
ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; ld.param.u32 %n, [n];
mad.wide.u32 %x, %i, 4, %in; mad.wide.u32 %o, %i, 4, %out;
{body}
}}"""


def run(
    text: str,
    x: Array,
    grid: int = 1,
    block: int = 32,
    n: int | None = None,
    out: Any = None,
    **options: Any,
) -> Array:
    """Launch `k(out, in, n)` and return out, by default like x."""
    memory = Memory()
    result = np.zeros_like(x) if out is None else out
    a, b = memory.allocate(result.nbytes), memory.allocate(x.nbytes)
    memory.write(a, result)
    memory.write(b, x)
    PtxModule(text).launch(
        memory, "k", (grid,), (block,), [a, b, x.size if n is None else n], **options
    )
    return memory.read(a, result.dtype, result.size)


def count(body: str, x: Array, grid: int = 1, block: int = 32, before: str = "") -> Counters:
    memory = Memory()
    a, b = memory.allocate(4 * x.size), memory.allocate(x.nbytes)
    memory.write(b, x)
    return PtxModule(kernel(body, before)).launch(
        memory, "k", (grid,), (block,), [a, b, x.size], count=True
    )


def refused(text: str, match: str, x: Array | None = None, **options: Any) -> PtxError:
    """The error of a launch, which must name the line marked `// here`."""
    with pytest.raises(PtxError, match=match) as caught:
        run(text, np.arange(64, dtype="u4") if x is None else x, **options)
    expected = [k for k, line in enumerate(text.split("\n"), 1) if "// here" in line]
    assert [caught.value.line] == expected, str(caught.value)
    assert caught.value.kernel == "k"
    assert "// here" in str(caught.value)
    return caught.value
