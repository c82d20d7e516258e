"""Trees of arguments and results: tuples, lists, dicts, named tuples, dataclasses and None around leaves.

`flatten(tree)` returns the leaves and a structure; `unflatten(structure, leaves)` puts them together again. Dict entries
keep their order; None has no leaves. Any other object is a leaf.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Forward",
    "Structure",
    "arranged",
    "attributes_of",
    "flatten",
    "forwarded",
    "leaves_with_paths",
    "map_leaves",
    "unflatten",
]


@dataclass(frozen=True)
class Structure:
    """The shape of a tree: the type of each container, its keys, and its children; `None` type for a leaf."""

    type: Any
    keys: tuple[Any, ...] = ()
    children: tuple[Structure, ...] = ()

    def __str__(self) -> str:
        if self.type is None:
            return "*"
        inner = ", ".join(f"{k}={c}" for k, c in zip(self.keys, self.children, strict=True))
        return f"{self.type.__name__}({inner})"


LEAF = Structure(None)


class Forward:
    """The only item of a Python list that became a traced one, so that its other names find that: see `forwarded`."""

    def __init__(self, target: Any) -> None:
        self.target = target


class Objects:
    """Which instances of classes that the user wrote are trees of their attributes: those that a trace has made."""

    def is_tree(self, tree: Any) -> bool:
        """Tell whether an object is a tree here, and not a leaf."""
        return False

    def is_made(self, tree: Any) -> bool:
        """Tell whether a trace has made an object."""
        return False

    def add(self, obj: Any) -> None:
        """Note that an object was made."""

    def add_record(self, obj: Any) -> None:
        """Note that a dataclass was made."""


OBJECTS: list[Objects] = [Objects()]
"""Set by `dsl.frontend.objects`, which knows the trace."""


LEAVES: set[type] = {bool, int, float, complex, str}
"""Types that surely are no containers: tables of many numbers are looked through often. `dsl.frontend.traced` adds its own."""


def forwarded(tree: Any) -> Any:
    """Return what stands for a list now, and anything else as it is."""
    if type(tree) is list and len(tree) == 1 and type(tree[0]) is Forward:
        return tree[0].target
    return tree


def _parts(tree: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """Return keys and children of a container, or None for a leaf."""
    kind = type(tree)
    if tree is None:
        return (), ()
    if kind in (tuple, list) or (isinstance(tree, tuple) and hasattr(tree, "_fields")):
        return tuple(range(len(tree))), tuple(tree)
    if isinstance(tree, dict) and kind.__name__ in ("dict", "OrderedDict", "defaultdict"):
        return tuple(tree), tuple(tree.values())
    if hasattr(kind, "dsl_flatten"):
        parts: tuple[tuple[Any, ...], tuple[Any, ...]] = tree.dsl_flatten()
        return parts
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = tuple(f.name for f in dataclasses.fields(tree))
        return names, tuple(getattr(tree, n) for n in names)
    if OBJECTS[0].is_tree(tree):
        held = attributes_of(tree)
        return tuple(held), tuple(held.values())
    return None


def attributes_of(obj: Any) -> dict[str, Any]:
    """Return the attributes that an instance has itself: those in its `__dict__`, and its `__slots__` that hold something."""
    slots = {
        name: slot
        for cls in reversed(type(obj).__mro__)
        for name, slot in vars(cls).items()
        if isinstance(slot, types.MemberDescriptorType)
    }
    filled = {name: getattr(obj, name) for name in slots if hasattr(obj, name)}
    return {**filled, **getattr(obj, "__dict__", {})}


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree, left to right, and its structure."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any], inside: tuple[Any, ...] = ()) -> Structure:
    if type(tree) in LEAVES:
        leaves.append(tree)
        return LEAF
    tree = forwarded(tree)
    parts = _parts(tree)
    if parts is None or any(tree is each for each in inside):
        leaves.append(tree)
        return LEAF
    if OBJECTS[0].is_tree(tree):
        inside = (*inside, tree)  # an object may refer to itself
    keys, children = parts
    return Structure(type(tree), keys, tuple(_flatten(child, leaves, inside) for child in children))


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Build a tree of a structure from its leaves."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    kind = structure.type
    if kind is None:
        return next(leaves)
    children = [_unflatten(child, leaves) for child in structure.children]
    if kind is type(None):
        return None
    if kind in (tuple, list):
        return kind(children)
    if hasattr(kind, "dsl_unflatten"):
        return kind.dsl_unflatten(structure.keys, children)
    if issubclass(kind, tuple):
        return kind(*children)
    pairs = dict(zip(structure.keys, children, strict=True))
    if issubclass(kind, dict):
        return kind(pairs) if kind.__name__ != "defaultdict" else pairs
    return _dataclass(kind, pairs)


def _dataclass(kind: Any, values: dict[str, Any]) -> Any:
    """Make an instance without running `__init__`, so that no check or default of it sees traced values."""
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    is_record = hasattr(kind, "__dataclass_fields__")
    (OBJECTS[0].add_record if is_record else OBJECTS[0].add)(made)
    return made


def arranged(tree: Any, structure: Structure) -> Any:
    """Return a tree with the entries of its dicts in the order of a structure's, where they have the same keys."""
    parts = _parts(tree)
    if parts is None or type(tree) is not structure.type or set(parts[0]) != set(structure.keys):
        return tree
    held = dict(zip(*parts, strict=True))
    children = [
        arranged(held[key], child)
        for key, child in zip(structure.keys, structure.children, strict=True)
    ]
    return unflatten(Structure(structure.type, structure.keys, (LEAF,) * len(children)), children)


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Apply `fn` to every leaf."""
    leaves, structure = flatten(tree)
    return unflatten(structure, map(fn, leaves))


def leaves_with_paths(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf with a path such as `x['w'][0]` for messages."""
    parts = _parts(tree)
    if parts is None:
        yield path, tree
        return
    for key, child in zip(*parts, strict=True):
        step = f".{key}" if dataclasses.is_dataclass(tree) else f"[{key!r}]"
        yield from leaves_with_paths(child, path + step)
