"""Matrix products of every dtype, batched and broadcast, with operands of any strides.

float32 and float64 go to the runtime's own `dsl_gemm_…`; a vector operand makes it a product of matrix and vector, which
has a routine of its own; rows of a few registers and small constant sizes become loops in the program. Complex numbers go to BLAS.
float16 and bfloat16 are widened, multiplied as float32 and rounded once. Integers are multiplied row by row and wrap;
bools are or-of-ands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dsl.codegen.arrays import Array, Scalar, load_scalar, memory_type, register_type, store_scalar
from dsl.codegen.elementwise import combine
from dsl.codegen.elementwise.casts import is_half, narrow, widen
from dsl.codegen.library.call import Call, array, as_i64, product
from dsl.codegen.library.cells import Cell
from dsl.codegen.library.lapack import call_fortran
from dsl.codegen.library.matvec import emit_matvec
from dsl.codegen.library.routines import at, call_routine, parallel, per_thread, routine
from dsl.codegen.library.rows import emit_rows, fits
from dsl.codegen.library.stacks import batch_axes, offsets
from dsl.codegen.library.symmetric import is_symmetric, strip_rows
from dsl.codegen.library.vectors import constant
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.errors import InternalError
from dsl.ir.types import BY_NAME, dtype_name

__all__ = ["LOWERINGS"]

F32 = BY_NAME["f32"]
_SMALL = 512  # multiplications that are written out as loops in the program
_TINY = 128
_BATCH = 1 << 19  # multiplications below which a product is one thread's work
_INLINE = 12  # products that are part of the program itself; further ones share functions
NULL = Value("null", "ptr")


@dataclass(frozen=True)
class Product:
    """`c[m, n] = a[m, k] @ b[k, n]`: addresses, sizes, and strides in elements; c is in C order."""

    dtype: np.dtype
    m: Operand
    n: Operand
    k: Operand
    a: Value
    a_strides: tuple[Operand, Operand]
    b: Value
    b_strides: tuple[Operand, Operand]
    c: Value


Emit = Callable[[Call, Function, Product], None]


def _matmul(call: Call) -> None:
    fn = call.fn
    x, y = array(call, 0), array(call, 1)
    _check_inner(call, x, y)
    if is_half(x.dtype):
        _in_float32(call)
        return
    if len(x.dims) == 1 or _is_one(x.dims[-2]) or x.dtype.kind != "f":
        x = call.contiguous(0)
    if len(y.dims) == 1 or _is_one(y.dims[-1]) or y.dtype.kind != "f":
        y = call.contiguous(1)
    scalar = len(x.dims) == len(y.dims) == 1
    c = fn.alloca(x.dtype.itemsize) if scalar else call.output().pointer
    _multiply(call, x, y, c)
    if scalar:
        call.set_output(0, load_scalar(fn, x.dtype, c))


def _is_one(dim: Operand) -> bool:
    return isinstance(dim, int) and dim == 1


def _check_inner(call: Call, x: Array, y: Array) -> None:
    """Compare at run time the sizes that the type rule could not."""
    a, b = (value.shape for value in call.node.data_inputs)
    inner = -1 if len(b) == 1 else -2
    if a[-1] != b[inner]:
        message = (
            "value:matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc "
            "signature (n?,k),(k,m?)->(n?,m?) (size {} is different from {})"
        )
        differ = call.fn.compare("ne", x.dims[-1], y.dims[inner])
        call.fail(differ, message, y.dims[inner], x.dims[-1])


LOWERINGS = {"matmul": _matmul}


def _multiply(call: Call, x: Array, y: Array, c: Value) -> None:
    """Emit the products of two stacks of matrices into `c`."""
    fn = call.fn
    x_core, y_core = min(len(x.dims), 2), min(len(y.dims), 2)
    m, k = (x.dims[-2] if x_core == 2 else 1), x.dims[-1]
    n = y.dims[-1] if y_core == 2 else 1
    one = Product(
        x.dtype, m, n, k,
        x.pointer, (x.strides[-2] if x_core == 2 else 0, x.strides[-1]),
        y.pointer, (y.strides[-y_core], y.strides[-1] if y_core == 2 else 0), c,
    )  # fmt: skip
    emit = _chosen(one)
    axes = batch_axes(call, x, y, x_core, y_core)
    if not axes:
        _emit_alone(call, emit, one)
        return
    if emit is _rows and not _is_tiny(one):
        emit = _counted(fn.module, emit)
    count = product(fn, [dim for dim, _, _ in axes])
    size = fn.mul(m, n)
    grain = per_thread(fn, _BATCH, fn.mul(size, k))
    with parallel(fn, count, grain) as (part, lo, hi), part.loop(lo, hi) as index:
        a, b = offsets(part, axes, index)
        moved = replace(
            one,
            a=at(part, x.dtype, x.pointer, a),
            b=at(part, x.dtype, y.pointer, b),
            c=at(part, x.dtype, c, part.mul(index, size)),
        )
        emit(call, part, moved)


def _emit_alone(call: Call, emit: Emit, p: Product) -> None:
    if emit is _rows:
        emit = _in_parts
    elif emit is _gemm and is_symmetric(call.node) and isinstance(p.n, int):
        emit = _symmetric
    if emit in (_in_parts, _column, _written_out):
        emit = _counted(call.fn.module, emit)
    emit(call, call.fn, p)


def _counted(module: Module, emit: Emit) -> Emit:
    """Return how to emit a product that is written out: in the program, if there are few.

    The time that LLVM takes for a function grows with the square of its length and more.
    """
    module.products += 1
    return emit if module.products <= _INLINE else lambda call, fn, p: _shared(call, fn, emit, p)


def _shared(call: Call, fn: Function, emit: Emit, p: Product) -> None:
    """Emit the call of a function that all products with these sizes and strides share."""
    sizes = (p.m, p.n, p.k, *p.a_strides, *p.b_strides)
    if not all(isinstance(size, int) for size in sizes):
        emit(call, fn, p)
        return
    name = "_".join(("product", emit.__name__, dtype_name(p.dtype), *map(str, sizes)))
    if name not in fn.module.functions:
        params = [("ptr", "a"), ("ptr", "b"), ("ptr", "c")]
        inner = fn.module.function(
            name, "void", params, internal=True, attributes="nounwind noinline"
        )
        a, b, c = inner.params
        emit(call, inner, replace(p, a=a, b=b, c=c))
        inner.ret()
    fn.call("void", name, p.a, p.b, p.c)


# -- one product --------------------------------------------------------------------------------------------------


def _chosen(p: Product) -> Emit:
    if p.dtype.kind == "c":
        return _blas
    if _is_one(p.n) and _is_one(p.a_strides[0]) and fits(p.dtype, 1, p.m, p.k, p.a_strides[0]):
        return _column
    tiny = _is_small(p) and p.n == 2  # the matrices of a stack go side by side then
    if not tiny and not _is_one(p.n) and fits(p.dtype, p.m, p.n, p.k, p.b_strides[1]):
        return _rows
    if _is_small(p):
        return _written_out
    if p.dtype.kind != "f":
        return _integers
    return _vector if _is_one(p.m) or _is_one(p.n) else _gemm


def _is_small(p: Product) -> bool:
    return _multiplications(p) <= _SMALL


def _is_tiny(p: Product) -> bool:
    """Tell whether a call takes a good part of the time of a product."""
    return _multiplications(p) <= _TINY


def _multiplications(p: Product) -> float:
    """Return how many there are; infinity if that is not known."""
    sizes = [size for size in (p.m, p.n, p.k) if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == 3 else math.inf


def _written_out(call: Call, fn: Function, p: Product) -> None:
    """Emit three loops; sums go along the inner dimension."""
    dtype = p.dtype
    with fn.loop(0, p.m) as i, fn.loop(0, p.n) as j:
        total = Cell(fn, dtype)
        total.set_zero()
        with fn.loop(0, p.k) as l:
            a = _element(fn, dtype, p.a, p.a_strides, i, l)
            b = _element(fn, dtype, p.b, p.b_strides, l, j)
            total.set(_multiply_add(fn, dtype, a, b, total.get()))
        place = at(fn, dtype, p.c, fn.add(fn.mul(i, p.n), j))
        store_scalar(fn, dtype, total.get(), place)


def _element(
    fn: Function,
    dtype: np.dtype,
    base: Value,
    strides: tuple[Operand, Operand],
    i: Operand,
    j: Operand,
) -> Scalar:
    place = fn.add(fn.mul(i, strides[0]), fn.mul(j, strides[1]))
    return load_scalar(fn, dtype, at(fn, dtype, base, place))


def _multiply_add(fn: Function, dtype: np.dtype, a: Scalar, b: Scalar, c: Scalar) -> Scalar:
    if dtype.kind == "f" and isinstance(a, Value) and isinstance(b, Value) and isinstance(c, Value):
        return fn.fma(a, b, c)
    found = combine(fn, "cumprod", dtype, a, b, reassociate=False)
    return combine(fn, "cumsum", dtype, c, found, reassociate=False)


def _rows(call: Call, fn: Function, p: Product) -> None:
    """Emit a product row by row."""
    emit_rows(fn, p.dtype, p.m, _int(p.n), _int(p.k), p.a, p.a_strides, p.b, p.b_strides, p.c)


def _int(size: Operand) -> int:
    if not isinstance(size, int):
        raise InternalError("matmul: a size that is written out is not known")
    return size


def _in_parts(call: Call, fn: Function, p: Product) -> None:
    """Emit a product row by row, by threads if there are many rows."""
    grain = max(_BATCH // (_int(p.n) * _int(p.k)), 1)
    if isinstance(p.m, int) and p.m <= grain:
        _rows(call, fn, p)
        return
    with parallel(fn, p.m, grain) as (part, lo, hi):
        a = at(part, p.dtype, p.a, part.mul(lo, p.a_strides[0]))
        c = at(part, p.dtype, p.c, part.mul(lo, p.n))
        _rows(call, part, replace(p, m=part.sub(hi, lo), a=a, c=c))


def _column(call: Call, fn: Function, p: Product) -> None:
    """Emit the product of a matrix, whose columns lie together, and a column as that of a row and its transpose."""
    a, b = (p.b_strides[1], p.b_strides[0]), (p.a_strides[1], p.a_strides[0])
    emit_rows(fn, p.dtype, 1, _int(p.m), _int(p.k), p.b, a, p.a, b, p.c)


def _symmetric(call: Call, fn: Function, p: Product) -> None:
    """Emit the products on and above the diagonal, in strips, and their mirror image."""
    n = _int(p.n)
    rows = strip_rows(n)
    for top in range(0, n, rows):
        moved = replace(
            p,
            m=min(rows, n - top),
            n=n - top,
            a=at(fn, p.dtype, p.a, fn.mul(top, p.a_strides[0])),
            b=at(fn, p.dtype, p.b, fn.mul(top, p.b_strides[1])),
            c=at(fn, p.dtype, p.c, top * n + top),
        )
        _gemm(call, fn, moved, n)
    if rows < n:
        call_routine(fn, "mirror", p.dtype, p.c, n)


def _gemm(call: Call, fn: Function, p: Product, width: Operand | None = None) -> None:
    """Emit a large product; rows of c are `width` elements apart, or next to one another."""
    sizes = [as_i64(fn, size) for size in (p.m, p.n, p.k)]
    a = [as_i64(fn, stride) for stride in p.a_strides]
    b = [as_i64(fn, stride) for stride in p.b_strides]
    name = f"dsl_gemm_{dtype_name(p.dtype)}"
    fn.call(
        "void",
        name,
        *sizes,
        p.a,
        *a,
        p.b,
        *b,
        p.c,
        as_i64(fn, p.n if width is None else width),
        NULL,
        NULL,
    )


def _blas(call: Call, fn: Function, p: Product) -> None:
    """Emit `c^T = b^T @ a^T`, which is how Fortran sees matrices in C order; operands are in C order."""
    name = {8: "cgemm", 16: "zgemm"}[p.dtype.itemsize]
    part = register_type(p.dtype)
    ones = [constant(number, part) for number in (1.0, 0.0)]
    call_fortran(
        fn, f"dsl_blas_{name}", b"N", b"N", p.n, p.m, p.k, (ones[0], ones[1]),
        p.b, fn.maximum(p.n, 1), p.a, fn.maximum(p.k, 1), (ones[1], ones[1]), p.c, fn.maximum(p.n, 1),
    )  # fmt: skip


def _integers(call: Call, fn: Function, p: Product) -> None:
    call_routine(fn, "matmul", p.dtype, p.a, p.b, p.c, p.m, p.n, p.k)


def _vector(call: Call, fn: Function, p: Product) -> None:
    """Emit a product of matrix and vector, whichever of the operands is the vector."""
    if _is_one(p.n):
        emit_matvec(fn, p.dtype, p.m, p.k, p.a, p.a_strides, p.b, p.b_strides[0], p.c)
    else:
        swapped = p.b_strides[1], p.b_strides[0]
        emit_matvec(fn, p.dtype, p.n, p.k, p.b, swapped, p.a, p.a_strides[1], p.c)


# -- half precision -----------------------------------------------------------------------------------------------


def _in_float32(call: Call) -> None:
    fn, dtype = call.fn, array(call, 0).dtype
    wide = []
    for k in range(2):
        x = call.contiguous(k)
        size = product(fn, x.dims)
        copy = call.scratch(fn.mul(size, 4))
        call_routine(fn, "widen", dtype, x.pointer, copy, size)
        wide.append(replace(x, dtype=F32, pointer=copy))
    scalar = all(len(x.dims) == 1 for x in wide)
    out = None if scalar else call.output()
    size = product(fn, out.dims) if out else 1
    c = call.scratch(fn.mul(size, 4))
    _multiply(call, wide[0], wide[1], c)
    if out is None:
        call.set_output(0, narrow(fn, fn.load("float", c), dtype))
    else:
        call_routine(fn, "narrow", dtype, c, out.pointer, size)


@routine("widen", vectorize=True)
def _build_widen(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`widen(x, y, n)`: float16 or bfloat16 to float32."""
    f = module.function(symbol, "void", [("ptr", "x"), ("ptr", "y"), ("i64", "n")])
    x, y, n = f.params
    with parallel(f, n, 1 << 15) as (part, lo, hi), part.loop(lo, hi) as i:
        found = load_scalar(part, dtype, at(part, dtype, x, i))
        assert isinstance(found, Value)
        part.store(widen(part, dtype, found), part.gep(y, i, "float"))
    f.ret()


