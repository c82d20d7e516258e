"""Small tools around compiled code: how many threads it uses, what the disk cache did."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsl.codegen.cpu.jit import CacheStats

__all__ = ["cache_stats", "num_threads"]


@contextmanager
def num_threads(limit: int) -> Generator[None]:
    """Let compiled code that this thread calls use at most `limit` threads until the end of a `with` block.

    >>> with num_threads(1):
    ...     pass
    """
    from dsl.codegen.cpu import pool

    with pool.threads(limit):
        yield


def cache_stats() -> CacheStats:
    """Return how often this process compiled code with LLVM, and how often it found code in memory or on disk.

    >>> cache_stats().llvm_compiles >= 0
    True
    """
    from dsl.codegen.cpu import jit

    return jit.stats()
