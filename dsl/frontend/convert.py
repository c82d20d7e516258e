"""Python syntax to calls: rewrite a function so that its control flow, calls and subscripts ask the runtime.

`convert(fn)` returns a function with the same signature, globals and closure. In it, `if`, `while` and `for` are calls of
`dsl__.if_`, `dsl__.while_` and `dsl__.for_` with their blocks as nested functions that share the variables by `nonlocal`;
on values that are not traced these run plain Python. `break`, `continue` and early `return` are flags first. The line
numbers stay, so that tracebacks and error messages show the user's own lines.
"""

from __future__ import annotations

import ast
import copy
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeGuard

from dsl.errors import ConversionError
from dsl.frontend.code_table import CodeTable
from dsl.frontend.comprehensions import (
    ALL_OF,
    LOOP,
    bound_names,
    changes_nothing,
    is_choice,
    is_pure,
    is_quantified,
    is_quantified_map,
    is_total,
    lift_comprehensions,
)
from dsl.frontend.liveness import annotate
from dsl.frontend.matches import lower_matches
from dsl.frontend.returns import lower_jumps
from dsl.frontend.source import FunctionTree, function_tree
from dsl.frontend.tables import tables_changed
from dsl.frontend.walrus import lower_walrus
from dsl.ir.location import Location

__all__ = ["MUTATORS", "convert", "is_converted", "is_generated", "refuse_generator"]

RT = "dsl__"
_converted: weakref.WeakKeyDictionary[types.CodeType, types.CodeType] = weakref.WeakKeyDictionary()
_generated: CodeTable[None] = CodeTable()


def _looks_at_its_frame(node: ast.Call) -> bool:
    """Tell whether a call is about the function that it stands in."""
    name = getattr(node.func, "id", "")
    return name in ("super", "locals", "globals") or (name == "vars" and not node.args)


def is_converted(fn: types.FunctionType) -> bool:
    """Tell whether a function is the result of conversion, or was defined inside such a one."""
    return fn.__code__ in _generated


def is_generated(code: types.CodeType) -> bool:
    """Tell whether code is the result of conversion."""
    return code in _generated


def convert(fn: types.FunctionType, runtime: Any) -> types.FunctionType:
    """Return `fn` rewritten; `runtime` is what the rewritten code calls."""
    code = _converted.get(fn.__code__)
    if code is None or code.co_filename != fn.__code__.co_filename:  # equal code of two files
        code = _converted[fn.__code__] = _compile(fn)
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    cells[RT] = types.CellType(runtime)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, closure)
    made.__kwdefaults__ = fn.__kwdefaults__
    made.__qualname__ = fn.__qualname__
    return made


def refuse_generator(fn: Any) -> None:
    """Refuse a function that yields where its caller would get the generator."""
    if not inspect.isgeneratorfunction(fn):
        return
    rewriter = _Rewriter(fn.__code__.co_filename, fn.__name__, set())
    for node in ast.walk(function_tree(fn)):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            what = "yield" if isinstance(node, ast.Yield) else "yield from"
            raise rewriter._error(
                node,
                f"`{what}` cannot be converted in the decorated function itself",
                "return the values in one array, or decorate a function that loops over the generator",
            )


def _compile(fn: types.FunctionType) -> types.CodeType:
    tree = function_tree(fn)
    filename = fn.__code__.co_filename
    body = _Rewriter(filename, fn.__name__, set(fn.__code__.co_freevars)).function(tree)
    # The factory must not bind the function's own name: a recursive call reads it from where the user bound it.
    body.name = "dsl__function"
    shell = _shell(body, fn.__code__.co_freevars, tree)
    module = compile(shell, filename, "exec")
    inner = _inner(_inner(module, "dsl__factory"), body.name)
    made = inner.replace(co_name=fn.__code__.co_name, co_qualname=fn.__code__.co_qualname)
    _remember(made)
    return made


def _shell(body: ast.FunctionDef, freevars: tuple[str, ...], tree: FunctionTree) -> ast.Module:
    """Wrap the function in another one that binds its free variables, so that they compile as such."""
    names = [RT, *freevars]
    binds: list[ast.stmt] = [
        ast.Assign([ast.Name(n, ast.Store())], ast.Constant(None)) for n in names
    ]
    arguments = ast.arguments([], [], None, [], [], None, [])
    factory = ast.FunctionDef("dsl__factory", arguments, [*binds, body], [], None, None)
    module = ast.Module([ast.copy_location(factory, tree)], [])
    return ast.fix_missing_locations(module)


def _inner(code: types.CodeType, name: str) -> types.CodeType:
    return next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)


def _remember(code: types.CodeType) -> None:
    _generated.put(code, None)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            _remember(const)


# -- building syntax -------------------------------------------------------------------------------------------


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _runtime(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(_load(RT), name, ast.Load()), list(args), [])


def _thunk(expr: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), expr)


