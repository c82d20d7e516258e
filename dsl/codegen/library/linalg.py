"""Factorisations and solvers by NumPy's own LAPACK loops, which work on stacks of matrices.

As in NumPy everything is computed in double precision and rounded at the end, and what LAPACK cannot do sets the
floating point flag "invalid", which raises the error. Small matrices of known sizes have routines of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dsl.codegen.arrays import Array, load_scalar
from dsl.codegen.library.call import Call, array, bytes_of, product
from dsl.codegen.library.convert import copy_as, wide_dtype
from dsl.codegen.library.gufuncs import Stack, call_stacks
from dsl.codegen.library.lanes import copy_bytes
from dsl.codegen.library.routines import at, call_routine, parallel, routine
from dsl.codegen.library.stacks import batch_axes, check_core, check_square, offsets
from dsl.codegen.llvm import Function, Module, Operand, Value
from dsl.ir.types import BY_NAME

__all__ = ["LOWERINGS"]

F64 = BY_NAME["f64"]
# The rows of matrices that threads share: of solvers, and of what takes ten times as long. OpenBLAS locks its memory at each call,
# so that two threads with smaller ones take longer than one; larger ones it cuts up itself.
_SHARED = ((24, 32), (8, 24))
_SHARES = 8  # of a stack: more threads would wait for that lock
_INVALID = 1  # FE_INVALID, on x86 and ARM alike
Cores = list[tuple[Operand, ...]]


class Work:
    """The operands and results of an op in double precision."""

    def __init__(self, call: Call) -> None:
        self.call, self.fn = call, call.fn
        self._unfinished: list[Callable[[], None]] = []

    def input(self, k: int = 0, *, copy: bool = False) -> Array:
        """Return operand k in double precision and C order; a `copy` may be written to."""
        fn, x = self.fn, self.call.contiguous(k)
        wide, count = wide_dtype(x.dtype), product(self.fn, x.dims)
        pointer = x.pointer
        if wide != x.dtype:
            pointer = self.call.scratch(bytes_of(fn, count, wide))
            copy_as(fn, x.pointer, x.dtype, pointer, wide, count)
        elif copy:
            pointer = self.call.scratch(bytes_of(fn, count, wide))
            copy_bytes(fn, pointer, x.pointer, bytes_of(fn, count, wide))
        return Array(wide, pointer, x.dims, x.strides)

    def output(self, k: int, count: Operand, shape: tuple[Operand, ...]) -> Stack:
        """Return memory for `count` arrays of result k, which `finish` brings to where it belongs."""
        fn, value = self.fn, self.call.node.outputs[k]
        wide, total = wide_dtype(value.dtype), fn.mul(count, product(fn, shape))
        if not value.shape:
            pointer = fn.alloca(16)
            self._unfinished.append(lambda: self._finish_scalar(k, pointer, wide))
            return Stack(wide, pointer, shape)
        result = self.call.output(k).pointer
        if wide == value.dtype:
            return Stack(wide, result, shape)
        space = self.call.scratch(bytes_of(fn, total, wide))
        self._unfinished.append(lambda: copy_as(fn, space, wide, result, value.dtype, total))
        return Stack(wide, space, shape)

    def _finish_scalar(self, k: int, pointer: Value, wide: np.dtype) -> None:
        dtype = self.call.node.outputs[k].dtype
        if wide != dtype:
            copy_as(self.fn, pointer, wide, pointer, dtype, 1)
        self.call.set_output(k, load_scalar(self.fn, dtype, pointer))

    def finish(self) -> None:
        for step in self._unfinished:
            step()

    def checked(self, message: str, run: Callable[[], None]) -> None:
        """Emit what `run` does, and the error if the flag says that it failed."""
        fn = self.fn
        _forget(fn)
        run()
        if message:
            self.call.fail(_failed(fn), f"linalg:{message}")

    def loops(
        self, message: str, name: str, types: str, count: Operand, dims: Sequence[Operand], stacks: Sequence[Stack]
    ) -> None:  # fmt: skip
        """Emit a loop over stacks, and the error; small matrices are shared among threads, each of which has a flag."""
        fn = self.fn
        if count == 1 or not _are_shared(name, dims):
            self.checked(message, lambda: call_stacks(fn, name, types, count, dims, stacks))
            return
        grain = fn.add(fn.binary("sdiv", fn.as_value(count, "i64"), _SHARES), 1)
        wrong = fn.alloca(8)
        fn.store(fn.as_value(0, "i64"), wrong)
        with parallel(fn, count, grain) as (part, lo, hi):
            _forget(part)
            own = [_from(part, stack, lo) for stack in stacks]
            call_stacks(part, name, types, part.sub(hi, lo), dims, own)
            with part.if_(_failed(part), unlikely=True):
                part.store(part.as_value(1, "i64"), wrong)
        if message:
            self.call.fail(fn.compare("ne", fn.load("i64", wrong), 0), f"linalg:{message}")


def _forget(fn: Function) -> None:
    fn.call("i32", "feclearexcept", fn.as_value(_INVALID, "i32"))


def _failed(fn: Function) -> Value:
    return fn.compare("ne", fn.call("i32", "fetestexcept", fn.as_value(_INVALID, "i32")), 0)


def _from(fn: Function, stack: Stack, first: Value) -> Stack:
    """Return the arrays of a stack from one on."""
    place = fn.mul(first, product(fn, stack.shape))
    return Stack(stack.dtype, at(fn, stack.dtype, stack.pointer, place), stack.shape)


def _are_shared(name: str, dims: Sequence[Operand]) -> bool:
    """Tell whether matrices are large enough for threads of ours, and too small for those of BLAS."""
    least, most = _SHARED[name.startswith(("eig", "svd"))]
    sizes = [dim for dim in dims if isinstance(dim, int)]
    rows = sizes[:1] if name == "solve" else sizes
    return len(sizes) == len(dims) and min(rows) >= least and max(sizes) <= most


def _batch(call: Call, k: int = 0) -> Operand:
    return product(call.fn, array(call, k).dims[:-2])


def _stack(x: Array) -> Stack:
    return Stack(x.dtype, x.pointer, x.dims[-2:])


def _letters(stacks: Sequence[Stack], inputs: int) -> str:
    """Return the types of a loop in NumPy's spelling."""
    letters = ["D" if stack.dtype.kind == "c" else "d" for stack in stacks]
    return "".join(letters[:inputs]) + "->" + "".join(letters[inputs:])


