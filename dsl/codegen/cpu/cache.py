"""A directory of results that outlive the process: object code, and whatever else is costly to make from a text.

In: a key (any string; `digest` makes one of several parts) and bytes. Out: those bytes in this or a later process, or
None. Nothing here raises because of the disk: a directory that cannot be written, a full disk or a damaged file costs
a recompile and a line of the log topic `cache`, never the user's program.

What holds:
- A file appears under its name whole or not at all (written beside it, then renamed), so processes need no locks: two
  that make the same result both store it, and either file is good.
- A file is believed only if it belongs to this user, nobody else may write it, and its header fits: magic, version,
  key, length, SHA-256 of the payload. Its contents are run as machine code.
- Files whose names are not ours are never touched, so a directory may be shared with anything.
- The directory stays near its size limit, and what was used last stays longest.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import stat
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from dsl.config import config
from dsl.logs import log

__all__ = ["Counts", "Store", "default_directory", "digest", "store", "totals"]

_MAGIC = b"dslcache"
_VERSION = 1
_HEADER = struct.Struct("<8sI32sQ32s")  # magic, version, key, length and SHA-256 of the payload
_OURS = re.compile(r"[0-9a-f]{64}\.dsl(\.[0-9a-f]{12}\.tmp)?")

_TOUCH_AFTER = (
    3600.0  # seconds: a hit renews the date of a file at most this often, so most hits only read
)
_ABANDONED_AFTER = 3600.0  # seconds: a temporary file this old belongs to a process that died
_SWEEPS_PER_LIMIT = 16  # a sweep is expected each time 1/16 of the limit has been written, by all processes together
_KEEP = 0.8  # of the limit, after a sweep that had to remove something


def digest(*parts: str) -> str:
    """Return a key for several texts; different lists of parts have different keys.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    total = hashlib.sha256()
    for part in parts:
        data = part.encode()
        total.update(b"%d:" % len(data))
        total.update(data)
    return total.hexdigest()


@dataclass(slots=True)
class Counts:
    """What happened to a store in this process."""

    hits: int = 0
    misses: int = 0
    errors: int = 0
    evictions: int = 0


