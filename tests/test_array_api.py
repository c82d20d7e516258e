"""`dsl.numpy` has the names of the Python array API standard, and they work eagerly and in traces."""

from __future__ import annotations

import array_api_strict as strict
import numpy as np

import dsl
import dsl.numpy as xp

_NOT_OF_THE_STANDARD = ("flags", "ArrayAPIStrictFlags", "Device")


def test_every_name_of_the_standard_is_there() -> None:
    names = [n for n in strict.__all__ if not n.endswith((*_NOT_OF_THE_STANDARD, "__version__"))]
    assert [n for n in names if not hasattr(xp, n)] == []
    assert [n for n in strict.linalg.__all__ if not hasattr(xp.linalg, n)] == []
    assert [n for n in strict.fft.__all__ if not hasattr(xp.fft, n)] == []


def test_eager_results_are_numpy_arrays() -> None:
    found = xp.permute_dims(xp.astype(xp.arange(6).reshape(2, 3), xp.float32), (1, 0))
    assert type(found) is np.ndarray
    assert found.dtype == np.float32


def test_code_for_the_standard_runs_in_a_trace() -> None:
    def standardise(x):
        space = x.__array_namespace__()
        return space.concat([x - space.mean(x), space.cumulative_sum(x)])

    x = np.arange(4.0)
    np.testing.assert_array_equal(dsl.jit(standardise)(x), standardise(x))


def test_more_than_250_functions() -> None:
    spaces = (dsl.numpy, dsl.linalg, dsl.fft, dsl.random, dsl.nn)
    assert sum(len(space.__all__) for space in spaces) >= 250
