"""The state of a branch or loop: what must be the same object again before it is traced a second time, and what it changed.

State lives in cells: the local variables that the block names, attributes that it assigns, and inside both the leaves of
lists, dicts and other trees. Contents of traced arrays are not here: scopes keep track of those.
"""

from __future__ import annotations

import collections
import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.errors import BranchError, DslError, UndefinedError
from dsl.frontend.holders import Holder, holder_of, put_back_containers
from dsl.frontend.objects import was_made_here
from dsl.frontend.scopes import FROM_OUTSIDE, Scope, current_scope, current_trace, here
from dsl.frontend.traced import Traced
from dsl.frontend.trees import (
    LEAVES,
    OBJECTS,
    Forward,
    Structure,
    attributes_of,
    flatten,
    forwarded,
    unflatten,
)
from dsl.frontend.user_code import own_method_of

__all__ = [
    "Snapshot",
    "State",
    "Undefined",
    "is_mutable",
    "is_numeric",
    "is_opaque",
    "keep",
    "put_in_place",
    "refill",
    "set_attribute",
    "setter_of",
    "undefined_attribute",
]


_UNNAMED = {"dsl__result": ("the result of a function", "the result")}


class Undefined:
    """Stands for a variable that has no value on some path; any use of it raises."""

    __slots__ = ("defined", "error", "name", "reason", "remedy")

    def __init__(
        self,
        name: str,
        reason: str = "",
        remedy: str = "",
        defined: Any = None,
        error: type[DslError] = UndefinedError,
    ) -> None:
        self.name, self.reason, self.remedy, self.defined = name, reason, remedy, defined
        self.error = error

    def fail(self) -> Any:
        subject, short = f"the variable `{self.name}`", f"`{self.name}`"
        if self.name.startswith("dsl__"):  # a name that the user did not write
            subject, short = _UNNAMED.get(self.name, ("a conditional expression", "it"))
        remedy = self.remedy or f"give `{self.name}` a value before the branch or loop"
        raise self.error(
            f"{subject} {self.reason or 'has no value here'}",
            location=here(),
            remedy=remedy.replace(f"`{self.name}`", short),
        )

    def _use(self, *args: Any, **kwargs: Any) -> Any:
        return self.fail()

    __getattr__ = __getitem__ = __setitem__ = __call__ = __iter__ = __len__ = __bool__ = (
        __float__
    ) = __int__ = __index__ = _use
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        __pow__
    ) = __rpow__ = _use
    __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __array__ = (
        __matmul__
    ) = __rmatmul__ = _use
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __and__ = __or__ = __xor__ = __lshift__ = (
        __rshift__
    ) = __iadd__ = _use
    __hash__ = object.__hash__


def is_mutable(item: Any) -> bool:
    """Tell whether an object is a container whose contents can change."""
    frozen = getattr(getattr(type(item), "__dataclass_params__", None), "frozen", False)
    has_fields = hasattr(type(item), "__dataclass_fields__") and not frozen
    is_known = has_fields or hasattr(type(item), "dsl_refill") or OBJECTS[0].is_tree(item)
    return isinstance(item, (list, dict)) or is_known


def is_numeric(leaf: Any) -> bool:
    """Tell whether a leaf can be carried through the graph."""
    return isinstance(leaf, (Traced, np.ndarray, np.generic, bool, int, float, complex))


@dataclass
class Snapshot:
    """The objects in the cells at one moment, with the contents of the containers among them."""

    objects: list[Any]
    structures: list[Structure]
    leaves: list[list[Any]]
    objects_then: list[Any] = field(default_factory=list)
    opaque: list[tuple[str, Any, Any]] = field(default_factory=list)
    holders: list[Holder | None] = field(default_factory=list)

    def refuse_changes(self) -> None:
        """Put back sets and their like, which are not followed, and refuse if they have changed since this moment."""
        for name, item, contents in self.opaque:
            if _items_of(item) == _items_of(contents):
                continue
            _refill_opaque(item, contents)
            raise BranchError(
                f"the {type(item).__name__} `{name}` changes in a branch or loop that the data decides",
                location=here(),
                remedy="use a list, a dict with all its keys, or an array of flags",
            )

    def forget(self) -> None:
        """Let go of the objects, so that what nothing else refers to disappears."""
        self.objects.clear()
        self.leaves.clear()
        self.holders.clear()


_OPAQUE = (set, bytearray, collections.deque, collections.Counter)


