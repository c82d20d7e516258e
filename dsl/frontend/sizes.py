"""Sizes of arguments: which of them a graph is made for, and which it leaves open.

The first call of a function is compiled for its sizes. A call with other sizes is compiled for what it and the calls
before it have in common: a dim that had several sizes is a symbol, and dims that were equal in every call share one.
No compile is narrower than the one before it, so their number is small; and the sizes 0 and 1, which broadcast and
squeeze in their own way, are never symbolic: arguments with other places of 0 and 1 are another family.

>>> first = Pattern.fixed((3, 4, 4, 1))
>>> second = first.widened((5, 6, 6, 1))
>>> second
Pattern(n, m, m, 1)
>>> second.admits((7, 8, 8, 1)), second.admits((7, 8, 9, 1))
(True, False)
>>> second.widened((7, 8, 9, 1))
Pattern(n, m, k, 1)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dsl.frontend.signature import Arguments
from dsl.ir.dims import DimLike, Symbol
from dsl.ir.types import Shape

__all__ = ["Family", "Pattern", "what_changed"]

E = TypeVar("E")

_LETTERS = "nmkpqrst"
# Wider compiles, each for one more dim that changed or two that are no longer equal, before all sizes are left open.
_MOST_STEPS = 2


@dataclass(frozen=True)
class Pattern:
    """The sizes that a graph takes: of each dim of each array argument in a row, an int or a symbol of at least 2.

    `strides` says whether arrays that are not contiguous have the strides of the call that the graph was made for.
    """

    dims: Shape
    strides: bool = True

    def __repr__(self) -> str:
        return f"Pattern({', '.join(map(str, self.dims))})"

    @classmethod
    def fixed(cls, sizes: Sequence[int]) -> Pattern:
        """Return the pattern of one call alone."""
        return cls(tuple(sizes))

    @classmethod
    def open(cls, sizes: Sequence[int]) -> Pattern:
        """Return the widest pattern: a symbol of its own for each size of at least 2."""
        names = _names()
        return cls(tuple(n if n < 2 else Symbol(next(names), 2) for n in sizes), strides=False)

    @classmethod
    def equal(cls, sizes: Sequence[int]) -> Pattern:
        """Return the pattern with one symbol for each size of at least 2, however often it appears."""
        return cls._of(sizes, sizes)

    @classmethod
    def _of(cls, keys: Iterable[Any], sizes: Iterable[int]) -> Pattern:
        """Return the pattern with an int where a key is one below 2 or None, and a symbol for each other key."""
        names = _names()
        made: dict[Any, DimLike] = {}
        dims: list[DimLike] = []
        for key, size in zip(keys, sizes, strict=True):
            if key is None or size < 2:
                dims.append(size)
            else:
                if key not in made:
                    made[key] = Symbol(next(names), 2)
                dims.append(made[key])
        return cls(tuple(dims), strides=False)

    @property
    def is_open(self) -> bool:
        """Whether it takes more than the arguments of one call."""
        return not self.strides or any(not isinstance(dim, int) for dim in self.dims)

    def admits(self, sizes: Sequence[int]) -> bool:
        """Tell whether a call has these sizes; strides are not looked at."""
        found: dict[DimLike, int] = {}
        return all(
            dim == size if isinstance(dim, int) else found.setdefault(dim, size) == size
            for dim, size in zip(self.dims, sizes, strict=True)
        )

    def widened(self, sizes: Sequence[int]) -> Pattern:
        """Return the narrowest open pattern that admits these sizes and all that this one admits."""
        keys = [
            None if dim == size else (dim, size) for dim, size in zip(self.dims, sizes, strict=True)
        ]
        return self._of(keys, sizes)

    def splits(self, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield pairs of places where sizes that were always equal now differ."""
        first: dict[DimLike, int] = {}
        for place, dim in enumerate(self.dims):
            before = first.setdefault(dim, place)
            if sizes[before] != sizes[place]:
                yield before, place


@dataclass
class Family(Generic[E]):
    """What was compiled for arguments that differ in sizes and strides alone.

    `seen` is what the calls that were compiled have in common. Once tracing has `refused` a symbolic size, and says
    why, each shape is compiled for itself.
    """

    seen: Pattern | None = None
    entries: list[tuple[Pattern, E]] = field(default_factory=list)
    refused: str = ""

    def admitting(self, sizes: Sequence[int]) -> Iterator[E]:
        """Yield the entries that take these sizes, the narrowest first."""
        return (entry for pattern, entry in self.entries if pattern.admits(sizes))

    def patterns(self, sizes: Sequence[int], dynamic: bool | None, again: bool) -> list[Pattern]:
        """Return the open patterns to compile a call for, best first; none if it is to be compiled for its sizes alone.

        `again` says that these very sizes and strides were compiled before, so that something else has changed.
        """
        if dynamic is False or self.refused or not any(size > 1 for size in sizes):
            return []
        if self.seen is None:
            return [Pattern.equal(sizes)] if dynamic else []
        if self.seen.is_open and self.seen.admits(sizes):
            return [self.seen]
        if again:
            return []
        wider = self.seen.widened(sizes)
        steps = len({pattern for pattern, _ in self.entries})
        return [Pattern.open(sizes), wider] if steps >= _MOST_STEPS else [wider]

    def add(self, pattern: Pattern, entry: E) -> None:
        """Keep what was compiled for an open pattern."""
        self.entries.append((pattern, entry))
        self.seen = pattern


_PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def what_changed(arguments: Arguments, seen: Pattern, wider: Pattern) -> str:
    """Say which arguments a wider pattern is for, and what it leaves open."""
    shapes = map(arguments.shapes, (seen.dims, wider.dims))
    leaves = zip(arguments.paths, arguments.described, *shapes, strict=True)
    changes = [
        f"argument {path} was {leaf.text(old)}, now {leaf.text(leaf.shape)}: {_opened(axes)}"
        for path, leaf, old, new in leaves
        if (axes := [k for k, (a, b) in enumerate(zip(old, new)) if a != b and isinstance(a, int)])
    ]
    sizes, places = arguments.sizes, _places(arguments)
    changes += [
        f"{places[one]} and {places[other]} were equal, now {sizes[one]} and {sizes[other]}"
        for one, other in seen.splits(sizes)
        if not isinstance(seen.dims[one], int)
    ]
    strided = [p for p, leaf in zip(arguments.paths, arguments.described) if leaf.strides]
    return "; ".join(changes) or f"other strides of {', '.join(strided)}: they are open from now on"


def _opened(axes: list[int]) -> str:
    names = [_place(k) for k in axes]
    *some, last = names
    listing = f"{', '.join(some)} and {last}" if some else last
    return f"its {listing} dim{'s are' if some else ' is'} symbolic from now on"


def _place(axis: int) -> str:
    return _PLACES[axis] if axis < len(_PLACES) else f"{axis + 1}th"


def _places(arguments: Arguments) -> list[str]:
    """Name each dim of the array arguments in a row."""
    return [
        f"the {_place(axis)} dim of {path}"
        for path, leaf in zip(arguments.paths, arguments.described)
        for axis in range(len(leaf.shape))
    ]


def _names() -> Iterator[str]:
    yield from _LETTERS
    yield from (f"n{k}" for k in itertools.count(1))
