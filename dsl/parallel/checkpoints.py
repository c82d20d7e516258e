"""Checkpoints of all ranks: one file for each rank, and an index that makes them one whole.

A checkpoint is a directory with a file of each rank and `index.safetensors`. A rank's file has its shards (`Shard`, or what
`ShardedEmbedding` has) and its part of what all ranks have alike, of which each array is in one file only. When all files are on the disk,
rank 0 writes the index, which names them; so a set is whole or it is none. The files have names of their own in each save, so
that saving over an old set leaves that one whole until the new one is. All are safetensors files with checksums.

All ranks call these functions together. Any number of ranks can restore: shards are cut anew. All ranks see the same directory.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import operator
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, SupportsIndex

import numpy as np

from dsl.checkpoints.checkpoint import metadata_text, read_metadata, write_parts
from dsl.checkpoints.store import Path, remove_abandoned
from dsl.checkpoints.tree import Parts, names, take_apart
from dsl.config import config
from dsl.errors import CheckpointError, ConfigError, CorruptCheckpointError, MissingCheckpointError
from dsl.frontend.scopes import here
from dsl.frontend.trees import flatten, unflatten
from dsl.ir.communicator import at_location
from dsl.logs import log, warn
from dsl.mpi import pulse
from dsl.mpi.agreement import agree, gather_bytes
from dsl.mpi.world import world
from dsl.parallel.reading import INDEX, Index, read_tree
from dsl.parallel.shards import Shard

__all__ = ["ShardedCheckpoints", "restore", "save"]

_STEP = re.compile(r"step-(\d{10,})")
_POLL = 0.02
_NOT_WHOLE = (CorruptCheckpointError, MissingCheckpointError)


def save(path: Path, tree: Any, metadata: Any = None) -> None:
    """Save a tree of all ranks to a directory; when this returns, it is whole and on the disk.

    Leaves are arrays, numbers and strings that all ranks have alike, and `Shard`s and `ShardedEmbedding`s, of which each rank
    has a part. What was in the directory before stays until the new set is whole.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model"
    >>> save(path, {"w": np.ones(2), "rows": Shard(np.arange(3.0), rows=3)})
    >>> restore(path)
    {'w': array([1., 1.]), 'rows': <3 of 3 rows, mod>}
    """
    _write_together(_Draft(path, tree, metadata, copy=False))


def restore(path: Path, like: Any = None, strict: bool = True) -> Any:
    """Return the tree that so many ranks, not always as many as now, saved to a directory; every byte that is read is checked.

    With `like`, the containers are those of that tree, entries are found by name and must fit its leaves; variables and
    `ShardedEmbedding`s in it are assigned to, on all ranks or, if anything is wrong on one, on none. See `dsl.restore`.
    """
    found: Callable[[], Any] | None = None
    error: BaseException | None = None
    try:
        found = read_tree(path, like, strict, world().rank, world().size)
    except (CheckpointError, OSError) as problem:
        error = problem
    _raise_together("restored", error)
    assert found is not None
    pulse.beat("restore")
    return found()


# -- what ranks say to one another ----------------------------------------------------------------


def _everyone(own: np.ndarray, what: str) -> np.ndarray:
    """Return the bytes of all ranks, one row each."""
    if world().size == 1:
        return own[None]
    with at_location(here()):
        return gather_bytes(own, what).reshape(world().size, -1)


def _raise_together(verb: str, error: BaseException | None) -> None:
    """Raise this rank's error, or one that names a rank which has one."""
    size = 600
    text = b"" if error is None else (str(error) or type(error).__name__).encode()[:size]
    own = np.zeros(size + 1, np.uint8)
    own[: len(text)] = np.frombuffer(text, np.uint8)
    own[-1] = 0 if error is None else 2 if isinstance(error, _NOT_WHOLE) else 1
    rows = _everyone(own, f"whether all ranks have {verb}")
    if error is not None:
        raise error
    for rank, row in enumerate(rows):
        if row[-1]:
            said = bytes(row[:-1]).rstrip(b"\0").decode(errors="replace")
            kind = CorruptCheckpointError if row[-1] == 2 else CheckpointError
            raise kind(f"rank {rank} has not {verb} its part: {said}")


def _word() -> str:
    """Return a word that nobody had before, the same on all ranks: rank 0's."""
    own = np.frombuffer(os.urandom(6), np.uint8)
    return bytes(_everyone(own, "the name of a checkpoint")[0]).hex()


def _number(value: int) -> int:
    """Return rank 0's number."""
    own = np.array([value], np.int64).view(np.uint8)
    return int(_everyone(own, "the step of a checkpoint")[0].view(np.int64)[0])


# -- saving ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Leaf:
    """An array of a tree: the file that has it; or, if all have some rows, how many there are, and the strategy."""

    dtype: str
    shape: tuple[int, ...]
    file: int | None
    strategy: str = ""


