"""Where the tokens of one step that go from device to device of this process meet who waits for them.

A token is left under a key, and taken once, by whoever asks for that key, before or after. Tokens pass by reference:
nothing writes into an array that a graph has made, so none is copied. Callbacks run outside the lock, in the thread that
made them possible.
"""

from __future__ import annotations

import threading
from typing import Any

from dsl.errors import CancelledError, InternalError
from dsl.ir.environment import Cancel, Done

__all__ = ["LocalRendezvous"]


class LocalRendezvous:
    """The rendezvous of one step in one process; see `dsl.ir.environment.Rendezvous`.

    After `abort(error)` everything that waits, and everything that comes later, fails with a `CancelledError` that names
    the error. `sent` counts the tokens.
    """

    def __init__(self) -> None:
        self.sent = 0
        self._lock = threading.Lock()
        self._tokens: dict[Any, Any] = {}
        self._waiting: dict[Any, Done] = {}
        self._error: BaseException | None = None

    def send(self, key: Any, token: Any) -> None:
        """Leave a token, dead ones included."""
        with self._lock:
            self._check_open()
            if key in self._tokens:
                raise InternalError(f"two tokens are sent under {key}")
            self.sent += 1
            done = self._waiting.pop(key, None)
            if done is None:
                self._tokens[key] = token
        if done is not None:
            done(None, [token])

    def receive(self, key: Any, done: Done) -> Cancel:
        """Have `done` called with the token: at once, or when it comes."""
        with self._lock:
            failed = self._error is not None
            there = not failed and key in self._tokens
            if there:
                token = self._tokens.pop(key)
            elif not failed:
                if key in self._waiting:
                    raise InternalError(f"two nodes wait for {key}")
                self._waiting[key] = done
        if failed:
            done(self._secondary(), ())
        elif there:
            done(None, [token])
        return lambda: self._cancel(key, done)

    def abort(self, error: BaseException) -> None:
        """Make everything that waits, and all that comes later, fail because of `error`; the first one counts."""
        with self._lock:
            if self._error is None:
                self._error = error
            waiting = list(self._waiting.values())
            self._waiting.clear()
            self._tokens.clear()
        for done in waiting:
            done(self._secondary(), ())

    def pending(self) -> tuple[list[Any], list[Any]]:
        """Return the keys of tokens that nobody has taken, and those that somebody waits for."""
        with self._lock:
            return list(self._tokens), list(self._waiting)

    def _cancel(self, key: Any, done: Done) -> None:
        with self._lock:
            waits = self._waiting.get(key) is done
            if waits:
                del self._waiting[key]
        if waits:
            done(CancelledError("the step was cancelled while it waited for another device"), ())

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._secondary()

    def _secondary(self) -> CancelledError:
        """Return a new error each time: whoever raises it adds its own place to it."""
        error = CancelledError(f"another part of the step failed: {_summary(self._error)}")
        error.__cause__ = self._error
        return error


def _summary(error: BaseException | None) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
