"""The types of values: dtypes with their short names, tensors, and handles.

`TensorType(dtype, shape)` prints as `f64[3, n]`; a rank-0 tensor is `i64[]`. Dtypes are NumPy's, with `bfloat16`
from ml_dtypes; their byte order is always native.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import ml_dtypes
import numpy as np

from dsl.errors import ShapeError
from dsl.ir.dims import Dim, DimLike, evaluate, lower_bound, substitute, symbols_of

__all__ = [
    "BFLOAT16", "BOOL", "BY_NAME", "DTYPES", "I64", "HandleType", "Shape", "TensorType", "ValueType", "bind_shape",
    "broadcast_shapes", "dtype_name", "is_complex", "is_float", "is_inexact", "is_integer", "resolve_shape", "scalar", "size_of",
]  # fmt: skip

Shape = tuple[DimLike, ...]
BFLOAT16: np.dtype = np.dtype(ml_dtypes.bfloat16)

# Short name -> dtype, in promotion order within each kind.
BY_NAME: dict[str, np.dtype] = {
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8), "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32), "u64": np.dtype(np.uint64),
    "f16": np.dtype(np.float16), "bf16": BFLOAT16, "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    "c64": np.dtype(np.complex64), "c128": np.dtype(np.complex128),
}  # fmt: skip
DTYPES = tuple(BY_NAME.values())
BOOL, I64 = BY_NAME["bool"], BY_NAME["i64"]
_NAMES = {dtype: name for name, dtype in BY_NAME.items()}


def dtype_name(dtype: np.dtype) -> str:
    """Return the short name of a supported dtype, such as `f32`."""
    return _NAMES[dtype]


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype == BFLOAT16


def is_complex(dtype: np.dtype) -> bool:
    return dtype.kind == "c"


def is_inexact(dtype: np.dtype) -> bool:
    return is_float(dtype) or is_complex(dtype)


def is_integer(dtype: np.dtype) -> bool:
    return dtype.kind in "iu"


@dataclass(frozen=True, slots=True)
class TensorType:
    """An array of `dtype` whose dims are ints or symbolic."""

    dtype: np.dtype
    shape: Shape = ()

    @property
    def rank(self) -> int:
        return len(self.shape)

    def is_static(self) -> bool:
        return all(isinstance(dim, int) for dim in self.shape)

    def with_shape(self, shape: Iterable[DimLike]) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: np.dtype) -> TensorType:
        return TensorType(dtype, self.shape)

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class HandleType:
    """A reference to something outside the graph: a variable or a queue."""

    kind: str

    def __str__(self) -> str:
        return f"!{self.kind}"


ValueType = TensorType | HandleType


def scalar(dtype: np.dtype) -> TensorType:
    """Return the rank-0 type of `dtype`."""
    return TensorType(dtype, ())


def size_of(shape: Shape) -> DimLike:
    """Return the number of elements of a shape."""
    total: DimLike = 1
    for dim in shape:
        total = total * dim
    return total


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that NumPy broadcasts `shapes` to.

    A symbolic dim beside another is taken for the one that is known to be at least 2, or else for the int; what the
    other turns out to be is checked when the program runs. Two dims neither of which is known that well are refused
    here: the frontend resolves them first with `broadcast_dim`.
    """
    if len(set(shapes)) == 1:
        return shapes[0]
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    try:
        return tuple(reduce(_broadcast_dim, dims) for dims in zip(*padded, strict=True))
    except ShapeError:
        listing = " ".join(_shape_text(shape) for shape in shapes)
        raise ShapeError(
            f"operands could not be broadcast together with shapes {listing}"
        ) from None


def _shape_text(shape: Shape) -> str:
    return f"({','.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _broadcast_dim(a: DimLike, b: DimLike) -> DimLike:
    if a == b or (isinstance(b, int) and b == 1):
        return a
    if isinstance(a, int) and a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise ShapeError("mismatch")
    known = a if isinstance(a, int) else b
    if isinstance(known, int):
        return known
    for dim in (a, b):
        if (lower_bound(dim) or 0) >= 2:
            return dim
    raise ShapeError("mismatch")


def bind_shape(expected: Shape, actual: tuple[int, ...], values: dict[Dim, int]) -> bool:
    """Match a shape against a real one, adding the sizes of bare symbols to `values`; tell whether it fits."""
    if len(expected) != len(actual):
        return False
    for dim, size in zip(expected, actual, strict=True):
        if isinstance(dim, Dim) and symbols_of(dim) == [dim]:
            values.setdefault(dim, size)
    return all(_fits(dim, size, values) for dim, size in zip(expected, actual, strict=True))


def _fits(dim: DimLike, size: int, values: Mapping[Dim, int]) -> bool:
    found = substitute(dim, values)
    return not isinstance(found, int) or found == size


def resolve_shape(shape: Shape, values: Mapping[Dim, int]) -> tuple[int, ...]:
    """Return a shape with every symbol replaced by its size."""
    return tuple(dim if isinstance(dim, int) else evaluate(dim, values) for dim in shape)
