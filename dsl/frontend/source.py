"""Find the source of a function as a syntax tree, and be sure that it is the right one.

Sources come from files, notebooks (through `linecache`), `python -c` (through `sys.orig_argv`), `python < file` (which is read
again) and the interactive prompt (through readline's history). Whatever the way, the text is compiled again and must give the
same bytecode as the function has; so a file that was edited after it was imported is refused, not converted wrongly.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import copy
import functools
import inspect
import itertools
import linecache
import operator
import os
import stat
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence

from dsl.errors import SourceError
from dsl.ir.location import Location
from dsl.ir.python_source import parse_python

__all__ = ["FunctionTree", "function_tree"]

FunctionTree = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def function_tree(fn: types.FunctionType) -> FunctionTree:
    """Return the syntax tree of `fn`, its line numbers those of the file."""
    code = fn.__code__
    for lines in _candidates(code):
        tree = _find(lines, code)
        if tree is not None:
            for owner in _owner(code):
                tree = _Mangle(owner).visit(tree)
            return tree if __debug__ else _WithoutAsserts().visit(tree)
    raise SourceError(
        f"the source of `{fn.__name__}` is not available (it claims to be in {code.co_filename}), so it cannot be converted",
        location=Location(code.co_filename, code.co_firstlineno, fn.__name__),
        remedy="define the function in a file or a notebook cell; if the file was edited after it was imported, import it again",
    )


def _candidates(code: types.CodeType) -> Iterator[list[str]]:
    """Yield texts, as lists of lines, that may hold the function at its line numbers."""
    lines = linecache.getlines(code.co_filename)
    if not lines:
        module = inspect.getmodule(code)
        lines = linecache.getlines(code.co_filename, getattr(module, "__dict__", None))
    if lines:
        yield lines
    argv = getattr(sys, "orig_argv", [])
    if code.co_filename == "<string>" and "-c" in argv:
        yield argv[argv.index("-c") + 1].splitlines(keepends=True)
    if code.co_filename == "<stdin>":
        yield from _redirected()
        yield from _typed_lines(code)


def _redirected() -> Iterator[list[str]]:
    """Yield the program that came through standard input, if that is a file: what a pipe held is gone."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if stat.S_ISREG(os.fstat(0).st_mode):
            yield os.pread(0, os.fstat(0).st_size, 0).decode().splitlines(keepends=True)


def _typed_lines(code: types.CodeType) -> Iterator[list[str]]:
    """Yield the tails of the interactive history, each starting at a line that may begin the statement."""
    readline = sys.modules.get("readline")
    if readline is None:
        return
    count = readline.get_current_history_length()
    history = [readline.get_history_item(k + 1) or "" for k in range(count)]
    for start in range(count - 1, -1, -1):
        if (
            f"def {code.co_name}" in history[start]
            or "lambda" in history[start]
            or history[start].lstrip().startswith("@")
        ):
            yield [line + "\n" for line in history[start:]]


def _find(lines: list[str], code: types.CodeType) -> FunctionTree | None:
    for module in _parses("".join(lines), code.co_firstlineno):
        found = [node for node in _at_line(module, code.co_firstlineno) if _starts_at(node, code)]
        if len(found) > 1:
            found = _around(found, code)
        if found and _gives(module, found[0], code):
            return copy.deepcopy(found[0])  # type: ignore[return-value]
    return None


