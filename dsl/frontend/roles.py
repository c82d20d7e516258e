"""Roles: what tracing found in an object of the user's, so that a compiled function serves the next one of its class as well.

A function is traced with certain objects: an argument, what its attributes hold, what those hold. Each such object, and each list,
tuple, dict or bound method on the way, plays a role: the object at a place, which a call finds there anew. What was read of it is
guarded, so what counts beyond that is which of them are the same object, and what code that is not traced may have seen of them:
with `Roles.pinned` the function is for these very objects.
"""

from __future__ import annotations

import abc
import collections
import functools
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.frontend.packages import is_users

__all__ = [
    "FUNCTION",
    "Attributes",
    "Closure",
    "Declared",
    "OfClass",
    "Own",
    "Presence",
    "Role",
    "Roles",
    "has_own_objects",
    "held_in",
    "is_plain_tuple",
    "is_record",
    "is_users_class",
    "is_watched",
    "places_in",
    "plays_role",
    "stands_in",
]

Place = tuple[Any, ...]
"""The way to something from outside: where it begins (a leaf of the arguments, or a holder), and the keys from there."""

_CONTAINERS = (list, tuple, dict, collections.deque)
_LONGEST = 256  # of places
_DEEPEST = 4  # as deep as guards look into containers


@dataclass(frozen=True)
class OfClass:
    """Any object of one class, as a key."""

    kind: type

    def __repr__(self) -> str:
        return f"an object of class {self.kind.__name__}"


@dataclass(frozen=True, eq=False)
class Role:
    """The object of a type that a call finds at a place: in what plays another role or is always the same, or among its arguments."""

    number: int
    kind: type
    holder: Any  # None for arguments, of which the key is the leaf
    key: Any
    place: Place

    def __repr__(self) -> str:
        return "an object" if self.holder is None else f"what `{self.key}` holds"


class Presence:
    """Tells of any attribute whether an object has it, as `look_up` asks."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        object.__setattr__(self, "held", held)

    def __getattribute__(self, name: str) -> bool:
        return hasattr(held_in(self), name)


def held_in(presence: Presence) -> Any:
    """Return the object of which a `Presence` tells."""
    return object.__getattribute__(presence, "held")


@dataclass(frozen=True)
class Closure:
    """The key of a variable of a function around, in its closure."""

    number: int


@dataclass(frozen=True)
class Declared:
    """The key of what a class, or those that it inherits from beyond one of them, have under a name: a classmethod is not bound."""

    name: str
    beyond: type | None = None

    def __repr__(self) -> str:
        return self.name

    def found_in(self, cls: type) -> Any:
        """Return what is there now, None if nothing is."""
        bases = cls.__mro__
        start = bases.index(self.beyond) + 1 if self.beyond in bases else 0
        return next(
            (vars(base)[self.name] for base in bases[start:] if self.name in vars(base)), None
        )


@dataclass(frozen=True)
class Own:
    """The key of what a class itself has under a name, whatever it inherits."""

    name: str

    def __repr__(self) -> str:
        return self.name


class FUNCTION:
    """The key of the function itself, which calls find by their arguments."""


class Attributes:
    """The key of the dict of an object's attributes, which tracing looks into by itself."""


def stands_in(item: Any) -> bool:
    """Tell whether an object is one of the user's for which another of its class may do."""
    return is_users_class(type(item))


def is_users_class(cls: type) -> bool:
    if cls is types.SimpleNamespace:
        return True
    if type(cls) is not type and type(cls) is not abc.ABCMeta:
        return False
    return (
        is_users(cls)
        and not issubclass(cls, _KNOWN)
        and not any(hasattr(cls, name) for name in _SPECIAL)
    )


_KNOWN = (
    *_CONTAINERS, set, frozenset, str, bytes, bytearray, int, float, complex, type, BaseException, np.ndarray, np.generic,
    types.ModuleType, functools.partial,
)  # fmt: skip
_SPECIAL = ("dsl_flatten", "dsl_inline", "dsl_device", "__cuda_array_interface__", "__array__")


def is_watched(holder: Any) -> bool:
    """Tell whether an object is a container that is compared as a whole, other than a module's variables."""
    return isinstance(holder, (list, tuple, collections.deque)) or (
        isinstance(holder, dict) and "__builtins__" not in holder
    )


def is_record(item: Any) -> bool:
    """Tell whether an object is an optimiser or its state, which is what its fields are."""
    cls = type(item)
    return cls.__module__.startswith("dsl.optim") and hasattr(cls, "__dataclass_fields__")


def plays_role(item: Any) -> bool:
    """Tell whether an object from outside may be another one in the next call, if it is like it."""
    if type(item) is tuple:
        return not is_plain_tuple(item)
    return type(item) in (*_CONTAINERS, types.MethodType) or stands_in(item)


def is_plain_tuple(item: Any) -> bool:
    """Tell whether a tuple is known by what is in it."""
    return isinstance(item, tuple) and not any(
        isinstance(part, np.ndarray) or plays_role(part) for part in item
    )


