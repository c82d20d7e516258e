"""Where in the user's program a node came from."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Location", "definition_of"]

_GRADIENT = " (gradient)"


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's source: file, line from 1, and the columns of the expression when they are known."""

    file: str
    line: int
    function: str = ""
    column: int | None = None
    end_column: int | None = None

    def backward(self) -> Location:
        """Return the place as that of a derivative of what is there."""
        if self.function.endswith(_GRADIENT):
            return self
        return replace(self, function=self.function + _GRADIENT)

    def source(self) -> str:
        """Return the source line, or an empty string when the file is not at hand."""
        return linecache.getline(self.file, self.line).rstrip("\n")

    def callee(self) -> str:
        """Return what the expression calls, such as `np.bincount`, or an empty string if it is no call."""
        part = self.source()[self.column : self.end_column] if self.column is not None else ""
        try:
            found = ast.parse(part.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            return ""
        return ast.unparse(found.func) if isinstance(found, ast.Call) else ""

    def excerpt(self) -> str:
        """Return the place and its source text, the expression underlined, as error messages show them."""
        where = f'  File "{self.file}", line {self.line}' + (
            f", in {self.function}" if self.function else ""
        )
        text = self.source()
        if not text.strip():
            return where
        indent = len(text) - len(text.lstrip())
        lines = [where, f"    {text.strip()}"]
        if self.column is not None and self.end_column is not None and self.column >= indent:
            lines.append(
                " " * (4 + self.column - indent) + "^" * max(1, self.end_column - self.column)
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def definition_of(fn: Callable[..., Any]) -> Location | None:
    """Return where a function is defined, below its decorators, if it is one of Python."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return None
    line = code.co_firstlineno
    while linecache.getline(code.co_filename, line).lstrip().startswith("@"):
        line += 1
    return Location(code.co_filename, line, code.co_name)