def is_opaque(item: Any) -> bool:
    """Tell whether an object is a container whose contents are not followed through branches and loops."""
    return isinstance(item, _OPAQUE) and not hasattr(type(item), "dsl_refill")


def _items_of(item: Any) -> list[Any]:
    """Return what tells the contents of a container: its items are not compared, since they may be traced."""
    parts = [part for pair in item.items() for part in pair] if isinstance(item, dict) else item
    return list(item) if isinstance(item, bytearray) else list(map(id, parts))


def _refill_opaque(item: Any, contents: Any) -> None:
    item.clear()
    (item.extend if isinstance(item, (bytearray, collections.deque)) else item.update)(contents)


class State:
    """The cells of one block: variables, of which the first `assigned` are assigned in it, and attributes that it assigns."""

    def __init__(
        self,
        get: Callable[[], list[Any]],
        put: Callable[[list[Any]], None],
        names: tuple[str, ...],
        assigned: int,
    ) -> None:
        self._get, self._put, self._names, self.assigned = get, put, names, assigned
        self._own = getattr(get, "__closure__", None) or ()
        self.attributes: list[tuple[Any, str]] = []

    def anew(self) -> State:
        """Return the same variables without attributes."""
        made = State(self._get, self._put, self._names, self.assigned)
        made._own = self._own
        return made

    def run_if(self, if_: Callable[..., None], test: Any, block: Callable[[], Any]) -> None:
        """Run an `if` statement of these cells."""
        if_(test, block, lambda: None, self._get, self._put, self._names, self.assigned)

    def with_cell(self, name: str, box: list[Any]) -> State:
        """Return the same cells, and before them a variable that is assigned: what a list of one item holds."""

        def put(objects: list[Any]) -> None:
            box[0] = objects[0]
            self._put(objects[1:])

        names = (name, *self._names)
        made = State(lambda: [box[0], *self._get()], put, names, self.assigned + 1)
        made._own = self._own
        return made

    @property
    def names(self) -> list[str]:
        return [*self._names, *(_shown_name(*attribute) for attribute in self.attributes)]

    def put(self, objects: list[Any]) -> None:
        """Set every cell."""
        count = len(self._names)
        self._put(objects[:count])
        for (obj, name), value in zip(self.attributes, objects[count:], strict=True):
            set_attribute(obj, name, value)

    def commit(self, objects: list[Any], before: Snapshot) -> None:
        """Set every cell for good: the scope around remembers what the attributes were."""
        trace = current_trace()
        olds = before.objects[len(self._names) :]
        for (obj, name), old in zip(self.attributes, olds, strict=True):
            if trace is not None and not was_made_here(obj):
                trace.scopes[-1].attributes.setdefault((id(obj), name), (obj, name, old))
        self.put(objects)

    def is_assigned(self, cell: int) -> bool:
        return cell < self.assigned or cell >= len(self._names)

    def put_back_others(self, scope: Scope) -> None:
        """Undo what a scope did to attributes that are not cells yet, for the next branch to start from."""
        for obj, name, old in scope.attributes.values():
            if not self._has(obj, name):
                put_back(scope, obj, name, old)

    def _has(self, obj: Any, name: str) -> bool:
        """Tell whether an attribute, or the variable of a closure, is one of the cells."""
        known = any(obj is o and name == n for o, n in self.attributes)
        return known or any(obj is cell for cell in self._own)

    def adopt_attributes(self, *scopes: Scope) -> bool:
        """Make cells of attributes that the scopes assigned, with their old values put back; tell whether there were any."""
        found = False
        around = current_scope()
        for scope in scopes:
            for obj, name, old in scope.attributes.values():
                if not self._has(obj, name):
                    put_back(scope, obj, name, old)
                    if id(old) in scope.opened and not was_made_here(obj):
                        open_attribute(around, obj, name)
                    else:
                        _begin_outside(obj, name, old)
                    self.attributes.append((obj, name))
                    found = True
        return found

    def snapshot(self) -> Snapshot:
        """Record the cells."""
        objects = [
            *self._get(),
            *(held_by(obj, name) for obj, name in self.attributes),
        ]
        objects = [
            _fresh(name, forwarded(item)) for name, item in zip(self.names, objects, strict=True)
        ]
        pairs = [flatten(item) for item in objects]
        then = [list(item) if type(item) is list else item for item in objects]
        named = zip(self.names, pairs, strict=True)
        opaque = [
            (name, leaf, copy.copy(leaf))
            for name, (leaves, _) in named
            for leaf in leaves
            if is_opaque(leaf)
        ]
        structures, leaves = [s for _, s in pairs], [leaves for leaves, _ in pairs]
        holders = list(map(holder_of, objects))
        return Snapshot(objects, structures, leaves, then, opaque, holders)

    def is_as(self, before: Snapshot) -> bool:
        """Tell whether the cells hold what they held, apart from variables that were assigned another object."""
        now = self.snapshot()
        kept = [
            cell
            for cell, item in enumerate(now.objects)
            if item is before.objects[cell] or not self.is_assigned(cell)
        ]
        return all(
            now.structures[cell] == before.structures[cell]
            and all(x is y for x, y in zip(now.leaves[cell], before.leaves[cell], strict=True))
            for cell in kept
        )

    def restore(self, before: Snapshot) -> None:
        """Put every object and the contents of every container back."""
        if not before.leaves:
            return
        for holder in before.holders:
            put_back_containers(holder)
        for item, structure, leaves in zip(
            before.objects, before.structures, before.leaves, strict=True
        ):
            refill(item, structure, leaves)
        self.put(list(before.objects))

    def restore_variables(self, first: Snapshot) -> None:
        """Put back what the variables were before lists and None in them became traced."""
        if first.leaves:
            count = len(self._names)
            for cell in range(count):
                refill(first.objects[cell], first.structures[cell], first.leaves[cell])
            self._put(list(first.objects[:count]))


