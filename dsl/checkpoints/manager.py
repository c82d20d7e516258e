"""A directory of checkpoints, one for each step that was saved: made in the background, thinned out, the newest whole one found.

A checkpoint of step 1200 is `step-0000001200.safetensors`. Several managers, also in other processes, may use one directory.
"""

from __future__ import annotations

import contextlib
import contextvars
import operator
import os
import re
import threading
import time
from types import TracebackType
from typing import Any, SupportsIndex

from dsl.checkpoints.checkpoint import (
    check_whole,
    metadata_text,
    read_metadata,
    restore,
    write_parts,
)
from dsl.checkpoints.store import Path, remove_abandoned
from dsl.checkpoints.tree import Parts, take_apart
from dsl.errors import ConfigError, CorruptCheckpointError, MissingCheckpointError
from dsl.logs import log, warn

__all__ = ["CheckpointManager"]

_FILE = re.compile(r"step-(\d{10,})\.safetensors")


class CheckpointManager:
    """Saves trees to a directory, keeps the last `keep` and every `keep_every`-th step, and restores the newest that is whole.

    With `background`, `save` copies the arrays and returns; a thread writes them. At most one save is under way. An error of
    the thread is raised by the next `save`, `restore`, `wait` or `close`.

    >>> import tempfile, numpy as np
    >>> with CheckpointManager(tempfile.mkdtemp(), keep=2) as manager:
    ...     for step in range(1, 5):
    ...         started = manager.save(step, {"w": np.full(2, step)})
    >>> manager.steps(), manager.restore()
    ([3, 4], {'w': array([4, 4])})
    """

    def __init__(
        self,
        directory: Path,
        keep: int | None = 5,
        keep_every: int | None = None,
        background: bool = True,
    ) -> None:
        self.directory = os.path.abspath(directory)
        self.keep, self.keep_every = _count("keep", keep), _count("keep_every", keep_every)
        self.background = background
        self.restored: int | None = None
        self._busy = threading.Lock()  # held from the start of a save to its end
        self._error: BaseException | None = None
        self._closed = False
        os.makedirs(self.directory, exist_ok=True)
        remove_abandoned(self.directory)

    # -- saving -----------------------------------------------------------------------------------

    def save(
        self, step: SupportsIndex, tree: Any, metadata: Any = None, *, skip_if_busy: bool = False
    ) -> bool:
        """Save a tree as the checkpoint of a step; the tree may be changed as soon as this returns.

        If a save is under way, wait for its end or, with `skip_if_busy`, return False.
        """
        number = _step(step)
        if not self._busy.acquire(blocking=not skip_if_busy):
            log("checkpoints", "step %d is skipped: the save before is still under way", number)
            return False
        try:
            self._raise_error()
            self._start(number, take_apart(tree, copy=self.background), metadata_text(metadata))
        except BaseException:
            self._busy.release()
            raise
        return True

    def wait(self) -> None:
        """Wait for the save that is under way, and raise what went wrong in the background."""
        with self._busy:
            self._raise_error()

    def close(self) -> None:
        """Wait, and refuse to save from then on."""
        self._closed = True
        self.wait()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            return self.close()
        with contextlib.suppress(Exception):  # the log has it; the user's own error goes first
            self.close()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _start(self, step: int, parts: Parts, metadata: str) -> None:
        if self._closed:
            raise ConfigError("this CheckpointManager is closed", remedy="save before `close`")
        if not self.background:
            self._write(step, parts, metadata)
            self._busy.release()
            return
        # The options of this thread hold in that one. Not a daemon: a program that ends waits for its last checkpoint.
        run = contextvars.copy_context().run
        threading.Thread(
            target=run, args=(self._run, step, parts, metadata), name="dsl-save"
        ).start()

    def _run(self, step: int, parts: Parts, metadata: str) -> None:
        try:
            self._write(step, parts, metadata)
        except BaseException as error:
            self._error = error
            warn("checkpoints", "step %d could not be saved: %s", step, error)
        finally:
            self._busy.release()

    def _write(self, step: int, parts: Parts, metadata: str) -> None:
        start = time.perf_counter()
        write_parts(self._path(step), parts, metadata)
        log("checkpoints", "step %d saved in %.3f s", step, time.perf_counter() - start)
        self._thin_out(step)

    # -- keeping ----------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in increasing order."""
        found = map(_FILE.fullmatch, os.listdir(self.directory))
        return sorted(int(match[1]) for match in found if match)

    def _thin_out(self, saved: int) -> None:
        """Remove what is not kept; never the step that was just saved."""
        for step in self.steps()[: -self.keep] if self.keep else []:
            if step == saved or (self.keep_every and step % self.keep_every == 0):
                continue
            with contextlib.suppress(FileNotFoundError):  # another manager was faster
                os.unlink(self._path(step))
                log("checkpoints", "step %d removed", step)

    def _path(self, step: int) -> str:
        return os.path.join(self.directory, f"step-{step:010d}.safetensors")

    # -- restoring --------------------------------------------------------------------------------

    def latest(self) -> int | None:
        """Return the last step whose file has its full size and a whole header, or None; data are not read."""
        for step in reversed(self.steps()):
            with contextlib.suppress(CorruptCheckpointError, MissingCheckpointError):
                check_whole(self._path(step))
                return step
        return None

    def restore(
        self, step: SupportsIndex | None = None, like: Any = None, strict: bool = True
    ) -> Any:
        """Return the tree of a step, or of the newest whole checkpoint; `restored` then is its step. See `dsl.restore`."""
        self.wait()
        if step is None:
            return self._restore_newest(like, strict)
        tree = restore(self._path(_step(step)), like, strict)
        self.restored = _step(step)
        return tree

    def _restore_newest(self, like: Any, strict: bool) -> Any:
        tried: dict[int, str] = {}
        while left := [step for step in self.steps() if step not in tried]:
            try:
                return self.restore(left[-1], like, strict)
            except (CorruptCheckpointError, MissingCheckpointError) as error:
                tried[left[-1]] = error.message
                warn("checkpoints", "step %d is passed over: %s", left[-1], error.message)
        if tried:
            lines = "".join(f"\n  {line}" for line in tried.values())
            raise CorruptCheckpointError(f"no checkpoint in {self.directory} is whole:{lines}")
        raise MissingCheckpointError(f"there is no checkpoint in {self.directory}")

    def metadata(self, step: SupportsIndex) -> Any:
        """Return the metadata that was saved with a step."""
        return read_metadata(self._path(_step(step)))


def _step(step: SupportsIndex) -> int:
    number = operator.index(step)
    if number < 0:
        raise ConfigError(f"step={number}: expected a whole number, 0 or more")
    return number


def _count(name: str, value: int | None) -> int | None:
    if value is None or operator.index(value) >= 1:
        return value
    raise ConfigError(f"{name}={value!r}: expected a whole number, 1 or more, or None")