class _Draft:
    """A set that is being saved: what is in this rank's file, and what the index will say."""

    def __init__(self, path: Path, tree: Any, metadata: Any, copy: bool) -> None:
        everybody = world()
        self.path = os.path.abspath(path)
        self.rank, self.ranks = everybody.rank, everybody.size
        expanded = _expand(tree)
        parts = take_apart(expanded)
        self.leaves = _dealt_out(parts, _shards(expanded), self.ranks)
        if self.ranks > 1:
            told = _described(parts.description, self.leaves)
            with at_location(here()):
                agree("the tree of a checkpoint", told)
        own = {n: a for n, a in parts.arrays.items() if self.leaves[n].file in (None, self.rank)}
        self.arrays = {n: np.array(a) for n, a in own.items()} if copy else own
        self.word = _word()
        self.about = {
            "ranks": self.ranks, "word": self.word, "tree": parts.description,
            "leaves": {name: vars(leaf) for name, leaf in self.leaves.items()},
            "metadata": json.loads(metadata_text(metadata)),
        }  # fmt: skip

    def file(self, rank: int) -> str:
        return os.path.join(self.path, f"{self.word}-{rank}-of-{self.ranks}.safetensors")

    def trouble(self, rank: int) -> str:
        return os.path.join(self.path, f"{self.word}-{rank}.failed")

    def write(self) -> None:
        """Write this rank's file."""
        os.makedirs(self.path, exist_ok=True)
        told = metadata_text({"word": self.word, "rank": self.rank})
        write_parts(self.file(self.rank), Parts(self.arrays), told)

    def write_index(self) -> None:
        """Make the set whole, all files being there, and remove what belongs to none."""
        files = [self.file(rank) for rank in range(self.ranks)]
        self.about["files"] = {os.path.basename(f): os.stat(f).st_size for f in files}
        write_parts(os.path.join(self.path, INDEX), Parts(), metadata_text(self.about))
        kept = {INDEX, *map(os.path.basename, files)}
        for name in set(os.listdir(self.path)) - kept:
            if name.endswith((".safetensors", ".failed")):
                _remove(os.path.join(self.path, name))
        remove_abandoned(self.path)


def _expand(tree: Any) -> Any:
    """Return a tree with what each `ShardedEmbedding` has in its place."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [x.dsl_shards() if hasattr(x, "dsl_shards") else x for x in leaves])


def _shards(expanded: Any) -> dict[str, Shard]:
    leaves, structure = flatten(expanded)
    return {n: leaf for n, leaf in zip(names(structure), leaves) if isinstance(leaf, Shard)}


def _described(tree: Any, leaves: Mapping[str, _Leaf]) -> str:
    """Return what all ranks must have alike, a line for each array."""
    lines = [
        f"{name}: {leaf.dtype}{list(leaf.shape)} {leaf.strategy}" for name, leaf in leaves.items()
    ]
    return "\n".join([*lines, json.dumps(tree)])


def _dealt_out(parts: Parts, shards: Mapping[str, Shard], ranks: int) -> dict[str, _Leaf]:
    """Give each array that all ranks have to the file with the least so far, the largest first."""
    leaves = {
        name: _Leaf(s.array.dtype.name, (s.rows, *s.array.shape[1:]), None, s.strategy)
        for name, s in shards.items()
    }
    load = [0] * ranks
    whole = {name: array for name, array in parts.arrays.items() if name not in shards}
    for name in sorted(whole, key=lambda name: (-whole[name].nbytes, name)):
        file = load.index(min(load))
        load[file] += whole[name].nbytes
        leaves[name] = _Leaf(whole[name].dtype.name, whole[name].shape, file)
    return leaves


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _write_together(draft: _Draft, then: Callable[[], None] = lambda: None) -> None:
    """Write all files, then the index, then do what is to be done on rank 0; raise on all ranks if something goes wrong on one."""

    def finish() -> None:
        draft.write_index()
        then()

    _raise_together("saved", _problem(draft.write))
    _raise_together("saved", _problem(finish) if draft.rank == 0 else None)
    pulse.beat("save")


def _problem(action: Callable[[], None]) -> BaseException | None:
    try:
        action()
    except (OSError, CheckpointError) as error:
        return error
    return None


def _write_behind(draft: _Draft) -> None:
    """Write this rank's file; rank 0 waits for all of them, looking at the disk alone, and writes the index."""
    try:
        draft.write()
    except BaseException as error:
        with contextlib.suppress(OSError), open(draft.trouble(draft.rank), "w") as file:
            file.write(str(error))
        raise
    if draft.rank == 0:
        _await_files(draft)
        draft.write_index()


def _await_files(draft: _Draft) -> None:
    end = time.monotonic() + config.mpi_timeout
    left = set(range(draft.ranks))
    while left := {rank for rank in left if not os.path.exists(draft.file(rank))}:
        for rank in left:
            if os.path.exists(draft.trouble(rank)):
                with open(draft.trouble(rank)) as file:
                    raise CheckpointError(f"rank {rank} has not saved its part: {file.read()}")
        if time.monotonic() > end:
            raise CheckpointError(f"ranks {sorted(left)} have not saved their parts in time")
        time.sleep(_POLL)


# -- a directory of checkpoints -------------------------------------------------------------------


