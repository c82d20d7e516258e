"""The derivatives of the built-in ops, in files as the ops are."""

from dsl.ir.derivatives import comm, control, elementwise, fft, index, linalg, random, reduce, shape

__all__ = ["comm", "control", "elementwise", "fft", "index", "linalg", "random", "reduce", "shape"]
