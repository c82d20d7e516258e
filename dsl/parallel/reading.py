"""Reading a checkpoint of all ranks: the index, the files that it names, and the rows that this rank has now."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from dsl.checkpoints.checkpoint import read_metadata
from dsl.checkpoints.format import read_array, read_header
from dsl.checkpoints.match import Spec, check_fit, converted
from dsl.checkpoints.store import Path
from dsl.checkpoints.tree import entries, names, plain_value, put_together
from dsl.errors import CorruptCheckpointError, MissingCheckpointError
from dsl.frontend.trees import flatten, unflatten
from dsl.parallel.shards import Shard, owned, recut

__all__ = ["INDEX", "Index", "read_tree"]

INDEX = "index.safetensors"


class Index:
    """What the index of a directory says."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        try:
            about = read_metadata(os.path.join(self.path, INDEX))
        except MissingCheckpointError:
            raise MissingCheckpointError(f"there is no whole checkpoint in {self.path}") from None
        self.ranks: int = about["ranks"]
        self.word: str = about["word"]
        self.files: dict[str, int] = about["files"]
        self.leaves: dict[str, dict[str, Any]] = about["leaves"]
        self.tree = about["tree"]

    def check(self) -> None:
        """Raise if a file is missing or has another size; the data are not read."""
        for name, size in self.files.items():
            try:
                found = os.stat(os.path.join(self.path, name)).st_size
            except FileNotFoundError:
                raise CorruptCheckpointError(
                    f"{self.path} is not whole: {name} is missing"
                ) from None
            if found != size:
                raise CorruptCheckpointError(
                    f"{self.path} is not whole: {name} should have {size} bytes and has {found}"
                )

    def read(self, name: str, rank: int) -> np.ndarray:
        """Return an array of a rank's file, checked."""
        path = os.path.join(self.path, list(self.files)[rank])
        with open(path, "rb") as file:
            header = read_header(file)
            if name not in header.records:
                raise CorruptCheckpointError(f"{path} has no {name}: it belongs to another save")
            return read_array(file, name, header.records[name])

    def value(self, name: str, strategy: str | None, rank: int, ranks: int) -> Any:
        """Return an array, or this rank's rows of one, cut as `strategy` says or as they were."""
        leaf = self.leaves[name]
        if leaf["file"] is not None:
            return self.read(name, leaf["file"])
        rows, wanted = leaf["shape"][0], strategy or leaf["strategy"]
        array = recut(
            (rows, leaf["strategy"], self.ranks), (wanted, rank, ranks),
            lambda k: self.read(name, k),
        )  # fmt: skip
        return Shard(array, rows, wanted)

    def spec(self, name: str, strategy: str | None, rank: int, ranks: int) -> Spec:
        """Return what `value` would be, as `check_fit` wants it."""
        leaf = self.leaves[name]
        shape = tuple(leaf["shape"])
        if leaf["file"] is None:
            here = owned(shape[0], strategy or leaf["strategy"], rank, ranks)
            shape = (len(here), *shape[1:])
        return Spec(np.dtype(leaf["dtype"]), shape)


def read_tree(path: Path, like: Any, strict: bool, rank: int, ranks: int) -> Callable[[], Any]:
    """Read and check everything; return what then returns the tree, or assigns to what `like` holds."""
    index = Index(path)
    index.check()
    if like is None:
        arrays = {n: index.value(n, None, rank, ranks) for n in index.leaves}
        return lambda: put_together(index.tree, arrays)
    return _into(index, like, strict, rank, ranks)


def _into(index: Index, like: Any, strict: bool, rank: int, ranks: int) -> Callable[[], Any]:
    outer, structure = flatten(like)
    parts = [leaf.dsl_shards() if hasattr(leaf, "dsl_shards") else leaf for leaf in outer]
    leaves, inner = flatten(unflatten(structure, parts))
    named = dict(zip(names(inner), leaves, strict=True))
    found = entries(index.tree)
    cuts = {n: leaf.strategy for n, leaf in named.items() if isinstance(leaf, Shard)}
    specs = {n: index.spec(n, cuts.get(n), rank, ranks) for n in index.leaves}
    check_fit(index.path, {n: specs.get(n) or _plain_spec(e) for n, e in found.items()}, named, strict)  # fmt: skip
    values = {
        n: index.value(n, cuts.get(n), rank, ranks) if n in index.leaves else plain_value(found[n], {})
        for n in named if n in found
    }  # fmt: skip
    placed = [_placing(n, leaf, values) for n, leaf in named.items()]

    def finish() -> Any:
        made = iter([put() for put in placed])
        return unflatten(
            structure, [_taken(leaf, part, made) for leaf, part in zip(outer, parts, strict=True)]
        )

    return finish


def _plain_spec(entry: dict[str, Any]) -> Spec:
    return Spec(type(plain_value(entry, {})), None)


def _placing(name: str, leaf: Any, values: Mapping[str, Any]) -> Callable[[], Any]:
    """Return what puts a value in the place of a leaf; a variable is assigned to only when it is called."""
    if name not in values:
        return lambda: leaf
    saved = values[name]
    value = converted(name, saved.array if isinstance(saved, Shard) else saved, leaf)
    if isinstance(leaf, Shard):
        return lambda: Shard(value, leaf.rows, leaf.strategy)
    if not hasattr(leaf, "dsl_checkpoint_assign"):
        return lambda: value
    return lambda: _assigned(leaf, value)


def _assigned(variable: Any, value: Any) -> Any:
    variable.dsl_checkpoint_assign(value)
    return variable


def _taken(leaf: Any, part: Any, made: Iterator[Any]) -> Any:
    """Return the next value; what has shards takes its own, and stays in its place."""
    inside, structure = flatten(part)
    found = unflatten(structure, [next(made) for _ in inside])
    if not hasattr(leaf, "dsl_take_shards"):
        return found
    leaf.dsl_take_shards(found)
    return leaf