def _at_line(tree: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield the nodes that a line is part of. All nodes of a file of 300 lines would take 4 ms to look at."""
    for node in ast.iter_child_nodes(tree):
        first, last = getattr(node, "lineno", line), getattr(node, "end_lineno", line)
        for decorator in getattr(node, "decorator_list", ()):
            first = min(first, decorator.lineno)
        if first <= line <= last:
            yield node
            yield from _at_line(node, line)


def _starts_at(node: ast.AST, code: types.CodeType) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
        return node.name == code.co_name and code.co_firstlineno in (first, node.lineno)
    return (
        isinstance(node, ast.Lambda)
        and code.co_name == "<lambda>"
        and node.lineno == code.co_firstlineno
    )


def _around(nodes: Sequence[ast.AST], code: types.CodeType) -> list[ast.AST]:
    """Tell lambdas on one line apart: return the one whose body is the least that holds all that the code stands for.

    The code of the whole body is no mark: a body that ends in a branch, `a if x is y else b`, has none.
    """
    first, last = _extent(code)
    spans = [(_span(node.body), node) for node in nodes if isinstance(node, ast.Lambda)]
    held: list[tuple[Place, ast.AST]] = [
        (start, node) for (start, end), node in spans if start <= first and last <= end
    ]
    return [node for _, node in sorted(held, key=operator.itemgetter(0), reverse=True)][:1]


Place = tuple[int, int]
"""A line and a column."""


def _span(body: ast.expr) -> tuple[Place, Place]:
    line, column = body.end_lineno or body.lineno, body.end_col_offset or 0
    return (body.lineno, body.col_offset), (line, column)


def _extent(code: types.CodeType) -> tuple[Place, Place]:
    """Return where the text of the code begins and ends; what Python adds at the ends has an empty place, or none."""
    places = [
        ((line, column), (last, end))
        for line, last, column, end in code.co_positions()
        if None not in (line, last, column, end) and (line, column) != (last, end)
    ]
    starts, ends = zip(*places) if places else ([(0, 0)], [(0, 0)])
    return min(starts), max(ends)


def _parses(text: str, first: int) -> Iterator[ast.Module]:
    """Parse the whole text, or else the block that begins at line `first`."""
    module = _parsed(text)
    if module is not None:
        yield module
        return
    lines = text.splitlines(keepends=True)
    try:
        block = inspect.getblock(lines[first - 1 :])
        module = parse_python(textwrap.dedent("".join(block)))
    except (SyntaxError, IndentationError):
        return
    yield ast.increment_lineno(module, first - 1)


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module | None:
    try:
        return parse_python(text)
    except SyntaxError:
        return None


# -- is it the same code? ----------------------------------------------------------------------------------------

_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, n).compiler_flag for n in __future__.all_feature_names)
)


def _gives(module: ast.Module, node: ast.AST, code: types.CodeType) -> bool:
    """Tell whether the text compiles to `code`, statement by statement, as prompts do it, or as a whole."""
    line = node.lineno  # type: ignore[attr-defined]
    around = [s for s in module.body if s.lineno <= line <= (s.end_lineno or line)]
    wholes = (ast.Module(around, []), module)  # the second takes long
    return any(_same(made, code) for whole in wholes for made in _codes(whole, code))


def _codes(module: ast.Module, like: types.CodeType) -> list[types.CodeType]:
    flags = like.co_flags & _FUTURE
    try:
        return [c for c in _compiled(module, flags) if c.co_firstlineno == like.co_firstlineno]
    except SyntaxError:
        return []


@functools.lru_cache(maxsize=16)
def _compiled(module: ast.Module, flags: int) -> list[types.CodeType]:
    return list(_nested(compile(module, "<check>", "exec", flags, dont_inherit=True)))


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const
            yield from _nested(const)


def _same(made: types.CodeType, code: types.CodeType) -> bool:
    if any(name.startswith("@py") for name in (*code.co_names, *code.co_varnames)):
        # pytest rewrites functions with `assert`: more code, but none of the names is lost.
        return made.co_name == code.co_name and _names(made) - {"AssertionError"} <= _names(code)
    return made == code


def _names(code: types.CodeType) -> set[str]:
    own = {*code.co_varnames, *code.co_names, *code.co_freevars, *code.co_cellvars}
    return own.union(*map(_names, _nested(code)))


def _owner(code: types.CodeType) -> list[str]:
    """Return the class that a function is written in, which decides what `__name` means; or nothing."""
    pairs = itertools.pairwise(code.co_qualname.split("."))
    return [name for name, inner in pairs if "<locals>" not in (name, inner)][-1:]


class _WithoutAsserts(ast.NodeTransformer):
    """Leave out what Python leaves out with -O."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)


class _Mangle(ast.NodeTransformer):
    """Spell private names of a class, `__x`, as Python does: `_Class__x`."""

    def __init__(self, owner: str) -> None:
        self.prefix = "_" + owner.lstrip("_")

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "attr", "arg"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name.startswith("__") and not name.endswith("__"):
                setattr(node, field, self.prefix + name)
        return super().generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node
