"""Names of nodes in a `GraphDef`: where a node lives, then its op, as in `while0/body/cond0/then/multiply_1`.

TensorBoard folds what has a common path. Frames give a path their names; what runs when a loop goes on is in `body`, and
the two sides of a branch are `then` and `else`. In graphs that break a rule of branches only frames count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from dsl.errors import VerifyError
from dsl.ir.checks.frames import ROOT, Frames
from dsl.ir.graph import Graph, Node, Value
from dsl.passes.flat.scopes import Scope, Scopes

__all__ = ["Names", "paths"]


class Names:
    """Gives out names, each once; `reserved` ones are taken."""

    def __init__(self, reserved: set[str]) -> None:
        self._taken = set(reserved)

    def fresh(self, wanted: str) -> str:
        """Return a name that TensorFlow accepts; the second of a kind ends in `_1`."""
        stem = re.sub(r"[^A-Za-z0-9_./-]+", "_", wanted).strip("_/-") or "value"
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name


def paths(graph: Graph) -> Callable[[Node], str]:
    """Return a function from nodes to the path they live under, with a slash at its end, or nothing."""
    try:
        return _Paths(Scopes(graph)).of
    except VerifyError:
        frames = Frames(graph)
        return lambda node: _frame_path(frames, node)


def _frame_path(frames: Frames, node: Node) -> str:
    frame = frames.of(node.output) if node.op.name == "enter" else frames.inside(node)
    path = ""
    while frame != ROOT:
        path, frame = f"{frame}/{path}", frames.parents.get(frame, ROOT)
    return path


class _Paths:
    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._groups: dict[Any, str] = {}

    def of(self, node: Node) -> str:
        """Enters and exits belong to their frame, switches and merges to the branches they open and close."""
        home, inputs = self._scopes.home[node], node.inputs
        if node.op.name == "enter":
            return self._text(self._scopes.scope[node.output])
        if node.op.name == "exit":
            return self._text(self._scopes.scope[inputs[0]].frame or home)
        if node.op.name in ("switch", "merge") and "scope" in node.attrs:
            return f"{self._text(home)}{node.attrs['scope']}/"
        return self._text(home)

    def _text(self, scope: Scope) -> str:
        return "".join(self._part(part) for part in scope.path[1:])

    def _part(self, scope: Scope) -> str:
        if scope.frame is scope:
            return f"{scope.key}/"
        (pred, hint), side = scope.key
        if pred.node.op.name == "loop_cond":
            return "body/" if side else ""
        return f"{hint or self._numbered(pred)}/{'then' if side else 'else'}/"

    def _numbered(self, pred: Value) -> str:
        return self._groups.setdefault(pred, f"if{len(self._groups)}")
