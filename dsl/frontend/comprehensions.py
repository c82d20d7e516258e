"""Comprehensions with conditions, or that may change something, also as loops: for when the data decides which items there are, or of many.

    [f(v) for v in x if v > 0]

has beside it, at the top of the function that it is in, a function which fills a list:

    def dsl__pick_1(dsl__items):
        dsl__made = []
        for v in dsl__items:
            if v > 0:
                dsl__made.append(f(v))
        return dsl__made

A list that nothing uses is not filled. One that `next` takes its first item of ends with that, and `any` and `all` end where they are
decided:

    def dsl__pick_2(dsl__items):
        for v in dsl__items:
            if f(v):
                return True
        return False

Names that a lambda or a comprehension around binds are its further parameters. The
runtime calls it when the conditions are traced.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

import numpy as np

__all__ = [
    "ALL_OF",
    "LOOP",
    "bound_names",
    "changes_nothing",
    "is_choice",
    "is_next_of_generator",
    "is_pure",
    "is_quantified",
    "is_quantified_map",
    "is_total",
    "lift_comprehensions",
]

# The attribute of a comprehension: the name of its loop, and those of the further arguments.
LOOP = "dsl_loop"
# The attribute of a generator that `any` or `all` goes through: whether it is `all`.
ALL_OF = "dsl_all_of"
ITEMS = "dsl__items"
MADE = "dsl__made"


def lift_comprehensions(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements with a loop for each comprehension that has conditions, in front of all others."""
    lifting = _Lifting()
    for statement in statements:
        lifting.visit(statement)
    return [*lifting.loops, *statements]


def bound_names(node: Any) -> set[str]:
    """Return the names that a comprehension binds."""
    targets = [g.target for g in node.generators]
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}


def is_choice(node: Any) -> bool:
    """Tell whether a comprehension has conditions, or goes over several things: one item does not make one."""
    return len(node.generators) > 1 or any(g.ifs for g in node.generators)


def is_next_of_generator(node: ast.Call) -> bool:
    """Tell whether a call is `next(... for ... in ...)`, which takes one item of a generator that nothing else sees."""
    named = isinstance(node.func, ast.Name) and node.func.id == "next"
    return named and bool(node.args) and isinstance(node.args[0], ast.GeneratorExp)


def is_quantified(node: ast.Call) -> bool:
    """Tell whether a call is `any(... for ... in ...)`, or `all`."""
    return _is_any_or_all(node) and isinstance(node.args[0], ast.GeneratorExp)


def is_quantified_map(node: ast.Call) -> bool:
    """Tell whether a call is `any(map(f, ...))`, or `all`."""
    inner: Any = node.args[0] if _is_any_or_all(node) else None
    if not isinstance(inner, ast.Call) or inner.keywords or len(inner.args) < 2:
        return False
    return isinstance(inner.func, ast.Name) and inner.func.id == "map"


def _is_any_or_all(node: ast.Call) -> bool:
    named = isinstance(node.func, ast.Name) and node.func.id in ("any", "all")
    return named and len(node.args) == 1 and not node.keywords


def is_pure(node: Any) -> bool:
    """Tell whether a comprehension can be asked for its conditions without changing anything: no function of the user's is called."""
    first, *rest = node.generators
    return changes_nothing(*first.ifs, *(part for g in rest for part in (g.iter, *g.ifs)))


def changes_nothing(*nodes: ast.expr) -> bool:
    """Tell whether expressions call no function of the user's and assign nothing."""
    return all(_is_pure_node(inner) for node in nodes for inner in ast.walk(node))


def is_total(node: Any) -> bool:
    """Tell whether nobody can tell how many items of a generator are asked for: they change nothing and always have a value."""
    first, *rest = node.generators
    inner = (part for g in rest for part in (g.iter, *g.ifs))
    return all(
        isinstance(part, _TOTAL) or (isinstance(part, ast.Call) and _is_ufunc(part.func))
        for top in (node.elt, *first.ifs, *inner) for part in ast.walk(top)
        if not _is_ufunc(part) and not (isinstance(part, ast.Name) and part.id in ("np", "numpy"))
    )  # fmt: skip


_TOTAL = (
    ast.Name, ast.Constant, ast.expr_context, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.IfExp,
)  # fmt: skip


