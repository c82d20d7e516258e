"""Find the source of a function as a syntax tree, and be sure that it is the right one.

Sources come from files, notebooks (through `linecache`), `python -c` (through `sys.orig_argv`) and the interactive
prompt (through readline's history). Whatever the way, the text is compiled again and must give the same bytecode as the
function has; so a file that was edited after it was imported is refused, not converted wrongly.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
import types
from collections.abc import Iterator

from dsl.errors import SourceError
from dsl.ir.location import Location

__all__ = ["FunctionTree", "function_tree"]

FunctionTree = ast.FunctionDef | ast.Lambda


def function_tree(fn: types.FunctionType) -> FunctionTree:
    """Return the syntax tree of `fn`, its line numbers those of the file."""
    code = fn.__code__
    for lines in _candidates(code):
        tree = _find(lines, code)
        if tree is not None:
            return tree
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
        yield from _typed_lines(code)


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
    for module in _parses(lines, code.co_firstlineno):
        found = [
            node for node in ast.walk(module) if _starts_at(node, code) and _same_code(node, code)
        ]
        if found:
            return next((node for node in found if _same_columns(node, code)), found[0])  # type: ignore[return-value]
    return None


def _same_columns(node: ast.AST, code: types.CodeType) -> bool:
    """Tell lambdas on one line apart: the code that returns the body stands where the body does."""
    body = node.body if isinstance(node, ast.Lambda) else None
    return body is not None and (body.col_offset, body.end_col_offset) in {
        (p[2], p[3]) for p in code.co_positions()
    }


def _parses(lines: list[str], first: int) -> Iterator[ast.Module]:
    """Parse the whole text, or else the block that begins at line `first`."""
    try:
        yield ast.parse("".join(lines))
        return
    except SyntaxError:
        pass
    try:
        block = inspect.getblock(lines[first - 1 :])
        module = ast.parse(textwrap.dedent("".join(block)))
    except (SyntaxError, IndentationError):
        return
    yield ast.increment_lineno(module, first - 1)


def _starts_at(node: ast.AST, code: types.CodeType) -> bool:
    if isinstance(node, ast.FunctionDef):
        first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
        return node.name == code.co_name and code.co_firstlineno in (first, node.lineno)
    return (
        isinstance(node, ast.Lambda)
        and code.co_name == "<lambda>"
        and node.lineno == code.co_firstlineno
    )


def _same_code(node: ast.AST, code: types.CodeType) -> bool:
    """Tell whether compiling `node` gives a function like `code`; names of closure variables decide for lambdas."""
    own = _names(node)
    return own == _code_names(code)


def _names(node: ast.AST) -> set[str]:
    """Return the names, attributes and string or number constants of a function, decorators and defaults left out."""
    assert isinstance(node, (ast.FunctionDef, ast.Lambda))
    bare: ast.stmt
    if isinstance(node, ast.Lambda):
        bare = ast.Expr(node)
    else:
        bare = ast.FunctionDef(node.name, node.args, node.body, [], None, None)
    module = ast.Module([ast.copy_location(bare, node)], [])
    try:
        compiled = compile(ast.fix_missing_locations(module), "<check>", "exec")
    except SyntaxError:
        return set()
    inner = [c for c in compiled.co_consts if isinstance(c, types.CodeType)]
    return _code_names(inner[0]) if inner else set()


def _code_names(code: types.CodeType) -> set[str]:
    own = {*code.co_varnames, *code.co_names, *code.co_freevars, *code.co_cellvars}
    own |= {
        repr(c) for c in code.co_consts if isinstance(c, (int, float, str)) and not _is_doc_noise(c)
    }
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            own |= _code_names(const)
    return own


def _is_doc_noise(const: object) -> bool:
    return isinstance(const, str) and ("<locals>" in const or "\n" in const)
