"""Run the Python blocks of a page and compare what they print with the `text` block that follows.

The blocks of a page are one program, or one program each if `fresh`. Its file is called `example.py` in messages. A block
that raises prints the error as Python's last line would; a block without a `text` block after it must print nothing and
must not raise. With `--bless` the `text` blocks are rewritten.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Example", "check_page", "examples"]

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = "example.py"


@dataclass
class Example:
    """A Python block, and the span of the `text` block after it, if there is one."""

    code: str
    expected: str | None
    span: tuple[int, int]


def examples(page: str) -> list[Example]:
    """Return the examples of a page."""
    found = list(FENCE.finditer(page))
    pairs = zip(found, [*found[1:], None])
    return [_example(a, b, page) for a, b in pairs if a[1] == "python"]


def _example(block: re.Match[str], after: re.Match[str] | None, page: str) -> Example:
    code = block[2]
    shown = (
        after is not None and after[1] == "text" and not page[block.end() : after.start()].strip()
    )
    if after is None or not shown:
        return Example(code, None, (0, 0))
    return Example(code, after[2], after.span(2))


def check_page(path: Path, *, fresh: bool = False, bless: bool = False) -> int:
    """Run every example of a page, compare, and return how many there were."""
    page = path.read_text(encoding="utf-8")
    found = examples(page)
    session = _Session()
    outputs = []
    for example in found:
        if fresh:
            session = _Session()
        outputs.append(session.run(example.code))
    if bless:
        for example, output in reversed(list(zip(found, outputs))):
            if example.expected is not None:
                start, end = example.span
                page = page[:start] + output + page[end:]
        path.write_text(page, encoding="utf-8")
        return len(found)
    for example, output in zip(found, outputs):
        assert output == (example.expected or ""), (
            f"{path.name}:\n{example.code}\nprinted:\n{output}"
        )
    return len(found)


class _Session:
    """A program that grows block by block, its source where `linecache` finds it."""

    def __init__(self) -> None:
        self._text = ""
        self._module = types.ModuleType("example")

    def run(self, code: str) -> str:
        """Run a block and return what it printed."""
        padded = "\n" * self._text.count("\n") + code
        self._text += code
        lines = self._text.splitlines(keepends=True)
        linecache.cache[FILE] = (len(self._text), None, lines, FILE)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), _as_main(self._module):
            try:
                exec(compile(padded, FILE, "exec", dont_inherit=True), self._module.__dict__)
            except Exception as error:
                print(f"{_name(error)}: {error}")
        return (
            "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
            if out.getvalue()
            else ""
        )


def _name(error: Exception) -> str:
    module = type(error).__module__
    return type(error).__name__ if module == "builtins" else f"{module}.{type(error).__name__}"


@contextlib.contextmanager
def _as_main(module: types.ModuleType) -> Any:
    """Let pickling and dataclasses find the module."""
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]
