"""What a trace leaves in cycles: Python finds it without going through all objects of the process.

A write may be refused because of an array that no variable holds any more, if Python has not noticed. Then garbage is collected,
which takes a second where a process has many objects. Those that are there when a trace begins are set aside until it ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

__all__ = ["aside"]

_lock = threading.Lock()
_traces = 0
_is_aside = False


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Leave what is there out of collections while a block runs, unless somebody else does so for good."""
    _change(1)
    try:
        yield
    finally:
        _change(-1)


def _change(by: int) -> None:
    global _traces, _is_aside
    with _lock:
        first, last = _traces == 0 and by > 0, _traces + by == 0
        _traces = max(_traces + by, 0)  # a fork amid a trace has forgotten it
        if first and not gc.get_freeze_count():
            gc.freeze()
            _is_aside = True
        elif last and _is_aside:
            gc.unfreeze()
            _is_aside = False


def _forget() -> None:
    """Begin anew in a child process: the traces of other threads do not go on there."""
    global _lock, _traces, _is_aside
    _lock, _traces = threading.Lock(), 0
    if _is_aside:
        gc.unfreeze()
        _is_aside = False


os.register_at_fork(after_in_child=_forget)
