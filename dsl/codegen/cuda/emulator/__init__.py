"""A PTX emulator: the PTX that a GPU would load, run on the CPU with threads as lanes of NumPy arrays.

In: PTX text, a `Memory`, a grid. Out: the memory changed as a GPU would have changed it, or a `PtxError` that names
the PTX line and thread of an out-of-bounds or unaligned access, a race, a divergent barrier, or what is unsupported.

>>> memory = Memory()
>>> PtxModule(".version 7.0\\n.target sm_75\\n.address_size 64\\n.entry nothing() { ret; }").kernels["nothing"].params
[]
"""

from __future__ import annotations

from dsl.codegen.cuda.emulator.counters import Counters
from dsl.codegen.cuda.emulator.errors import PtxError
from dsl.codegen.cuda.emulator.memory import Memory
from dsl.codegen.cuda.emulator.module import Kernel, PtxModule

__all__ = ["Counters", "Kernel", "Memory", "PtxError", "PtxModule"]
