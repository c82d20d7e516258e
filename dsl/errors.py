"""The exceptions users see.

Every user mistake raises a subclass of `DslError`, most of which are also the built-in that a NumPy user expects.
A broken invariant of the library itself raises `InternalError`. A message says what happened, then the user's
line with its source text, then the remedy; `DslError.location` and `.remedy` hold the parts.
"""

from __future__ import annotations

from typing import Protocol, Self

__all__ = [
    "AbortedError", "AliasError", "BranchError", "CancelledError", "CheckpointError", "ConfigError", "ConversionError",
    "CorruptCheckpointError", "DeadlineError", "DeviceError", "DeviceMemoryError", "DslError", "FeedError",
    "GradientError", "IndexTypeError", "InternalError", "LeakError", "LoopTypeError", "MismatchError",
    "MissingAttributeError", "MissingCheckpointError", "NanError", "NonConcreteError", "NumberError", "OutOfRangeError",
    "ParseError", "PeerError", "ShapeError", "SourceError", "StaticArgumentError", "TypeRuleError", "UndefinedError",
    "UnsupportedError", "VerifyError",
]  # fmt: skip


class _Located(Protocol):
    def excerpt(self) -> str: ...


class DslError(Exception):
    """A mistake in the user's program, with its place and what to do about it.

    >>> print(DslError("the loss is not a number", remedy="lower the learning rate"))
    the loss is not a number
    Fix: lower the learning rate
    """

    def __init__(self, message: str, *, location: _Located | None = None, remedy: str = "") -> None:
        self.message, self.location, self.remedy = message, location, remedy
        super().__init__(message)

    def __str__(self) -> str:
        parts = [self.message]
        if self.location is not None:
            parts.append(self.location.excerpt())
        if self.remedy:
            parts.append(f"Fix: {self.remedy}")
        return "\n".join(parts)


class InternalError(DslError, RuntimeError):
    """An invariant of dsl is broken; please report it with the text of this message."""


class ShapeError(DslError, ValueError):
    """Shapes that do not fit together, in NumPy's own words."""


class TypeRuleError(DslError, TypeError):
    """Operands of a dtype or rank that an op does not take."""


class NumberError(DslError, OverflowError, ValueError):
    """A number that a dtype cannot hold, in NumPy's own words."""


class IndexTypeError(DslError, IndexError):
    """An index that NumPy refuses whatever the data."""


class NonConcreteError(DslError, TypeError):
    """A traced value stands where Python needs a number; `argument` is the one that it is, if it is one."""

    argument: str | None = None


class BranchError(DslError, TypeError):
    """The branches of an `if` disagree about a variable."""


class UndefinedError(DslError, UnboundLocalError):
    """A variable is read that only some paths define."""


class GradientError(DslError, TypeError):
    """A derivative that is asked of something that has none."""


class NanError(DslError, FloatingPointError):
    """A NaN was made while `debug_nans` is on."""


class LoopTypeError(DslError, TypeError):
    """A loop variable changes its rank, structure or dtype from trip to trip."""


class AliasError(DslError, ValueError):
    """A write whose effect on other names of the same memory cannot be expressed."""


class LeakError(DslError, RuntimeError):
    """A traced value is used after, or outside, the trace that made it."""


class UnsupportedError(DslError, NotImplementedError, TypeError):
    """A function, argument or dtype that dsl does not have."""


class MissingAttributeError(UnsupportedError, AttributeError):
    """An attribute or method of arrays that traced arrays do not have."""


class ConversionError(DslError, SyntaxError):
    """Python syntax that cannot be converted to dataflow."""

    @property
    def msg(self) -> str:  # type: ignore[override]
        """What Python prints of a syntax error."""
        return DslError.__str__(self)

    def __str__(self) -> str:
        return DslError.__str__(self)


class SourceError(DslError, OSError):
    """The source text of a function cannot be found, so it cannot be converted."""

    def __str__(self) -> str:
        return DslError.__str__(self)


class StaticArgumentError(DslError, TypeError):
    """A static argument that cannot be hashed."""


class ConfigError(DslError, ValueError):
    """An unknown option or a value that it does not take."""


class CheckpointError(DslError, ValueError):
    """A tree that cannot be saved, or a checkpoint that does not fit the tree it is restored to."""


class CorruptCheckpointError(CheckpointError):
    """A file that is not the whole checkpoint that was saved, or no checkpoint at all."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """A checkpoint that is not there, or the directory for one."""

    def __str__(self) -> str:
        return DslError.__str__(self)


class FeedError(DslError, ValueError):
    """A step's feeds or fetches are not right: missing, unknown, of another shape or dtype."""


class PeerError(DslError, RuntimeError):
    """Another rank has ended with an exception, or has gone."""


class MismatchError(DslError, RuntimeError):
    """Ranks that must do the same do different things."""


class OutOfRangeError(DslError, IndexError):
    """A queue is closed and has fewer elements than were asked for."""


class CancelledError(DslError, RuntimeError):
    """An attempt on a queue was given up; `completed` counts the elements that it had put in."""

    completed: int = 0


class AbortedError(DslError, RuntimeError):
    """What was asked for has been done before: a queue is closed twice."""


class DeadlineError(DslError, TimeoutError):
    """A wait went on for longer than its `timeout`; `completed` counts the elements that were put in meanwhile."""

    completed: int = 0

    def __str__(self) -> str:
        return DslError.__str__(self)


class DeviceError(DslError, ValueError):
    """A device that is not there, cannot run an op, or is not the one that another node asks for."""


class DeviceMemoryError(DeviceError, MemoryError):
    """The memory of a device is used up; `wanted`, `free` and `total` are bytes, 0 where they are not known."""

    wanted: int = 0
    free: int = 0
    total: int = 0

    @classmethod
    def of(cls, device: object, wanted: int, free: int, total: int, remedy: str = "") -> Self:
        """Return the error that names all three.

        >>> print(DeviceMemoryError.of("cuda:0", 3 << 30, 1 << 30, 2 << 30))
        cuda:0 is out of memory: 3,221,225,472 bytes are wanted; of 2,147,483,648 there are 1,073,741,824 free
        """
        error = cls(
            f"{device} is out of memory: {wanted:,} bytes are wanted; of {total:,} there are {free:,} free",
            remedy=remedy,
        )
        error.wanted, error.free, error.total = wanted, free, total
        return error


class ParseError(DslError, ValueError):
    """Malformed IR text; `line` and `column` count from 1."""

    def __init__(self, message: str, *, line: int, column: int, text: str = "") -> None:
        self.line, self.column = line, column
        caret = f"\n  {text}\n  {' ' * (column - 1)}^" if text else ""
        super().__init__(f"line {line}, column {column}: {message}{caret}")


class VerifyError(InternalError):
    """A graph that breaks one or more rules of the verifier."""
