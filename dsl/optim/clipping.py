"""Clipping of gradients: trees of arrays in, trees of the same structure, shapes and dtypes out.

Rows of a `Rows` that are named twice are summed first, so that a sparse gradient is clipped as its array would be.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsl import numpy as dnp
from dsl.errors import UnsupportedError
from dsl.frontend.scopes import here
from dsl.optim.leaves import as_dtype, flatten_gradients, map_gradients
from dsl.optim.ranges import check_number
from dsl.optim.rows import Rows

__all__ = ["clip_by_global_norm", "clip_by_norm", "clip_by_value", "global_norm"]


def clip_by_value(grads: Any, low: Any, high: Any) -> Any:
    """Return the gradients with every number brought between `low` and `high`; NaNs stay.

    >>> clip_by_value([np.array([-3.0, 0.5])], -1.0, 1.0)
    [array([-1. ,  0.5])]
    """
    return map_gradients(
        lambda g: np.clip(g, as_dtype(low, g.dtype), as_dtype(high, g.dtype)), grads
    )


def clip_by_norm(grads: Any, max_norm: Any) -> Any:
    """Return the gradients, each array whose 2-norm exceeds `max_norm` scaled down to that norm.

    >>> clip_by_norm({"w": np.array([3.0, 4.0]), "b": np.array([1.0])}, 2.5)
    {'w': array([1.5, 2. ]), 'b': array([1.])}
    """
    _check_norm("clip_by_norm", max_norm)
    return map_gradients(lambda g: g * _factor(np.sqrt(_squares(g)), max_norm, g.dtype), grads)


def check_clip(clip: Any) -> None:
    """Refuse what is given for `clip` and cannot be called."""
    if clip is not None and not callable(clip):
        raise UnsupportedError(
            f"`clip` is a function of the gradients, got {clip!r}",
            location=here(),
            remedy=f"write `clip=lambda grads: dsl.optim.clip_by_global_norm(grads, {clip!r})`",
        )


def clip_by_global_norm(grads: Any, max_norm: Any) -> Any:
    """Return the gradients, all scaled by one factor if the norm of all of them together exceeds `max_norm`.

    The factor is `max_norm / max(global_norm(grads), max_norm)`. Where the norm is not finite, so that no factor is right, all
    gradients become NaN.

    >>> clip_by_global_norm([np.array([3.0]), np.array([4.0])], 2.5)
    [array([1.5]), array([2.])]
    """
    _check_norm("clip_by_global_norm", max_norm)
    norm = global_norm(grads)
    return map_gradients(lambda g: g * _factor(norm, max_norm, g.dtype), grads)


def global_norm(grads: Any) -> Any:
    """Return the 2-norm of all numbers in a tree.

    >>> float(global_norm([np.array([3.0]), {"b": np.array([4.0])}]))
    5.0
    """
    leaves, _ = flatten_gradients(grads)
    return np.sqrt(sum(_squares(g.summed().values if isinstance(g, Rows) else g) for g in leaves))


def _check_norm(owner: str, max_norm: Any) -> None:
    if isinstance(max_norm, (int, float, str)) or max_norm is None:
        remedy = f"the order of arguments is {owner}(grads, max_norm)"
        check_number(owner, "max_norm", max_norm, remedy)


def _squares(x: Any) -> Any:
    """Return the sum of squares, of half-precision numbers in single precision: 256 squared is too much for them."""
    x = dnp.asarray(x)
    return np.sum(np.square(x.astype(np.float32) if x.dtype.itemsize < 4 else x))


def _factor(norm: Any, max_norm: Any, dtype: np.dtype) -> Any:
    factor = max_norm / np.maximum(norm, max_norm)
    return as_dtype(np.where(np.isfinite(norm), factor, np.nan), dtype)