# -- one operand --------------------------------------------------------------------------------------------------

_SINGULAR = "Singular matrix"
_EIGENVALUES = "Eigenvalues did not converge"
Shapes = Callable[[Function, Operand, Operand], Cores]


def _one(
    name: Callable[[Call], str], shapes: Shapes, message: str, *, square: bool = True
) -> Callable[[Call], None]:
    """Return the lowering of an op by one loop: `shapes(fn, m, n)` are those of its results for a matrix of m x n."""

    def lower(call: Call) -> None:
        fn, work = call.fn, Work(call)
        if square:
            check_square(call)
        x, count = _stack(work.input()), _batch(call)
        m, n = x.shape
        results = [work.output(k, count, shape) for k, shape in enumerate(shapes(fn, m, n))]
        stacks, gufunc = [x, *results], name(call)
        if gufunc in ("eig", "eigvals"):
            _check_finite(call, x, count)
        dims = [m] if square else [m, n, fn.minimum(m, n)]
        work.loops(message, gufunc, _letters(stacks, 1), count, dims, stacks)
        work.finish()

    return lower


def _check_finite(call: Call, x: Stack, count: Operand) -> None:
    fn = call.fn
    parts = fn.mul(fn.mul(count, product(fn, x.shape)), 2 if x.dtype.kind == "c" else 1)
    finite = call_routine(fn, "all_finite", F64, x.pointer, parts, result="i1")
    call.fail(fn.invert(finite), "linalg:Array must not contain infs or NaNs")


