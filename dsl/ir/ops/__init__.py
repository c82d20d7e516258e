"""The built-in ops, one file per family; importing this package registers them all."""

from dsl.ir.ops import control, elementwise, fft, index, linalg, random, reduce, shape, state

__all__ = ["control", "elementwise", "fft", "index", "linalg", "random", "reduce", "shape", "state"]
