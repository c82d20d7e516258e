"""`dsl.nn` against SciPy and plain formulas."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.signal
import scipy.special

import dsl

X = np.linspace(-9, 9, 37)
FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": scipy.special.expit,
    "tanh": np.tanh,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "silu": lambda x: x * scipy.special.expit(x),
    "swish": lambda x: x * scipy.special.expit(x),
    "gelu": lambda x: x * scipy.special.ndtr(x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "softmax": scipy.special.softmax,
    "log_softmax": scipy.special.log_softmax,
    "logsumexp": scipy.special.logsumexp,
}


def compiled(name: str, *args: Any, **options: Any) -> Any:
    function = getattr(dsl.nn, name)
    return dsl.jit(lambda *xs: function(*xs, **options))(*args)


@pytest.mark.parametrize("name", FORMULAS)
def test_functions_of_one_array(name: str) -> None:
    np.testing.assert_allclose(compiled(name, X), FORMULAS[name](X), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_dtype_stays(name: str, dtype: Any) -> None:
    found = compiled(name, X.astype(dtype))
    assert found.dtype == dtype
    expected = FORMULAS[name](X.astype(dtype).astype("f8"))
    tolerance = 4 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(found.astype("f8"), expected, rtol=tolerance, atol=tolerance)


def test_whole_numbers_count_as_float64_except_in_relu() -> None:
    assert compiled("sigmoid", np.arange(3)).dtype == np.float64
    assert compiled("relu", np.arange(-2, 3)).dtype == np.int64


@pytest.mark.parametrize(
    "name",
    ["sigmoid", "softplus", "silu", "gelu", "elu", "selu", "softmax", "log_softmax", "logsumexp"],
)
def test_large_arguments_do_not_overflow(name: str) -> None:
    for dtype in ("f4", "f8"):
        found = compiled(name, np.array([-1e4, 0, 1e4], dtype))
        assert np.isfinite(found).all()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_far_below_zero_the_logistic_function_goes_on_to_zero(dtype: str) -> None:
    huge = np.finfo(dtype).max
    x = np.array([-np.inf, -huge, -1000.0, np.inf], dtype)
    for function in (dsl.nn.sigmoid, scipy.special.expit):
        assert (dsl.jit(lambda x, f=function: f(x))(x) == [0, 0, 0, 1]).all()
        assert (dsl.grad(lambda x, f=function: f(x).sum())(x) == 0).all()
    assert (compiled("silu", x[1:3]) == 0).all()


@pytest.mark.parametrize("function", [dsl.nn.sigmoid, scipy.special.expit])
def test_derivative_of_the_logistic_function_keeps_its_digits(function: Any) -> None:
    x = np.array([-80, -50, -20, -1, 0, 1, 20, 50, 80], "f4")
    exact = np.exp(-np.abs(x.astype("f8"))) / (1 + np.exp(-np.abs(x.astype("f8")))) ** 2
    found = dsl.grad(lambda x: function(x).sum())(x)
    np.testing.assert_allclose(found, exact, rtol=1e-6)
    found = dsl.grad(lambda x: np.log(function(x)).sum())(x[:3])
    np.testing.assert_allclose(found, 1, rtol=1e-6)


def test_gelu_by_tanh() -> None:
    expected = 0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)))
    np.testing.assert_allclose(
        compiled("gelu", X, approximate=True), expected, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 1)])
def test_softmax_over_axes(axis: Any) -> None:
    x = X.reshape(1, 37) * np.arange(3)[:, None]
    for name in ("softmax", "log_softmax"):
        np.testing.assert_allclose(
            compiled(name, x, axis=axis), FORMULAS[name](x, axis=axis), rtol=1e-12
        )  # type: ignore[call-arg]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)])
def test_logsumexp(axis: Any, keepdims: bool) -> None:
    x = np.array([[1.0, -np.inf, 3.0], [-np.inf, -np.inf, -np.inf]])
    found = compiled("logsumexp", x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(found, scipy.special.logsumexp(x, axis=axis, keepdims=keepdims))
    weights = np.array([1.0, 2.0, 0.5])
    found = dsl.jit(lambda x, b: dsl.nn.logsumexp(x, axis, b, keepdims))(x, weights)
    np.testing.assert_allclose(found, scipy.special.logsumexp(x, axis, weights, keepdims))


def test_one_hot() -> None:
    labels = np.array([[0, 2], [1, 7]])
    expected = (labels[..., None] == np.arange(3)).astype(float)
    np.testing.assert_array_equal(compiled("one_hot", labels, num_classes=3), expected)
    first = compiled("one_hot", labels, num_classes=3, dtype="f4", axis=0)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, np.moveaxis(expected, -1, 0))
    with pytest.raises(TypeError, match="whole numbers"):
        compiled("one_hot", X, num_classes=3)


def test_cross_entropy_of_classes_and_probabilities() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 3))
    labels = np.array([0, 2, 1, 1, 0])
    expected = -scipy.special.log_softmax(logits, -1)[np.arange(5), labels]
    np.testing.assert_allclose(compiled("cross_entropy", logits, labels), expected)
    np.testing.assert_allclose(compiled("cross_entropy", logits, np.eye(3)[labels]), expected)
    np.testing.assert_allclose(compiled("cross_entropy", logits.T, labels, axis=0), expected)
    masked = np.array([[0.0, -np.inf]])
    assert compiled("cross_entropy", masked, np.array([0])) == 0


def test_normalisation() -> None:
    x, w, b = np.random.default_rng(0).normal(size=(4, 8)), np.arange(8.0), np.ones(8)
    standard = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(compiled("standardize", x), standard)
    np.testing.assert_allclose(compiled("layer_norm", x, w, b), standard * w + b)
    rms = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(compiled("rms_norm", x, w), rms * w)
    assert compiled("layer_norm", x.astype("f2"), w, b).dtype == np.float16


def test_dropout_keeps_the_mean() -> None:
    key, x = dsl.random.key(0), np.ones((100, 100), "f4")
    found = dsl.jit(lambda k, x: dsl.nn.dropout(k, x, 0.25))(key, x)
    assert found.dtype == np.float32
    assert set(np.unique(found)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(found.mean() - 1) < 0.02
    np.testing.assert_array_equal(dsl.jit(lambda k, x: dsl.nn.dropout(k, x, 0))(key, x), x)


def correlate(x: np.ndarray, w: np.ndarray, stride: int = 1, dilation: int = 1) -> np.ndarray:
    """Cross-correlate one image with each kernel, without padding."""
    rank = x.ndim - 2
    spread = np.zeros((*w.shape[:2], *(dilation * (k - 1) + 1 for k in w.shape[2:])))
    spread[(..., *(slice(None, None, dilation),) * rank)] = w
    rows = [
        [
            sum(scipy.signal.correlate(c, k, "valid") for c, k in zip(i, o, strict=True))
            for o in spread
        ]
        for i in x
    ]
    return np.array(rows)[(..., *(slice(None, None, stride),) * rank)]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
def test_convolutions(stride: int, dilation: int) -> None:
    rng = np.random.default_rng(0)
    for name, space, window in (("conv1d", (9,), (3,)), ("conv2d", (9, 8), (3, 2))):
        x, w, b = (
            rng.normal(size=(2, 3, *space)),
            rng.normal(size=(4, 3, *window)),
            rng.normal(size=4),
        )
        expected = correlate(x, w, stride, dilation) + b.reshape(-1, *(1,) * len(space))
        np.testing.assert_allclose(
            compiled(name, x, w, b, stride=stride, dilation=dilation), expected
        )


def test_padding_of_convolutions() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 6, 5)), rng.normal(size=(4, 3, 3, 3))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for padding in ("same", 1, (1, 1), ((1, 1), (1, 1))):
        np.testing.assert_allclose(compiled("conv2d", x, w, padding=padding), correlate(padded, w))
    np.testing.assert_allclose(compiled("conv2d", x, w, padding="valid"), correlate(x, w))


def test_groups_of_channels_are_convolved_apart() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 4, 6, 5)), rng.normal(size=(6, 2, 3, 3))
    expected = np.concatenate([correlate(x[:, :2], w[:3]), correlate(x[:, 2:], w[3:])], axis=1)
    np.testing.assert_allclose(compiled("conv2d", x, w, groups=2), expected)


def test_pooling() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 8)).astype("f4")
    blocks = x.reshape(2, 3, 3, 2, 4, 2)
    np.testing.assert_array_equal(compiled("max_pool", x, window=(2, 2)), blocks.max((3, 5)))
    np.testing.assert_allclose(
        compiled("avg_pool", x, window=(2, 2)), blocks.mean((3, 5)), rtol=1e-5, atol=1e-6
    )
    windows = np.lib.stride_tricks.sliding_window_view(x, 3, -1)[..., ::2, :]
    np.testing.assert_array_equal(compiled("max_pool", x, window=3, stride=2), windows.max(-1))
    assert compiled("max_pool", x, window=(3, 3), stride=1, padding="same").shape == x.shape


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: dsl.nn.conv2d(x, np.ones((4, 2, 3, 3))), "the kernel takes 2 channels"),
        (lambda x: dsl.nn.conv1d(x, np.ones((4, 2, 3))), "of rank 3, got ranks 4 and 3"),
        (lambda x: dsl.nn.conv2d(x, np.ones((4, 3, 9, 9))), "does not fit"),
        (lambda x: dsl.nn.conv2d(x, np.ones((4, 3, 1, 1)), padding="full"), "'same', 'valid'"),
        (lambda x: dsl.nn.max_pool(x, (2, 2), stride=(1, 1, 1)), "stride must be"),
    ],
)
def test_mistakes(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dsl.jit(call)(np.ones((2, 3, 6, 5)))


def test_a_library_function_may_be_the_first_thing_called() -> None:
    program = (
        "import numpy as np, dsl; print(dsl.nn.logsumexp(np.zeros(2), b=np.array([1.0, 0.0])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0.0\n"
