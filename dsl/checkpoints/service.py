"""What `save` and `restore` nodes of graphs do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsl.checkpoints.checkpoint import restore, save

__all__ = ["Checkpoints"]


class Checkpoints:
    """Writes and reads checkpoint files for steps."""

    def save(self, path: str, values: Mapping[str, Any]) -> None:
        """Write values under their names."""
        save(path, dict(values))

    def restore(self, path: str, names: Sequence[str]) -> Mapping[str, Any]:
        """Return the values of some names; raise if one is missing."""
        found = restore(path)
        missing = [name for name in names if name not in found]
        if missing:
            from dsl.errors import CheckpointError

            known = ", ".join(sorted(found)) or "none"
            raise CheckpointError(
                f"{path} has no entry {', '.join(map(repr, missing))} (it has: {known})"
            )
        return found  # type: ignore[no-any-return]