def _begin_outside(obj: Any, name: str, old: Any) -> None:
    """Let what a branch or loop assigns begin as what calls find outside: paths that do not assign it leave that as it is."""
    trace = current_trace()
    if trace is None or id(obj) not in trace.outside or not isinstance(old, _PLAIN):
        return
    key = id(obj), name
    if any(key in scope.attributes for scope in trace.scopes):
        return
    found = FROM_OUTSIDE[0](obj, name, old)
    if found is not old:
        trace.root.attributes[key] = (obj, name, old)
        set_attribute(obj, name, found)


_PLAIN = (np.ndarray, np.generic, int, float, complex, str, bytes, type(None))


def put_in_place(get: Callable[[], list[Any]], names: tuple[str, ...]) -> Callable[[Any], None]:
    """Return what puts objects into variables that an expression cannot assign: containers get the contents."""

    def put(objects: list[Any]) -> None:
        for name, held, new in zip(names, get(), objects, strict=True):
            old = _fresh(name, forwarded(held))
            if new is old or isinstance(old, Undefined):
                continue
            if isinstance(new, Undefined):
                new.fail()
            if type(old) is list and type(new) is not list:
                change_contents(old, new)
            else:
                _overwrite(old, new)

    return put


def _fresh(name: str, item: Any) -> Any:
    """Take a value left over from a region that is closed, which a dead variable may hold, for none."""
    trace = current_trace()
    if trace is None:
        return item
    stale = any(
        isinstance(leaf, Traced) and not leaf.storage.scope.encloses(trace.scopes[-1])
        for leaf in flatten(item)[0]
    )
    if stale and OBJECTS[0].is_made(item):
        return Undefined(
            name,
            "holds objects in lists or dicts that a branch or loop changes, which is not followed here",
            f"give the objects in `{name}` variables of their own before the branch or loop",
        )
    return Undefined(name) if stale else item


def held_by(obj: Any, name: str) -> Any:
    """Return an attribute; a cell of a closure without a value raises ValueError for it, and a cached property is not asked."""
    if isinstance(getattr(type(obj), name, None), functools.cached_property):
        return vars(obj).get(name, Undefined(name))
    try:
        return getattr(obj, name)
    except (AttributeError, ValueError):
        missing = undefined_attribute(obj, name)
        return missing if missing.reason else Undefined(_shown_name(obj, name))


def _shown_name(obj: Any, name: str) -> str:
    """Return the name of an attribute, or of the variable that a cell of a closure holds."""
    trace = current_trace()
    return trace.borrowed.get(id(obj), (obj, name))[1] if trace is not None else name


def setter_of(kind: type) -> Callable[[Any, str, Any], None]:
    """Return what puts an attribute into an object of a class. A `__setattr__` of the user's has been traced, and is not asked again."""
    return object.__setattr__ if own_method_of(kind, "__setattr__") is not None else setattr


