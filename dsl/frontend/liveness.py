"""Which variables may still be read after each `if`, `while` and `for` of a function without jumps.

`annotate(statements, names)` gives every such node the attribute `dsl_live`: for an `if` the names that may be read after
it, for a loop also those that the next trip may read before it sets them. What is not live need not be joined or carried.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

__all__ = ["annotate"]


def annotate(
    statements: list[ast.stmt], reads: Callable[[Any], set[str]], always: set[str]
) -> None:
    """Annotate the `if`s and loops among `statements`. `reads` returns the names that nodes read; `always` stay live."""
    _Liveness(reads, always).block(statements, set(always))


class _Liveness:
    def __init__(self, reads: Callable[[Any], set[str]], always: set[str]) -> None:
        self.reads, self.always = reads, always

    def block(self, statements: list[ast.stmt], live: set[str]) -> set[str]:
        """Return what is live before a block, given what is live after it."""
        for statement in reversed(statements):
            live = self.statement(statement, live)
        return live

    def statement(self, node: ast.stmt, live: set[str]) -> set[str]:
        if isinstance(node, ast.If):
            node.dsl_live = live  # type: ignore[attr-defined]
            return (
                self.reads([node.test])
                | self.block(node.body, live)
                | self.block(node.orelse, live)
            )
        if isinstance(node, (ast.While, ast.For)):
            return self.loop(node, live)
        if isinstance(node, ast.With):
            return self.reads([i.context_expr for i in node.items]) | self.block(node.body, live)
        if isinstance(node, ast.Try):
            return self.attempt(node, live)
        return (live - _certainly_set(node)) | self.reads([node])

    def loop(self, node: ast.While | ast.For, live: set[str]) -> set[str]:
        head = node.test if isinstance(node, ast.While) else getattr(node, "dsl_guard", None)
        tested = self.reads([head]) if head is not None else set()
        bound = (
            {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
            if isinstance(node, ast.For)
            else set()
        )
        around = live | tested
        while True:
            before = around | (self.block(node.body, around) - bound)
            if before == around:
                break
            around = before
        node.dsl_live = around  # type: ignore[union-attr]
        return around | (self.reads([node.iter]) if isinstance(node, ast.For) else set())

    def attempt(self, node: ast.Try, live: set[str]) -> set[str]:
        """An exception may come from anywhere in the body, so nothing in it certainly sets a variable."""
        after = self.block(node.finalbody, live) | live
        inside = after | self.block(node.orelse, after)
        for handler in node.handlers:
            inside |= self.block(handler.body, after)
        return inside | self.block(node.body, inside) | self.reads([node])


def _certainly_set(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Assign):
        return {n for target in node.targets for n in _targets(target)}
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return set(_targets(node.target))
    return {node.name} if isinstance(node, ast.FunctionDef) else set()


def _targets(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, (ast.Tuple, ast.List)):
        return [n for item in target.elts for n in _targets(item)]
    return _targets(target.value) if isinstance(target, ast.Starred) else []
