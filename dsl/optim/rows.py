"""`Rows`: the gradient of an array of which few rows were used, such as a table of embeddings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsl import numpy as dnp

__all__ = ["Rows"]


@dataclass(frozen=True, eq=False)
class Rows:
    """An array of the given `shape` that is zero but for `values[k]` in row `indices[k]`; rows named twice are summed.

    It is a tree of its arrays and of the numbers in `shape`, so it goes into and out of compiled functions.

    >>> Rows(np.array([1, 1]), np.array([[2.0], [3.0]]), (3, 1)).dense()
    array([[0.],
           [5.],
           [0.]])
    """

    indices: Any
    values: Any
    shape: tuple[Any, ...]

    def dense(self) -> Any:
        """Return the array."""
        return _added(self.shape[0], self.indices, self.values)

    def summed(self) -> Rows:
        """Return the same with every row named once, in increasing order. The cost does not depend on the shape."""
        indices = np.where(self.indices < 0, self.indices + self.shape[0], self.indices)
        rows, inverse = np.unique(indices, return_inverse=True)
        return replace(self, indices=rows, values=_added(rows.shape[0], inverse, self.values))


def _added(count: Any, indices: Any, values: Any) -> Any:
    result = dnp.zeros((count, *values.shape[1:]), values.dtype)
    np.add.at(result, indices, values)
    return result
