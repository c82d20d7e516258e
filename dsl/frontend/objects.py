"""Instances of the user's classes that a trace makes.

Such an object is a leaf where it was made, and in the branches and loops inside: they change its attributes. Outside the
region that made it there is no such object; what leaves the region is the tree of its attributes, of which a new object is
made. A variable that is such a tree on one way and an object from before on another becomes a tree on both.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator
from typing import Any

from dsl.frontend.scopes import current_trace
from dsl.frontend.trees import LEAF, OBJECTS, Objects, Structure

__all__ = ["as_trees", "is_plain_type", "note_made", "was_made_here"]


class _Made(Objects):
    def is_tree(self, tree: Any) -> bool:
        trace = current_trace()
        if trace is None or id(tree) not in trace.made:
            return False
        _, scope = trace.made[id(tree)]
        if id(tree) in trace.trees or trace.finishing:
            return True
        region = trace.scopes[-1]
        return scope is not trace.root and (region is scope or not scope.encloses(region))

    def is_made(self, tree: Any) -> bool:
        trace = current_trace()
        return trace is not None and id(tree) in trace.made

    def add(self, obj: Any) -> None:
        trace = current_trace()
        if trace is not None:
            trace.made[id(obj)] = (obj, trace.scopes[-1])

    def add_record(self, obj: Any) -> None:
        trace = current_trace()
        if trace is not None:
            trace.roles.made[id(obj)] = obj


OBJECTS[0] = _Made()


def note_made(obj: Any) -> None:
    """Remember an instance of a user's class that the current region makes."""
    OBJECTS[0].add(obj)


def was_made_here(obj: Any) -> bool:
    """Tell whether the current region made an object, so that nothing outside knows it."""
    trace = current_trace()
    if trace is None:
        return False
    return trace.made.get(id(obj), (None, _scope_of(obj)))[1] is trace.scopes[-1]


def _scope_of(obj: Any) -> Any:
    """Return the region that an iterator belongs to."""
    return getattr(obj, "dsl_scope", None) if hasattr(type(obj), "dsl_cursor") else None


def as_trees(before: Any, afters: list[Any]) -> bool:
    """Make trees of objects in variables, or inside them, that a block leaves as trees of the same class; tell whether there were any."""
    trace = current_trace()
    assert trace is not None
    found = False
    for cell in range(len(before.objects) if trace.made else 0):
        ends = [(s.leaves[cell], s.structures[cell]) for s in (before, *afters)]
        for (leaves, structure), (_, other) in itertools.permutations(ends, 2):
            for item in _leaves_against(structure, iter(leaves), other):
                _, maker = trace.made.get(id(item), (None, None))
                # What the block made is made anew when it is traced again, so that this would not end.
                if (
                    maker is not None
                    and maker.encloses(trace.scopes[-1])
                    and id(item) not in trace.trees
                ):
                    trace.trees[id(item)] = item
                    found = True
    return found


def _leaves_against(structure: Structure, leaves: Iterator[Any], other: Structure) -> Iterator[Any]:
    """Yield the objects that are leaves of one tree where another tree has a tree of their class."""
    if structure.type is None:
        leaf = next(leaves)
        if other.type is type(leaf):
            yield leaf
        return
    alike = (structure.type, structure.keys) == (other.type, other.keys)
    twins = other.children if alike else (LEAF,) * len(structure.children)
    for child, twin in zip(structure.children, twins, strict=True):
        yield from _leaves_against(child, leaves, twin)


def is_plain_type(cls: Any) -> bool:
    """Tell whether calling a class does what Python's own classes do, those with abstract methods included."""
    return type(cls) is type or type(cls) is abc.ABCMeta
