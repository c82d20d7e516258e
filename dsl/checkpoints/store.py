"""Files that are put in their place at once or not at all, and the removal of what killed processes leave behind.

A file is written under a temporary name in the directory where it will be, flushed to the disk, and renamed. Whoever writes one
holds a lock on it, which ends with the process however it ends; so a temporary file without a lock has been abandoned.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from typing import BinaryIO

from dsl.errors import MissingCheckpointError
from dsl.logs import log

__all__ = ["Path", "remove_abandoned", "replacing"]

Path = str | os.PathLike[str]
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.dsl-tmp", re.DOTALL)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of `path` when the block ends, and goes away if the block raises."""
    target = os.path.realpath(path)
    file = _create(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(file.name)
        raise
    _sync_directory(os.path.dirname(target))


def _create(target: str) -> BinaryIO:
    """Return a locked temporary file beside `target`."""
    directory, name = os.path.split(target)
    while True:
        file = _open(os.path.join(directory, f".{name}.{os.urandom(6).hex()}.dsl-tmp"))
        with contextlib.suppress(OSError):  # a file system without locks: nobody cleans up there
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # removed by another process before the lock was there


def _open(path: str) -> BinaryIO:
    directory = os.path.dirname(path)
    try:
        return open(path, "xb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingCheckpointError(
            f"there is no directory {directory}",
            remedy=f"os.makedirs({directory!r}, exist_ok=True)",
        ) from error


def _sync_directory(directory: str) -> None:
    """Flush a rename to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that do not flush directories
            raise
    finally:
        os.close(descriptor)


def remove_abandoned(directory: Path) -> None:
    """Remove temporary files that nobody writes any more."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                _remove_if_abandoned(entry.path)


def _remove_if_abandoned(path: str) -> None:
    # The file is gone, is locked by its writer, or may not be removed: all the same here.
    with contextlib.suppress(OSError), open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        log("checkpoints", "removed %s, left behind by a process that was killed", path)