def _is_ufunc(node: ast.AST) -> bool:
    """Tell whether an expression is `np.sin` or its like; integers have no negative powers."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return False
    own = node.value.id in ("np", "numpy") and node.attr != "power"
    return own and isinstance(getattr(np, node.attr, None), np.ufunc)


_READS = {
    "abs", "bool", "enumerate", "float", "int", "isinstance", "len", "max", "min", "range", "reversed", "round", "str", "zip",
}  # fmt: skip
_LIBRARIES = {"np", "numpy", "math"}
# Functions that take all items of a generator.
_TAKES_ALL = {
    "all",
    "any",
    "fromiter",
    "fsum",
    "list",
    "max",
    "min",
    "prod",
    "reduce",
    "sorted",
    "sum",
}


def _name_of(function: ast.expr) -> str | None:
    """Return the name by which a function, perhaps of a module, is called."""
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else None


def _is_pure_node(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        root: Any = node.func
        if isinstance(root, ast.Name):
            return root.id in _READS
        while isinstance(root, ast.Attribute):
            root = root.value
        return isinstance(root, ast.Name) and root.id in _LIBRARIES
    return not isinstance(node, (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await))


class _Lifting(ast.NodeVisitor):
    def __init__(self) -> None:
        self.loops: list[ast.stmt] = []
        self.bound: list[set[str]] = []

    def visit_FunctionDef(self, node: Any) -> None:
        """Leave functions alone: they are lifted when they are converted."""

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        stars = [a for a in (node.args.vararg, node.args.kwarg) if a]
        self._inside({a.arg for a in (*every, *stars)}, node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.ListComp):
            node.value.dsl_unused = True  # type: ignore[attr-defined]
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if is_next_of_generator(node):
            node.args[0].dsl_first = True  # type: ignore[attr-defined]
        elif _name_of(node.func) in _TAKES_ALL:
            for argument in node.args:
                argument.dsl_whole = True  # type: ignore[attr-defined]
        if is_quantified(node):
            setattr(node.args[0], ALL_OF, node.func.id == "all")  # type: ignore[attr-defined]
        self.generic_visit(node)

    def visit_ListComp(self, node: Any) -> None:
        special = hasattr(node, "dsl_unused") or hasattr(node, ALL_OF)
        loops = special or is_choice(node) or not changes_nothing(node.elt)
        if loops and not any(g.is_async for g in node.generators):
            self._lift(node)
        self._inside(bound_names(node), node)

    visit_GeneratorExp = visit_ListComp

    def visit_SetComp(self, node: Any) -> None:
        self._inside(bound_names(node), node)

    visit_DictComp = visit_SetComp

    def _inside(self, names: set[str], node: ast.AST) -> None:
        self.bound.append(names)
        self.generic_visit(node)
        self.bound.pop()

    def _lift(self, node: Any) -> None:
        assigned = {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
        around = set().union(*self.bound)
        if assigned and self.bound:
            return  # what it assigns is a variable of the lambda around it
        read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        more = sorted(read & around)
        name = f"dsl__pick_{len(self.loops) + 1}"
        self.loops.append(_loop(name, more, sorted(assigned), node))
        setattr(node, LOOP, (name, more))


def _loop(name: str, more: list[str], assigned: list[str], node: Any) -> ast.stmt:
    own = copy.deepcopy(node)
    method = ast.Attribute(ast.Name(MADE, ast.Load()), "append", ast.Load())
    end: ast.expr = ast.Name(MADE, ast.Load())
    unused = hasattr(node, "dsl_unused")
    block: list[ast.stmt] = [ast.Expr(own.elt if unused else ast.Call(method, [own.elt], []))]
    if hasattr(node, "dsl_first"):  # `next` takes no more
        block.append(ast.Return(ast.Name(MADE, ast.Load())))
    if (all_of := getattr(node, ALL_OF, None)) is not None:
        test = ast.UnaryOp(ast.Not(), own.elt) if all_of else own.elt
        block = [ast.If(test, [ast.Return(ast.Constant(not all_of))], [])]
        end = ast.Constant(all_of)
    own.generators[0].iter = ast.Name(ITEMS, ast.Load())
    for generator in reversed(own.generators):
        for test in reversed(generator.ifs):
            block = [ast.copy_location(ast.If(test, block, []), test)]
        block = [ast.copy_location(ast.For(generator.target, generator.iter, block, []), node)]
    start = ast.Assign([ast.Name(MADE, ast.Store())], ast.List([], ast.Load()))
    share: list[ast.stmt] = [ast.Nonlocal(assigned)] if assigned else []
    parameters = ast.arguments([], [ast.arg(p) for p in (ITEMS, *more)], None, [], [], None, [])
    body = [*share, start, *block, ast.Return(end)]
    made = ast.FunctionDef(name, parameters, body, [], None, None)
    return ast.fix_missing_locations(ast.copy_location(made, node))
