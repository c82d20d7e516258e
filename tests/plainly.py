"""Run a function plainly and compiled, on equal arguments, and compare all that a caller can see."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
from collections.abc import Callable
from typing import Any

import numpy as np

import dsl


def outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, str]:
    """Return the result and what was printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        result = function(*args, **kwargs)
    return result, printed.getvalue()


def check_as_plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Check that the compiled function returns, prints and writes what the plain one does.

    Called twice, so that the second call takes the graph of the first. Returns the result.
    """
    compiled = dsl.jit(function)
    for _ in range(2):
        plain, mine = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
        want, printed = outcome(function, *plain)
        got, shown = outcome(compiled, *mine)
        assert_equal(got, want, "the result")
        assert_equal(mine, plain, "the arguments")
        assert shown == printed
    return got


def assert_equal(got: Any, want: Any, where: str) -> None:
    """Check type, dtype, shape and value of every leaf; floats to a few ulps."""
    if isinstance(got, np.generic) and type(want) in (bool, int, float, complex):
        # Where paths give a Python or a NumPy number, the compiled function gives NumPy's.
        got = got.item()
    assert type(got) is type(want), f"{where}: {type(got)} is not {type(want)}"
    if dataclasses.is_dataclass(want):
        got, want = vars(got), vars(want)
    if isinstance(want, dict):
        assert list(got) == list(want), where
        for key in want:
            assert_equal(got[key], want[key], f"{where}[{key!r}]")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), where
        for k, (mine, plain) in enumerate(zip(got, want, strict=True)):
            assert_equal(mine, plain, f"{where}[{k}]")
    elif isinstance(want, (np.ndarray, np.generic, float, complex)):
        assert_equal_numbers(np.asarray(got), np.asarray(want), where)
    else:
        assert got == want, where


def assert_equal_numbers(got: np.ndarray, want: np.ndarray, where: str) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape), where
    if want.dtype.kind in "fc":
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-300, err_msg=where)
    else:
        np.testing.assert_array_equal(got, want, err_msg=where)
