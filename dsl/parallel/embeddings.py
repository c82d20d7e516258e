"""Tables over ranks: rows are looked up and updated where they are, and only the rows that a step touches move.

Rank k of n has the rows with `id % n == k` (`mod`), or a run of them (`div`: the first `rows % n` ranks have one more). A
lookup partitions the ids by owner, sends them there, gathers, sends rows back and stitches them together in the order of
the ids. All ranks call the methods together, each with ids of its own. What a step costs depends on its ids, not on the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsl.errors import ConfigError, IndexTypeError, ShapeError
from dsl.frontend.scopes import here
from dsl.ir.communicator import at_location
from dsl.mpi.swap import swap
from dsl.mpi.world import world
from dsl.optim.optimizer import Optimizer
from dsl.optim.rows import Rows
from dsl.parallel.checks import check_optimizer, checked_count
from dsl.parallel.shards import SHARDS, Shard, div_shard, mod_shard, owned

__all__ = ["ShardedEmbedding", "div_shard", "mod_shard"]


class ShardedEmbedding:
    """A table of `rows` vectors of a given width, spread over all ranks.

    `init(ids)` returns the first values of rows, so that a table is the same however many ranks share it; by default small
    numbers that depend on the id and the `seed`. `optimizer` updates the rows that a gradient names.
    """

    def __init__(
        self, rows: int, width: int, *, optimizer: Optimizer | None = None, strategy: str = "mod",
        dtype: Any = np.float32, init: Callable[[np.ndarray], np.ndarray] | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        if strategy not in SHARDS:
            raise ConfigError(f"strategy must be 'mod' or 'div', got {strategy!r}")
        self.rows = rows = checked_count("ShardedEmbedding", "rows", rows)
        self.width = width = checked_count("ShardedEmbedding", "width", width)
        if optimizer is not None:
            check_optimizer("ShardedEmbedding", optimizer)
        self.strategy = strategy
        self.dtype, self.world = np.dtype(dtype), world()
        own = owned(rows, strategy, self.world.rank, self.world.size)
        first = init or (lambda ids: _small(ids, width, seed))
        values = np.array(first(own), self.dtype, order="C")  # updates write into it
        if values.shape[:1] != (len(own),) or values.size != len(own) * width:
            raise ShapeError(
                f"init must return a row of {width} numbers for each of {len(own)} ids, got the shape {values.shape}",
                location=here(),
            )
        self.table = values.reshape(len(own), width)
        self.optimizer = optimizer
        self.state = None if optimizer is None else optimizer.init(self.table)

    # -- steps --------------------------------------------------------------------------------------------------------

    def lookup(self, ids: Any) -> np.ndarray:
        """Return the rows of ids, of any shape; the width is a new last axis."""
        wanted = self._checked(ids)
        flat = wanted.reshape(-1)
        order, places = self._partition(flat)
        with at_location(here()):
            asked = swap(places, self._words("lookup"))
            found = swap([self.table[rows] for rows in asked], self._words("rows"))
        result = np.empty((len(flat), self.width), self.dtype)
        result[order] = np.concatenate(found)
        return result.reshape(*wanted.shape, self.width)

    def update(self, ids: Any, gradients: Any) -> None:
        """Give the optimiser the gradients of rows; those of equal ids, from all ranks, add up and count once."""
        if self.optimizer is None or self.state is None:
            raise ConfigError(
                "the table has no optimizer", remedy="pass `optimizer=` when making it"
            )
        wanted = self._checked(ids)
        values = np.asarray(gradients, self.dtype)
        if values.shape != (*wanted.shape, self.width):
            raise ShapeError(
                f"gradients must have the shape {(*wanted.shape, self.width)}, got {values.shape}"
            )
        order, places = self._partition(wanted.reshape(-1))
        rows = values.reshape(-1, self.width)[order]
        cuts = np.cumsum([len(p) for p in places])[:-1]
        with at_location(here()):
            indices = np.concatenate(swap(places, self._words("update")))
            sent = np.concatenate(swap(np.split(rows, cuts), self._words("gradients")))
        if len(indices):
            grads = Rows(indices, sent, self.table.shape)
            self.optimizer.apply(grads, self.state, self.table)
        else:
            self.state.step[...] += 1  # the same on all ranks, whoever has rows to update

    def _checked(self, ids: Any) -> np.ndarray:
        found = np.asarray(ids)
        if found.size == 0:
            return found.astype(np.int64)
        if found.dtype.kind not in "iu":
            raise IndexTypeError(f"ids must be integers, got {found.dtype}")
        if found.min() < 0 or found.max() >= self.rows:
            raise IndexError(f"ids must be from 0 to {self.rows - 1}")
        return found.astype(np.int64)

    def _words(self, verb: str) -> str:
        """Say what ranks do, which must be the same on all of them."""
        return (
            f"ShardedEmbedding.{verb} of {self.rows} x {self.width} {self.dtype} ({self.strategy})"
        )

    def _partition(self, flat: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the positions of ids by owner, and for each owner the places of its rows."""
        owner, place = SHARDS[self.strategy](flat, self.rows, self.world.size)
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=self.world.size)
        return order, np.split(place[order], np.cumsum(counts)[:-1])

    # -- whole tables ---------------------------------------------------------------------------------------------------

    def gather(self) -> np.ndarray:
        """Return the whole table, on every rank."""
        return self.lookup(np.arange(self.rows))

    def dsl_shards(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the table: this rank's rows, and those of the optimiser's slots."""
        found: dict[str, Any] = {"table": Shard(self.table, self.rows, self.strategy)}
        if self.state is not None:
            found["step"] = self.state.step
            found["slots"] = {name: self._slot(slot) for name, slot in self.state.slots.items()}
        return found

    def _slot(self, slot: Any) -> Any:
        alike = np.shape(slot) == self.table.shape
        return Shard(slot, self.rows, self.strategy) if alike else slot

    def dsl_take_shards(self, found: dict[str, Any]) -> None:
        """Take over what `dsl_shards` returned, in this process or in another."""
        self.table[...] = found["table"].array
        if self.state is not None:
            self.state.step[...] = found["step"]
            for name, slot in self.state.slots.items():
                saved = found["slots"][name]
                slot[...] = saved.array if isinstance(saved, Shard) else saved


def _small(ids: np.ndarray, width: int, seed: int) -> np.ndarray:
    """Numbers between -0.05 and 0.05 that depend on id, column and seed alone."""
    x: Any
    with np.errstate(over="ignore"):
        x = ids.astype(np.uint64)[:, None] * np.uint64(width) + np.arange(width, dtype=np.uint64)
        x = (x + np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(31)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(29)
    numbers: np.ndarray = (x >> np.uint64(11)).astype(np.float64) / 2**53 * 0.1 - 0.05
    return numbers
