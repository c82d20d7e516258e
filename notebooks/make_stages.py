"""Write notebooks/stages.ipynb and run it: `python notebooks/make_stages.py`."""

from __future__ import annotations

from cells import write

CELLS = r"""
# One function at every stage

From Python source to machine code: what dsl makes of a function, stage by stage. The function balances a matrix (Sinkhorn's
method): it scales rows and columns in turn, until the sums of both are 1.
---
import json
import re
import tempfile
import timeit
from pathlib import Path

import numpy as np
from IPython.display import Image, display

import dsl

dsl.config.update(cache_dir="off")  # to see what compiling takes


@dsl.jit
def balance(m, sweeps):
    for _ in range(sweeps):
        m = m / m.sum(axis=1, keepdims=True)
        m = m / m.sum(axis=0)
    return m


matrix = np.random.default_rng(0).uniform(0.1, 1.0, size=(256, 256)).astype(np.float32)
balanced = balance(matrix, 20)
print("sums of rows near 1:", np.allclose(balanced.sum(axis=1), 1))
print("sums of columns near 1:", np.allclose(balanced.sum(axis=0), 1))
---
lowered = balance.lower(matrix, 20)
===
## Traced

The function ran once on stand-ins for its arguments; what it did became nodes. The loop is one `scan` node that owns its body.
---
print(lowered.text("traced", locations=False))
===
## Optimized

The passes have made it smaller: `sweeps - 0` is `sweeps`. Each line knows the line of Python that it comes from.
---
print(lowered.text("optimized", locations=False))
---
lowered.show("optimized")
===
## Lowered

The same in the flat spelling, in which a loop is a frame and tokens travel through `enter`, `switch`, `next_iteration` and `exit`.
Back edges are orange. Machine code is made from the structured form above, not from this one.
---
lowered.show("lowered")
===
## Kernels

The plan of the machine code. Two kernels per trip: one over rows, one over columns. Each row (or panel of columns) is swept
twice while it is in the cache; its sum stays in a register. No array is made in between.
---
print(lowered.text("kernels"))
===
## Memory

One array: the result. The argument is copied once, since the caller keeps it; from then on the loop divides in place.
---
report = lowered.memory_report()
print(re.sub(r"\(.*:(\d+)\)", r"(line \1)", report))
===
## LLVM

One module for the whole function. `dsl_program` gets the frame, which holds arguments and results, and the context of the
call. Here are the lines that define functions and call the run-time library.
---
# Differs from machine to machine.
llvm = lowered.text("llvm")
print(len(llvm.splitlines()), "lines, of which:")
print("\n".join(re.findall(r"^define .*|^.*call .*@dsl_.*", llvm, re.MULTILINE)))
===
## Machine code

The loop that has the most vector instructions. On a CPU with AVX-512 a `zmm` register holds sixteen numbers of float32.
---
# Differs from machine to machine.
asm = lowered.text("asm")
blocks = re.split(r"(?m)^(?=\.LBB\d+_\d+:)", asm)


def is_loop(block):
    label = block.partition(":")[0]
    return re.search(rf"\t(j|b)[\w.]*\t{re.escape(label)}\b", block)


def vectors(block):
    return len(re.findall(r"%[xyz]mm|\bv\d+\.", block))


inner = max(filter(is_loop, blocks), key=vectors, default=asm)
print(len(asm.splitlines()), "lines in all; the inner loop:\n")
print("\n".join(inner.splitlines()[:40]))
===
## Time

What each phase of the compile took, in milliseconds: tracing, the passes, emitting LLVM IR, and LLVM's own, from `start`, which is
loading it, to `link`. They would be 0 if the code were found in the disk cache, which is off in this notebook. `native` is all from
`emit` on, and here, in the first function of the process, includes compiling dsl's run-time library.
---
# Differs from machine to machine.
for phase, seconds in lowered.times.items():
    print(f"{phase:>14} {1e3 * seconds:8.2f}")
===
And a call, beside NumPy's:
---
# Differs from machine to machine.
def best(function):
    return 1e3 * min(timeit.repeat(lambda: function(matrix, 20), number=1, repeat=20))


print(f"compiled {best(balance):.2f} ms, NumPy {best(balance.__wrapped__):.2f} ms")
===
## The benchmark

The record of `python -m dsl bench --json benchmarks/results/latest.json`, drawn. [What is measured](../benchmarks/README.md) is told there.
---
# Differs from machine to machine.
record = Path("../benchmarks/results/latest.json")
try:
    from dsl.commands.bench import plot

    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "benchmark.png"
        plot.draw(picture, json.loads(record.read_text()))
        display(Image(picture.read_bytes()))
except FileNotFoundError:
    print("There is no record: run `python -m dsl bench --json benchmarks/results/latest.json`.")
except ModuleNotFoundError as error:
    print(f'There is no {error.name}: run `pip install -e ".[bench]"`.')
===
More in [Native code](../docs/native-code.md); [the tour](tour.ipynb) shows what a user sees.
"""

if __name__ == "__main__":
    write("stages", CELLS)
