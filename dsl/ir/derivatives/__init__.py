"""The derivatives of the built-in ops, in files as the ops are."""

from dsl.ir.derivatives import control, elementwise, fft, index, linalg, random, reduce, shape

__all__ = ["control", "elementwise", "fft", "index", "linalg", "random", "reduce", "shape"]
