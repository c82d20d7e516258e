"""Whole NumPy programs, decorated: results, dtypes, side effects on arguments, output and exceptions of the plain function."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsl
from dsl.config import config

# Programs that are refused, with the words of the refusal; docs/sharp-bits.md lists the reasons.
REFUSED = {
    "inverse_or_pinv": "which this `try` cannot catch",
    "connected_components_scan": "a member of a set, or a dictionary key",
    "raise_on_divide": "np.errstate(...='raise')",
    "try_cholesky": "which this `try` cannot catch",
    "gen_sum": "a Python condition in code that was not converted",
}

# Programs with two mistakes, of which compiling finds the second one first: shapes are known before data.
FOUND_EARLIER = {"sort_pairs_by_key": ValueError}

FOLDER = Path(__file__).parent / "programs"
# The interpreter is the oracle of many other tests; here it runs one program in so many.
INTERPRETED = 5


def load(path: Path) -> Any:
    name = f"programs_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def rows() -> list[Any]:
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        seen: dict[str, int] = {}
        for function, make in load(path).PROGRAMS:
            k = seen[function.__name__] = seen.get(function.__name__, 0) + 1
            found.append(pytest.param(function, make, id=f"{path.stem}-{function.__name__}-{k}"))
    return found


def arguments(function: Any, make: Any) -> tuple[Any, ...]:
    return tuple(make(np.random.default_rng(zlib.crc32(function.__name__.encode()))))


def outcome(function: Any, args: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        with np.errstate(all="ignore"):
            return "returned", function(*args)
    except Exception as error:
        return "raised", error


def public_type(error: Exception) -> type:
    """The most derived class of an exception that users can name: NumPy's private ones have a built-in base."""
    kinds = type(error).__mro__
    return next(k for k in kinds if k.__module__ == "builtins" or k is np.linalg.LinAlgError)


def narrowest(*objects: Any) -> np.dtype:
    """Return the float dtype of fewest bits among arrays in nested containers: what is computed from them is no finer."""
    found = [np.dtype(np.float64)]
    pending = list(objects)
    while pending:
        item = pending.pop()
        if isinstance(item, (np.ndarray, np.generic)) and item.dtype.kind in "fc":
            found.append(np.finfo(item.dtype).dtype)
        elif isinstance(item, (tuple, list)):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.values())
    return min(found, key=lambda dtype: dtype.itemsize)


def check_same(found: Any, expected: Any, where: str, finest: Any = np.float64) -> None:
    """Same type, dtype, shape and value, NaNs equal; floats to a few ulps, since a sum may be taken in another order.

    `finest` is the dtype whose ulps count where the result's own are smaller.
    """
    if dataclasses.is_dataclass(expected) and not isinstance(expected, type):
        assert type(found) is type(expected), where
        for item in dataclasses.fields(expected):
            f, e = getattr(found, item.name), getattr(expected, item.name)
            check_same(f, e, f"{where}.{item.name}", finest)
    elif isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key in expected:
            check_same(found[key], expected[key], f"{where}[{key!r}]", finest)
    elif isinstance(expected, (tuple, list)):
        assert (type(found), len(found)) == (type(expected), len(expected)), where
        for k, (f, e) in enumerate(zip(found, expected, strict=True)):
            check_same(f, e, f"{where}[{k}]", finest)
    elif isinstance(expected, (np.ndarray, np.generic, float, complex)):
        check_number(found, expected, where, finest)
    elif isinstance(expected, (int, bool)) and isinstance(found, np.generic):
        # Where paths return a Python or a NumPy number, the compiled function returns NumPy's.
        assert found == expected, where
    elif type(expected).__eq__ is object.__eq__ and hasattr(expected, "__dict__"):
        assert type(found) is type(expected), where
        check_same(vars(found), vars(expected), where, finest)
    else:
        assert type(found) is type(expected), f"{where}: {type(found)} is not {type(expected)}"
        assert found == expected, where


def check_number(found: Any, expected: Any, where: str, finest: Any = np.float64) -> None:
    if isinstance(expected, np.ndarray) or isinstance(found, np.ndarray):
        assert type(found) is type(expected), f"{where}: {type(found)} is not {type(expected)}"
    f, e = np.asarray(found), np.asarray(expected)
    assert f.shape == e.shape, f"{where}: shape {f.shape} is not {e.shape}"
    if isinstance(expected, np.generic) and isinstance(found, np.generic):
        assert f.dtype == e.dtype, f"{where}: {f.dtype} is not {e.dtype}"
    if isinstance(expected, np.ndarray):
        assert f.dtype == e.dtype, f"{where}: {f.dtype} is not {e.dtype}"
    if e.dtype.kind in "fc":
        tolerance = 64 * max(float(np.finfo(dtype).eps) for dtype in (e.dtype, finest))
        np.testing.assert_allclose(
            f,
            e,
            rtol=tolerance,
            atol=tolerance * float(np.max(np.abs(e[np.isfinite(e)]), initial=1e-30)),
            equal_nan=True,
            err_msg=where,
        )
    else:
        np.testing.assert_array_equal(f, e, err_msg=where)


def check_program(function: Any, make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    plain, mine = arguments(function, make), arguments(function, make)
    before = copy.deepcopy(mine)
    expected = outcome(function, plain)
    printed = capsys.readouterr().out
    found = outcome(dsl.jit(function), mine)
    if function.__name__ in REFUSED and found[0] == "raised" and isinstance(found[1], dsl.DslError):
        assert REFUSED[function.__name__] in str(found[1])
        return
    if expected[0] == "raised":
        assert found[0] == "raised", f"expected {expected[1]!r}, got {found[1]!r}"
        kind = FOUND_EARLIER.get(function.__name__, public_type(expected[1]))
        assert isinstance(found[1], kind), f"{expected[1]!r} but {found[1]!r}"
        check_same(mine, before, "arguments of a call that raised")
        return
    if found[0] == "raised":
        raise found[1]
    assert capsys.readouterr().out == printed
    finest = narrowest(before, expected[1])
    check_same(found[1], expected[1], "result", finest)
    check_same(mine, plain, "arguments", finest)


@pytest.mark.parametrize(("function", "make"), rows())
def test_decorated_program_is_the_plain_one(
    function: Any, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    check_program(function, make, capsys)


@pytest.mark.parametrize(("function", "make"), rows()[::INTERPRETED])
def test_interpreted_program_is_the_plain_one(
    function: Any, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.override(backend="interpreter"):
        check_program(function, make, capsys)
