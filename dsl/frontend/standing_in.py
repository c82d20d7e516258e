"""A function that was traced with certain objects is made one for all objects that may play their roles.

In: what a trace gave, with the objects that it saw. Out: the same with roles in their places, or, if it depends on more of them than
calls look at, as it was, and `pinned`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsl.frontend.roles import Presence, Role, held_in, stands_in
from dsl.frontend.scopes import Trace
from dsl.frontend.signature import Arguments, Same
from dsl.frontend.trees import Structure

if TYPE_CHECKING:
    from dsl.frontend.tracing import Source, TracedFunction

__all__ = ["for_others"]


def for_others(made: TracedFunction, trace: Trace, arguments: Arguments) -> TracedFunction:
    """Return a traced function for all calls whose objects may play the roles of those that it was traced with."""
    objects = trace.roles.objects()
    if not objects:
        return made
    roles = [role for _, role in trace.roles.known.values()]
    general = replace(made, roles=roles, again=trace.roles.again)
    if (
        trace.roles.pinned
        or made.variables
        or made.resources
        or not _finds(general, arguments, objects)
    ):
        return replace(made, pinned=True)
    named = functools.partial(_role_of, trace)
    structures = [
        made.result[0],
        *(s for _, s, _ in made.containers),
        *(s for *_, s, _ in made.attributes),
    ]
    if not all(map(_has_plain_keys, (arguments.structure, *structures))):
        return replace(made, pinned=True)
    try:
        general = replace(
            general,
            guards=[
                (named(holder), key, named(value), _contents_named(contents, named))
                for holder, key, value, contents in made.guards
            ],
            captures=[replace(c, holder=named(c.holder)) for c in made.captures],
            shared=[(named(holder), key, param) for holder, key, param in made.shared],
            result=(made.result[0], _named_sources(made.result[1], named)),
            containers=[
                (k, s, _named_sources(sources, named)) for k, s, sources in made.containers
            ],
            attributes=[
                (named(obj), name, in_place, s, _named_sources(sources, named))
                for obj, name, in_place, s, sources in made.attributes
            ],
        )
    except _FixedError:
        return replace(made, pinned=True)
    arguments.found = general, objects
    return general


class _FixedError(Exception):
    """A result is an object of which nobody knows what it holds."""


def _role_of(trace: Trace, item: Any) -> Any:
    """Return the role of an object, or the object if it has none."""
    if type(item) is Presence:
        return Presence(_role_of(trace, held_in(item)))
    return trace.roles.of(item) or item


def _finds(made: TracedFunction, arguments: Arguments, objects: list[Any]) -> bool:
    """Tell whether the objects of the trace are found at their places; bound methods are made anew."""
    found = made.cast(replace(arguments, found=None))
    return not isinstance(found, str) and all(
        one is other or (isinstance(one, types.MethodType) and one == other)
        for one, other in zip(found, objects, strict=True)
    )


def _contents_named(contents: Any, named: Callable[[Any], Any]) -> Any:
    if isinstance(contents, Same):
        return Same(named(contents.item))
    if isinstance(contents, tuple) and isinstance(contents[1], list):
        return contents[0], [(key, _contents_named(item, named)) for key, item in contents[1]]
    return contents


def _named_sources(sources: list[Source], named: Callable[[Any], Any]) -> list[Source]:
    """Return sources with roles in the place of objects."""
    made = []
    for source in sources:
        if source.kind == "static":
            source = replace(source, value=named(source.value))
            if not _is_fixed(source.value):
                raise _FixedError
        elif source.kind == "either":
            chosen, sides = source.value
            inner = [s for _, more in sides.values() for s in more]
            if any(s.kind == "static" and type(named(s.value)) is Role for s in inner):
                raise _FixedError
            _named_sources([chosen, *inner], named)
        made.append(source)
    return made


def _is_fixed(value: Any) -> bool:
    """Tell whether a result is the same thing whatever objects a call is about."""
    if isinstance(value, types.FunctionType):
        return value.__closure__ is None
    return isinstance(value, _FIXED)


_FIXED = (
    Role, int, float, complex, str, bytes, type(None), np.generic, np.dtype, type, types.ModuleType, slice, range,
    type(Ellipsis), types.BuiltinFunctionType, np.ufunc,
)  # fmt: skip


def _has_plain_keys(structure: Structure) -> bool:
    plain = not any(stands_in(key) or isinstance(key, tuple) for key in structure.keys)
    return plain and all(map(_has_plain_keys, structure.children))