@routine("all_finite", vectorize=True)
def _build_all_finite(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`all_finite(x, n)`."""
    f = module.function(symbol, "i1", [("ptr", "x"), ("i64", "n")])
    x, n = f.params
    largest, exponent = f.variable("i64", 0), 0x7FF0000000000000
    with f.loop(0, n) as i:
        word = f.binary("and", f.load("i64", f.gep(x, i, "i64")), 0x7FFFFFFFFFFFFFFF)
        largest.set(f.call("i64", "llvm.umax.i64", largest.get(), word))
    f.ret(f.compare("ult", largest.get(), exponent))


def _triangle(stem: str, attribute: str, when_true: str, when_false: str) -> Callable[[Call], str]:
    return lambda call: f"{stem}_{when_true if call.node.attrs[attribute] else when_false}"


def _named(name: str) -> Callable[[Call], str]:
    return lambda call: name


def _svd_shapes(call: Call, fn: Function, m: Operand, n: Operand) -> Cores:
    inner = fn.minimum(m, n)
    full = call.node.attrs["full_matrices"]
    return [(m, m if full else inner), (inner,), (n if full else inner, n)]


def _svd(call: Call) -> None:
    name = "svd_f" if call.node.attrs["full_matrices"] else "svd_s"
    shapes = lambda fn, m, n: _svd_shapes(call, fn, m, n)
    _one(_named(name), shapes, "SVD did not converge", square=False)(call)


# -- two operands -------------------------------------------------------------------------------------------------


def _solve(call: Call) -> None:
    fn, work = call.fn, Work(call)
    check_square(call)
    check_core(call, "solve", "(m,m),(m,n)->(m,n)")
    left, right = work.input(0), work.input(1)
    axes = batch_axes(call, left, right, 2, 2)
    a, b, m, n = _stack(left), _stack(right), left.dims[-1], right.dims[-1]
    count = product(fn, [dim for dim, _, _ in axes])
    x = work.output(0, count, (m, n))
    if _are_alike(left.dims[:-2], right.dims[:-2]):
        work.loops(_SINGULAR, "solve", _letters((a, b, x), 2), count, [m, n], [a, b, x])
        work.finish()
        return

    def run() -> None:
        with fn.loop(0, count) as index:
            places = offsets(fn, axes, index)
            stacks = [
                Stack(s.dtype, at(fn, s.dtype, s.pointer, place), s.shape)
                for s, place in zip((a, b, x), (*places, fn.mul(index, fn.mul(m, n))))
            ]
            call_stacks(fn, "solve", _letters(stacks, 2), 1, [m, n], stacks)

    work.checked(_SINGULAR, run)
    work.finish()


def _are_alike(one: Sequence[Operand], other: Sequence[Operand]) -> bool:
    """Tell whether the axes in front are surely the same, so that there is nothing to broadcast."""
    return len(one) == len(other) and all(
        p is q or (isinstance(p, int) and isinstance(q, int) and p == q) for p, q in zip(one, other)
    )


# -- QR -----------------------------------------------------------------------------------------------------------


def _qr(call: Call) -> None:
    fn, work, mode = call.fn, Work(call), call.node.attrs["mode"]
    x, count = _stack(work.input(copy=True)), _batch(call)
    m, n = x.shape
    inner = fn.minimum(m, n)
    tau = Stack(x.dtype, call.scratch(bytes_of(fn, fn.mul(count, inner), x.dtype)), (inner,))
    message = "Incorrect argument found while performing QR factorization"
    letter = "D" if x.dtype.kind == "c" else "d"

    def factor() -> None:
        types = f"{letter}->{letter}"
        call_stacks(fn, "qr_r_raw", types, count, [m, n, inner], [x, tau])

    work.checked(message, factor)
    rows = m if mode == "complete" else inner
    r = work.output(len(call.node.outputs) - 1, count, (rows, n))
    call_routine(fn, "upper_triangle", x.dtype, x.pointer, r.pointer, count, m, n, rows)
    if mode != "r":
        q = work.output(0, count, (m, rows))
        types = f"{letter}{letter}->{letter}"
        complete = lambda: call_stacks(fn, "qr_complete", types, count, [m, n], [x, tau, q])
        reduced = lambda: call_stacks(fn, "qr_reduced", types, count, [m, n, inner], [x, tau, q])
        if mode == "complete":
            tall = fn.compare("sgt", m, n)
            work.checked(message, lambda: fn.if_else(tall, complete, reduced))
        else:
            work.checked(message, reduced)
    work.finish()


@routine("upper_triangle")
def _build_triangle(module: Module, symbol: str, dtype: np.dtype) -> None:
    """`upper(x, y, count, m, n, rows)`: the upper triangle of the first rows of each matrix."""
    sizes = [("i64", name) for name in ("count", "m", "n", "rows")]
    f = module.function(symbol, "void", [("ptr", "x"), ("ptr", "y"), *sizes])
    x, y, count, m, n, rows = f.params
    word = f"i{8 * dtype.itemsize}"
    with f.loop(0, count) as index, f.loop(0, rows) as i, f.loop(0, n) as j:
        source = f.add(f.mul(f.add(f.mul(index, m), i), n), j)
        target = f.add(f.mul(f.add(f.mul(index, rows), i), n), j)
        found = f.load(word, f.gep(x, source, word), align=8)
        kept = f.select(f.compare("sge", j, i), found, f.as_value(0, word))
        f.store(kept, f.gep(y, target, word), align=8)
    f.ret()


LOWERINGS: dict[str, Callable[[Call], None]] = {
    "cholesky": _one(_triangle("cholesky", "upper", "up", "lo"), lambda fn, m, n: [(m, m)],
                     "Matrix is not positive definite"),
    "inv": _one(_named("inv"), lambda fn, m, n: [(m, m)], _SINGULAR),
    "det": _one(_named("det"), lambda fn, m, n: [()], ""),
    "slogdet": _one(_named("slogdet"), lambda fn, m, n: [(), ()], ""),
    "eigh": _one(_triangle("eigh", "lower", "lo", "up"), lambda fn, m, n: [(m,), (m, m)], _EIGENVALUES),
    "eigvalsh": _one(_triangle("eigvalsh", "lower", "lo", "up"), lambda fn, m, n: [(m,)], _EIGENVALUES),
    "eig": _one(_named("eig"), lambda fn, m, n: [(m,), (m, m)], _EIGENVALUES),
    "eigvals": _one(_named("eigvals"), lambda fn, m, n: [(m,)], _EIGENVALUES),
    "svdvals": _one(_named("svd"), lambda fn, m, n: [(fn.minimum(m, n),)], "SVD did not converge", square=False),
    "svd": _svd,
    "solve": _solve,
    "qr": _qr,
}  # fmt: skip