def _borrow(name: str) -> ast.stmt:
    """Tell the runtime that a function may assign a variable of the function around it."""
    return ast.Expr(_runtime("borrow", ast.Constant(name), _thunk(_load(name))))


def _strings(names: list[str]) -> ast.Tuple:
    return ast.Tuple([ast.Constant(n) for n in names], ast.Load())


class _Names(ast.NodeVisitor):
    """The names that statements assign and read, not looking into nested functions except for reads."""

    def __init__(self) -> None:
        self.stored: dict[str, None] = {}
        self.loaded: dict[str, None] = {}
        self.subscripted: dict[str, None] = {}
        self.nonlocals: set[str] = set()
        self._depth = 0

    def visit_Name(self, node: ast.Name) -> None:
        kind = self.loaded if isinstance(node.ctx, ast.Load) or self._depth else self.stored
        kind[node.id] = None

    def visit_Subscript(self, node: ast.Subscript) -> None:
        root = node.value
        while isinstance(root, (ast.Subscript, ast.Attribute)):
            root = root.value
        if isinstance(node.ctx, ast.Store) and isinstance(root, ast.Name):
            self.subscripted[root.id] = None
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.loaded[node.target.id] = None
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not self._depth:
            self.stored[node.name] = None
        inner = _Names()
        inner._depth = 1
        for statement in node.body:
            inner.visit(statement)
        self.loaded.update(inner.loaded)
        self.stored.update(dict.fromkeys(inner.nonlocals))

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.nonlocals.update(node.names)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._inside(node)

    def visit_ListComp(self, node: ast.AST) -> None:
        self._inside(node)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.stored[node.target.id] = None
        self.visit(node.value)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.stored[node.name] = None
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.stored[node.name] = None
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self.stored[node.rest] = None
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.stored[node.name] = None

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.stored[(alias.asname or alias.name).split(".")[0]] = None

    visit_ImportFrom = visit_Import

    def _inside(self, node: ast.AST) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1


def _names_in(nodes: list[ast.stmt] | list[ast.expr]) -> _Names:
    found = _Names()
    for node in nodes:
        found.visit(node)
    return found


def _assigned_by_nested(statements: list[ast.stmt]) -> set[str]:
    """Return the names that nested functions assign by `nonlocal`: any call may change them."""
    found: set[str] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef):
                found |= {
                    n
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Nonlocal)
                    for n in inner.names
                }
    return found


MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop", "popitem", "popleft", "remove",
    "reverse", "rotate", "setdefault", "sort", "update",
}  # fmt: skip


def _changed_by_nested(statements: list[ast.stmt]) -> set[str]:
    """Return the names of containers that nested functions, or methods kept in variables, change: any call may."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    nested = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.Lambda))]
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    kept = [node for node in nodes if _is_mutator(node) and node not in called]
    changed = [name for each in nested for inner in ast.walk(each) for name in _changed_name(inner)]
    return {*changed, *(name for node in kept for name in _root_name(node.value))}


def _is_mutator(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr in MUTATORS


def _changed_name(node: ast.AST) -> list[str]:
    """Return the variable whose container a node changes, as `items.append(x)` and `items[k] = x` do."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        root: ast.expr | None = node.func.value if node.func.attr in MUTATORS else None
    else:
        changes = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        root = node if changes else None  # type: ignore[assignment]
    return _root_name(root)


def _root_name(root: ast.expr | None) -> list[str]:
    while isinstance(root, (ast.Subscript, ast.Attribute)):
        root = root.value
    return [root.id] if isinstance(root, ast.Name) else []


def _closed_over(statements: list[ast.stmt]) -> set[str]:
    """Return the names that nested functions read: they may be read at any time."""
    found: set[str] = set()
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.GeneratorExp)):
                found |= {
                    n.id
                    for n in ast.walk(node)
                    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
                }
                found.update(*(n.names for n in ast.walk(node) if isinstance(n, ast.Nonlocal)))
    return found


def _parameters(args: ast.arguments) -> list[str]:
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return [a.arg for a in every] + [a.arg for a in (args.vararg, args.kwarg) if a]


