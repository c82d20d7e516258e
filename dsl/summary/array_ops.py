"""How ops on shapes, boxes, indices and matrices are said in TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl.ir.dims import DimLike
from dsl.ir.types import BY_NAME, I64, Shape
from dsl.summary.nodes import MASKS, Emitter, Ref
from dsl.summary.table import EMITTERS, Found, emits, width

__all__: list[str] = []


# -- shapes --------------------------------------------------------------------------------------------------------


@emits("reshape")
def _reshape(t: Emitter, x: Ref, shape: Shape) -> Ref:
    """One size that is not known is what is left over, unless another is 0."""
    unknown = [dim for dim in shape if not isinstance(dim, int)]
    if len(unknown) == 1 and 0 not in shape:
        shape = tuple(dim if isinstance(dim, int) else -1 for dim in shape)
    return t("Reshape", x, t.vector(shape))


@emits("iota")
def _iota(t: Emitter, size: DimLike, dtype: np.dtype) -> Ref:
    return t.cast(t("Range", t.const(0), t.size(size), t.const(1)), dtype)


@emits("pad")
def _pad(t: Emitter, x: Ref, value: Ref, low: Shape, high: Shape) -> Ref:
    flat = t.vector([dim for pair in zip(low, high) for dim in pair])
    paddings = t("Reshape", flat, t.vector((len(low), 2)))
    return t("PadV2", x, paddings, value)


@emits("broadcast_dim")
def _broadcast_dim(t: Emitter, a: Ref, b: Ref) -> Ref:
    return t("SelectV2", t("Equal", a, t.const(1)), b, a)


EMITTERS |= {
    "broadcast_to": lambda t, x, shape: t("BroadcastTo", x, t.vector(shape)),
    "transpose": lambda t, x, axes: t("Transpose", x, t.vector(axes)),
    "concatenate": lambda t, *xs, axis: t("ConcatV2", *xs, t.const(axis)),
    "full": lambda t, value, shape: t("Fill", t.vector(shape), value, gives=value.dtype),
    "dim_size": lambda t, x, axis: t.axis_size(x, axis),
}


# -- boxes ---------------------------------------------------------------------------------------------------------


class _Box:
    """A box in TensorFlow's terms: from `begin` up to `end` by positive steps, along `flipped` axes backwards."""

    def __init__(self, start: Shape, size: Shape, step: Sequence[int]) -> None:
        self.size = size
        self.flipped = [axis for axis, s in enumerate(step) if s < 0]
        self.step = [abs(s) or 1 for s in step]
        spans = [min(n, 1) if s == 0 and isinstance(n, int) else n for n, s in zip(size, step)]
        self.begin = [a + (n - 1) * s if s < 0 else a for a, n, s in zip(start, size, step)]
        self.end = [a + n * s for a, n, s in zip(self.begin, spans, self.step)]
        self.repeats = 0 in step

    def ends(self, t: Emitter) -> list[Ref]:
        return [t.vector(self.begin), t.vector(self.end), t.vector(self.step)]

    def flip(self, t: Emitter, x: Ref) -> Ref:
        return t("ReverseV2", x, t.vector(self.flipped)) if self.flipped else x


@emits("slice")
def _slice(t: Emitter, x: Ref, start: Shape, size: Shape, step: Shape) -> Found:
    if any(s == 0 and not isinstance(n, int) for n, s in zip(size, step)):
        return None
    box = _Box(start, size, _numbers(step))
    taken = box.flip(t, t("StridedSlice", x, *box.ends(t), **MASKS))
    return t("BroadcastTo", taken, t.vector(size)) if box.repeats else taken


def _numbers(step: Shape) -> list[int]:
    return [s for s in step if isinstance(s, int)]


@emits("update_slice")
def _update_slice(t: Emitter, x: Ref, v: Ref, start: Shape, step: Shape) -> Ref:
    box = _Box(start, t.node.inputs[1].shape, _numbers(step))
    return t("TensorStridedSliceUpdate", x, *box.ends(t), box.flip(t, v), **MASKS)


def _moving_box(t: Emitter, start: Ref, axis: int, size: DimLike, step: int) -> list[Ref]:
    """Return begin, end and steps of a box that starts along one axis where the data says; the others are masked."""
    rank = len(t.node.inputs[0].shape)
    if step < 0:
        start = t("AddV2", start, t.size((size - 1) * step))
    stop = t("AddV2", start, t.size(size * abs(step)))
    items = [[0] * axis + [at] + [0] * (rank - 1 - axis) for at in (start, stop)]
    steps = [abs(step) if k == axis else 1 for k in range(rank)]
    return [*(t.vector(item) for item in items), t.vector(steps)]


