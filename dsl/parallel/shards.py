"""Arrays whose rows are spread over ranks: who has which row, and cutting them anew for another number of ranks.

Rank k of n has the rows with `id % n == k` (`mod`), or a run of them (`div`: the first `rows % n` ranks have one more).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ConfigError, ShapeError

__all__ = ["SHARDS", "Shard", "div_shard", "mod_shard", "owned", "recut"]


def mod_shard(ids: np.ndarray, rows: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the owner of each id and its row there, ids being dealt out one by one."""
    return ids % ranks, ids // ranks


def div_shard(ids: np.ndarray, rows: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the owner of each id and its row there, each owner having a run of ids."""
    least, more = divmod(rows, ranks)
    long = more * (least + 1)  # ids that are on ranks with one row more
    behind = np.maximum(ids - long, 0)
    small = max(least, 1)
    owner = np.where(ids < long, ids // (least + 1), more + behind // small)
    return owner, np.where(ids < long, ids % (least + 1), behind % small)


SHARDS: dict[str, Callable[[np.ndarray, int, int], tuple[np.ndarray, np.ndarray]]] = {
    "mod": mod_shard, "div": div_shard,
}  # fmt: skip


def owned(rows: int, strategy: str, rank: int, ranks: int) -> np.ndarray:
    """Return the ids of the rows that a rank has, in the order of their places there.

    >>> owned(5, "mod", 1, 2), owned(5, "div", 1, 2)
    (array([1, 3]), array([3, 4]))
    """
    if strategy == "mod":
        return np.arange(rank, rows, ranks)
    least, more = divmod(rows, ranks)
    start = rank * least + min(rank, more)
    return np.arange(start, start + least + (rank < more))


class Shard:
    """This rank's rows of an array that all ranks have together; a leaf of trees that are saved.

    `rows` is how many all ranks have. The rows that are here are those that `strategy` (`mod` or `div`) gives this rank.
    """

    def __init__(self, array: Any, rows: int, strategy: str = "mod") -> None:
        if strategy not in SHARDS:
            raise ConfigError(f"strategy must be 'mod' or 'div', got {strategy!r}")
        self.array: np.ndarray = np.asarray(array)
        self.rows, self.strategy = rows, strategy
        if self.array.ndim == 0 or len(self.array) > rows:
            raise ShapeError(f"{rows} rows in all, and {self.array.shape} here")

    def dsl_checkpoint_value(self) -> np.ndarray:
        """Return what this rank saves."""
        return self.array

    def __repr__(self) -> str:
        return f"<{len(self.array)} of {self.rows} rows, {self.strategy}>"


def recut(
    saved: tuple[int, str, int], wanted: tuple[str, int, int], read: Callable[[int], np.ndarray]
) -> np.ndarray:
    """Return the rows of one rank, out of an array that was cut differently.

    `saved` is how many rows there are, the strategy and the number of ranks that had them; `wanted` the strategy, the rank
    and how many ranks there are now; `read(k)` returns what rank k had, and is called only for ranks that had some of the rows.
    """
    rows, strategy, before = saved
    if wanted[0] == strategy and wanted[2] == before:
        return read(wanted[1])
    ids = owned(rows, *wanted)
    owner, place = SHARDS[strategy](ids, rows, before)
    if not len(ids):
        return read(0)[:0]
    result: np.ndarray | None = None
    for k in np.unique(owner).tolist():
        part, here = read(k), owner == k
        if result is None:
            result = np.empty((len(ids), *part.shape[1:]), part.dtype)
        result[here] = part[place[here]]
    assert result is not None
    return result
