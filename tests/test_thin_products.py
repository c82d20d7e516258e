"""Products of vectors, and of matrices of a few columns or rows whose ends fill no register, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import dsl

LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 40, 63, 64, 65, 100, 257)


def times(x, v):
    return x @ v


def times_column(x, v):
    return x @ v[:, None]


def transposed_times(x, v):
    return x.T @ v


def row_times(x, v):
    return v @ x


def row_times_transposed(x, v):
    return v @ x.T


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small integers: sums of their products have no rounding, in any order."""
    return np.random.default_rng(0).integers(-8, 9, shape).astype(dtype)


def check(function, shape: tuple[int, int], dtype: str, by_rows: bool) -> None:
    x, v = numbers(shape, dtype), numbers((shape[0] if by_rows else shape[1],), dtype)
    got = dsl.jit(function)(x, v)
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got, function(x, v))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8"])
@pytest.mark.parametrize("width", [1, 2, 3, 8, 9])
def test_few_columns(width: int, dtype: str) -> None:
    for function in (times, times_column, row_times_transposed):
        check(function, (2000, width), dtype, by_rows=False)
        check(function, (width, 2000), dtype, by_rows=False)
    for function in (transposed_times, row_times):
        check(function, (2000, width), dtype, by_rows=True)
        check(function, (width, 2000), dtype, by_rows=True)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_any_length(length: int, dtype: str) -> None:
    for rows in (1, 3, 4, 6, 200):
        check(times, (rows, length), dtype, by_rows=False)


@pytest.mark.parametrize("function", [times, transposed_times])
def test_sizes_known_when_it_runs(function) -> None:
    jitted = dsl.jit(function)
    for rows in (1500, 1501, 3, 5000, 0, 1):
        x = numbers((rows, 3), "f8")
        v = numbers((3 if function is times else rows,), "f8")
        np.testing.assert_array_equal(jitted(x, v), function(x, v))


@pytest.mark.parametrize(
    "shapes", [((180, 180, 3), (3,)), ((500, 3), (3,)), ((5, 200, 3), (5, 3, 1))]
)
def test_short_rows_are_fused_however_many(shapes) -> None:
    """The weights of three colours, say: no image of floats is made of an image of bytes."""
    image, weights = numbers(shapes[0], "u1"), numbers(shapes[1], "f4")
    grey = dsl.jit(lambda image, weights: image.astype(np.float32) @ weights)
    np.testing.assert_array_equal(grey(image, weights), image.astype("f4") @ weights)
    assert "[library]" not in grey.ir(image, weights, stage="kernels")


def test_sizes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="mismatch in its core dimension"):
        dsl.jit(times)(np.ones((2000, 3)), np.ones(4))


def test_they_are_fused() -> None:
    """A residual is computed while the matrix is read, and nothing of its size is kept."""
    x, v, y = numbers((5000, 3), "f8"), numbers((3,), "f8"), numbers((5000,), "f8")
    residual = dsl.jit(lambda x, v, y: np.abs(x @ v - y))
    assert "[library]" not in residual.ir(x, v, y, stage="kernels")
    np.testing.assert_array_equal(residual(x, v, y), np.abs(x @ v - y))


@pytest.mark.parametrize(
    ("program", "by_routine"),
    [
        (lambda a, b: a @ b, 1),
        (lambda a, b: (a - b) @ b, 0),
        (lambda a, b: np.linalg.norm(a), 0),
        (lambda a, b: a @ b / np.sqrt((a @ a) * (b @ b)), 0),
    ],
)
def test_vectors_from_memory_are_read_once(program, by_routine: int) -> None:
    """Those that nothing else reads, and nothing computes, are a routine's."""
    a, b = numbers((1 << 20,), "f8"), numbers((1 << 20,), "f8")[::-1].copy()
    text = dsl.jit(program).ir(a, b, stage="kernels")
    assert text.count("[library]") == by_routine
    assert text.count("kernel for") == 1 - by_routine
    np.testing.assert_allclose(dsl.jit(program)(a, b), program(a, b))


def test_derivatives() -> None:
    x, v, y = numbers((2000, 3), "f8"), numbers((3,), "f8"), numbers((2000,), "f8")

    def loss(v):
        e = x @ v - y
        return (e * e).sum()

    np.testing.assert_allclose(dsl.grad(loss)(v), 2 * x.T @ (x @ v - y))