def _others(t: Emitter, axis: int) -> dict[str, Any]:
    mask = (1 << len(t.node.inputs[0].shape)) - 1 & ~(1 << axis)
    return MASKS | {"begin_mask": mask, "end_mask": mask}


@emits("dynamic_slice")
def _dynamic_slice(
    t: Emitter, x: Ref, start: Ref, axis: int, size: DimLike, step: int = 1
) -> Found:
    if step == 0:
        return None
    ends = _moving_box(t, start, axis, size, step)
    taken = t("StridedSlice", x, *ends, **_others(t, axis))
    return t("ReverseV2", taken, t.vector([axis])) if step < 0 else taken


@emits("update_dynamic_slice")
def _update_dynamic_slice(t: Emitter, x: Ref, v: Ref, start: Ref, axis: int, step: int = 1) -> Ref:
    ends = _moving_box(t, start, axis, t.node.inputs[1].shape[axis], step)
    v = t("ReverseV2", v, t.vector([axis])) if step < 0 else v
    return t("TensorStridedSliceUpdate", x, *ends, v, **_others(t, axis))


# -- indices -------------------------------------------------------------------------------------------------------


def _front(t: Emitter, x: Ref, axes: Sequence[int], back: bool = False) -> Ref:
    """Move axes to the front, or from there back."""
    rank = len(t.node.inputs[0].shape)
    perm = [*axes, *(k for k in range(rank) if k not in axes)]
    if perm == list(range(rank)):
        return x
    return t("Transpose", x, t.vector(np.argsort(perm).tolist() if back else perm))


def _from_start(t: Emitter, index: Ref, axis: int, at: int) -> Ref:
    """Return an index as int64, counted from the start; one that counts from the end is below 0."""
    node = t.node.inputs[at].node
    known = node.op.name == "const" and (node.attrs["value"].array >= 0).all()
    signed, index = index.kind == "i", t.cast(index, I64)
    if known or not signed:
        return index
    size = t.size(t.node.inputs[0].shape[axis])
    return t("SelectV2", t("Less", index, t.const(0)), t("AddV2", index, size), index)


def _together(t: Emitter, indices: Sequence[Ref], axes: Sequence[int], first: int) -> Ref:
    """Return the indices of all axes, broadcast, as vectors along a new last axis."""
    rank = len(t.node.inputs[0].shape)
    whole = t.node.output.shape if first == 1 else t.node.inputs[1].shape
    shape = whole[: len(whole) - (rank - len(axes))]
    found = [
        _from_start(t, index, axis, first + k) for k, (index, axis) in enumerate(zip(indices, axes))
    ]
    if any(t.node.inputs[first + k].shape != shape for k in range(len(axes))):
        found = [t("BroadcastTo", index, t.vector(shape)) for index in found]
    return t("Pack", *found, axis=len(shape))  # fmt: skip


@emits("gather")
def _gather(t: Emitter, x: Ref, *indices: Ref, axes: tuple[int, ...]) -> Ref:
    if not axes:
        return t("Identity", x)
    if len(axes) == 1 and (axes[0] == 0 or not t.node.inputs[1].shape):
        index = _from_start(t, indices[0], axes[0], 1)
        return t("GatherV2", x, index, t.const(axes[0]), batch_dims=0)
    return t("GatherNd", _front(t, x, axes), _together(t, indices, axes, 1))


@emits("scatter")
def _scatter(t: Emitter, x: Ref, v: Ref, *indices: Ref, axes: tuple[int, ...], mode: str) -> Found:
    ordered = mode in ("min", "max")
    if not axes or mode == "multiply" or x.kind == "b" or (ordered and x.kind == "c"):
        return None
    places = _together(t, indices, axes, 2)
    if not t.node.inputs[1].shape:  # TensorFlow wants a list of writes
        places, v = (t("ExpandDims", ref, t.const(0)) for ref in (places, v))
    made = t(f"TensorScatter{mode.capitalize()}", _front(t, x, axes), places, v)
    return _front(t, made, axes, back=True)


@emits("nonzero")
def _nonzero(t: Emitter, x: Ref) -> Sequence[Ref]:
    rank = len(t.node.outputs)
    rows = t("Where", x if x.kind == "b" else t("NotEqual", x, t.like(x, 0)), gives=I64)
    return t.outputs(t("Unpack", rows, num=rank, axis=1), *[I64] * rank)


