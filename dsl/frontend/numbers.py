"""Numbers that are known while tracing: made constants of a dtype as NumPy does it.

What comes in are Python numbers, NumPy scalars and lists of them; what goes out are arrays. NumPy itself converts, so
that it decides what a dtype can hold; what it refuses is refused here, at the user's line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dsl.errors import DslError, NumberError, TypeRuleError
from dsl.frontend.scopes import here

__all__ = ["assigned", "is_assigned", "is_plain_number", "made", "refusals_located"]

_REMEDY = "use a dtype that holds the number; to wrap it on purpose, convert an array: `np.array(n).astype(dtype)`"


def is_plain_number(x: Any) -> bool:
    """Tell whether `x` is a Python number, which has no dtype of its own."""
    return isinstance(x, (bool, int, float, complex)) and not isinstance(x, np.generic)


def is_assigned(x: Any, dtype: np.dtype) -> bool:
    """Tell whether storing `x` in an array of `dtype` is a matter of one number that is known now."""
    if isinstance(x, np.generic):
        return (
            x.dtype.kind in "biuf" or dtype.kind == "c"
        )  # NumPy drops imaginary parts with a warning
    return is_plain_number(x)


def made(x: Any, dtype: Any = None) -> np.ndarray:
    """Return `np.array(x, dtype)`."""
    with refusals_located():
        return np.array(x, dtype)


def assigned(x: Any, dtype: np.dtype) -> np.ndarray:
    """Return what an array of `dtype` holds after `array[...] = x`, which refuses more than a conversion does."""
    held = np.empty(np.shape(x), dtype)
    with refusals_located():
        held[...] = x
    return held


@contextmanager
def refusals_located() -> Iterator[None]:
    """Give what NumPy refuses to convert the user's line."""
    try:
        with np.errstate(all="ignore"):
            yield
    except DslError:
        raise
    except (OverflowError, ValueError) as error:
        raise NumberError(str(error), location=here(), remedy=_REMEDY) from None
    except TypeError as error:
        raise TypeRuleError(str(error), location=here()) from None
