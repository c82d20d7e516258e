"""One checkpoint: a tree saved to a file and restored from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from dsl.checkpoints.format import Header, read_array, read_header, write
from dsl.checkpoints.match import check_fit, converted, saved_specs
from dsl.checkpoints.store import Path, replacing
from dsl.checkpoints.tree import Parts, entries, names, plain_value, put_together, take_apart
from dsl.errors import CheckpointError, MissingCheckpointError
from dsl.frontend.scopes import is_building
from dsl.frontend.trees import flatten, unflatten

__all__ = ["check_whole", "metadata_text", "read_metadata", "restore", "save", "write_parts"]


def save(path: Path, tree: Any, metadata: Any = None) -> Any:
    """Save a tree of arrays, numbers and strings to a safetensors file.

    The file appears at once, when it is whole and on the disk; until then, and if anything goes wrong, what was there before stays.
    `metadata` is anything that JSON can hold; `dsl.checkpoints.read_metadata` returns it. Arrays are named by their place in the tree.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> save(path, {"w": np.ones(3), "step": 7})
    >>> restore(path)
    {'w': array([1., 1., 1.]), 'step': 7}

    While a graph is built, returns the operation that does so when a session runs it.
    """
    if is_building():
        from dsl.session.files import save_node

        return save_node(path, tree)
    write_parts(path, take_apart(tree), metadata_text(metadata))


def restore(path: Path, like: Any = None, strict: bool = True) -> Any:
    """Return the tree that was saved to a file, every byte of it checked.

    With `like`, the containers are those of that tree, entries are found by name and must fit its leaves, and variables in it are
    assigned to, all of them or, if anything is wrong, none. Unless `strict`, leaves that the file does not have keep their values and
    what else the file has is left out.

    While a graph is built, returns the operation that assigns to the variables of `like` when a session runs it.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> save(path, {"w": np.arange(3.0), "epoch": 7})
    >>> restore(path)
    {'w': array([0., 1., 2.]), 'epoch': 7}
    """
    if is_building():
        from dsl.session.files import restore_node

        return restore_node(path, like)
    with _open(path) as file:
        header = read_header(file)
        description = json.loads(header.texts["dsl.tree"])
        if like is not None:
            return _restore_like(file, header, description, like, strict)
        arrays = {n: read_array(file, n, record) for n, record in header.records.items()}
    return put_together(description, arrays)


def read_metadata(path: Path) -> Any:
    """Return the `metadata` that was saved with a checkpoint; reads and checks the header alone."""
    with _open(path) as file:
        return json.loads(read_header(file).texts["dsl.metadata"])


def check_whole(path: Path) -> None:
    """Raise if the header or the size of a file is wrong; the data are not read."""
    with _open(path) as file:
        read_header(file)


def write_parts(path: Path, parts: Parts, metadata: str) -> None:
    """Write what a tree was taken apart into."""
    tree = json.dumps(parts.description, separators=(",", ":"))
    try:
        with replacing(path) as file:
            write(file, parts.arrays, {"dsl.tree": tree, "dsl.metadata": metadata})
    except OSError as error:
        error.add_note(f"while saving {os.fspath(path)}, which is as it was before")
        raise


def metadata_text(metadata: Any) -> str:
    """Return metadata as JSON."""
    try:
        return json.dumps(metadata)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"metadata that JSON cannot hold: {error}", remedy="put arrays into the tree"
        ) from error


def _open(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        raise MissingCheckpointError(f"there is no checkpoint {os.fspath(path)}") from error


# -- into a tree ----------------------------------------------------------------------------------


def _restore_like(file: BinaryIO, header: Header, description: Any, like: Any, strict: bool) -> Any:
    leaves, structure = flatten(like)
    named = list(zip(names(structure), leaves, strict=True))
    found = entries(description)
    check_fit(file.name, saved_specs(found, header.records), dict(named), strict)
    values = {name: _read(file, header, found[name]) for name, _ in named if name in found}
    return unflatten(structure, [put() for put in [_placing(n, leaf, values) for n, leaf in named]])


def _read(file: BinaryIO, header: Header, entry: dict[str, Any]) -> Any:
    arrays: dict[str, np.ndarray] = {}
    if (name := entry.get("array")) is not None:
        arrays[name] = read_array(file, name, header.records[name])
    return plain_value(entry, arrays)


def _placing(name: str, leaf: Any, values: dict[str, Any]) -> Callable[[], Any]:
    """Return what puts a value in the place of a leaf; a variable is assigned to only when it is called."""
    if name not in values:
        return lambda: leaf
    value = converted(name, values[name], leaf)
    if not hasattr(leaf, "dsl_checkpoint_assign"):
        return lambda: value
    return lambda: _assigned(leaf, value)


def _assigned(variable: Any, value: Any) -> Any:
    variable.dsl_checkpoint_assign(value)
    return variable
