"""Assignments that an expression makes or not: `if a and (n := f(x)) > 0:` becomes statements.

    dsl__short_1 = not not a
    if dsl__short_1:                    # marked `dsl_short`: what it assigns may have no value after it
        dsl__short_1 = not not (n := f(x)) > 0
    if dsl__short_1:
        ...

So are `or`, `not` and `x if a else y` at the root of a test, of what is assigned, returned or asserted. Elsewhere they stay, and
conversion refuses them: to take them out would change the order in which the parts of the statement are evaluated.
"""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["lower_walrus"]


def lower_walrus(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements in which no test, and nothing assigned or returned, has a part that assigns or not."""
    lowering = _Lowering()
    made = [lowering.visit(statement) for statement in statements]
    return [s for part in made for s in (part if isinstance(part, list) else [part])]


def _assigns(*nodes: ast.expr) -> bool:
    return any(isinstance(inner, ast.NamedExpr) for node in nodes for inner in ast.walk(node))


def _may_assign(node: ast.expr) -> bool:
    """Tell whether an expression can be lowered, and has a part that is evaluated or not and assigns."""
    if isinstance(node, ast.BoolOp):
        return _assigns(*node.values[1:]) or _may_assign(node.values[0])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _may_assign(node.operand)
    return isinstance(node, ast.IfExp) and (
        _assigns(node.body, node.orelse) or _may_assign(node.test)
    )


def _not(node: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), node), node)


class _Lowering(ast.NodeTransformer):
    def __init__(self) -> None:
        self.count = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return node

    visit_Lambda = visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        before, node.test = self._taken_out(node.test, True)
        return [*before, node]

    def visit_While(self, node: ast.While) -> Any:
        self.generic_visit(node)
        if not _may_assign(node.test):
            return node
        before, test = self._taken_out(node.test, True)
        stop = ast.copy_location(ast.Break(), test)
        leave = ast.copy_location(ast.If(_not(test), [*node.orelse, stop], []), test)
        forever = ast.copy_location(ast.Constant(True), test)
        return ast.copy_location(ast.While(forever, [*before, leave, *node.body], []), node)

    def visit_Assert(self, node: ast.Assert) -> Any:
        before, node.test = self._taken_out(node.test, True)
        return [*before, node]

    def visit_Assign(self, node: Any) -> Any:
        if node.value is None:
            return node
        before, node.value = self._taken_out(node.value, False)
        return [*before, node]

    visit_Return = visit_Expr = visit_AnnAssign = visit_Assign

    def _taken_out(self, node: ast.expr, truth: bool) -> tuple[list[ast.stmt], ast.expr]:
        """Return statements that evaluate an expression, and what stands for it; with `truth` only its truth matters."""
        if not _may_assign(node):
            return [], node
        self.count += 1
        name = f"dsl__short_{self.count}"
        return self._evaluated(node, name, truth), ast.copy_location(_load(name), node)

    def _evaluated(self, node: ast.expr, name: str, truth: bool) -> list[ast.stmt]:
        """Return statements that assign the value of an expression to a variable."""
        if isinstance(node, ast.BoolOp):
            first, *rest = node.values
            others = (
                rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(node.op, rest), node)
            )
            going_on = ast.copy_location(_load(name), node)
            test = going_on if isinstance(node.op, ast.And) else _not(going_on)
            inner = self._evaluated(others, name, truth)
            return [*self._evaluated(first, name, truth), _short(test, inner, [], node)]
        if isinstance(node, ast.UnaryOp) and _may_assign(node):
            value = _not(ast.copy_location(_load(name), node))
            return [*self._evaluated(node.operand, name, True), _set(name, value)]
        if isinstance(node, ast.IfExp) and _may_assign(node):
            before, test = self._taken_out(node.test, True)
            then = self._evaluated(node.body, name, truth)
            other = self._evaluated(node.orelse, name, truth)
            return [*before, _short(test, then, other, node)]
        return [_set(name, _not(_not(node)) if truth else node)]


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _set(name: str, value: ast.expr) -> ast.stmt:
    return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], value), value)


def _short(test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], at: ast.expr) -> ast.stmt:
    made = ast.copy_location(ast.If(test, body, orelse), at)
    made.dsl_short = True  # type: ignore[attr-defined]
    return made
