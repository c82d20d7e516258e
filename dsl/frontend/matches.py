"""`match` to `if`: rewrite each case as a test and a branch, so that numbers that are data may choose between cases.

In: the statements of a function. Out: the same with an `if` for each case. A pattern of values or classes, `case 0 | float()`,
is a comparison; any other is left to a `match` of that one case, which sets a flag and the names in the pattern: structure is always
known while tracing. Values inside it become names too, which are compared afterwards.

    match k:                        dsl__subject_1 = k
        case 0:                     if dsl__subject_1 == 0:
            y = x                       y = x
        case (a, 0) if a > b:       else:
            y = x[a]                    dsl__matches_1 = False
                                        match dsl__subject_1:
                                            case (a, dsl__part_2):
                                                dsl__matches_1 = True
                                        if dsl__matches_1 and dsl__part_2 == 0 and a > b:
                                            y = x[a]
"""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["lower_matches"]


def lower_matches(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements whose `match` statements have no branches of their own."""
    holder = _Matches().visit(ast.Module(list(statements), []))
    body: list[ast.stmt] = ast.fix_missing_locations(holder).body
    return body


class _Matches(ast.NodeTransformer):
    """Rewrites the statements of one function; those of nested ones are rewritten with them."""

    def __init__(self) -> None:
        self.count = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node

    def visit_Match(self, node: ast.Match) -> list[ast.stmt]:
        self.generic_visit(node)
        self.count += 1
        subject = f"dsl__subject_{self.count}"
        first = ast.copy_location(ast.Assign([_store(subject)], node.subject), node)
        return [first, *self.cases(node.cases, subject)]

    def cases(self, cases: list[Any], subject: str) -> list[ast.stmt]:
        """Return the `if` of the first case, with all others in its `else`."""
        if not cases:
            return []
        case, *others = cases
        before, test = self.test(_Whole().visit(case.pattern), subject)
        if case.guard is not None:
            test = ast.copy_location(ast.BoolOp(ast.And(), [test, case.guard]), case.guard)
        if isinstance(test, ast.Constant):  # true: no other case is looked at
            return [*before, *case.body]
        branch = ast.If(test, case.body, self.cases(others, subject))
        return [*before, ast.copy_location(branch, test)]

    def test(self, pattern: Any, subject: str) -> tuple[list[ast.stmt], ast.expr]:
        """Return statements that bind the names of a pattern, and whether it matches."""
        found = _comparison(pattern, subject)
        if found is not None:
            return [], ast.copy_location(found, pattern)
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            bind = [_assign(pattern.name, _load(subject), pattern)] if pattern.name else []
            return bind, ast.copy_location(ast.Constant(True), pattern)
        if isinstance(pattern, ast.MatchOr) and not _binds_names(pattern):
            pairs = [self.test(each, subject) for each in pattern.patterns]
            met = ast.BoolOp(ast.Or(), [test for _, test in pairs])
            return [s for before, _ in pairs for s in before], ast.copy_location(met, pattern)
        self.count += 1
        flag = f"dsl__matches_{self.count}"
        tests: list[ast.expr] = []
        pattern = self.without_values(pattern, tests)
        case = ast.match_case(pattern, None, [_assign(flag, ast.Constant(True), pattern)])
        match = ast.copy_location(ast.Match(_load(subject), [case]), pattern)
        clear = _assign(flag, ast.Constant(False), pattern)
        found = ast.BoolOp(ast.And(), [_load(flag), *tests]) if tests else _load(flag)
        return [clear, match], ast.copy_location(found, pattern)

    def without_values(self, pattern: Any, tests: list[ast.expr]) -> Any:
        """Return a pattern with names in the stead of its values, and append their comparisons to the tests."""
        is_named = isinstance(pattern, ast.MatchAs) and pattern.pattern is not None
        value = pattern.pattern if is_named else pattern
        name = pattern.name if is_named else f"dsl__part_{self.count + 1}"
        found = _comparison(value, name)
        if found is not None:
            self.count += 1
            tests.append(ast.copy_location(found, pattern))
            return ast.copy_location(ast.MatchAs(None, name), pattern)
        if is_named:
            pattern.pattern = self.without_values(value, tests)
        elif not isinstance(pattern, ast.MatchOr):  # alternatives bind the same names
            for parts in (getattr(pattern, field, []) for field in ("patterns", "kwd_patterns")):
                parts[:] = [self.without_values(part, tests) for part in parts]
        return pattern


# Classes whose pattern takes one part, which is the whole: `float(x)` is `float() as x`.
_WHOLE = {"bool", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"}


class _Whole(ast.NodeTransformer):
    """Gives the whole that a class of Python's matches its name as `as` does, so that the class can be asked of a traced number."""

    def visit_MatchClass(self, node: ast.MatchClass) -> Any:
        self.generic_visit(node)
        is_whole = isinstance(node.cls, ast.Name) and node.cls.id in _WHOLE
        part = node.patterns[0] if is_whole and len(node.patterns) == 1 else None
        if not isinstance(part, ast.MatchAs) or part.pattern is not None:
            return node
        kind = ast.copy_location(ast.MatchClass(node.cls, [], [], []), node)
        return ast.copy_location(ast.MatchAs(kind, part.name), node) if part.name else kind

    def visit_MatchOr(self, node: ast.MatchOr) -> Any:
        """`int(k) | float(k)` is `(int() | float()) as k`."""
        self.generic_visit(node)
        named = [p for p in node.patterns if isinstance(p, ast.MatchAs) and p.pattern is not None]
        if len(named) < len(node.patterns) or len({p.name for p in named}) > 1:
            return node
        either = ast.copy_location(ast.MatchOr([p.pattern for p in named if p.pattern]), node)
        return ast.copy_location(ast.MatchAs(either, named[0].name), node)


def _comparison(pattern: Any, subject: str) -> ast.expr | None:
    """Return what compares with the values and classes of a pattern, or None if it has anything else."""
    if isinstance(pattern, ast.MatchValue):
        return ast.Compare(_load(subject), [ast.Eq()], [pattern.value])
    if isinstance(pattern, ast.MatchSingleton):
        return ast.Compare(_load(subject), [ast.Is()], [ast.Constant(pattern.value)])
    if isinstance(pattern, ast.MatchClass) and not pattern.patterns and not pattern.kwd_patterns:
        return ast.Call(_load("isinstance"), [_load(subject), pattern.cls], [])
    if not isinstance(pattern, ast.MatchOr):
        return None
    parts = [_comparison(p, subject) for p in pattern.patterns]
    known = [p for p in parts if p is not None]
    return ast.BoolOp(ast.Or(), list(known)) if len(known) == len(parts) else None


def _binds_names(pattern: Any) -> bool:
    """Tell whether a pattern gives names to parts of what it matches."""
    return any(
        isinstance(part, (ast.MatchAs, ast.MatchStar, ast.MatchMapping))
        and getattr(part, "name", getattr(part, "rest", None))
        for part in ast.walk(pattern)
    )


def _assign(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    return ast.copy_location(ast.Assign([_store(name)], value), at)


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _store(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())
