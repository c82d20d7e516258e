"""The built-in ops, one file per family; importing this package registers them all."""

from dsl.ir.ops import comm, control, elementwise, fft, index, linalg, random, reduce, shape, state

__all__ = [
    "comm",
    "control",
    "elementwise",
    "fft",
    "index",
    "linalg",
    "random",
    "reduce",
    "shape",
    "state",
]