@routine("narrow", vectorize=True)
def _build_narrow(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`narrow(x, y, n)`: float32 to float16 or bfloat16."""
    f = module.function(symbol, "void", [("ptr", "x"), ("ptr", "y"), ("i64", "n")])
    x, y, n = f.params
    with parallel(f, n, 1 << 15) as (part, lo, hi), part.loop(lo, hi) as i:
        rounded = narrow(part, part.load("float", part.gep(x, i, "float")), dtype)
        store_scalar(part, dtype, rounded, at(part, dtype, y, i))
    f.ret()


# -- integers -----------------------------------------------------------------------------------------------------


@routine("matmul", vectorize=True)
def _build_integers(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`matmul(a, b, c, m, n, k)`, all in C order: adds multiples of rows of b to rows of c."""
    params = [("ptr noalias", "a"), ("ptr noalias", "b"), ("ptr noalias", "c")]
    f = module.function(symbol, "void", [*params, ("i64", "m"), ("i64", "n"), ("i64", "k")])
    a, b, c, m, n, k = f.params
    with (
        parallel(f, m, per_thread(f, 1 << 15, f.mul(n, k))) as (part, lo, hi),
        part.loop(lo, hi) as i,
    ):
        row, left = at(part, dtype, c, part.mul(i, n)), at(part, dtype, a, part.mul(i, k))
        part.if_else(
            part.compare("eq", n, 1),
            lambda: _dot(part, dtype, left, b, k, row),
            lambda: _row(part, dtype, left, b, k, row, n),
        )
    f.ret()


def _dot(f: Function, dtype: np.dtype, a: Value, b: Value, k: Value, out: Value) -> None:
    total = Cell(f, dtype)
    total.set_zero()
    with f.loop(0, k) as l:
        x, y = load_scalar(f, dtype, at(f, dtype, a, l)), load_scalar(f, dtype, at(f, dtype, b, l))
        total.set(_multiply_add(f, dtype, x, y, total.get()))
    store_scalar(f, dtype, total.get(), out)


def _row(f: Function, dtype: np.dtype, a: Value, b: Value, k: Value, row: Value, n: Value) -> None:
    with f.loop(0, n) as j:
        f.store(f.as_value(0, memory_type(dtype)), at(f, dtype, row, j))
    with f.loop(0, k) as l:
        x, below = load_scalar(f, dtype, at(f, dtype, a, l)), at(f, dtype, b, f.mul(l, n))
        with f.loop(0, n) as j:
            y, so_far = (load_scalar(f, dtype, at(f, dtype, base, j)) for base in (below, row))
            found = _multiply_add(f, dtype, x, y, so_far)
            store_scalar(f, dtype, found, at(f, dtype, row, j))