SHAPES = [
    ((3,), (3,)), ((1,), (1,)), ((0,), (0,)), ((4, 0), (0,)), ((1, 4), (4, 1)), ((4, 1), (1, 5)), ((3, 4, 1), (3, 1, 5)),
    ((5, 1, 3), (5, 3, 1)), ((5, 4, 3), (5, 3, 1)), ((5, 4, 3), (3,)), ((5, 1, 3), (3, 4)), ((2, 1, 1, 3), (5, 3, 1)),
    ((2, 1, 4), (1, 4, 3)), ((2, 3, 1, 4), (4,)), ((40, 40), (40, 1)), ((1, 40), (40, 40)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "c8", "c16", "i4", "u1", "?"])
@pytest.mark.parametrize("sizes", ["static", "dynamic"])
def test_products_without_free_axes_or_sums(dtype: str, sizes: str) -> None:
    """Also of transposed operands, whose axes a sum takes in the order in which they lie."""
    for first, second in SHAPES:
        x, y = numbers(first, dtype), numbers(second, dtype)
        got = dsl.jit(times, dynamic=sizes == "dynamic")(x, y)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, x @ y)
        if min(len(first), len(second)) > 1:
            turned = dsl.jit(lambda x, y: x.mT @ y.mT, dynamic=sizes == "dynamic")
            np.testing.assert_array_equal(turned(x.mT.copy(), y.mT.copy()), x @ y)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_complex_vectors(dtype: str) -> None:
    x = (numbers((30, 40), dtype) + 1j * numbers((30, 40), dtype)[::-1]).astype(dtype)
    y, z = x[3], x[:, 5]
    for function, args in (
        (np.dot, (y, y)), (np.vdot, (y, y)), (times, (x, y)), (row_times, (x, z)), (lambda x, z: x.conj().T @ z, (x, z)),
        (lambda x, z: np.vecdot(x, z), (x, y)), (lambda x, z: x.T.conj() @ z, (x, z)), (lambda x, z: x.conj().T.conj() @ z, (x, z)),
    ):  # fmt: skip
        np.testing.assert_array_equal(dsl.jit(function)(*args), function(*args))


def test_sums_without_free_axes_are_kernels() -> None:
    x = numbers((50, 40), "f8")
    for subscripts in ("ij,ij->i", "ij,ij->j", "ij,ij->"):
        f = dsl.jit(lambda x, y, subscripts=subscripts: np.einsum(subscripts, x, y))
        assert "[library]" not in f.ir(x, x, stage="kernels")
        np.testing.assert_array_equal(f(x, x), np.einsum(subscripts, x, x))


@pytest.mark.parametrize(
    ("subscripts", "of_first", "of_second"),
    [
        ("ij,ij->i", "i,ij->ij", "ij,i->ij"),
        ("ij,ij->j", "j,ij->ij", "ij,j->ij"),
        ("ijk,ik->ij", "ij,ik->ijk", "ijk,ij->ik"),
        ("ijk,ij->ik", "ik,ij->ijk", "ijk,ik->ij"),
    ],
)
def test_derivatives_of_stacks_of_vectors(subscripts: str, of_first: str, of_second: str) -> None:
    sizes = {"i": 4, "j": 5, "k": 6}
    first, second = subscripts.split("->")[0].split(",")
    x, y = (numbers(tuple(sizes[letter] for letter in own), "f8") for own in (first, second))
    dx, dy = dsl.grad(lambda x, y: (np.einsum(subscripts, x, y) ** 2).sum(), argnums=(0, 1))(x, y)
    back = 2 * np.einsum(subscripts, x, y)
    np.testing.assert_allclose(dx, np.einsum(of_first, back, y))
    np.testing.assert_allclose(dy, np.einsum(of_second, x, back))


def test_dots_are_the_same_for_any_number_of_threads() -> None:
    x = np.random.default_rng(0).standard_normal((2, 300_000))
    found = []
    for threads in (1, 2, 3):
        with dsl.config.override(num_threads=threads):
            found.append((dsl.jit(times)(*x), dsl.jit(times)(*(x + 1j * x[::-1]))))
    assert found[0] == found[1] == found[2]
