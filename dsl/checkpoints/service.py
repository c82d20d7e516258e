"""What `save` and `restore` nodes of graphs do. Entries have the names that `dsl.save` gives to the leaves of a tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsl.checkpoints.checkpoint import restore, save
from dsl.checkpoints.tree import names
from dsl.errors import CheckpointError
from dsl.frontend.trees import flatten

__all__ = ["Checkpoints"]


class Checkpoints:
    """Writes and reads checkpoint files for steps."""

    def save(self, path: str, values: Mapping[str, Any]) -> None:
        """Write values under their names."""
        tree: dict[str, Any] = {}
        for name, value in values.items():
            *branches, leaf = name.split("/")
            place = tree
            for key in branches:
                place = place.setdefault(_plain(key), {})
            place[_plain(leaf)] = value
        save(path, tree)

    def restore(self, path: str, wanted: Sequence[str]) -> Mapping[str, Any]:
        """Return the values of some names; raise if one is missing."""
        leaves, structure = flatten(restore(path))
        found = dict(zip(names(structure), leaves))
        missing = [name for name in wanted if name not in found]
        if missing:
            known = ", ".join(sorted(found)) or "none"
            raise CheckpointError(
                f"{path} has no entry {', '.join(map(repr, missing))} (it has: {known})"
            )
        return found


def _plain(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")