def set_attribute(obj: Any, name: str, value: Any) -> None:
    """Set or, for an undefined value, delete an attribute, whatever the class thinks of it."""
    plain: Any = type if isinstance(obj, type) else object
    if not isinstance(value, Undefined):
        plain.__setattr__(obj, name, value)
        return
    trace = current_trace()
    if trace is not None and value.reason:
        trace.undefined[id(obj), name] = (obj, value)
    if not isinstance(held_by(obj, name), Undefined):
        plain.__delattr__(obj, name)


def undefined_attribute(obj: Any, name: str) -> Undefined:
    """Return what stands for an attribute that is not there, with the reason if branches disagreed about it."""
    trace = current_trace()
    if trace is None or (id(obj), name) not in trace.undefined:
        return Undefined(name)
    found: Undefined = trace.undefined[id(obj), name][1]
    return found


def open_attribute(scope: Scope, obj: Any, name: str) -> None:
    """Remember a list or dict that an attribute holds, and what is in it, before a scope changes it in place."""
    held = getattr(obj, name)
    if (id(obj), name) not in scope.attributes:
        scope.attributes[id(obj), name] = (obj, name, held)
        if id(held) not in scope.opened:  # another object may hold it, too
            scope.opened[id(held)] = (held, *flatten(held))


def put_back(scope: Scope, obj: Any, name: str, old: Any) -> None:
    """Give an attribute the value that it had before a scope assigned or changed it."""
    trace = current_trace()
    if trace is not None and (id(obj), name) in trace.inherited:
        if name in getattr(obj, "__dict__", ()):
            (type if isinstance(obj, type) else object).__delattr__(obj, name)
    elif held_by(obj, name) is not old:  # an object does not get for its own what its class has
        set_attribute(obj, name, old)
    if id(old) in scope.opened:
        held, leaves, structure = scope.opened[id(old)]
        refill(held, structure, leaves)


def change_contents(held: Any, tree: Any) -> None:
    """Make a list or dict equal to another one, or a list stand for a traced one."""
    if isinstance(held, dict):
        held.clear()
        held.update(tree)
    elif type(held) is list:
        held[:] = tree if type(tree) is list else [Forward(tree)]
    else:
        held.dsl_refill(tree)


def refill(item: Any, structure: Structure, leaves: list[Any]) -> None:
    """Make a mutable container hold the given leaves again, in place."""
    refills = isinstance(item, (list, dict)) or hasattr(type(item), "dsl_refill")
    if structure.type is None or not (structure.children or refills):
        return
    rebuilt = unflatten(structure, leaves)
    _overwrite(item, rebuilt)


def _overwrite(item: Any, rebuilt: Any) -> None:
    if isinstance(item, list):
        if len(item) == len(rebuilt):
            for k, (old, new) in enumerate(zip(item, rebuilt, strict=True)):
                item[k] = keep(old, new)
        else:
            item[:] = rebuilt
    elif isinstance(item, dict):
        kept = {k: keep(item[k], v) if k in item else v for k, v in rebuilt.items()}
        item.clear()
        item.update(kept)
    elif hasattr(item, "dsl_refill"):
        item.dsl_refill(rebuilt)
    elif isinstance(item, tuple):
        for old, new in zip(item, rebuilt, strict=True):
            keep(old, new)
    elif hasattr(item, "__dataclass_fields__") or OBJECTS[0].is_tree(item):
        for name in getattr(item, "__dataclass_fields__", None) or attributes_of(rebuilt):
            held = getattr(item, name, None)  # a branch may have left it without a value
            object.__setattr__(item, name, keep(held, getattr(rebuilt, name)))


def keep(old: Any, new: Any) -> Any:
    """Keep the identity of a nested container, with new contents."""
    if type(new) in LEAVES:
        return new
    for held in (old, forwarded(old)):
        mutable = (
            isinstance(held, (list, dict))
            or hasattr(held, "__dataclass_fields__")
            or hasattr(held, "dsl_refill")
            or OBJECTS[0].is_tree(held)
        )
        if type(held) is type(new) and mutable:
            _overwrite(held, new)
            return old
    return old if _are_alike(old, new) else new


def _are_alike(old: Any, new: Any) -> bool:
    """Tell whether a tuple holds what another one does: objects from outside keep theirs, which calls are guarded by."""
    if old is new or type(old) is not type(new) or not isinstance(old, tuple):
        return old is new
    return len(old) == len(new) and all(map(_are_alike, old, new))
