"""`np.fft` in compiled functions against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from against_numpy import calling, check

import dsl

DTYPES = ["?", "i4", "f2", "f4", "f8", "c8", "c16"]
TO_REAL = ("irfft", "hfft")
FROM_REAL = ("rfft", "ihfft", "rfft2", "rfftn")


def draw(shape: Any, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape) * 3
    return np.asarray(x + 1j * rng.normal(size=shape) if dtype.startswith("c") else x).astype(dtype)


def takes(name: str, dtype: str) -> bool:
    return not (dtype.startswith("c") and name in FROM_REAL)


ONE_AXIS: list[dict[str, Any]] = [
    {}, {"n": 4}, {"n": 9}, {"n": 1}, {"axis": 0}, {"axis": -2, "n": 3}, {"norm": "ortho"}, {"norm": "backward"},
    {"norm": "forward", "n": 5},
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_axis(name: str, dtype: str) -> None:
    for options in ONE_AXIS if takes(name, dtype) else ():
        check(calling(getattr(np.fft, name), **options), draw((4, 6), dtype))


SEVERAL_AXES: list[dict[str, Any]] = [
    {}, {"s": (3, 8), "axes": (0, 1)}, {"s": (3, -1), "axes": (0, 1)}, {"axes": (1, 0)}, {"axes": (-1,)},
    {"norm": "ortho"}, {"norm": "forward"},
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["fft2", "ifft2", "fftn", "ifftn", "rfft2", "rfftn", "irfft2", "irfftn"]
)
def test_several_axes(name: str, dtype: str) -> None:
    for options in SEVERAL_AXES if takes(name, dtype) else ():
        check(
            calling(getattr(np.fft, name), **options),
            draw((4, 6), dtype),
            tolerance=3e-2 if dtype == "f2" else None,
        )


def test_all_axes_of_a_cube() -> None:
    x = draw((2, 3, 4), "f8")
    check(lambda a: np.fft.fftn(a), x)
    check(lambda a: np.fft.irfftn(np.fft.rfftn(a), s=(2, 3, 4), axes=(0, 1, 2)), x)
    check(lambda a: np.fft.fft2(a), x)


@pytest.mark.parametrize("name", ["fftshift", "ifftshift"])
def test_shifts(name: str) -> None:
    for shape in ((5,), (4,), (3, 4), (2, 3, 5), (1,), (0,)):
        check(lambda x: getattr(np.fft, name)(x), draw(shape, "i4"))
    for axes in (0, -1, (0,), (1, 0)):
        check(calling(getattr(np.fft, name), axes), draw((3, 4), "f4"))


def test_frequencies() -> None:
    for n in (1, 4, 5):
        check(calling(lambda x, n: np.fft.fftfreq(n, x), n), np.float64(0.1))
        check(calling(lambda x, n: np.fft.rfftfreq(n, x), n), np.float64(0.1))
        check(calling(lambda x, n: np.fft.fftfreq(n) * x, n), np.float64(0.1))
        check(lambda x: (np.fft.fftfreq(x.size, 0.1), np.fft.rfftfreq(x.size)), np.ones(n))


def test_long_frequencies_are_no_constants() -> None:
    """They would be text in the code: seconds of compiling for a million of them."""

    def filtered(x):
        return np.fft.fftfreq(10_000) + np.fft.rfftfreq(19_999, 0.5) * x

    check(filtered, np.float64(2.0))
    assert len(dsl.jit(filtered).ir(np.float64(2.0), stage="llvm")) < 50_000


def test_out() -> None:
    def function(x: np.ndarray) -> Any:
        y, z = np.zeros((4, 6), complex), np.zeros((4, 4), complex)
        np.fft.fft(x, out=y)
        np.fft.rfftn(x, out=z)
        return y, z

    check(function, draw((4, 6), "f8"))


def test_sizes_known_at_run_time() -> None:
    def transforms(x: np.ndarray) -> Any:
        y = x[x > 0]
        half = np.fft.rfft(y)
        return (
            np.fft.fft(y),
            np.fft.ifft(y, norm="ortho"),
            np.fft.irfft(half),
            np.fft.irfft(half, y.size),
            np.fft.fft(y, 4),
            np.fft.fft(y, 20),
        )

    def others(x: np.ndarray) -> Any:
        y = x[x > 0]
        frequencies = np.fft.fftfreq(y.size), np.fft.rfftfreq(y.size, 0.5)
        return np.fft.fftshift(y), np.fft.ifftshift(y), *frequencies

    for n in (9, 16):
        check(transforms, draw((n,), "f8"))
        check(others, draw((n,), "f8"))


MISTAKES: list[Any] = [
    lambda x: np.fft.fft(x, n=0),
    lambda x: np.fft.fft(x, axis=5),
    lambda x: np.fft.fft(x, norm="x"),
    lambda x: np.fft.hfft(x, norm="x"),
    lambda x: np.fft.irfft(x[:, :1]),
    lambda x: np.fft.fftn(x, s=(2,), axes=(0, 1)),
    lambda x: np.fft.fft2(x[0]),
    lambda x: np.fft.rfft(x + 1j),
    lambda x: np.fft.fft(x, out=np.zeros((4, 5), complex)),
]


@pytest.mark.parametrize("case", range(len(MISTAKES)))
def test_mistakes_raise_numpys_errors(case: int) -> None:
    with pytest.raises((ValueError, IndexError, TypeError)) as expected:
        MISTAKES[case](np.ones((4, 6)))
    with pytest.raises(type(expected.value)) as found:
        dsl.jit(MISTAKES[case])(np.ones((4, 6)))
    message = getattr(found.value, "message", str(found.value))
    assert message.replace("rfft_n_odd", "rfft_n_even") == str(expected.value)
