"""`dsl.random`: determinism, prefixes, ranges, and moments of each distribution for fixed keys."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.stats

import dsl

N = 40_000
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
KEY = np.array([7, 11], np.uint32)
DISTRIBUTIONS: dict[str, Any] = {
    "uniform": scipy.stats.uniform(),
    "normal": scipy.stats.norm(),
    "exponential": scipy.stats.expon(),
    "laplace": scipy.stats.laplace(),
    "gumbel": scipy.stats.gumbel_r(),
}


def drawn(name: str, *args: Any, key: np.ndarray = KEY, **options: Any) -> np.ndarray:
    function = getattr(dsl.random, name)
    return np.asarray(dsl.jit(lambda k: function(k, *args, **options))(key))


# -- keys --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, -1, 2**32, 2**40 + 5, 2**63 - 1])
def test_keys_are_the_two_words_of_the_seed(seed: int) -> None:
    expected = np.array([seed % 2**64 >> 32, seed % 2**32], np.uint32)
    for made in (
        dsl.random.key(seed),
        dsl.jit(lambda s: dsl.random.key(s))(np.int64(seed)),
        dsl.jit(lambda: dsl.random.key(seed))(),
    ):
        assert made.dtype == np.uint32
        np.testing.assert_array_equal(made, expected)


def test_large_seeds() -> None:
    made = dsl.jit(lambda: dsl.random.key(2**64 - 1))()
    np.testing.assert_array_equal(made, np.full(2, 2**32 - 1))


def test_splitting_gives_different_keys_that_are_folds() -> None:
    keys = drawn("split", 5)
    assert keys.shape == (5, 2)
    assert len({tuple(k) for k in keys}) == 5
    np.testing.assert_array_equal(drawn("split", 3), keys[:3])
    np.testing.assert_array_equal(drawn("fold_in", 4), keys[4])
    np.testing.assert_array_equal(drawn("split", (2, 2)), drawn("split", 4).reshape(2, 2, 2))


def test_a_stack_of_keys_gives_a_stack_of_results() -> None:
    keys = drawn("split", 3)
    for name in ("uniform", "normal"):
        found = drawn(name, (4,), key=keys)
        np.testing.assert_array_equal(found, np.stack([drawn(name, (4,), key=k) for k in keys]))
    again = drawn("split", 2, key=keys)
    np.testing.assert_array_equal(again[1], drawn("split", 2, key=keys[1]))


def test_functions_work_at_once_outside_of_compiled_code() -> None:
    key = dsl.random.key(3)
    np.testing.assert_array_equal(dsl.random.uniform(key, (4,)), drawn("uniform", (4,), key=key))
    np.testing.assert_array_equal(dsl.random.permutation(key, 5), drawn("permutation", 5, key=key))


@pytest.mark.parametrize("bad", [np.zeros(2), np.zeros(3, np.uint32), 5])
def test_what_is_not_a_key_is_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="a key must be u32"):
        dsl.jit(lambda k: dsl.random.uniform(k, (3,)))(bad)


# -- floats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*DISTRIBUTIONS, "bits"])
def test_equal_keys_give_equal_numbers_and_longer_results_begin_with_shorter_ones(
    name: str,
) -> None:
    long = drawn(name, (4, 25))
    np.testing.assert_array_equal(long, drawn(name, (4, 25)))
    np.testing.assert_array_equal(long.ravel()[:30], drawn(name, (30,)))
    assert not np.array_equal(long, drawn(name, (4, 25), key=KEY + np.uint32(1)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name: str, dtype: Any) -> None:
    x = drawn(name, (N,), dtype)
    assert x.dtype == dtype
    assert x.shape == (N,)
    wide = x.astype(np.float64)
    law = DISTRIBUTIONS[name]
    assert np.isfinite(wide).all()
    assert abs(wide.mean() - law.mean()) < 6 * law.std() / np.sqrt(N) + 0.003
    assert abs(wide.std() - law.std()) < 0.03 * law.std()
    if np.dtype(dtype).itemsize > 2:
        assert scipy.stats.kstest(wide, law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_floats_stay_below_high(dtype: Any) -> None:
    x = drawn("uniform", (N,), dtype).astype(float)
    assert x.min() >= 0
    assert x.max() < 1
    y = drawn("uniform", (N,), dtype, -3.0, -2.5).astype(float)
    assert y.min() >= -3
    assert y.max() < -2.5


def test_parameters_broadcast() -> None:
    loc, scale = np.array([0.0, 100.0]), np.array([[1.0], [2.0], [3.0]])
    x = np.asarray(
        dsl.jit(lambda k, m, s: dsl.random.normal(k, None, np.float64, m, s))(KEY, loc, scale)
    )
    z = drawn("normal", (3, 2))
    np.testing.assert_allclose(x, loc + scale * z)
    y = drawn("normal", (1000, 2), loc=loc, scale=0.1)
    np.testing.assert_allclose(y.mean(0), loc, atol=0.02)
    assert drawn("normal").shape == ()


def test_independent_elements() -> None:
    x = drawn("normal", (N,))
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / np.sqrt(N)
    y = drawn("normal", (N,), key=drawn("split")[1])
    assert abs(np.corrcoef(x, y)[0, 1]) < 5 / np.sqrt(N)


def test_truncated_normal() -> None:
    x = drawn("truncated_normal", -1.0, 2.0, (N,))
    assert x.min() >= -1
    assert x.max() <= 2
    assert scipy.stats.kstest(x, scipy.stats.truncnorm(-1, 2).cdf).pvalue > 1e-3


def test_multivariate_normal() -> None:
    mean, cov = np.array([1.0, -2.0]), np.array([[2.0, 0.8], [0.8, 1.0]])
    x = drawn("multivariate_normal", mean, cov, (N,))
    np.testing.assert_allclose(x.mean(0), mean, atol=0.05)
    np.testing.assert_allclose(np.cov(x.T), cov, atol=0.06)


def test_bernoulli() -> None:
    x = drawn("bernoulli", 0.3, (N,))
    assert x.dtype == bool
    assert abs(x.mean() - 0.3) < 0.015
    assert not drawn("bernoulli", 0.0, (100,)).any()
    assert drawn("bernoulli", 1.0, (100,)).all()
    assert drawn("bernoulli", np.array([0.0, 1.0])).tolist() == [False, True]


# -- integers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_integers_are_spread_evenly(dtype: str) -> None:
    x = drawn("integers", 3, 13, (N,), dtype)
    assert x.dtype == dtype
    counts = np.bincount(x.astype(int), minlength=13)[3:]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    assert counts.sum() == N
    np.testing.assert_array_equal(x[:10], drawn("integers", 3, 13, (10,), dtype))


def test_integers_in_numpys_forms() -> None:
    assert set(np.unique(drawn("integers", 4, shape=(500,)))) == {0, 1, 2, 3}
    assert set(np.unique(drawn("integers", -1, 1, (500,), endpoint=True))) == {-1, 0, 1}
    np.testing.assert_array_equal(drawn("randint", 0, 9, (5,)), drawn("integers", 0, 9, (5,)))


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(-(2**63), 2**63 - 1, "i8"), (0, 2**64 - 1, "u8"), (-(2**31), 2**31 - 1, "i4")],
)
def test_integers_over_all_of_a_dtype(low: int, high: int, dtype: str) -> None:
    x = drawn("integers", low, high, (N,), dtype, endpoint=True)
    y = (x.astype(float) - low) / (high - low)
    assert scipy.stats.kstest(y, "uniform").pvalue > 1e-3


def test_integers_over_a_span_that_does_not_divide_the_word() -> None:
    span = 3 * 2**61
    x = drawn("integers", 0, span, (N,))
    assert scipy.stats.kstest(x / span, "uniform").pvalue > 1e-3


def test_integers_with_bounds_known_at_run_time_are_the_same() -> None:
    for span in (10, 2**32, 2**32 + 1, 2**50):
        found = dsl.jit(lambda k, n: dsl.random.integers(k, 0, n, (20,)))(KEY, np.int64(span))
        np.testing.assert_array_equal(found, drawn("integers", 0, span, (20,)))
    pair = dsl.jit(lambda k, n: dsl.random.integers(k, 0, n, (50, 2)))(KEY, np.array([2, 1000]))
    assert pair[:, 0].max() < 2
    assert 500 < pair[:, 1].max() < 1000


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((5, 5), "low >= high"),
        ((0, 300, (), "u1"), "high is out of bounds for uint8"),
        ((-1, 3, (), "u1"), "low is out of bounds"),
    ],
)
def test_bad_bounds(args: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        drawn("integers", *args)


# -- choices -----------------------------------------------------------------------------------------------------


def test_permutations() -> None:
    x = drawn("permutation", 1000)
    np.testing.assert_array_equal(np.sort(x), np.arange(1000))
    assert not np.array_equal(x, np.arange(1000))
    a = np.arange(12).reshape(3, 4)
    rows = drawn("permutation", a)
    np.testing.assert_array_equal(np.sort(rows, 0), a)
    columns = drawn("permutation", a, axis=1)
    np.testing.assert_array_equal(np.sort(columns, 1), a)
    orders = np.asarray(dsl.jit(lambda k: dsl.random.permutation(k, 3))(KEY))
    assert sorted(orders.tolist()) == [0, 1, 2]


def test_every_order_is_equally_likely() -> None:
    keys = drawn("split", 3000)
    orders = np.argsort(drawn("bits", (3,), np.uint64, key=keys), axis=-1)
    found = np.stack([drawn("permutation", 3, key=k) for k in keys[:3]])
    np.testing.assert_array_equal(found, orders[:3])
    counts = np.unique(orders @ [9, 3, 1], return_counts=True)[1]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_choice() -> None:
    a = np.array([10.0, 20.0, 30.0, 40.0])
    x = drawn("choice", a, (1000,))
    assert set(x) == set(a)
    assert drawn("choice", 4, (3, 2)).shape == (3, 2)
    assert sorted(drawn("choice", a, (4,), replace=False)) == sorted(a)
    assert len(set(drawn("choice", 100, (30,), replace=False).tolist())) == 30
    rows = drawn("choice", np.arange(6).reshape(3, 2), (5,))
    assert rows.shape == (5, 2)
    np.testing.assert_array_equal(rows[:, 1], rows[:, 0] + 1)


def test_choice_with_probabilities() -> None:
    p = np.array([0.1, 0.0, 0.6, 0.3])
    counts = np.bincount(drawn("choice", 4, (N,), p=p), minlength=4)
    np.testing.assert_allclose(counts / N, p, atol=0.015)
    distinct = drawn("choice", 4, (3,), replace=False, p=p)
    assert sorted(distinct.tolist()) == [0, 2, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shape": (5,), "replace": False}, "larger sample than population"),
        ({"p": np.ones(3)}, "a and p must have same size"),
    ],
)
def test_bad_choices(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        drawn("choice", 4, **options)


def test_categorical() -> None:
    p = np.array([0.1, 0.6, 0.3])
    x = drawn("categorical", np.log(p), shape=(N,))
    np.testing.assert_allclose(np.bincount(x) / N, p, atol=0.015)
    batch = drawn("categorical", np.array([[0.0, -np.inf], [-np.inf, 0.0]]))
    assert batch.tolist() == [0, 1]
    assert drawn("categorical", np.zeros((3, 5)), axis=0, shape=(7, 5)).shape == (7, 5)


def test_sizes_known_at_run_time() -> None:
    def function(key: np.ndarray, x: np.ndarray) -> Any:
        y = x[x > 0]
        return (
            dsl.random.normal(key, y.shape),
            dsl.random.permutation(key, y),
            dsl.random.choice(key, y, (2,)),
        )

    normal, mixed, chosen = dsl.jit(function)(KEY, np.array([1.0, -1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(normal, drawn("normal", (3,)))
    assert sorted(mixed.tolist()) == [1.0, 2.0, 3.0]
    assert set(chosen) <= {1.0, 2.0, 3.0}
