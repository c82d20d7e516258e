"""Checkpoints: trees of arrays in safetensors files that are either whole or known to be damaged.

`checkpoint` saves and restores one file, `manager` a directory of them. Below: `format` is the bytes of a file, `store` puts a file in
its place at once or not at all, `tree` is the way from a tree to named arrays and back, `match` fits a file to a tree.
"""

from dsl.checkpoints.checkpoint import read_metadata, restore, save
from dsl.checkpoints.manager import CheckpointManager

__all__ = ["CheckpointManager", "read_metadata", "restore", "save"]
