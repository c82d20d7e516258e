"""`np.einsum` in compiled functions against NumPy: a table of expressions, random ones, and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from against_numpy import check
from hypothesis import given, settings
from hypothesis import strategies as st

import dsl

SIZES = {"a": 2, "b": 3, "c": 4, "d": 2, "e": 3, "i": 3, "j": 4, "k": 2, "l": 3, "m": 2}
ELLIPSIS = (5, 2)

TABLE = """
    i->i  i->  i  ij  ji  ij->ji  ij->ij  ij->i  ij->j  ij->  ijk->kij  ijk->j  abcd->dcba  ba  ii->i  ii->  ii
    iij->ij  iij->ji  iij->j  iji->ij  ijj->i  iii->i  iii->  iijj->ij  iijj->  ijij->ij  ijij->ji  i,i->i  i,i->
    i,i  i,j->ij  i,j->ji  i,j->  i,j  ij,ij->ij  ij,ij->  ij,ji->  ij,ji  ij,j->i  i,ij->j  ij,i->j  ij,jk->ik
    ij,jk->ki  ij,jk  ij,kj->ik  ji,jk->ik  ij,jk->  ij,jk->i  ij,jk->ijk  ij,kl->ijkl  ij,kl->  bij,bjk->bik
    bij,bkj->bik  bij,bjk->ik  abij,abjk->abik  abc,cd->abd  abcd,abcd->ac  aab,bc->ac  iij,jkk->ik  ij,jj->i
    ij,jk,kl->il  ij,jk,kl,lm->im  i,i,i->i  i,j,k->ijk  i,ij,j->  ij,ij,ij->ij  abc,cd,de->abe  ij,ik,il->jkl
    ij,,jk->ik  ...->...  ...  ...i->...i  ...i->i...  i...->...  ...ij->...ji  ...ii->...i  ...ij,...jk->...ik
    a...,a...->...  i...,j->...j  ...,...->...  ...i,i->...  i,...i->...  ...ab,bc,cd->...ad
