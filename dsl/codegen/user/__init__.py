"""Kernels that users write in Python and numba compiles: their LLVM becomes part of the programs that call them."""
