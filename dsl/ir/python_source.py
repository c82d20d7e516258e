"""Parses Python, one thread at a time.

CPython 3.11 counts how deep the tree is in one place for all threads, and raises SystemError when two of them parse at once.
"""

from __future__ import annotations

import ast
import os
import threading

__all__ = ["parse_python"]

_lock = threading.Lock()


def parse_python(text: str) -> ast.Module:
    """Return the syntax tree of a module."""
    with _lock:
        return ast.parse(text)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
