"""Emits kernels: loop nests over an iteration space, vectorised inside and spread over threads outside.

Five shapes, chosen by which axes are reduced:
- maps: no reduction; contiguous axes are merged into one loop, transposing reads are tiled;
- split: everything is reduced; fixed-size chunks give partial results, which are combined pairwise;
- rows: the last axis is reduced; rows are spread over threads, each row is swept stage by stage with its results in
  registers;
- short rows: the last axis is reduced, and has a few elements; vectors go along the axis before it;
- panels: the last axis is kept; panels of some columns are spread over threads, and a row's results are short vectors.

Chunks and panels depend on sizes alone, so the result has the same bits for any number of threads.
"""

from __future__ import annotations

from dsl.codegen.kernels.emitter import KernelEmitter
from dsl.codegen.kernels.space import KernelHost

__all__ = ["KernelEmitter", "KernelHost"]
