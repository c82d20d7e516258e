"""Jumps to flags: rewrite `break`, `continue`, loop `else` and early `return` so that control flow nests.

After `lower_jumps` a function's only `return` is its last statement, loops have no `else`, and a loop that can be left
early tests a flag: a `while` in its condition, a `for` in the attribute `dsl_guard` of its node. A `return` in tail
position needs no flag: what follows an `if` whose branch always returns moves into the other branch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

__all__ = ["lower_jumps"]

RESULT, DONE = "dsl__result", "dsl__done"


def lower_jumps(
    statements: list[ast.stmt], error: Callable[[ast.AST, str, str], Exception]
) -> list[ast.stmt]:
    """Return the statements of a function body without jumps."""
    statements = [_WalrusTests().visit(s) for s in statements]
    lowered = _Loops(error).block(statements)
    if not _contains(lowered[:-1], ast.Return) and not (
        lowered and _inside(lowered[-1], ast.Return)
    ):
        return lowered
    if not _always_returns(lowered):
        lowered = [*lowered, ast.copy_location(ast.Return(ast.Constant(None)), lowered[-1])]
    tail = _Returns().block(lowered)
    start = [_set(DONE, False, statements[0])] if _mentions(tail, DONE) else []
    last = ast.copy_location(ast.Return(ast.Name(RESULT, ast.Load())), statements[-1])
    return [*start, *tail, last]


def _rewrite_blocks(node: ast.stmt, block: Callable[[list[ast.stmt]], list[ast.stmt]]) -> None:
    """Let `block` rewrite the statements inside of another, those of its handlers too."""
    for name in ("body", "orelse", "finalbody"):
        if isinstance(getattr(node, name, None), list):
            setattr(node, name, block(getattr(node, name)))
    for handler in getattr(node, "handlers", []):
        handler.body = block(handler.body)


class _WalrusTests(ast.NodeTransformer):
    """`while (x := f()): …` becomes `while True`, with the test in the body, where it may assign."""

    def visit_While(self, node: ast.While) -> ast.While:
        self.generic_visit(node)
        if any(isinstance(n, ast.NamedExpr) for n in ast.walk(node.test)):
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
            stop = ast.copy_location(ast.Break(), node.test)
            leave = ast.copy_location(ast.If(negated, [*node.orelse, stop], []), node.test)
            forever = ast.copy_location(ast.Constant(True), node.test)
            return ast.copy_location(ast.While(forever, [leave, *node.body], []), node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node


def _inside(statement: ast.stmt, kind: type[ast.stmt]) -> bool:
    return not isinstance(statement, kind) and _contains([statement], kind)


def _contains(statements: list[ast.stmt], *kinds: type[ast.stmt]) -> bool:
    return any(_find(s, kinds, True) for s in statements)


def _find(node: ast.AST, kinds: tuple[type[ast.stmt], ...], loops: bool) -> bool:
    """Tell whether a statement of `kinds` is in this function; with `loops` false, nested loops are not searched."""
    if isinstance(node, kinds):
        return True
    if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
        return False
    if not loops and isinstance(node, (ast.For, ast.While)):
        return any(_find(c, kinds, loops) for c in node.orelse)
    return any(_find(c, kinds, loops) for c in ast.iter_child_nodes(node))


def _mentions(statements: list[ast.stmt], name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for s in statements for n in ast.walk(s))


def _set(name: str, value: Any, at: ast.AST) -> ast.stmt:
    constant = value if isinstance(value, ast.expr) else ast.Constant(value)
    return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], constant), at)


def _not(name: str, at: ast.AST) -> ast.expr:
    return ast.copy_location(
        ast.UnaryOp(ast.Not(), ast.copy_location(ast.Name(name, ast.Load()), at)), at
    )


def _always_returns(statements: list[ast.stmt]) -> bool:
    """Tell whether control never falls off the end of a block."""
    if not statements:
        return False
    last = statements[-1]
    if isinstance(last, (ast.Return, ast.Raise)):
        return True
    if isinstance(last, ast.If):
        return _always_returns(last.body) and _always_returns(last.orelse)
    if isinstance(last, ast.With):
        return _always_returns(last.body)
    if isinstance(last, ast.While):
        constant = isinstance(last.test, ast.Constant) and bool(last.test.value)
        return constant and not any(_find(s, (ast.Break,), False) for s in last.body)
    return False


def _passed_by(tests: list[ast.expr], node: ast.Try) -> list[ast.stmt]:
    """Return the `else` of a `try`, under the tests that no jump has left its body."""
    guarded = node.orelse
    for test in tests:
        guarded = [ast.copy_location(ast.If(test, guarded, []), node)]
    return guarded


class _Loops:
    """Lowers `break`, `continue` and the `else` of loops, innermost first; leaves `return` inside loops as a break."""

    def __init__(self, error: Callable[[ast.AST, str, str], Exception]) -> None:
        self.count = 0
        self.error = error

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in statements:
            result.extend(self.statement(statement))
        return result

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, (ast.While, ast.For)):
            return self.loop(node)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            return [node]
        _rewrite_blocks(node, self.block)
        return [node]

    def loop(self, node: ast.While | ast.For) -> list[ast.stmt]:
        endless = (
            isinstance(node, ast.While)
            and isinstance(node.test, ast.Constant)
            and bool(node.test.value)
        )
        if isinstance(node, ast.While) and any(
            isinstance(n, ast.NamedExpr) for n in ast.walk(node.test)
        ):
            self._test_inside(node)
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        self.count += 1
        leave, skip = f"dsl__break_{self.count}", f"dsl__continue_{self.count}"
        returns = _contains(node.body, ast.Return)
        breaks = any(_find(s, (ast.Break,), False) for s in node.body)
        skips = any(_find(s, (ast.Continue,), False) for s in node.body)
        after: list[ast.stmt] = []
        if not (returns or breaks or skips):
            after, node.orelse = node.orelse, []
            return [node, *after]
        body = _Jumps(leave, skip).block(node.body)
        if skips:
            body = [_set(skip, False, node), *body]
        before: list[ast.stmt] = []
        if breaks or returns:
            before = [_set(leave, False, node)]
            self._guard(node, leave)
        if node.orelse:
            after = (
                [ast.copy_location(ast.If(_not(leave, node), node.orelse, []), node)]
                if before
                else node.orelse
            )
        if returns:
            done = ast.copy_location(ast.Name(DONE, ast.Load()), node)
            resume = ast.copy_location(ast.Return(ast.Name(RESULT, ast.Load())), node)
            check = ast.copy_location(ast.If(done, [resume], []), node)
            check.dsl_resume = True  # type: ignore[attr-defined]
            if endless and not breaks:
                check = resume  # type: ignore[assignment]
            absent = ast.Call(
                ast.Attribute(ast.Name("dsl__", ast.Load()), "undefined", ast.Load()),
                [ast.Constant(RESULT)],
                [],
            )
            forget = _set(RESULT, ast.copy_location(absent, node), node)
            before, after = [_set(DONE, False, node), forget, *before], [check, *after]
        node.body, node.orelse = body, []
        return [*before, node, *after]

    @staticmethod
    def _test_inside(node: ast.While) -> None:
        """Move a condition that assigns variables into the body, where what it assigns is carried."""
        leave: list[ast.stmt] = [*node.orelse, ast.copy_location(ast.Break(), node)]
        wrong = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        node.body = [ast.copy_location(ast.If(wrong, leave, []), node.test), *node.body]
        node.test, node.orelse = ast.copy_location(ast.Constant(True), node.test), []

    @staticmethod
    def _guard(node: ast.While | ast.For, leave: str) -> None:
        if isinstance(node, ast.While):
            node.test = ast.copy_location(
                ast.BoolOp(ast.And(), [_not(leave, node.test), node.test]), node.test
            )
        else:
            node.dsl_guard = _not(leave, node.iter)  # type: ignore[attr-defined]


class _Jumps:
    """Replaces the jumps of one loop by flags and guards what follows them."""

    def __init__(self, leave: str, skip: str) -> None:
        self.leave, self.skip = leave, skip

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for k, statement in enumerate(statements):
            flags, rest = self.flags(statement), statements[k + 1 :]
            result.extend(self.statement(statement))
            if flags and rest:
                if not isinstance(statement, (ast.Break, ast.Continue, ast.Return)):
                    result.append(self.guarded(flags, rest, statement))
                return result
        return result

    def flags(self, statement: ast.stmt) -> list[str]:
        kinds = [(ast.Break, self.leave), (ast.Continue, self.skip), (ast.Return, self.leave)]
        found = [flag for kind, flag in kinds if _find(statement, (kind,), kind is ast.Return)]
        return list(dict.fromkeys(found))

    def guarded(self, flags: list[str], rest: list[ast.stmt], at: ast.stmt) -> ast.stmt:
        tests = [_not(flag, at) for flag in flags]
        test = tests[0] if len(tests) == 1 else ast.copy_location(ast.BoolOp(ast.And(), tests), at)
        return ast.copy_location(ast.If(test, self.block(rest), []), at)

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.Break):
            return [_set(self.leave, True, node)]
        if isinstance(node, ast.Continue):
            return [_set(self.skip, True, node)]
        if isinstance(node, ast.Return):
            value = node.value or ast.copy_location(ast.Constant(None), node)
            return [_set(RESULT, value, node), _set(DONE, True, node), _set(self.leave, True, node)]
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While)):
            return [node]
        if _find(node, (ast.Break, ast.Continue, ast.Return), True):
            if isinstance(node, ast.Try) and node.orelse:
                left = list(dict.fromkeys(flag for s in node.body for flag in self.flags(s)))
                node.orelse = _passed_by([_not(flag, node) for flag in left], node)
            _rewrite_blocks(node, self.block)
        return [node]


class _Returns:
    """Turns `return` into assignments of the result, in tail position or guarded by a flag."""

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Rewrite a block after which the function ends."""
        result: list[ast.stmt] = []
        for k, statement in enumerate(statements):
            rest = statements[k + 1 :]
            if isinstance(statement, ast.Return):
                return [*result, _set(RESULT, statement.value or ast.Constant(None), statement)]
            if isinstance(statement, ast.If) and _contains([statement], ast.Return):
                return [*result, self.branch(statement, rest)]
            if _contains([statement], ast.Return):
                return [*result, *self.flagged(statement), *self.unless_done(rest, statement)]
            result.append(statement)
        return result

    def branch(self, node: ast.If, rest: list[ast.stmt]) -> ast.stmt:
        """Move what follows an `if` into the branches that do not return."""
        import copy

        then_ends, else_ends = _always_returns(node.body), _always_returns(node.orelse)
        if not then_ends and not else_ends and rest and not getattr(node, "dsl_resume", False):
            return self.wrapped([*self.flagged(node), *self.unless_done(rest, node)], node)
        node.body = self.block(node.body if then_ends else [*node.body, *copy.deepcopy(rest)])
        node.orelse = self.block(node.orelse if else_ends else [*node.orelse, *rest])
        return node

    @staticmethod
    def wrapped(statements: list[ast.stmt], at: ast.stmt) -> ast.stmt:
        return ast.copy_location(
            ast.If(
                ast.copy_location(ast.Constant(True), at), [_set(DONE, False, at), *statements], []
            ),
            at,
        )

    def unless_done(self, rest: list[ast.stmt], at: ast.stmt) -> list[ast.stmt]:
        return [ast.copy_location(ast.If(_not(DONE, at), self.block(rest), []), at)] if rest else []

    def flagged(self, node: ast.stmt) -> list[ast.stmt]:
        """Rewrite the returns inside a statement that may also fall through; code after them is guarded."""
        if isinstance(node, ast.Try) and node.orelse and _contains(node.body, ast.Return):
            node.orelse = _passed_by([_not(DONE, node)], node)
        _rewrite_blocks(node, self.flagged_block)
        return [node]

    def flagged_block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for k, statement in enumerate(statements):
            if isinstance(statement, ast.Return):
                value = statement.value or ast.Constant(None)
                return [*result, _set(RESULT, value, statement), _set(DONE, True, statement)]
            if _contains([statement], ast.Return):
                rest = self.flagged_block(statements[k + 1 :])
                guard = (
                    [ast.copy_location(ast.If(_not(DONE, statement), rest, []), statement)]
                    if rest
                    else []
                )
                return [*result, *self.flagged(statement), *guard]
            result.append(statement)
        return result
