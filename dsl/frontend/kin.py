"""Functions of the same code for objects of their own: methods of many instances that are compiled each, and closures over them.

What was compiled for one of them, and has roles for the objects that it found through the function, may serve the others. It is kept
here, the latest of it, by the code, the variables of its module, and all options.
"""

from __future__ import annotations

import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dsl.config import OPTIONS, config
from dsl.frontend.roles import FUNCTION, Role, has_own_objects, is_users_class, stands_in
from dsl.frontend.signature import Arguments
from dsl.frontend.sizes import Pattern

__all__ = ["Kin", "Taken", "has_kin", "key_of"]

E = TypeVar("E")

_MOST_CODES = 64
_MOST_ENTRIES = 16


@dataclass(frozen=True)
class Taken(Generic[E]):
    """What was compiled for one of the functions, for certain sizes or for a pattern of them."""

    key: Any
    family: Any
    pattern: Pattern | None
    entry: E

    def fits(self, arguments: Arguments) -> bool:
        """Tell whether it was compiled for such arguments, whatever is outside."""
        if self.pattern is None:
            return bool(self.key == arguments.key)
        return self.family == arguments.family and self.pattern.admits(arguments.sizes)


class Kin(Generic[E]):
    """What was compiled for functions of the same code."""

    def __init__(self) -> None:
        self._known: OrderedDict[Any, list[Taken[E]]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, key: Any, taken: Taken[E]) -> None:
        """Keep what was compiled."""
        with self._lock:
            kept = self._known.setdefault(key, [])
            kept.append(taken)
            del kept[:-_MOST_ENTRIES]
            self._known.move_to_end(key)
            while len(self._known) > _MOST_CODES:
                self._known.popitem(last=False)

    def fitting(self, key: Any, arguments: Arguments) -> Iterator[Taken[E]]:
        """Yield what was compiled for such arguments, the latest first."""
        with self._lock:
            kept = list(self._known.get(key, ())) if key is not None else []
        return (taken for taken in reversed(kept) if taken.fits(arguments))


def key_of(fn: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Return what functions have in common of which one may do with what was compiled for another; None for those without objects."""
    if not has_own_objects(fn):
        return None
    plain: Any = fn.__func__ if isinstance(fn, types.MethodType) else fn
    in_force = tuple(repr(getattr(config, name)) for name in OPTIONS)
    return plain.__code__, id(plain.__globals__), repr(sorted(options.items())), in_force


def has_kin(roles: list[Role], guards: list[Any]) -> bool:
    """Tell whether a traced function found the user's objects through itself, and is bound to no others."""
    through = any(role.holder is None and role.key is FUNCTION for role in roles)
    fixed = (item for holder, _, expected, _ in guards for item in (holder, expected))
    return (
        through
        and any(is_users_class(role.kind) for role in roles)
        and not any(map(_is_bound, fixed))
    )


def _is_bound(item: Any) -> bool:
    return stands_in(item) or isinstance(item, types.CellType) or has_own_objects(item)