"""
EXPRESSIONS = TABLE.split()


def operands(expression: str, dtype: str, sizes: dict[str, int] = SIZES) -> list[np.ndarray]:
    rng = np.random.default_rng(len(expression))
    return [draw(rng, part, dtype, sizes) for part in expression.split("->")[0].split(",")]


def draw(rng: np.random.Generator, part: str, dtype: str, sizes: dict[str, int]) -> np.ndarray:
    shape: list[int] = []
    for letter in part.replace("...", "*"):
        shape += ELLIPSIS if letter == "*" else [sizes[letter]]
    x = rng.normal(size=shape) * 3
    return np.asarray(x + 1j * rng.normal(size=shape) if dtype.startswith("c") else x).astype(dtype)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions(expression: str) -> None:
    for dtype in ("?", "i4", "f8", "c8"):
        check(lambda *xs: np.einsum(expression, *xs), *operands(expression, dtype))


def test_the_table_is_long_enough() -> None:
    assert len(set(EXPRESSIONS)) >= 60


@st.composite
def expressions(draw_: st.DrawFn) -> str:
    letters = "abcde"
    parts = draw_(st.lists(st.text(letters, max_size=3), min_size=1, max_size=4))
    used = sorted(set("".join(parts)))
    result = draw_(st.permutations(used).map(lambda p: p[: draw_(st.integers(0, len(used)))]))
    return f"{','.join(parts)}->{''.join(result)}" if draw_(st.booleans()) else ",".join(parts)


@settings(max_examples=100, deadline=None)
@given(expressions())
def test_random_expressions(expression: str) -> None:
    check(lambda *xs: np.einsum(expression, *xs), *operands(expression, "f8"))


@pytest.mark.parametrize(
    "expression", ["ij,ij->ij", "ij,ij->i", "ij,ij->j", "ij,ij->", "ij,jk->ik", "...j,...j->..."]
)
def test_axes_of_size_1_broadcast(expression: str) -> None:
    check(lambda x, y: np.einsum(expression, x, y), np.ones((1, 3)), np.arange(9.0).reshape(3, 3))
    check(
        lambda x, y: np.einsum(expression, x, y),
        np.arange(3.0).reshape(3, 1),
        np.arange(9.0).reshape(3, 3),
    )


def test_subscripts_as_lists() -> None:
    x, y = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    check(lambda a, b: np.einsum(a, [0, 1], b, [1, 2]), x, y)
    check(lambda a, b: np.einsum(a, [0, 1], b, [1, 2], [2, 0]), x, y)
    check(lambda a, b: np.einsum(a, [..., 30], b, [30, 2], [..., 2]), x, y)
    check(lambda a, b: np.einsum(a, [26, 1], b, [1, 25]), x, y)


@pytest.mark.parametrize(
    "optimize",
    [True, False, "greedy", "optimal", ["einsum_path", (0, 1), (0, 1)], ["einsum_path", (0, 1, 2)]],
)
def test_paths(optimize: Any) -> None:
    arrays = operands("ij,jk,kl->il", "f8")
    check(lambda *xs: np.einsum("ij,jk,kl->il", *xs, optimize=optimize), *arrays)


def test_dtypes_promote_and_can_be_chosen() -> None:
    x, y = np.arange(3, dtype="i4"), np.arange(3, dtype="f4")
    check(lambda a, b: np.einsum("i,i->i", a, b), x, y)
    check(lambda a, b: np.einsum("i,i->", a, a, dtype="f8"), x, y)
    check(lambda a, b: np.einsum("i,i->", a.astype("i1"), a.astype("i1") * 100), x, y)
    check(lambda a, b: np.einsum("i,i->", b, b, dtype="f2", casting="unsafe"), x, y)


def test_out() -> None:
    def function(x: np.ndarray) -> np.ndarray:
        y = np.zeros(2)
        np.einsum("ij->i", x, out=y)
        return y

    check(function, np.arange(6.0).reshape(2, 3))


def test_without_a_sum_the_result_is_a_view() -> None:
    def function(x: np.ndarray) -> np.ndarray:
        y = x.copy()
        np.einsum("ii->i", y)[...] = 7
        np.einsum("ij->ji", y)[0, 1] = 9
        np.einsum("iji->ji", y.reshape(3, 1, 3))[0] += 1
        return y

    check(function, np.arange(9.0).reshape(3, 3))


def test_sizes_known_at_run_time() -> None:
    def function(x: np.ndarray) -> Any:
        y = x[x > 0]
        z = np.outer(y, y)
        return (
            np.einsum("i,i", y, y),
            np.einsum("ii->i", z),
            np.einsum("i,ij,jk->k", y, z, z),
            np.einsum("...i->...", z),
        )

    check(function, np.array([1.0, -2.0, 3.0, 4.0]))


MISTAKES: list[tuple[str, list[tuple[int, ...]]]] = [
    ("i,i->i", [(2,), (3,)]),
    ("ij->i", [(2,)]),
    ("i->i", [(2, 2)]),
    ("ii->i", [(2, 3)]),
    ("i->ij", [(2,)]),
    ("i->ii", [(2,)]),
    ("i&", [(2,)]),
    ("i.j", [(2, 2)]),
    ("i->i.", [(2,)]),
    ("...i->i", [(2, 2)]),
]


@pytest.mark.parametrize(("expression", "shapes"), MISTAKES)
def test_mistakes_raise_numpys_errors(expression: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [np.ones(shape) for shape in shapes]
    with pytest.raises(ValueError) as expected:
        np.einsum(expression, *arrays)
    with pytest.raises(ValueError) as found:
        dsl.jit(lambda *xs: np.einsum(expression, *xs))(*arrays)
    ours, theirs = (str(getattr(e.value, "message", e.value)) for e in (found, expected))
    assert ours.split("remapped]")[0] == theirs.split("remapped]")[0]


@pytest.mark.parametrize(("expression", "count", "word"), [("i,j", 1, "fewer"), ("i", 2, "more")])
def test_a_wrong_number_of_operands(expression: str, count: int, word: str) -> None:
    """NumPy 2.4 has the two words the wrong way round."""
    with pytest.raises(ValueError, match=f"{word} operands provided to einstein sum function"):
        dsl.jit(lambda *xs: np.einsum(expression, *xs))(*[np.ones(2)] * count)
