"""Stacks of matrices of one to eight rows, which have routines of their own, against NumPy's LAPACK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dsl
import dsl.linalg
from dsl.ir.registry import OPS

pytest.importorskip("llvmlite")

Function = Callable[..., Any]


def functions() -> dict[str, Function]:
    """Return new functions, since one that sees matrices of several sizes is compiled for any."""
    return {
        "inv": lambda a, b: np.linalg.inv(a),
        "det": lambda a, b: np.linalg.det(a),
        "slogdet": lambda a, b: np.stack(np.linalg.slogdet(a)),
        "cholesky": lambda a, b: np.linalg.cholesky(a @ a.swapaxes(-1, -2)),
        "upper": lambda a, b: np.linalg.cholesky(a @ a.swapaxes(-1, -2), upper=True),
        "solve": lambda a, b: np.linalg.solve(a, b),
        "turned": lambda a, b: np.linalg.solve(a.swapaxes(-1, -2), b),
    }


def matrices(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return matrices that are not nearly singular, and need their rows exchanged."""
    large = 4 * np.eye(shape[-1])[rng.permutation(shape[-1])]
    return (rng.uniform(-1, 1, shape) + large).astype(dtype)


def assert_close(got: Any, want: Any) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    epsilon = float(np.finfo(want.dtype).eps)
    largest = float(np.abs(want[np.isfinite(want)]).max(initial=1.0))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e3 * epsilon * largest)


@pytest.mark.parametrize(
    ("n", "dtype"), [(1, "f8"), (2, "f4"), (3, "f8"), (4, "f4"), (5, "f8"), (8, "f4")]
)
def test_stacks_of_any_length(n: int, dtype: str) -> None:
    rng = np.random.default_rng(n)
    for name, f in functions().items():
        if n == 8 and name not in ("inv", "upper"):
            continue  # their routines take long to compile
        compiled = dsl.jit(f)
        for count in (19, 3, 16) if n in (2, 5) else (19, 3, 0, 16, 1):
            a = matrices(rng, (count, n, n), dtype)
            b = rng.normal(size=(count, n, 3 if n < 8 else 1)).astype(dtype)
            assert_close(compiled(a, b), f(a, b))
            if count == 16:
                text = compiled.ir(a, b, stage="llvm")
                assert f"dsl_lib_{name if name in ('inv', 'det', 'slogdet') else ''}" in text
                assert "dsl_ufunc" not in text


def test_a_matrix_has_the_same_bits_alone_and_in_a_stack_for_any_number_of_threads() -> None:
    rng = np.random.default_rng(5)
    a, b = matrices(rng, (30_001, 3, 3), "f8"), rng.normal(size=(30_001, 3, 1))
    for f in functions().values():
        stacked, alone = dsl.jit(f), dsl.jit(f)
        found = []
        for count in (1, 2, 4):
            with dsl.num_threads(count):
                found.append(stacked(a, b))
        assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
        some = np.moveaxis(found[0], 1, 0) if len(found[0]) == 2 else found[0]
        for k in (0, 7, 30_000):
            assert np.asarray(alone(a[k], b[k])).tobytes() == some[k].tobytes()


@pytest.mark.parametrize(
    ("left", "right"),
    [((), (11,)), ((12,), ()), ((1,), (9,)), ((3, 1), (1, 10)), ((2, 9), (9,)), ((2, 1, 2), (2, 3, 2))],
)  # fmt: skip
def test_systems_whose_stacks_are_broadcast(left: Any, right: Any) -> None:
    rng = np.random.default_rng(6)
    for n, k in ((2, 1), (4, 3)):
        a, b = matrices(rng, (*left, n, n), "f8"), rng.normal(size=(*right, n, k))
        for f in (functions()["solve"], functions()["turned"]):
            assert_close(dsl.jit(f)(a, b), f(a, b))


@pytest.mark.parametrize(("n", "dtype"), [(2, "f8"), (3, "f4"), (5, "f8")])
def test_systems_of_many_right_sides(n: int, dtype: str) -> None:
    rng = np.random.default_rng(11)
    for left, count, k in (((9,), 9, 9), ((3,), 3, 16), ((1,), 17, 30), ((17,), 1, 11)):
        a = matrices(rng, (*left, n, n), dtype)
        b = rng.normal(size=(count, n, k)).astype(dtype)
        for f in (functions()["solve"], functions()["turned"]):
            assert_close(dsl.jit(f)(a, b), f(a, b))


def test_views_of_stacks() -> None:
    rng = np.random.default_rng(7)
    whole, b = matrices(rng, (40, 6, 6), "f8"), rng.normal(size=(20, 3, 1))
    for f in functions().values():
        for a in (
            whole[::2, :3, :3],
            whole[20:, ::-2, ::2],
            whole[39:19:-1, 3:, 3:].swapaxes(1, 2),
        ):
            assert_close(dsl.jit(f)(a, b), f(a, b))