class _Rewriter(ast.NodeTransformer):
    """Rewrites one function; nested functions are rewritten by a nested rewriter."""

    def __init__(self, filename: str, function: str, free: set[str]) -> None:
        self.filename, self.function_name, self.free = filename, function, free
        self.count = 0
        self.locals: set[str] = set()
        self.outer_locals: set[str] = set()
        self.borrowed: set[str] = set()
        self.comprehension: list[set[str]] = []
        self.shared: set[str] = set()
        self.changed: set[str] = set()
        self.yields = False

    # -- functions -----------------------------------------------------------------------------------------------

    def function(self, tree: FunctionTree) -> ast.FunctionDef:
        """Rewrite a whole function."""
        if isinstance(tree, ast.Lambda):
            statements: list[ast.stmt] = [ast.copy_location(ast.Return(tree.body), tree.body)]
            name = "<lambda>"
        else:
            statements, name = tree.body, tree.name
        self._refuse([tree] if isinstance(tree, ast.AsyncFunctionDef) else statements)
        self.yields = _has_yield(statements)
        statements = lower_matches(lift_comprehensions(statements))
        statements = statements if self.yields else lower_walrus(statements)
        statements = statements if self.yields else lower_jumps(statements, self._error)
        used = _names_in(statements)
        self.borrowed = used.nonlocals
        self.locals = {*used.stored, *_parameters(tree.args)} - used.nonlocals
        self.shared = _assigned_by_nested(statements)
        self.changed |= _changed_by_nested(statements)
        annotate(
            statements,
            lambda nodes: set(_names_in(nodes).loaded),
            _closed_over(statements) | used.nonlocals,
        )
        body = self._block(statements)
        declare = self._declare(
            sorted(set(used.stored) - used.nonlocals - set(_parameters(tree.args)))
        )
        declare += [_borrow(n) for n in sorted(used.nonlocals)]
        made = ast.FunctionDef(name, _plain(tree.args), [*declare, *body], [], None, None)
        return ast.copy_location(made, tree)

    def _declare(self, names: list[str]) -> list[ast.stmt]:
        """Bind names to this function without giving them a value: `if 0: x = None`."""
        if not names:
            return []
        targets: list[ast.expr] = [ast.Name(n, ast.Store()) for n in names]
        return [ast.If(ast.Constant(0), [ast.Assign(targets, ast.Constant(None))], [])]

    def _refuse(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            for node in _own_nodes(statement):
                what = _UNSUPPORTED.get(type(node))
                if what is not None:
                    raise self._error(node, f"{what[0]} cannot be converted", what[1])

    def _error(self, node: ast.AST, message: str, remedy: str) -> ConversionError:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", None)
        end = (
            getattr(node, "end_col_offset", None)
            if getattr(node, "end_lineno", None) == line
            else None
        )
        return ConversionError(
            message,
            location=Location(self.filename, line, self.function_name, column, end),
            remedy=remedy,
        )

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        inner = _Rewriter(self.filename, node.name, self.free)
        inner.outer_locals = self.locals | self.outer_locals
        inner.changed = set(self.changed)
        made = inner.function(node)
        made.decorator_list = [self.visit(d) for d in node.decorator_list]
        made.args.defaults = [self.visit(d) for d in node.args.defaults]
        made.args.kw_defaults = [d and self.visit(d) for d in node.args.kw_defaults]
        return ast.copy_location(made, node)

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        self.comprehension.append(set(_parameters(node.args)))
        body = self.visit(node.body)
        self.comprehension.pop()
        return ast.copy_location(ast.Lambda(node.args, body), node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """Rewrite the methods of a class that the function makes; what else is in its body stays Python."""
        node.body = [
            self.visit(item) if isinstance(item, ast.FunctionDef) else item for item in node.body
        ]
        return node

    # -- statements ----------------------------------------------------------------------------------------------

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in statements:
            made = self.visit(statement)
            result.extend(made if isinstance(made, list) else [made] if made is not None else [])
        return result

    def _nested(
        self,
        name: str,
        statements: list[ast.stmt],
        shared: list[str],
        params: list[str],
        at: ast.AST,
    ) -> ast.FunctionDef:
        arguments = ast.arguments([], [ast.arg(p) for p in params], None, [], [], None, [])
        share: list[ast.stmt] = [ast.Nonlocal(shared)] if shared else []
        made = ast.FunctionDef(
            name, arguments, share + (statements or [ast.Pass()]), [], None, None
        )
        return ast.copy_location(made, at)

    def _accessors(self, number: int, names: list[str], at: ast.AST) -> list[ast.stmt]:
        reads = [_runtime("peek", _thunk(_load(n))) for n in names]
        get = self._nested(
            f"dsl__get_{number}", [ast.Return(ast.List(list(reads), ast.Load()))], [], [], at
        )
        targets: list[ast.expr] = [ast.List([ast.Name(n, ast.Store()) for n in names], ast.Store())]
        assign: list[ast.stmt] = [ast.Assign(targets, _load("dsl__v"))] if names else []
        put = self._nested(f"dsl__set_{number}", assign, names, ["dsl__v"], at)
        return [get, put]

    def _state(self, *blocks: Any) -> tuple[list[str], list[str], list[str]]:
        """Return the variables that blocks assign, those that they only read, and those whose items they assign."""
        found = _Names()
        for block in blocks:
            for node in block if isinstance(block, list) else [block]:
                found.visit(node)
        mine = self.locals | self.borrowed
        tops = [top for block in blocks for top in (block if isinstance(block, list) else [block])]
        calls = any(isinstance(n, ast.Call) for top in tops for n in ast.walk(top))
        found.stored.update(dict.fromkeys(sorted(self.shared)) if calls else {})
        stored = [n for n in found.stored if n in mine]
        near = self.locals | (self.changed & self.outer_locals)
        found.loaded.update(dict.fromkeys(sorted(self.changed)) if calls else {})
        read = [n for n in found.loaded if n in near and n not in found.stored]
        return stored, read, [n for n in found.subscripted if n in self.locals]

    def _live(self, node: ast.stmt, stored: list[str]) -> list[str]:
        """Return the assigned names that matter: live afterwards, or read by a branch that another may have set before."""
        live: set[str] | None = getattr(node, "dsl_live", None)
        if live is None:
            return stored
        read = (
            set(_names_in([*node.body, *node.orelse]).loaded) if isinstance(node, ast.If) else set()
        )
        return [n for n in stored if n in live or n in read or n in self.shared]

    def _dead(self, node: ast.If, names: list[str]) -> list[str]:
        """Return the names that nothing reads after an `if`."""
        live = getattr(node, "dsl_live", names)
        return [n for n in names if n not in live and n not in self.shared]

    def _next(self) -> int:
        self.count += 1
        return self.count

    def _plain_block(self, node: ast.If | ast.While | ast.For) -> Any:
        """Rewrite a statement of a generator, which Python itself runs step by step: only what it computes is converted."""
        if isinstance(node, ast.For):
            node.iter = ast.copy_location(_runtime("iterate", self.visit(node.iter)), node.iter)
        else:
            node.test = ast.copy_location(_runtime("test", self._test(node.test)), node.test)
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        return node

    def visit_If(self, node: ast.If) -> Any:
        if self.yields:
            return self._plain_block(node)
        stored, read, _ = self._state(node.body, node.orelse)
        k = self._next()
        kept = self._live(node, stored)
        names = kept + read
        then = self._nested(f"dsl__then_{k}", self._block(node.body), stored, [], node)
        other = self._nested(f"dsl__else_{k}", self._block(node.orelse), stored, [], node)
        call = _runtime(
            "short_if" if getattr(node, "dsl_short", False) else "if_",
            self._test(node.test), _load(then.name), _load(other.name), _load(f"dsl__get_{k}"), _load(f"dsl__set_{k}"),
            _strings(names), ast.Constant(len(kept)), _strings(self._dead(node, names)),
        )  # fmt: skip
        return [then, other, *self._accessors(k, names, node), _located(ast.Expr(call), node.test)]

    def visit_While(self, node: ast.While) -> Any:
        if self.yields:
            return self._plain_block(node)
        stored, read, items = self._state(node.body, node.test)
        k = self._next()
        kept = self._live(node, stored)
        names = kept + read
        tested = [n for n in _names_in([node.test]).stored if n in stored]
        test = self._nested(
            f"dsl__test_{k}",
            [_located(ast.Return(self._test(node.test)), node.test)],
            tested,
            [],
            node,
        )
        body = self._nested(f"dsl__body_{k}", self._block(node.body), stored, [], node)
        call = _runtime(
            "while_", _load(test.name), _load(body.name), _load(f"dsl__get_{k}"), _load(f"dsl__set_{k}"), _strings(names),
            ast.Constant(len(kept)), _strings(items),
        )  # fmt: skip
        return [test, body, *self._accessors(k, names, node), _located(ast.Expr(call), node.test)]

    def visit_For(self, node: ast.For) -> Any:
        if self.yields:
            return self._plain_block(node)
        guard = getattr(node, "dsl_guard", None)
        stored, read, items = self._state(node.body, node.target, *([guard] if guard else []))
        tables = [part for part in tables_changed(node) if part.partition("[")[0] not in stored]
        k = self._next()
        kept = self._live(node, stored)
        names = kept + read
        bind = _located(ast.Assign([node.target], _load("dsl__item")), node.target)
        body = self._nested(
            f"dsl__body_{k}",
            [*self._block([bind]), *self._block(node.body)],
            stored,
            ["dsl__item"],
            node,
        )
        extra = _thunk(self._test(guard)) if guard else ast.Constant(None)
        call = _runtime(
            "for_", self.visit(node.iter), _load(body.name), extra, _load(f"dsl__get_{k}"), _load(f"dsl__set_{k}"),
            _strings(names), ast.Constant(len(kept)), _strings(items),
            _strings([n for n in _names_in([node.target]).stored if n in stored]),
            *([_strings(tables)] if tables else []),
        )  # fmt: skip
        return [body, *self._accessors(k, names, node), _located(ast.Expr(call), node.iter)]

    def visit_Try(self, node: ast.Try) -> Any:
        caught = [
            ast.Constant(name)
            for handler in node.handlers
            for name in _exception_names(handler.type)
        ]
        node.body = self._block(node.body)
        if node.handlers:  # one with `finally` alone catches nothing
            watch = ast.With([ast.withitem(_runtime("trying", *caught), None)], node.body)
            node.body = [_located(watch, node.body[0])]
        node.handlers = [self._handler(h) for h in node.handlers]
        node.orelse, node.finalbody = self._block(node.orelse), self._block(node.finalbody)
        return node

    def _handler(self, handler: ast.ExceptHandler) -> ast.ExceptHandler:
        refuse = _located(ast.Expr(_runtime("handling")), handler)
        handler.body = [refuse, *self._block(handler.body)]
        return handler

    def visit_With(self, node: ast.With) -> Any:
        for item in node.items:
            entered = _runtime("entered", self.visit(item.context_expr))
            item.context_expr = ast.copy_location(entered, item.context_expr)
        node.body = self._block(node.body)
        return node

    def visit_Match(self, node: ast.Match) -> Any:
        """Leave a `match` as it is: it has one case, and Python takes no calls in patterns. See `lower_matches`."""
        node.subject = ast.copy_location(_runtime("matched", node.subject), node.subject)
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        message = _thunk(self.visit(node.msg)) if node.msg else ast.Constant(None)
        return _located(ast.Expr(_runtime("assert_", _thunk(self._test(node.test)), message)), node)

    def visit_Return(self, node: ast.Return) -> Any:
        if node.value is not None:
            node.value = ast.copy_location(_runtime("returned", self.visit(node.value)), node.value)
        return node

    def visit_Raise(self, node: ast.Raise) -> Any:
        if node.exc is None:
            return node
        cause = self.visit(node.cause) if node.cause else ast.Constant(None)
        made = _runtime("raise_", self.visit(node.exc), cause)
        return [_located(ast.Expr(made), node)]

    def _used(self, node: ast.expr) -> Any:
        """Rewrite an expression whose value is kept as it is, which a variable without a value must not be."""
        made = self.visit(node)
        is_local = isinstance(node, ast.Name) and not node.id.startswith("dsl__")
        return ast.copy_location(_runtime("used", made), node) if is_local else made

    def visit_Tuple(self, node: Any) -> Any:
        if isinstance(node.ctx, ast.Load):
            node.elts = [self._used(item) for item in node.elts]
            return node
        return self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> Any:
        node.value = self.visit(node.value)
        if isinstance(node.ctx, ast.Load):
            node.value = ast.copy_location(_runtime("iterate", node.value), node.value)
        return node

    def visit_YieldFrom(self, node: ast.YieldFrom) -> Any:
        node.value = ast.copy_location(_runtime("iterate", self.visit(node.value)), node.value)
        return node

    def visit_List(self, node: ast.List) -> Any:
        if not isinstance(node.ctx, ast.Load) or not any(map(_is_starred, node.elts)):
            return self.visit_Tuple(node)
        parts = [
            self.visit(item.value)
            if isinstance(item, ast.Starred)
            else ast.List([self._used(item)], ast.Load())
            for item in node.elts
        ]
        return ast.copy_location(_runtime("listed", *parts), node)

    def visit_Dict(self, node: ast.Dict) -> Any:
        node.keys = [key and self.visit(key) for key in node.keys]
        node.values = [self._used(value) for value in node.values]
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        value = self._used(node.value)
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id == "dsl__result":
            value = ast.copy_location(_runtime("returned", value), node.value)
        if len(node.targets) == 1:
            return self._assign(node.targets[0], value, node)
        k = self._next()
        first = _located(ast.Assign([ast.Name(f"dsl__t{k}", ast.Store())], value), node)
        rest = [self._assign(t, _load(f"dsl__t{k}"), node) for t in node.targets]
        return [first, *(s for part in rest for s in (part if isinstance(part, list) else [part]))]

    def _assign(self, target: ast.expr, value: ast.expr, at: ast.AST) -> Any:
        if isinstance(target, ast.Subscript):
            call = _runtime(
                "setitem", self._changed(target.value), self._index(target.slice), value
            )
            return _located(ast.Expr(call), at)
        if isinstance(target, ast.Attribute):
            call = _runtime("setattr", self.visit(target.value), ast.Constant(target.attr), value)
            return _located(ast.Expr(call), at)
        if isinstance(target, (ast.Tuple, ast.List)):
            return self._unpack(target, value, at)
        return _located(ast.Assign([target], value), at)

    def _unpack(self, target: ast.Tuple | ast.List, value: ast.expr, at: ast.AST) -> Any:
        if all(isinstance(t, ast.Name) for t in target.elts):
            unpacked = _runtime("unpack", value, ast.Constant(len(target.elts)))
            return _located(ast.Assign([target], unpacked), at)
        k = self._next()
        temps: list[ast.expr] = []
        after: list[ast.stmt] = []
        for j, item in enumerate(target.elts):
            inner = item.value if isinstance(item, ast.Starred) else item
            temp = ast.Name(f"dsl__t{k}_{j}", ast.Store())
            temps.append(temp)
            made = self._assign(inner, _load(f"dsl__t{k}_{j}"), at)
            after.extend(made if isinstance(made, list) else [made])
        starred = [isinstance(item, ast.Starred) for item in target.elts]
        if any(starred):
            ends = [starred.index(True), starred[::-1].index(True)]
            value = _runtime("unpack_around", value, *map(ast.Constant, ends))
        return [_located(ast.Assign([ast.Tuple(temps, ast.Store())], value), at), *after]

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        return [self._delete(target, node) for target in node.targets]

    def _delete(self, target: ast.expr, at: ast.Delete) -> Any:
        if isinstance(target, ast.Attribute):
            gone = _runtime("delattr", self.visit(target.value), ast.Constant(target.attr))
            return _located(ast.Expr(gone), at)
        if not isinstance(target, ast.Subscript):
            return ast.copy_location(ast.Delete([self.visit(target)]), at)
        gone = _runtime("delitem", self._changed(target.value), self._index(target.slice))
        return _located(ast.Expr(gone), at)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return None
        return self._assign(node.target, self.visit(node.value), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        op = ast.Constant(type(node.op).__name__)
        value = self.visit(node.value)
        if isinstance(node.target, ast.Subscript):
            call = _runtime(
                "aug_setitem",
                self._changed(node.target.value),
                self._index(node.target.slice),
                op,
                value,
            )
            return _located(ast.Expr(call), node)
        if isinstance(node.target, ast.Attribute):
            call = _runtime(
                "aug_setattr",
                self.visit(node.target.value),
                ast.Constant(node.target.attr),
                op,
                value,
            )
            return _located(ast.Expr(call), node)
        made = _runtime("aug", _load(node.target.id), op, value)
        return _located(ast.Assign([node.target], made), node)

    # -- expressions ---------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> Any:
        if _looks_at_its_frame(node):
            return self.generic_visit(node)
        if is_quantified(node) and hasattr(node.args[0], LOOP) and hasattr(node.args[0], ALL_OF):
            return ast.copy_location(self._quantified(node), node)
        if is_quantified_map(node):
            return ast.copy_location(self._quantified_map(node), node)
        function = self._callee(node.func)
        args = [self.visit(a) for a in node.args]
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        made = ast.Call(ast.Attribute(_load(RT), "call", ast.Load()), [function, *args], keywords)
        return ast.copy_location(made, node)

    def _quantified(self, node: ast.Call) -> ast.expr:
        """Rewrite `any(... for ... in ...)`, which may end before all items were asked for."""
        generator: Any = node.args[0]
        pure = is_pure(generator) and changes_nothing(generator.elt)
        whole = is_total(generator) and not is_choice(generator)
        inner = (part for g in generator.generators for part in (*g.ifs, g.iter))
        held = _held(generator, [generator.elt, *inner])
        loop, function = _picking(generator), self.visit(node.func)
        items: ast.expr
        make: ast.expr
        if any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(generator)):
            items, make = self.visit(generator.generators[0].iter), ast.Constant(None)
        else:
            made = self.visit_SetComp(generator)
            items = made.generators[0].iter.args[0]
            made.generators[0].iter = _load("dsl__items")
            make = _taking_items(made)
        facts = map(ast.Constant, (pure, whole))
        return _runtime("quantified", function, items, make, loop, held, *facts)

    def _quantified_map(self, node: ast.Call) -> ast.expr:
        """Rewrite `any(map(f, x))`, which calls no more often than it must."""
        inner: Any = node.args[0]
        functions = self.visit(node.func), self.visit(inner.func)
        return _runtime("quantified_map", *functions, *map(self.visit, inner.args))

    def _callee(self, func: ast.expr) -> ast.expr:
        if isinstance(func, ast.Attribute):
            visit = self._changed if func.attr in MUTATORS else self.visit
            made = _runtime("method", visit(func.value), ast.Constant(func.attr))
            return ast.copy_location(made, func)
        return self.visit(func)  # type: ignore[no-any-return]

    def _changed(self, node: ast.expr) -> Any:
        """Rewrite an expression whose value a statement changes in place."""
        if isinstance(node, ast.Attribute):
            made = _runtime("attr_to_change", self.visit(node.value), ast.Constant(node.attr))
        elif isinstance(node, ast.Subscript):
            made = _runtime("getitem", self._changed(node.value), self._index(node.slice))
        else:
            return self.visit(node)
        return ast.copy_location(made, node)

    def visit_Name(self, node: ast.Name) -> Any:
        if not isinstance(node.ctx, ast.Load) or node.id in self.locals or node.id == RT:
            return node
        if any(node.id in names for names in self.comprehension) or node.id in self.outer_locals:
            return node
        return ast.copy_location(_runtime("load", ast.Constant(node.id), node), node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        return ast.copy_location(
            _runtime("attr", self.visit(node.value), ast.Constant(node.attr)), node
        )

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        return ast.copy_location(
            _runtime("getitem", self.visit(node.value), self._index(node.slice)), node
        )

    def _index(self, index: ast.expr) -> ast.expr:
        if isinstance(index, ast.Slice):
            parts = [
                self.visit(p) if p else ast.Constant(None)
                for p in (index.lower, index.upper, index.step)
            ]
            return ast.copy_location(_runtime("slice", *parts), index)
        if isinstance(index, ast.Tuple):
            return ast.copy_location(
                ast.Tuple([self._index(i) for i in index.elts], ast.Load()), index
            )
        return self.visit(index)  # type: ignore[no-any-return]

    def _test(self, node: ast.expr) -> Any:
        """Rewrite an expression of which only the truth matters."""
        if isinstance(node, ast.BoolOp):
            self._refuse_walrus(node.values[1:])
            name = "all_of" if isinstance(node.op, ast.And) else "any_of"
            rest = [self._part(v, self._test) for v in node.values[1:]]
            return ast.copy_location(_runtime(name, self._test(node.values[0]), *rest), node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ast.copy_location(_runtime("not_", self._test(node.operand)), node)
        return self.visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self._refuse_walrus(node.values[1:])
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        rest = [self._part(v, self._used) for v in node.values[1:]]
        return ast.copy_location(_runtime(name, self._used(node.values[0]), *rest), node)

    def _part(self, node: ast.expr, visit: Callable[[ast.expr], Any]) -> ast.expr:
        """Rewrite a part of an expression that is evaluated or not: a function, with the variables whose objects it may change."""
        pure, read = changes_nothing(node), set(_names_in([node]).loaded)
        made = ast.copy_location(_thunk(visit(node)), node)
        near = self.locals | self.outer_locals | self.borrowed | set().union(*self.comprehension)
        names = sorted(n for n in (read | self.changed) & near if not n.startswith("dsl__"))
        if not names or (pure and not isinstance(node, (ast.Name, ast.Subscript, ast.Attribute))):
            return made
        reads = ast.Tuple([_thunk(_load(n)) for n in names], ast.Load())
        return ast.copy_location(_runtime("changing", made, _strings(names), reads), node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        name = ast.Constant(type(node.op).__name__)
        return ast.copy_location(
            _runtime("binary", name, self.visit(node.left), self.visit(node.right)), node
        )

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return ast.copy_location(_runtime("not_", self._test(node.operand)), node)
        if isinstance(node.operand, ast.Constant):
            return node
        name = ast.Constant(type(node.op).__name__)
        return ast.copy_location(_runtime("unary", name, self.visit(node.operand)), node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        self._refuse_walrus([node.body, node.orelse])
        then, other = (self._part(part, self._used) for part in (node.body, node.orelse))
        return ast.copy_location(_runtime("if_exp", self._test(node.test), then, other), node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        names = [type(op).__name__ for op in node.ops]
        if len(names) == 1 and names[0] not in ("In", "NotIn", "Is", "IsNot"):
            sides = [self.visit(side) for side in (node.left, node.comparators[0])]
            made = _runtime("compare_two", ast.Constant(names[0]), *sides)
            return ast.copy_location(made, node)
        self._refuse_walrus(node.comparators[1:])
        steps = [
            ast.Tuple([ast.Constant(name), self._part(c, self.visit)], ast.Load())
            for name, c in zip(names, node.comparators, strict=True)
        ]
        return ast.copy_location(_runtime("compare", self.visit(node.left), *steps), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        parts: list[ast.expr] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                spec = self.visit(part.format_spec) if part.format_spec else ast.Constant("")
                parts.append(
                    ast.Tuple(
                        [self.visit(part.value), spec, ast.Constant(part.conversion)], ast.Load()
                    )
                )
            else:
                parts.append(part)
        return ast.copy_location(_runtime("fstring", *parts), node)

    def _refuse_walrus(self, nodes: list[ast.expr]) -> None:
        for node in nodes:
            for inner in ast.walk(node):
                if isinstance(inner, ast.NamedExpr):
                    raise self._error(
                        inner,
                        "`:=` inside `and`, `or`, a conditional expression or a chained comparison",
                        "assign on a line of its own",
                    )

    def visit_ListComp(self, node: Any) -> Any:
        """A comprehension whose items may be as many as the data decides; one that assigns does so in this function."""
        assigns = any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node))
        if hasattr(node, LOOP) and (assigns or hasattr(node, "dsl_unused")):
            items = self.visit(node.generators[0].iter)
            return ast.copy_location(_runtime("picked", items, _picking(node)), node)
        kind, more = "collected", [self._reading(node)]
        if is_choice(node) and hasattr(node, LOOP):
            kind, more = "chosen", [*more, _picking(node), *self._choice(node)]
        elif hasattr(node, LOOP):
            more.append(_picking(node))
        made = self.visit_SetComp(node)
        if assigns:
            return made
        items = made.generators[0].iter.args[0]
        made.generators[0].iter = _load("dsl__items")
        return ast.copy_location(_runtime(kind, items, _taking_items(made), *more), node)

    def _reading(self, node: Any) -> ast.expr:
        """Return a function for what the items of a comprehension are made of; None if not all are wanted, or they are all the same."""
        whole = isinstance(node, ast.ListComp) or hasattr(node, "dsl_whole")
        if not whole or not bound_names(node) & set(_names_in([node.elt]).loaded):
            return ast.Constant(None)
        return _held(node, [node.elt, *(g.iter for g in node.generators[1:])])

    def _choice(self, node: Any) -> list[ast.expr]:
        """Return a function for what the conditions read, and one that asks for all of them, or None if that may change something."""
        first, *rest = node.generators
        held = _held(node, [*first.ifs, *(part for g in rest for part in (g.iter, *g.ifs))])
        if not is_pure(node):
            return [held, ast.Constant(None)]
        asking = ast.ListComp(ast.Constant(None), copy.deepcopy(node.generators))
        made = self.visit_SetComp(ast.copy_location(asking, node))
        made.generators[0].iter = _load("dsl__items")
        return [held, _taking_items(made)]

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> Any:
        total = ast.Constant(is_total(node))
        return ast.copy_location(_runtime("generator", self.visit_ListComp(node), total), node)

    def visit_SetComp(self, node: Any) -> Any:
        names = {
            n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)
        }
        node.generators[0].iter = self.visit(node.generators[0].iter)
        self.comprehension.append(names)
        for k, generator in enumerate(node.generators):
            if k:
                generator.iter = self.visit(generator.iter)
            generator.iter = _runtime("iterate", generator.iter)
            generator.ifs = [_runtime("test", self.visit(i)) for i in generator.ifs]
        for field in ("elt", "key", "value"):
            if hasattr(node, field):
                setattr(node, field, self.visit(getattr(node, field)))
        self.comprehension.pop()
        return node

    visit_DictComp = visit_SetComp


def _taking_items(body: ast.expr) -> ast.Lambda:
    """Return a function of the items that a comprehension goes over."""
    return ast.Lambda(ast.arguments([], [ast.arg("dsl__items")], None, [], [], None, []), body)


def _held(node: Any, parts: list[ast.expr]) -> ast.Lambda:
    """Return a function for what the variables hold that parts of a comprehension read."""
    names = sorted(set(_names_in(parts).loaded) - bound_names(node))
    return _thunk(ast.List([_runtime("peek", _thunk(_load(n))) for n in names], ast.Load()))


def _picking(node: Any) -> ast.Lambda:
    """Return a function of the items that calls the loop of a comprehension: see `lift_comprehensions`."""
    loop, more = getattr(node, LOOP)
    return _taking_items(ast.Call(_load(loop), [_load(n) for n in ("dsl__items", *more)], []))


def _is_starred(node: ast.expr) -> bool:
    return isinstance(node, ast.Starred)


def _exception_names(node: ast.expr | None) -> list[str]:
    """Return the names of the exceptions that a handler catches."""
    if node is None:
        return ["BaseException"]
    if isinstance(node, ast.Tuple):
        return [name for item in node.elts for name in _exception_names(item)]
    return [
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else "Exception"
    ]


def _located(node: Any, at: ast.AST) -> Any:
    return ast.copy_location(node, at)


def _plain(args: ast.arguments) -> ast.arguments:
    """Return arguments without annotations; defaults come from the function object."""
    made = ast.arguments(
        [ast.arg(a.arg) for a in args.posonlyargs], [ast.arg(a.arg) for a in args.args],
        args.vararg and ast.arg(args.vararg.arg), [ast.arg(a.arg) for a in args.kwonlyargs],
        [d and ast.Constant(None) for d in args.kw_defaults], args.kwarg and ast.arg(args.kwarg.arg),
        [ast.Constant(None) for _ in args.defaults],
    )  # fmt: skip
    return made


def _has_yield(statements: list[ast.stmt]) -> bool:
    """Tell whether a function with these statements is a generator."""
    return any(
        isinstance(node, (ast.Yield, ast.YieldFrom))
        for statement in statements
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        for node in _own_nodes(statement)
    )


def _own_nodes(statement: ast.stmt) -> list[ast.AST]:
    """Return the nodes below a statement that belong to the same function."""
    found: list[ast.AST] = []
    stack: list[ast.AST] = [statement]
    while stack:
        node = stack.pop()
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)) or node is statement:
            stack.extend(
                c
                for c in ast.iter_child_nodes(node)
                if not isinstance(c, (ast.FunctionDef, ast.Lambda, ast.ClassDef))
            )
    return found


_UNSUPPORTED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Await: ("`await`", "await outside the decorated function"),
    ast.AsyncFor: ("`async for`", "loop outside the decorated function"),
    ast.AsyncWith: ("`async with`", "use it outside the decorated function"),
    ast.AsyncFunctionDef: ("an `async` function", "define it outside the decorated function"),
    ast.Global: ("`global`: writing a global variable", "return the value instead"),
}
