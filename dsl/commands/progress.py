"""A progress bar in plain text, for what takes more than a moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

from dsl.config import launched_rank

__all__ = ["progress"]

T = TypeVar("T")
WIDTH = 30


def progress(items: Sequence[T], title: str) -> Iterator[T]:
    """Yield the items, drawing on stderr how many are done; where stderr is no terminal, only the end is written.

    Of many ranks, rank 0 draws.
    """
    for done, item in enumerate(items):
        _draw(title, done, len(items))
        yield item
    _draw(title, len(items), len(items))


def _draw(title: str, done: int, total: int) -> None:
    finished = done == total
    if launched_rank() or not (finished or sys.stderr.isatty()):
        return
    full = WIDTH * done // max(total, 1)
    bar = "#" * full + "." * (WIDTH - full)
    start = "\r" if sys.stderr.isatty() else ""
    sys.stderr.write(f"{start}{title} [{bar}] {done}/{total}" + ("\n" if finished else ""))
    sys.stderr.flush()