class ShardedCheckpoints:
    """Checkpoints of all ranks in a directory, by step: keeps the last `keep`, and restores the newest that is whole.

    All ranks make one, and call its methods together. With `background`, `save` copies this rank's arrays and returns, and a thread
    writes them; at most one save is under way, and its error is raised by the next call.

    >>> import tempfile
    >>> checkpoints = ShardedCheckpoints(tempfile.mkdtemp(), keep=2)
    >>> for step in range(1, 5):
    ...     checkpoints.save(step, {"w": np.full(2, step)})
    >>> checkpoints.steps(), checkpoints.restore(), checkpoints.restored
    ([3, 4], {'w': array([4, 4])}, 4)
    """

    def __init__(self, directory: Path, keep: int | None = 5, background: bool = False) -> None:
        if keep is not None and operator.index(keep) < 1:
            raise ConfigError(f"keep={keep!r}: expected a whole number, 1 or more, or None")
        self.directory = os.path.abspath(directory)
        self.keep, self.background = keep, background
        self.restored: int | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        os.makedirs(self.directory, exist_ok=True)

    # -- saving -----------------------------------------------------------------------------------

    def save(self, step: SupportsIndex, tree: Any, metadata: Any = None) -> None:
        """Save a tree as the checkpoint of a step, which may be changed when this returns."""
        self.wait()
        number = operator.index(step)
        if number < 0:
            raise ConfigError(f"step={number}: expected a whole number, 0 or more")
        draft = _Draft(self._path(number), tree, metadata, copy=self.background)
        if not self.background:
            _write_together(draft, lambda: self._thin_out(number))
            return
        # The options of this thread hold in that one. Not a daemon: a program that ends waits for its last checkpoint.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=run, args=(self._run, draft, number), name="dsl-save"
        )
        self._thread.start()

    def _run(self, draft: _Draft, step: int) -> None:
        try:
            _write_behind(draft)
            self._thin_out(step)
        except BaseException as error:
            self._error = error
            warn("checkpoints", "step %d could not be saved: %s", step, error)

    def wait(self) -> None:
        """Wait for this rank's part of the save that is under way (on rank 0, for all of it), and raise its error."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait until the last save is whole."""
        self.wait()
        _raise_together("saved", None)

    def __enter__(self) -> ShardedCheckpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        if error is None:
            return self.close()
        with contextlib.suppress(Exception):  # the other ranks may be anywhere
            self.wait()

    # -- keeping ----------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Return the steps that have an index, in increasing order."""
        found = map(_STEP.fullmatch, os.listdir(self.directory))
        known = sorted(int(match[1]) for match in found if match)
        return [step for step in known if os.path.exists(os.path.join(self._path(step), INDEX))]

    def _thin_out(self, saved: int) -> None:
        """Remove what is not kept, and older steps without an index, which nobody will finish."""
        if world().rank or self.keep is None:
            return
        kept = {saved, *self.steps()[-self.keep :]}
        for name in os.listdir(self.directory):
            match = _STEP.fullmatch(name)
            if match and int(match[1]) not in kept and int(match[1]) < saved:
                path = os.path.join(self.directory, name)
                _remove(os.path.join(path, INDEX))  # first: half a set must not look whole
                shutil.rmtree(path, ignore_errors=True)
                log("checkpoints", "step %s removed", match[1])

    def _path(self, step: int) -> str:
        return os.path.join(self.directory, f"step-{step:010d}")

    # -- restoring --------------------------------------------------------------------------------

    def latest(self) -> int | None:
        """Return the last step whose files are all there with their full sizes, as rank 0 sees it, or None."""
        self.wait()
        return self._latest(None)

    def _latest(self, before: int | None) -> int | None:
        found = -1
        if world().rank == 0:
            found = next((s for s in reversed(self.steps()) if self._may_do(s, before)), -1)
        number = _number(found)
        return None if number < 0 else number

    def _may_do(self, step: int, before: int | None) -> bool:
        if before is not None and step >= before:
            return False
        try:
            Index(self._path(step)).check()
        except CheckpointError as error:
            warn("checkpoints", "step %d is passed over: %s", step, error.message)
            return False
        return True

    def restore(
        self, step: SupportsIndex | None = None, like: Any = None, strict: bool = True
    ) -> Any:
        """Return the tree of a step, or of the newest set that all ranks find whole; `restored` then is its step."""
        self.wait()
        if step is not None:
            tree = restore(self._path(operator.index(step)), like, strict)
            self.restored = operator.index(step)
            return tree
        return self._restore_newest(like, strict)

    def _restore_newest(self, like: Any, strict: bool) -> Any:
        before: int | None = None
        while (found := self._latest(before)) is not None:
            try:
                return self.restore(found, like, strict)
            except _NOT_WHOLE as error:
                before = found
                if world().rank == 0:
                    warn("checkpoints", "step %d is passed over: %s", found, error.message)
        raise MissingCheckpointError(f"there is no whole checkpoint in {self.directory}")

    def metadata(self, step: SupportsIndex) -> Any:
        """Return the metadata that was saved with a step."""
        path = os.path.join(self._path(operator.index(step)), INDEX)
        return read_metadata(path)["metadata"]