class Store:
    """Bytes by key in one directory of at most about `limit` bytes; with directory None nothing is kept."""

    def __init__(self, directory: str | None, limit: int) -> None:
        self.directory, self.limit = directory, limit
        self.counts = Counts()
        self._writable = directory is not None and limit > 0

    def get(self, key: str, *, counted: bool = True) -> bytes | None:
        """Return what was put under a key, or None when there is nothing that can be believed.

        `counted` is for code; what else is looked up is no hit or miss of a compile.
        """
        if self.directory is None:
            return None
        try:
            payload = _read(self._path(key), bytes.fromhex(digest(key)))
        except (FileNotFoundError, NotADirectoryError):
            self.counts.misses += counted
            return None
        except (OSError, _RefusedError) as refusal:
            self.counts.errors += 1
            log("cache", "%s is not used: %s", self._path(key), refusal)
            return None
        self.counts.hits += counted
        log("cache", "read %s, %d bytes", self._path(key), len(payload))
        return payload

    def count(self, *, found: bool) -> None:
        """Count code that was among what was read without counting, or was not."""
        self.counts.hits += found
        self.counts.misses += not found

    def put(self, key: str, payload: bytes) -> None:
        """Keep bytes under a key, in place of what was there.

        The first failure is logged and ends writing for this process.
        """
        if not self._writable or len(payload) > self.limit:
            return
        try:
            self._write(key, payload)
        except OSError as error:
            self._writable = False
            self.counts.errors += 1
            log("cache", "compiled code is kept in memory only: %s", error)
            return
        log("cache", "stored %s, %d bytes", self._path(key), len(payload))
        if self._sweep_is_due(key, len(payload)):
            self.sweep()

    def sweep(self) -> None:
        """Remove what was not used for longest if the directory is above its limit, and abandoned temporary files."""
        files = sorted(self._files(), key=lambda entry: (entry.stat().st_mtime, entry.name))
        excess = sum(entry.stat().st_size for entry in files) - self.limit
        if excess > 0:
            excess += int(self.limit * (1 - _KEEP))
        for entry in files:
            abandoned = entry.name.endswith(".tmp") and _age(entry.stat()) > _ABANDONED_AFTER
            if excess > 0 or abandoned:
                self._evict(entry)
                excess -= entry.stat().st_size

    def _path(self, key: str) -> str:
        return os.path.join(self.directory or "", f"{digest(key)}.dsl")

    def _write(self, key: str, payload: bytes) -> None:
        own = bytes.fromhex(digest(key))
        header = _HEADER.pack(_MAGIC, _VERSION, own, len(payload), _sha256(payload))
        path = self._path(key)
        temporary = f"{path}.{os.urandom(6).hex()}.tmp"
        try:
            with open(_create(temporary), "wb", buffering=0) as file:
                _write_all(file, header + payload)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _sweep_is_due(self, key: str, size: int) -> bool:
        # Chance in proportion to size needs no state shared between processes. The key's own bits are the dice.
        dice = int(digest(key, "sweep")[:8], 16) / 2**32
        return dice < size * _SWEEPS_PER_LIMIT / self.limit

    def _files(self) -> Iterator[os.DirEntry[str]]:
        # Other processes sweep as well: what goes away meanwhile is passed over.
        with contextlib.suppress(OSError), os.scandir(self.directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        entry.stat()  # kept by the entry, so it does not fail later
                        yield entry

    def _evict(self, entry: os.DirEntry[str]) -> None:
        with contextlib.suppress(OSError):
            os.unlink(entry.path)
            self.counts.evictions += 1
            log("cache", "removed %s, %d bytes", entry.path, entry.stat().st_size)


# --- Files ---------------------------------------------------------------------------------------


class _RefusedError(Exception):
    """A file that is not believed; the text says why."""


def _create(path: str) -> int:
    """Open a new file for writing that only this user may read or write; make the directory if need be."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return os.open(path, flags, 0o600)


def _write_all(file: io.FileIO, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _read(path: str, key: bytes) -> bytes:
    """Return the payload of a file, and renew its date if that is old; raise OSError or _RefusedError."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags | getattr(os, "O_NONBLOCK", 0)), "rb", buffering=0) as file:
        info = os.fstat(file.fileno())
        _check_owner(info)
        content = file.readall()
    _check_header(content, key)
    if _age(info) > _TOUCH_AFTER:
        with contextlib.suppress(OSError):
            os.utime(path)
    return content[_HEADER.size :]


def _check_owner(info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise _RefusedError("it is not a regular file")
    if os.name != "posix":
        return  # elsewhere neither owner nor mode tell who may write
    if info.st_uid != os.geteuid():
        raise _RefusedError(f"it belongs to user {info.st_uid}, not to {os.geteuid()}")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _RefusedError(f"others may write it (mode {stat.S_IMODE(info.st_mode):o})")


def _check_header(content: bytes, key: bytes) -> None:
    if len(content) < _HEADER.size:
        raise _RefusedError("it is shorter than its header")
    magic, version, own_key, length, checksum = _HEADER.unpack_from(content)
    payload = memoryview(content)[_HEADER.size :]
    if (magic, version) != (_MAGIC, _VERSION):
        raise _RefusedError("it is of another format")
    if own_key != key:
        raise _RefusedError("it holds the result for another key")
    if length != len(payload):
        raise _RefusedError(f"it has {len(payload)} bytes of {length}")
    if checksum != _sha256(payload):
        raise _RefusedError("its checksum is wrong")


def _sha256(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def _age(info: os.stat_result) -> float:
    return time.time() - info.st_mtime


# --- The stores of this process ------------------------------------------------------------------


_stores: dict[tuple[str | None, int], Store] = {}


def store() -> Store:
    """Return the store that the options `cache_dir` and `cache_size` ask for; the same one while they stay."""
    wanted = (_directory(config.cache_dir), config.cache_size)
    return _stores.get(wanted) or _stores.setdefault(wanted, Store(*wanted))


def totals() -> Counts:
    """Return the sums over every store that this process has used."""
    counts = [store.counts for store in _stores.values()]
    return Counts(*(sum(getattr(c, name) for c in counts) for name in Counts.__slots__))


def default_directory() -> str | None:
    """Return `$XDG_CACHE_HOME/dsl`, else `~/.cache/dsl`, or None for a user who has no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # which the XDG specification says to ignore
        base = os.path.expanduser(os.path.join("~", ".cache"))
    return os.path.join(base, "dsl") if os.path.isabs(base) else None


def _directory(option: str | None) -> str | None:
    if option == "off":
        return None
    return default_directory() if option is None else os.path.abspath(os.path.expanduser(option))