@pytest.mark.parametrize(
    ("lower", "trans", "unit"),
    [(True, 0, False), (True, 1, True), (False, 0, True), (False, 1, False)],
)
def test_triangular_systems(lower: bool, trans: int, unit: bool) -> None:
    from scipy.linalg import solve_triangular

    rng = np.random.default_rng(8)
    a, b = rng.uniform(1, 2, (17, 3, 3)), rng.normal(size=(17, 3, 2))

    def solved(a: Any, b: Any) -> Any:
        return dsl.linalg.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit)

    for x in (a, np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)):
        want = [
            solve_triangular(m, v, trans=trans, lower=lower, unit_diagonal=unit)
            for m, v in zip(x, b)
        ]
        assert_close(dsl.jit(solved)(x, b), np.array(want))


@pytest.mark.parametrize(("n", "dtype"), [(1, "f4"), (3, "f8"), (4, "f4")])
def test_factors_and_how_rows_changed_places(n: int, dtype: str) -> None:
    rng = np.random.default_rng(9)
    for count in (19, 3):
        a = matrices(rng, (count, n, n), dtype)
        a[0] = 0
        a[1, :, 0] = 0
        found, places = dsl.jit(dsl.linalg.lu_factor)(a)
        want, rows = OPS["lu"].numpy(a)
        assert_close(found, want)
        np.testing.assert_array_equal(places, rows)


@pytest.mark.parametrize("name", ["inv", "solve", "cholesky"])
@pytest.mark.parametrize("place", [0, 8, 40])
def test_one_bad_matrix_raises_and_arguments_stay(name: str, place: int) -> None:
    a = np.stack([np.diag([3.0, 2.0, 1.0])] * 41)
    a[place] = np.arange(9.0).reshape(3, 3) if name != "cholesky" else np.diag([1.0, -1.0, 1.0])

    @dsl.jit
    def into(out: Any, a: Any) -> None:
        if name == "cholesky":
            out[...] = np.linalg.cholesky(a)
        elif name == "inv":
            out[...] = np.linalg.inv(a)
        else:
            out[...] = np.linalg.solve(a, a)

    out = np.zeros_like(a)
    words = "not positive definite" if name == "cholesky" else "Singular matrix"
    with pytest.raises(np.linalg.LinAlgError, match=words):
        into(out, a)
    assert not out.any()
    into(out, np.stack([np.eye(3)] * 41))
    np.testing.assert_array_equal(out[place], np.eye(3))


def test_rows_that_are_multiples_of_others_are_singular() -> None:
    inv, det = dsl.jit(lambda a: np.linalg.inv(a)), dsl.jit(lambda a: np.linalg.det(a))
    for factor in (3.0, 7.0, 11.0):
        a = np.array([[1.0, 2.0], [factor, 2 * factor]])
        assert det(a) == 0
        with pytest.raises(np.linalg.LinAlgError):
            inv(a)


def test_numbers_at_the_ends_of_the_range() -> None:
    tiny, huge = 2.0**-1070, 2.0**1000
    inv, solve = dsl.jit(lambda a: np.linalg.inv(a)), dsl.jit(lambda a, b: np.linalg.solve(a, b))
    det, slogdet = dsl.jit(lambda a: np.linalg.det(a)), dsl.jit(lambda a: np.linalg.slogdet(a))
    np.testing.assert_array_equal(inv(np.diag([huge, 1.0])), np.diag([1 / huge, 1.0]))
    a = np.array([[tiny, tiny], [0.0, 1.0]])
    np.testing.assert_array_equal(solve(a, np.array([4 * tiny, 3.0])), [1.0, 3.0])
    for diagonal, product in (
        ([huge, huge, 1 / huge, 1 / huge], 1.0),
        ([tiny, huge, -3.0, 1.0], -3.0 * tiny * huge),
        ([huge, huge, huge, 1.0], np.inf),
        ([tiny, tiny, 1.0, -1.0], -0.0),
    ):
        assert det(np.diag(diagonal)) == product
    sign, log = slogdet(np.diag([tiny, -tiny, tiny, 1.0]))
    assert sign == -1
    np.testing.assert_allclose(log, -3210 * np.log(2), rtol=1e-15)


def test_what_is_not_a_number_is_no_error_and_stays_in_its_matrix() -> None:
    for n in (2, 4):
        for f in functions().values():
            compiled, b = dsl.jit(f), np.ones((9, n, 1))
            for bad in (np.nan, np.inf):
                a = np.stack([np.eye(n)] * 9)
                a[4, 0, 0] = bad
                got, other = compiled(a, b), f(np.eye(n), np.ones((n, 1)))
                got = got if len(got) == 9 else got.T
                assert np.isinf(bad) or np.isnan(got[4]).any()
                others = np.delete(got, 4, axis=0)
                np.testing.assert_array_equal(others, np.stack([other] * 8))