@dataclass
class Roles:
    """The roles in one trace, in the order in which calls find their objects."""

    known: dict[int, tuple[Any, Role]] = field(default_factory=dict)
    again: list[tuple[int, Role]] = field(
        default_factory=list
    )  # arguments that are the same object
    made: dict[int, Any] = field(default_factory=dict)  # records that the trace made
    pinned: bool = False

    def of(self, item: Any) -> Role | None:
        """Return the role of an object."""
        found = self.known.get(id(item))
        return None if found is None else found[1]

    def add_argument(self, item: Any, leaf: int) -> None:
        """Note an object that is passed."""
        if (role := self.of(item)) is not None:
            self.again.append((leaf, role))
        else:
            self._add(item, None, leaf, (leaf,))

    def add_function(self, fn: Any) -> None:
        """Note the function that is traced, if it has objects of its own, and the variables of its closure."""
        if has_own_objects(fn):
            self._add(fn, None, FUNCTION, (FUNCTION,))
            for number, cell in enumerate(getattr(fn, "__closure__", None) or ()):
                self._add(cell, fn, Closure(number), (FUNCTION, number))

    def add(self, holder: Any, key: Any, item: Any) -> None:
        """Note what was found outside, and what is in it."""
        if (plays_role(item) or is_record(item)) and id(item) not in self.known:
            self._add(item, holder, key, self.place(holder, key))

    def place(self, holder: Any, key: Any) -> Place:
        """Return the way to what a holder has under a key."""
        if type(holder) is Presence:
            return "has", *self.place(held_in(holder), key)
        role = self.of(holder)
        return (("at", id(holder)) if role is None else role.place) + (key,)

    def _add(self, item: Any, holder: Any, key: Any, place: Place, depth: int = _DEEPEST) -> None:
        if len(place) > _LONGEST:  # as in a long chain of objects
            place = ("at", id(item))
        role = Role(len(self.known), type(item), self.of(holder) or holder, key, place)
        self.known[id(item)] = item, role
        own = getattr(item, "__dict__", None) if stands_in(item) else None
        if type(own) is dict and id(own) not in self.known:
            self._add(own, item, Attributes, (*place, Attributes), 0)
        for at, part in _parts(item) if depth else ():
            is_known = id(part) in self.known or (depth == 1 and type(part) in _CONTAINERS)
            if plays_role(part) and not is_known:
                self._add(part, item, at, (*place, at), depth - 1)

    def objects(self) -> list[Any]:
        """Return the objects that play the roles in the trace."""
        return [item for item, _ in self.known.values()]

    def note_native(self, *items: Any, arrays: bool = False) -> None:
        """Objects, or `arrays` in containers, are given to code that is not traced: what it sees of them nobody knows."""
        if not self.pinned and any(_has_object(item, arrays) for item in items):
            self.pinned = True


def has_own_objects(fn: Any) -> bool:
    """Tell whether a function is the method of an object of the user's, or one that finds such in its closure."""
    if isinstance(fn, types.MethodType):
        return stands_in(fn.__self__) and isinstance(fn.__func__, types.FunctionType)
    return isinstance(fn, types.FunctionType) and any(map(_holds_object, fn.__closure__ or ()))


def _holds_object(cell: types.CellType) -> bool:
    try:
        return stands_in(cell.cell_contents)
    except ValueError:
        return False


def _parts(item: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(item, dict):
        yield from item.items()
    elif isinstance(item, _CONTAINERS):
        yield from enumerate(item)


def _has_object(item: Any, arrays: bool = False, depth: int = 6) -> bool:
    """Tell whether an object of the user's, or an array in a container, is in reach of who gets this."""
    if type(item) in _PLAIN:
        return False
    if isinstance(item, np.ndarray):
        return arrays
    if isinstance(item, types.MethodType):
        return _has_object(item.__self__)
    if isinstance(item, functools.partial):
        given = (item.func, *item.args, *item.keywords.values())
        return any(_has_object(part, arrays) for part in given)
    if isinstance(item, (*_CONTAINERS, set, frozenset)):
        if not depth:
            return True
        parts = (*item, *item.values()) if isinstance(item, dict) else item
        return any(_has_object(part, arrays, depth - 1) for part in parts)
    return stands_in(item)


_PLAIN = {int, float, complex, bool, str, bytes, type(None), slice, range, type}


_NO_IDENTITY = (tuple, types.MethodType, types.FunctionType, types.CellType)


def places_in(roles: Sequence[Role]) -> list[list[int]]:
    """Return the numbers of roles among which no object may play two: those of one type that has identity."""
    kinds: dict[type, list[int]] = {}
    for role in roles:
        if role.kind not in _NO_IDENTITY and role.key is not Attributes:
            kinds.setdefault(role.kind, []).append(role.number)
    return [numbers for numbers in kinds.values() if len(numbers) > 1]
