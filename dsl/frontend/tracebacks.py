"""Tracebacks as a user wants them: without the frames of dsl, so that a line of the user's stands last."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from dsl.config import config
from dsl.frontend.scopes import is_own

__all__ = ["shortened"]

E = TypeVar("E", bound=BaseException)


def shortened(error: E) -> E:
    """Leave the frames of dsl out of an error's traceback, unless the option `traceback_filtering` keeps them."""
    if config.traceback_filtering == "off":
        return error
    frames: list[TracebackType] = []
    step = error.__traceback__
    while step is not None:
        if not is_own(step.tb_frame.f_code.co_filename):
            frames.append(step)
        step = step.tb_next
    kept: TracebackType | None = None
    for frame in reversed(frames):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return error.with_traceback(kept)
