"""`dsl.save` and `dsl.restore` in a graph: operations that a step runs."""

from __future__ import annotations

import os
from typing import Any

from dsl.checkpoints.tree import names
from dsl.errors import UnsupportedError
from dsl.frontend.scopes import current_scope, here
from dsl.frontend.traced import fresh, lift, read
from dsl.frontend.trees import flatten
from dsl.ir.types import TensorType
from dsl.session.graph import Operation, group, the_graph
from dsl.variables import Variable

__all__ = ["restore_node", "save_node"]


def save_node(path: Any, tree: Any) -> Operation:
    """Return the operation that writes a tree of tensors and variables to a checkpoint file."""
    graph, _ = the_graph("saving")
    leaves, structure = flatten(tree)
    values = [read(lift(leaf)) for leaf in leaves]
    attrs = {"path": os.fspath(path), "names": tuple(names(structure))}
    node = current_scope().node("save", values, attrs)
    return group(Operation(graph, (node,), "save"), name="save")


def restore_node(path: Any, like: Any) -> Operation:
    """Return the operation that sets a tree of variables to what a checkpoint file has."""
    the_graph("restoring")
    leaves, structure = flatten(like)
    for leaf in leaves:
        if not isinstance(leaf, Variable):
            raise UnsupportedError(
                f"in a graph `dsl.restore` sets variables, and `like` has {leaf!r}",
                location=here(), remedy="pass a tree of variables",
            )  # fmt: skip
    types = [TensorType(leaf.dtype, leaf.shape) for leaf in leaves]
    attrs = {"path": os.fspath(path), "names": tuple(names(structure))}
    node = current_scope().node("restore", (), attrs, types=types)
    done = [v.assign(fresh(value)) for v, value in zip(leaves, node.outputs, strict=True)]
    return group(*done, name="restore")
