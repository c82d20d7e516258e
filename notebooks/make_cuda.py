"""Write notebooks/cuda.ipynb and run it: `python notebooks/make_cuda.py`. No GPU is needed."""

from __future__ import annotations

from cells import write

CELLS = r'''
# Kernels for a GPU, without a GPU

dsl writes kernels for NVIDIA GPUs as PTX, NVIDIA's assembly language. This notebook reads some, runs them on the emulator, and
counts what they do. **Nothing that you see here has run on a GPU yet**: there was none where it was written. NVIDIA's assembler
accepts the kernels, and the emulator's results are NumPy's; how fast they are is not known. [The page on CUDA](../docs/cuda.md)
says what was tested how.
---
import re
from itertools import zip_longest

import numpy as np
from IPython.display import HTML, display

import dsl
from dsl.codegen.cuda.emulated import EmulatedGpu
from dsl.codegen.cuda.emulator import Memory, PtxError, PtxModule
===
## One function, two machines

A plan of loops becomes machine code for the CPU, or a kernel. Where the CPU has a loop over vectors, the GPU has a thread for four
numbers.
---
def damped(x, y):
    return x / (1 + y * y)


rng = np.random.default_rng(0)
x, y = rng.normal(size=(2, 1 << 16)).astype(np.float32)
lowered = dsl.jit(damped).lower(x, y)
print(lowered.text("kernels"))
===
The inner loop on the CPU, and the kernel. The GPU's threads differ by `%ctaid.x`, the number of the block, and `%tid.x`, that of
the thread in its block. `ld.global.nc.v4` reads four numbers at once, 16 bytes; a warp, 32 threads that go in step, reads 512 bytes
that lie together.
---
# Differs from machine to machine.
def inner_loop(asm):
    blocks = re.split(r"(?m)^(?=\.LBB\d+_\d+:)", asm)
    loops = [
        b for b in blocks if re.search(rf"\t(j|b)[\w.]*\t{re.escape(b.partition(':')[0])}\b", b)
    ]
    return max(loops, key=lambda b: len(re.findall(r"%[xyz]mm|\bv\d+\.", b)), default=asm)


def body(ptx):
    return re.search(r"(?s)\{\n(.*?)\n\}", ptx)[1]


def beside(left, right, width=60):
    rows = zip_longest(
        left.expandtabs(8).splitlines(), right.expandtabs(8).splitlines(), fillvalue=""
    )
    return "\n".join(f"{a[:width]:<{width}} | {b}".rstrip() for a, b in rows)


print(beside(inner_loop(lowered.text("asm")), body(lowered.text("ptx"))))
===
## The emulator

`cuda-emulator:0` is a device that every machine has. It executes the PTX for all threads of a block, instruction by instruction.
---
emulated = dsl.jit(device="cuda-emulator:0")(damped)
np.array_equal(emulated(x, y), damped(x, y))
===
It can count what a kernel does. Memory moves in sectors of 32 bytes; those that a warp asks for, over those that would do, tell how
well its accesses lie together. Three programs that each read an array and write one:
---
def same(x):
    return x + 1


def turned(x):
    return x.T.copy()


def every_eighth(x):
    return x[:, ::8] + 1


def count(function, *args):
    gpu = EmulatedGpu()
    gpu.launches = []
    program = dsl.jit(function).lower(*args).device_program
    (result,) = program(gpu, list(args))
    assert np.array_equal(result, function(*args))
    return gpu.launches


square = rng.normal(size=(512, 512)).astype(np.float32)
print(f"{'':<14}{'bytes read':>12}{'written':>10}{'sectors':>9}{'ideal':>8}{'barriers':>10}")
for function in (same, turned, every_eighth):
    for _, c in count(function, square):
        sectors, ideal = (
            c.load_sectors + c.store_sectors,
            c.load_sectors_ideal + c.store_sectors_ideal,
        )
        print(
            f"{function.__name__:<14}{c.global_loaded:>12}{c.global_stored:>10}{sectors:>9}{ideal:>8}{c.barriers:>10}"
        )
===
The transpose is as good as the copy: square tiles pass through shared memory, so that a warp reads along rows and writes along
rows; its barrier, once in each block, stands between the two. A slice with a step reads a sector for every number, and nothing can
be done about it.
===
## Threads and rows

Softmax goes over each row three times. A team of threads holds its row in registers, so memory is read once and written once.
---
def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


rows = rng.normal(size=(16, 1024)).astype(np.float32)
program = dsl.jit(softmax).lower(rows).device_program
ptx = program.ptx()
((geometry, what),) = program.lowering.kernels.values()
loads = len(re.findall(r"ld\.global\.nc\.v4", ptx))
threads = rows.shape[1] // (4 * loads)
print(f"one kernel: {what}")
print(f"{geometry.grid[0]} blocks of {geometry.block} threads")
print(
    f"a thread makes {loads} loads of 4 numbers: {threads} threads share a row, {geometry.block // threads} rows are in a block"
)
print(
    f"shuffles: {len(re.findall('shfl.sync', ptx))}, barriers: {len(re.findall('bar.sync', ptx))}"
)
===
Two rows of a block: each colour is a warp, each cell four numbers that one thread reads at once. A thread comes back four times, so
that every time the lanes of a warp read what lies together.
---
WARPS = ["#3b6ea5", "#e08e45", "#5a9e6f", "#a15c9b"]


def picture(rows, row_threads, steps, cell=4, height=26):
    parts = []
    for row in range(rows):
        for step in range(steps):
            for thread in range(row_threads):
                warp = (row * row_threads + thread) // 32
                left, top = (step * row_threads + thread) * cell, row * (height + 22) + 16
                title = f"thread {row * row_threads + thread}, load {step}"
                parts.append(
                    f'<rect x="{left}" y="{top}" width="{cell - 0.5}" height="{height}" '
                    f'fill="{WARPS[warp]}" opacity="{1 - 0.18 * step}"><title>{title}</title></rect>'
                )
        parts.append(
            f'<text x="0" y="{row * (height + 22) + 12}" font-size="11">row {row} of the block</text>'
        )
    size = f'width="{row_threads * steps * cell}" height="{rows * (height + 22)}"'
    return f"<svg {size}>{''.join(parts)}</svg>"


display(HTML(picture(geometry.block // threads, threads, loads)))
===
The threads of a row unite their maxima and their sums: five shuffles within a warp, then one number of each warp through shared
memory, which takes a barrier, and one more shuffle.
---
((_, c),) = count(lambda x: x - x.max(axis=1, keepdims=True), rows)
print("read", c.global_loaded, "bytes of", rows.nbytes, "and written", c.global_stored)
print("shuffles of each thread:", c.shuffles / (8 * 128), "barriers of each block:", c.barriers / 8)
===
## What the emulator does not forgive

A GPU that reads beyond an array often returns something, and sometimes what was hoped for. Here is a kernel, by hand, whose threads
each double a number, and which forgets to ask whether there is one.
---
DOUBLE = """
.version 6.3
.target sm_75
.address_size 64
.visible .entry twice(.param .u64 p)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .reg .f32 %f<3>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    add.f32 %f2, %f1, %f1;
    st.global.f32 [%rd3], %f2;
    ret;
}
"""
memory = Memory()
address = memory.allocate(100 * 4)
memory.write(address, np.arange(100, dtype=np.float32))
try:
    PtxModule(DOUBLE).launch(memory, "twice", grid=1, block=128, args=[address])
except PtxError as error:
    print(error)
===
Threads that exchange numbers through shared memory must wait for one another. This kernel turns a block of numbers around, without
a barrier between the store and the load, on a GPU a mistake that shows now and then:
---
TURN = """
.version 6.3
.target sm_75
.address_size 64
.visible .entry turn(.param .u64 p)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 tile[256];
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    shl.b32 %r3, %r1, 2;
    mov.u32 %r4, tile;
    add.u32 %r5, %r4, %r3;
    st.shared.u32 [%r5], %r2;
    BARRIER
    sub.u32 %r6, 252, %r3;
    add.u32 %r6, %r4, %r6;
    ld.shared.u32 %r7, [%r6];
    st.global.u32 [%rd3], %r7;
    ret;
}
"""


def turn(barrier):
    memory = Memory()
    address = memory.allocate(64 * 4)
    memory.write(address, np.arange(64, dtype=np.int32))
    PtxModule(TURN.replace("BARRIER", barrier)).launch(
        memory, "turn", grid=1, block=64, args=[address]
    )
    return memory.read(address, np.int32, 64)


try:
    turn("")
except PtxError as error:
    print(error)
print(turn("bar.sync 0;"))
===
## What is not known

Time. A data sheet tells how long the bytes take at least: `python -m dsl bench cuda --static` prints that for all benchmark
programs, with bytes, sectors, registers, spills and occupancy, and calls it an estimate. `python -m dsl bench cuda` measures,
beside CuPy, JAX and PyTorch, where there is a GPU. If you have one, what it prints is welcome.

More in [CUDA](../docs/cuda.md) and [native code](../docs/native-code.md); [one function at every stage](stages.ipynb) shows the way
up to the plan.
'''

if __name__ == "__main__":
    write("cuda", CELLS)
