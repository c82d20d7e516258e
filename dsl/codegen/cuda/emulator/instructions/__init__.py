"""How each PTX instruction becomes Python: `EMIT[opcode](emitter, instruction)` writes its lines."""

from __future__ import annotations

from collections.abc import Callable

from dsl.codegen.cuda.emulator.emitter import Emitter
from dsl.codegen.cuda.emulator.instructions import (
    arithmetic,
    bits,
    compare,
    convert,
    floats,
    memory,
    moves,
    warps,
)  # fmt: skip
from dsl.codegen.cuda.emulator.syntax import Instruction

__all__ = ["EMIT"]

EMIT: dict[str, Callable[[Emitter, Instruction], None]] = {
    **arithmetic.EMIT, **bits.EMIT, **compare.EMIT, **convert.EMIT, **floats.EMIT, **memory.EMIT, **moves.EMIT,
    **warps.EMIT,
}  # fmt: skip
