"""`dynamic_partition` and `dynamic_stitch`: take an array apart by labels, and put parts together by indices.

They mean what TensorFlow's do, and are differentiable: of several parts that go to one place the last is seen, and it alone
has a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsl import numpy as dnp

__all__ = ["dynamic_partition", "dynamic_stitch"]


def dynamic_partition(data: Any, partitions: Any, num_partitions: int) -> list[Any]:
    """Return for each label from 0 on the rows of `data` that have it in `partitions`, in order.

    A label that is not below `num_partitions`, or is below 0, is an IndexError.

    >>> dynamic_partition(np.array([10, 20, 30]), np.array([0, 1, 0]), 2)
    [array([10, 30]), array([20])]
    """
    data, partitions = _array(data), _array(partitions)
    labels = np.arange(num_partitions)
    found = dnp.asarray(labels)[_within(partitions, num_partitions)]
    return [data[found == k] for k in range(num_partitions)]


def _array(x: Any) -> Any:
    return dnp.asarray(x) if isinstance(x, (list, tuple)) else x


def _within(indices: Any, size: Any) -> Any:
    """Return indices with those below 0 made too large, so that they are refused and do not count from the end."""
    return np.where(indices < 0, size, indices.astype(np.int64))


def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any]) -> Any:
    """Return an array whose row `indices[k][i]` is `data[k][i]`; where several go to one row, the last.

    Rows that nothing goes to are zeros. An index below 0 is an IndexError.

    >>> dynamic_stitch([np.array([0, 2]), np.array([1])], [np.array([10, 30]), np.array([20])])
    array([10, 20, 30])
    """
    indices, data = [_array(index) for index in indices], [_array(part) for part in data]
    flat = [np.reshape(index, (-1,)) for index in indices]
    rows = [
        np.reshape(part, (-1, *part.shape[np.ndim(index) :]))
        for index, part in zip(indices, data, strict=True)
    ]
    index, part = np.concatenate(flat), np.concatenate(rows)
    count = np.concatenate([index, np.array([-1])]).max() + 1
    result = dnp.zeros((count, *part.shape[1:]), part.dtype)
    result[_within(index, count)] = part
    return result
