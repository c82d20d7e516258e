"""What the functions of `dsl.linalg` do with their operands: dtypes, checks, primitives."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl.errors import TypeRuleError
from dsl.frontend.functions.values import Array, iota, of_dtype
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import lift, read, size_number, wrap
from dsl.ir.dims import DimLike
from dsl.ir.ops.linalg import MatrixError
from dsl.ir.ops.rules import differ
from dsl.ir.types import BY_NAME

__all__ = [
    "adjoint", "emit_linalg", "eye", "linalg_dtype", "matrix_error", "number", "of_matrix", "operands", "real_dtype",
    "require_matrices", "require_square",
]  # fmt: skip

F32, F64, C64, C128 = (BY_NAME[name] for name in ("f32", "f64", "c64", "c128"))


def linalg_dtype(*arrays: Array) -> np.dtype:
    """Return the dtype that LAPACK computes with: anything that is not floating counts as float64."""
    is_complex = False
    for x in arrays:
        if x.dtype.kind not in "biu" and x.dtype not in (F32, F64, C64, C128):
            raise TypeRuleError(
                f"array type {x.dtype.name} is unsupported in linalg", location=here()
            )
        is_complex |= x.dtype.kind == "c"
    single = all(x.dtype in (F32, C64) for x in arrays)
    return (C64 if single else C128) if is_complex else (F32 if single else F64)


def real_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the parts of complex numbers; a real one as it is."""
    return {C64: F32, C128: F64}.get(dtype, dtype)


def operands(*operands: Any) -> tuple[Array, ...]:
    """Return operands as arrays of the dtype that LAPACK computes with."""
    arrays = tuple(lift(x) for x in operands)
    dtype = linalg_dtype(*arrays)
    return tuple(of_dtype(x, dtype) for x in arrays)


def emit_linalg(op: str, *operands: Array, **attrs: Any) -> Any:
    """Apply a primitive; several outputs come as a tuple."""
    values = [read(x) for x in operands]
    found = tuple(wrap(v) for v in current_scope().node(op, values, attrs).outputs)
    return found[0] if len(found) == 1 else found


def of_matrix(op: str, a: Any, **attrs: Any) -> Any:
    """Apply a primitive to one operand."""
    return emit_linalg(op, *operands(a), **attrs)


def matrix_error(message: str) -> MatrixError:
    """Return NumPy's `LinAlgError` with the user's line."""
    return MatrixError(message, location=here())


def require_matrices(*arrays: Array, stacked: bool = True) -> None:
    """Refuse arrays that are not matrices, or stacks of them."""
    for x in arrays:
        if x.ndim < 2 or (x.ndim > 2 and not stacked):
            least = "at least " if stacked else ""
            raise matrix_error(
                f"{x.ndim}-dimensional array given. Array must be {least}two-dimensional"
            )


def require_square(x: Array) -> None:
    """Refuse an array that is not a stack of square matrices."""
    require_matrices(x)
    if differ(*x.type.shape[-2:]):
        raise matrix_error("Last 2 dimensions of the array must be square")


def number(dim: DimLike) -> Any:
    """Return a size as a Python number, traced if it is known only at run time."""
    return dim if isinstance(dim, int) else size_number(dim)


def adjoint(x: Array) -> Array:
    """Return the conjugate transpose."""
    return np.conjugate(x.mT) if x.dtype.kind == "c" else x.mT


def eye(n: DimLike, dtype: np.dtype) -> Array:
    """Return the identity matrix."""
    places = iota(n)
    return (places[:, None] == places).astype(dtype)