@emits("searchsorted")
def _searchsorted(t: Emitter, a: Ref, v: Ref, side: str) -> Found:
    if a.kind not in "fiu":
        return None
    rows = [t("Reshape", x, t.vector((1, -1))) for x in (a, v)]
    op = "LowerBound" if side == "left" else "UpperBound"
    found = t(op, *rows, gives=I64, out_type=I64)
    return t("Reshape", found, t.vector(t.node.inputs[1].shape))


# -- matrices and transforms ---------------------------------------------------------------------------------------


@emits("matmul")
def _matmul(t: Emitter, x: Ref, y: Ref) -> Found:
    if x.kind in "bu" or (x.kind == "i" and width(x) < 4):
        return None
    ranks = [len(value.shape) for value in t.node.inputs]
    x = t("ExpandDims", x, t.const(0)) if ranks[0] == 1 else x
    y = t("ExpandDims", y, t.const(-1)) if ranks[1] == 1 else y
    if max(ranks) > 2:
        made = t("BatchMatMulV2", x, y, adj_x=False, adj_y=False)
    else:
        made = t("MatMul", x, y, transpose_a=False, transpose_b=False)
    unit = [axis for axis, rank in ((-2, ranks[0]), (-1, ranks[1])) if rank == 1]
    return t("Squeeze", made, squeeze_dims=unit) if unit else made


@emits("solve")
def _solve(t: Emitter, a: Ref, b: Ref) -> Found:
    batches = {value.shape[:-2] for value in t.node.inputs}
    return t("MatrixSolve", a, b, adjoint=False) if len(batches) == 1 else None


@emits("triangular_solve")
def _triangular_solve(
    t: Emitter, a: Ref, b: Ref, lower: bool, transpose: bool, unit: bool
) -> Found:
    if unit or (transpose and a.kind == "c"):
        return None
    return t("MatrixTriangularSolve", a, b, lower=lower, adjoint=transpose)


@emits("slogdet")
def _slogdet(t: Emitter, x: Ref) -> Found:
    return None if x.kind == "c" else t.outputs(t("LogMatrixDeterminant", x), x.dtype, x.dtype)


def _on_last_axis(t: Emitter, axis: int) -> bool:
    return axis == len(t.node.inputs[0].shape) - 1


@emits("fft")
def _fft(t: Emitter, x: Ref, n: DimLike, axis: int, inverse: bool) -> Found:
    if not _on_last_axis(t, axis):
        return None
    return t("Mul", t("IFFT", x), t.cast(t.size(n), x.dtype)) if inverse else t("FFT", x)


@emits("rfft")
def _rfft(t: Emitter, x: Ref, n: DimLike, axis: int) -> Found:
    if not _on_last_axis(t, axis):
        return None
    out = t.node.output.dtype
    return t("RFFT", x, t.cast(t.vector([n]), BY_NAME["i32"]), gives=out, Tcomplex=out)


@emits("irfft")
def _irfft(t: Emitter, x: Ref, n: DimLike, axis: int) -> Found:
    if not _on_last_axis(t, axis):
        return None
    out = t.node.output.dtype
    made = t("IRFFT", x, t.cast(t.vector([n]), BY_NAME["i32"]), gives=out, Treal=out)
    return t("Mul", made, t.cast(t.size(n), out))


@emits("qr")
def _qr(t: Emitter, x: Ref, mode: str) -> Found:
    found = t.outputs(t("Qr", x, full_matrices=mode == "complete"), x.dtype, x.dtype)
    return found[1:] if mode == "r" else found


@emits("eigh", "eigvalsh")
def _eigh(t: Emitter, x: Ref, lower: bool) -> Found:
    if x.kind == "c" or not lower:
        return None
    vectors = len(t.node.outputs) == 2
    made = t("SelfAdjointEigV2", x, compute_v=vectors)
    return t.outputs(made, *[x.dtype] * len(t.node.outputs))


@emits("svdvals")
def _svdvals(t: Emitter, x: Ref) -> Found:
    return None if x.kind == "c" else t("Svd", x, compute_uv=False, full_matrices=False)


EMITTERS |= {
    "cholesky": lambda t, x, upper: None if upper else t("Cholesky", x),
    "inv": lambda t, x: t("MatrixInverse", x, adjoint=False),
    "det": lambda t, x: t("MatrixDeterminant", x),
}
