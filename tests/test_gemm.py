"""The library's matrix multiplication against NumPy: every edge of tiles, blocks and runs, layouts, special values, tiles
handed to the program, memory at the edge of a page, and the same bits for any number of threads.

Elements are small integers where results must be exact: sums of their products are, in any order.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from dsl.codegen.cpu import gemm, jit, pool
from dsl.codegen.cpu.gemm_tiles import tiling

KINDS = ("plain", "avx2", "avx512")
HERE = KINDS[: KINDS.index(gemm.cpu()) + 1]
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))

TILE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 4)
TYPES = [ctypes.c_void_p if type == "ptr" else ctypes.c_int64 for type, _ in gemm.PARAMETERS]

Tile = Callable[[int | None, int, int, int, int], None]


@functools.cache
def code(dtype: np.dtype, kind: str) -> jit.Code:
    return gemm.load(dtype, kind)


def multiply(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, kind: str = gemm.cpu(), tile: Tile | None = None
) -> None:
    """Set c to a @ b."""
    function = ctypes.CFUNCTYPE(None, *TYPES)(code(a.dtype, kind).address(gemm.symbol(a.dtype)))
    operands = [(x.ctypes.data, *(s // x.itemsize for s in x.strides)) for x in (a, b)]
    callback = TILE(tile) if tile else None
    function(
        *c.shape, a.shape[1], *operands[0], *operands[1],
        c.ctypes.data, c.strides[0] // c.itemsize, ctypes.cast(callback, ctypes.c_void_p), None,
    )  # fmt: skip


def whole(rng: np.random.Generator, dtype: np.dtype, *shape: int) -> np.ndarray:
    """Return small whole numbers."""
    return rng.integers(-8, 9, shape).astype(dtype)


def check(a: np.ndarray, b: np.ndarray, kind: str) -> None:
    """Multiply into the midst of a larger array, and check that only the product has changed."""
    m, n = a.shape[0], b.shape[1]
    around = np.full((m + 2, n + 5), 7, a.dtype)
    expected = around.copy()
    with np.errstate(invalid="ignore"):
        expected[1:-1, 2:-3] = a @ b
    multiply(a, b, around[1:-1, 2:-3], kind)
    np.testing.assert_array_equal(around, expected, err_msg=f"{kind} {m} {n} {a.shape[1]}")


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """Return an equal array of another layout."""
    rows, columns = x.shape
    if layout == "transposed":
        return np.ascontiguousarray(x.T).T
    if layout == "reversed":
        return np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
    if layout == "apart":
        out = np.zeros((2 * rows, 3 * columns), x.dtype)[::2, ::3]
    elif layout == "padded":
        out = np.zeros((rows, columns + 3), x.dtype)[:, :columns]
    else:
        return np.ascontiguousarray(x)
    out[:] = x
    return out


LAYOUTS = ("plain", "transposed", "reversed", "apart", "padded")


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_sizes(dtype, kind):
    rng = np.random.default_rng(1)
    for _ in range(250):
        m, n, k = rng.integers(1, 71, 3)
        layouts = rng.choice(LAYOUTS, 2)
        a, b = whole(rng, dtype, m, k), whole(rng, dtype, k, n)
        check(laid_out(a, layouts[0]), laid_out(b, layouts[1]), kind)


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edges_of_tiles_and_runs(dtype, kind):
    t = tiling(kind, {4: "float", 8: "double"}[dtype.itemsize])
    height, width = t.heights[0], t.columns
    rng = np.random.default_rng(2)
    near = lambda x: range(max(1, x - 1), x + 2)
    for m in {r for h in (*t.heights, 2 * height, 3 * height) for r in near(h)}:
        for n in (*near(t.lanes), *near(width), *near(3 * width)):
            check(whole(rng, dtype, m, 5), whole(rng, dtype, 5, n), kind)
    for k in (*near(t.depth), *near(2 * t.depth)):
        a, b = whole(rng, dtype, 6 * height + 3, k), whole(rng, dtype, k, 2 * width + 3)
        check(a, b, kind)
        check(laid_out(a, "transposed"), laid_out(b, "transposed"), kind)


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_larger_sizes(dtype, kind):
    rng = np.random.default_rng(3)
    for m, n, k in ((300, 130, 70), (15 * 14 + 1, 300, 520), (20, 1100, 90), (70, 900, 130)):
        for one, other in (("plain", "plain"), ("transposed", "transposed"), ("apart", "reversed")):
            a, b = whole(rng, dtype, m, k), whole(rng, dtype, k, n)
            check(laid_out(a, one), laid_out(b, other), kind)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_of_columns(dtype):
    rng = np.random.default_rng(4)
    check(whole(rng, dtype, 290, 40), whole(rng, dtype, 40, 2300), gemm.cpu())
    check(whole(rng, dtype, 290, 40), laid_out(whole(rng, dtype, 40, 2300), "apart"), gemm.cpu())
    check(whole(rng, dtype, 10000, 3), whole(rng, dtype, 3, 3), gemm.cpu())


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_vectors(dtype, kind):
    rng = np.random.default_rng(5)
    for size in (1, 2, 15, 16, 17, 63, 64, 65, 130, 700):
        for k in (1, 7, 8, 9, 63, 64, 129, 600):
            for layout in ("plain", "transposed", "apart"):
                matrix = laid_out(whole(rng, dtype, size, k), layout)
                column = laid_out(whole(rng, dtype, k, 1), "plain" if k % 2 else "apart")
                check(matrix, column, kind)
                check(column.T, matrix.T, kind)
                result = np.empty((size, 1), dtype)
                multiply(matrix, column, result, kind)
                np.testing.assert_array_equal(result, matrix @ column)


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_few_rows_by_a_transposed_matrix(dtype, kind):
    rng = np.random.default_rng(6)
    for m in range(1, 6):
        for n, k in ((3, 3), (40, 100), (300, 400)):
            a, b = whole(rng, dtype, m, k), whole(rng, dtype, k, n)
            check(a, laid_out(b, "transposed"), kind)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_operand_that_repeats_itself(dtype):
    rng = np.random.default_rng(7)
    row, column = whole(rng, dtype, 1, 50), whole(rng, dtype, 50, 1)
    check(np.broadcast_to(row, (60, 50)), whole(rng, dtype, 50, 40), gemm.cpu())
    check(whole(rng, dtype, 60, 50), np.broadcast_to(column, (50, 40)), gemm.cpu())
    check(np.broadcast_to(row.T[:1], (60, 50)), np.broadcast_to(column[:1], (50, 40)), gemm.cpu())


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_accuracy(dtype, kind):
    rng = np.random.default_rng(8)
    for m, n, k in ((33, 65, 1500), (1, 40, 3000), (40, 1, 3000), (230, 100, 800)):
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
        c = np.empty((m, n), dtype)
        multiply(a, b, c, kind)
        exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
        bound = 4 * np.sqrt(k) * np.finfo(dtype).eps * np.linalg.norm(a, axis=1)[:, None]
        assert (abs(c - exact) < bound * np.linalg.norm(b, axis=0)).all()


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values(dtype, kind):
    """A NaN or an infinity reaches its row or column of the result, and nothing else."""
    rng = np.random.default_rng(9)
    for m, n, k in ((45, 37, 61), (15, 33, 400), (1, 50, 50), (50, 1, 50), (3, 3, 3)):
        a, b = whole(rng, dtype, m, k) + 20, whole(rng, dtype, k, n) + 20
        a[rng.integers(m), rng.integers(k)] = np.nan
        a[rng.integers(m), rng.integers(k)] = np.inf
        b[rng.integers(k), rng.integers(n)] = -np.inf
        check(a, b, kind)
        check(laid_out(a, "transposed"), laid_out(b, "transposed"), kind)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_to_multiply(dtype):
    calls: list[tuple[int, ...]] = []
    for m, n, k in ((0, 5, 5), (5, 0, 5), (0, 0, 0)):
        guard = np.full((8, 8), 7, dtype)
        empty = np.zeros((m, k), dtype), np.zeros((k, n), dtype)
        multiply(*empty, guard[:m, :n], tile=lambda _, *part: calls.append(part))
        assert (guard == 7).all()
    assert calls == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_inner_dimension_gives_zeros(dtype):
    calls: list[tuple[int, ...]] = []
    guard = np.full((8, 8), 7, dtype)
    multiply(
        np.zeros((5, 0), dtype), np.zeros((0, 6), dtype), guard[:5, :6],
        tile=lambda _, *part: calls.append(part),
    )  # fmt: skip
    assert (guard[:5, :6] == 0).all()
    assert (guard[5:] == 7).all()
    assert (guard[:, 6:] == 7).all()
    assert calls == [(0, 5, 0, 6)]


SHAPES = (
    (1, 1, 1), (1, 3000, 300), (3000, 1, 300), (5, 7, 9), (64, 64, 64), (200, 300, 800), (30, 2100, 20), (2000, 10, 20),
    (3, 700, 700), (250, 1100, 40), (9, 20, 9000),
)  # fmt: skip


@pytest.mark.parametrize("layout", ["plain", "transposed"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_element_is_handed_over_once_when_final(shape, layout):
    m, n, k = shape
    rng, dtype = np.random.default_rng(10), DTYPES[0]
    a, b = whole(rng, dtype, m, k), laid_out(whole(rng, dtype, k, n), layout)
    c, seen, times = np.empty((m, n), dtype), np.zeros((m, n), dtype), np.zeros((m, n), int)

    def tile(_: int | None, i0: int, i1: int, j0: int, j1: int) -> None:
        seen[i0:i1, j0:j1] = c[i0:i1, j0:j1]
        times[i0:i1, j0:j1] += 1
        c[i0:i1, j0:j1] = -1  # the program may overwrite what it is given

    multiply(a, b, c, tile=tile)
    assert (times == 1).all()
    np.testing.assert_array_equal(seen, a @ b)
    assert (c == -1).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits_for_any_number_of_threads(dtype):
    rng = np.random.default_rng(11)
    shapes = ((150, 150, 150), (301, 517, 900), (40, 3000, 300), (1, 2000, 999), (1999, 1, 700), (3, 900, 900), (9, 20, 9000))  # fmt: skip
    for m, n, k in shapes:
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n)))
        for right in (b, laid_out(b, "transposed")):
            results = []
            for threads in (1, 2, 3, 4):
                c = np.empty((m, n), dtype)
                with pool.threads(threads):
                    multiply(a, right, c)
                results.append(c.tobytes())
            assert len(set(results)) == 1, (m, n, k)


@contextmanager
def at_the_end_of_a_page(shape: tuple[int, int], dtype: np.dtype) -> Iterator[np.ndarray]:
    """Give an array with memory after it that must not be touched."""
    page = mmap.PAGESIZE
    size = shape[0] * shape[1] * dtype.itemsize
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    whole_of_it = (ctypes.c_char * len(memory)).from_buffer(memory)
    start = ctypes.addressof(whole_of_it)
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(start + pages * page, page, 0) == 0
    array = np.frombuffer(whole_of_it, dtype, shape[0] * shape[1], pages * page - size)
    yield array.reshape(shape)
    assert protect(start + pages * page, page, mmap.PROT_READ | mmap.PROT_WRITE) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="uses Linux's mprotect")
@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reads_and_writes_nothing_beyond_the_operands(dtype, kind):
    rng = np.random.default_rng(12)
    shapes = [tuple(int(x) for x in rng.integers(1, 50, 3)) for _ in range(60)]
    shapes += [(3, 3, 3), (13, 31, 5), (27, 17, 40), (1, 33, 9), (33, 1, 9), (150, 40, 30), (250, 33, 20), (9, 20, 9000)]  # fmt: skip
    for m, n, k in shapes:
        for turned in ((False, False), (True, False), (False, True), (True, True)):
            sizes = ((m, k), (k, n))
            with (
                at_the_end_of_a_page(sizes[0][:: -1 if turned[0] else 1], dtype) as a,
                at_the_end_of_a_page(sizes[1][:: -1 if turned[1] else 1], dtype) as b,
                at_the_end_of_a_page((m, n), dtype) as c,
            ):
                left, right = (x.T if flip else x for x, flip in zip((a, b), turned))
                left[:], right[:] = whole(rng, dtype, m, k), whole(rng, dtype, k, n)
                multiply(left, right, c, kind)
                np.testing.assert_array_equal(c, left @ right)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_programs_find_the_library_by_name(dtype):
    address = gemm.ensure_loaded(dtype)
    types = ", ".join(type for type, _ in gemm.PARAMETERS)
    name = gemm.symbol(dtype)
    text = f"declare void @{name}({types})\ndefine ptr @where() {{\n  ret ptr @{name}\n}}"
    program = jit.load(text)
    assert ctypes.CFUNCTYPE(ctypes.c_size_t)(program.address("where"))() == address
    assert gemm.ensure_loaded(dtype) == address
