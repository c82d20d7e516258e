"""`raise` and `assert`: at once if Python can decide, else when the program runs, with the values that the message shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsl.errors import NonConcreteError
from dsl.frontend.leaves import BranchRaise, predicate
from dsl.frontend.library import has_traced
from dsl.frontend.regions import emit_raise
from dsl.frontend.scopes import current_scope, current_trace, here
from dsl.frontend.text import TracedText, to_text
from dsl.frontend.traced import read

__all__ = ["assert_true", "raise_error"]


def assert_true(test: Callable[[], Any], message: Callable[[], Any] | None) -> None:
    """`assert test, message`."""
    chosen = predicate(test())
    if isinstance(chosen, bool):
        if not chosen:
            raise_error(AssertionError(*([message()] if message else [])), None)
        return
    text, values = to_text(message()) if message else ("", [])
    current_scope().node(
        "assert",
        (chosen, *(read(v) for v in values)),
        {"message": text, "error": "AssertionError"},
    )


def raise_error(error: Any, cause: Any) -> None:
    """`raise error`: in a region, the region raises when it runs."""
    made = error() if isinstance(error, type) else error
    if cause is not None:
        made.__cause__ = cause
    trace = current_trace()
    if trace is None or len(trace.scopes) == 1:
        if any(isinstance(a, TracedText) or has_traced(a) for a in getattr(made, "args", ())):
            emit_raise(_with_values(made))
            raise BranchRaise(made, emitted=True)
        raise made
    raise BranchRaise(_with_values(made))


def _with_values(error: BaseException) -> BaseException:
    """Move traced values out of an error's message, so that it can be formatted at run time."""
    if len(error.args) > 1 and has_traced(error.args):
        raise NonConcreteError(
            "an exception with traced values among its arguments",
            location=here(),
            remedy="give the exception one message, an f-string",
        )
    if error.args and (isinstance(error.args[0], TracedText) or has_traced(error.args[0])):
        template, values = to_text(error.args[0])
        made = type(error)(template)
        made.dsl_values = values  # type: ignore[attr-defined]
        return made
    return error
