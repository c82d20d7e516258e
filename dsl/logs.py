"""Log lines by topic, on stderr, for the topics that `DSL_LOGS` or `config.logs` names.

In: a topic of `TOPICS` and a message in the style of `logging`. Out: one line through the logger `dsl.<topic>`, or
nothing, cheaply; under `mpirun` behind the rank, `[2] [dsl.<topic>] …`. The lines do not go on to the root logger,
so they appear once; add a handler to the logger `dsl` to have them elsewhere as well.

>>> from dsl.config import config
>>> with config.override(logs="passes"):
...     log("passes", "cse: %d nodes -> %d", 12, 9)  # on stderr: [dsl.passes] cse: 12 nodes -> 9
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from dsl.config import TOPICS, config, did_you_mean, launched_rank
from dsl.errors import ConfigError

if TYPE_CHECKING:
    import logging

__all__ = ["TOPICS", "enabled", "help_text", "log", "show_help_if_asked", "warn"]


def enabled(topic: str) -> bool:
    """Return whether a topic is asked for, so that a costly message need not be made."""
    if topic not in TOPICS:
        raise ConfigError(f"unknown topic {topic!r}{did_you_mean(topic, TOPICS)}")
    return topic in config.logs


def log(topic: str, message: str, *args: object) -> None:
    """Write `message % args` under a topic, if the topic is asked for."""
    if enabled(topic):
        _parent().getChild(topic).info(message, *args)
    elif "help" in config.logs:
        _show_help()


def warn(topic: str, message: str, *args: object) -> None:
    """Write `message % args` under a topic whether or not the topic is asked for: what nobody should miss."""
    _parent().getChild(topic).warning(message, *args)


def help_text() -> str:
    """Return the topics, one to a line, as `DSL_LOGS=help` shows them."""
    width = max(map(len, TOPICS))
    lines = [f"  {name:<{width}}  {doc}" for name, doc in TOPICS.items()]
    return "\n".join(["DSL_LOGS takes these topics, separated by commas, or all:", *lines])


def show_help_if_asked() -> None:
    """Print the topics, once per process, if the environment says `DSL_LOGS=help`.

    `import dsl` calls this. It reads the variable itself: a misspelt topic raises when logging is first used, not
    when dsl is imported.
    """
    if "help" in os.environ.get("DSL_LOGS", "").split(","):
        _show_help()


@cache
def _show_help() -> None:
    print(help_text(), file=sys.stderr)


@cache
def _parent() -> logging.Logger:
    import logging  # here, to keep it out of `import dsl`

    parent = logging.getLogger("dsl")
    parent.addHandler(_stderr_handler())
    parent.propagate = False
    if parent.level == logging.NOTSET:
        parent.setLevel(logging.INFO)
    return parent


def _rank_prefix() -> str:
    """Return what a line begins with under `mpirun`; `python -m dsl launch` has a prefix of its own."""
    rank = launched_rank()
    return "" if rank is None or "DSL_LAUNCH_DIR" in os.environ else f"[{rank}] "


def _stderr_handler() -> logging.Handler:
    import logging

    class Stderr(logging.Handler):
        # sys.stderr is looked up for each line: notebooks and tests replace it.
        def emit(self, record: logging.LogRecord) -> None:
            sys.stderr.write(self.format(record) + "\n")

    handler = Stderr()
    handler.setFormatter(logging.Formatter(f"{_rank_prefix()}[%(name)s] %(message)s"))
    return handler
