"""Which container holds which: lists, dicts and objects inside others, by identity.

The leaves of a tree tell what a variable holds, not whether `d["a"]` is still the list that `inner` names. A branch may put another
list there, or exchange two. So snapshots keep the containers as well: what is put back is the very same ones, and where a block
leaves another one, the container around gets a new one, which stands for the one or the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dsl.frontend.choices import note_choice
from dsl.frontend.trees import LEAVES, OBJECTS, attributes_of, flatten, forwarded, unflatten

__all__ = ["Holder", "Replaced", "holder_of", "put_back_containers", "replace_changed"]


@dataclass(frozen=True)
class Holder:
    """A container at one moment: what it held, and which of that were containers."""

    item: Any
    contents: Any
    inside: dict[Any, Holder]


def holder_of(tree: Any, around: tuple[Any, ...] = ()) -> Holder | None:
    """Return a container with those inside it; None for anything else."""
    contents = _contents(tree)
    if contents is None or any(tree is each for each in around):
        return None
    pairs = contents.items() if isinstance(contents, dict) else enumerate(contents)
    found = {key: holder_of(part, (*around, tree)) for key, part in pairs}
    return Holder(tree, contents, {key: part for key, part in found.items() if part is not None})


def _contents(tree: Any) -> Any:
    if type(tree) in LEAVES:
        return None
    if type(tree) is list:
        return list(tree) if forwarded(tree) is tree else None
    if isinstance(tree, dict):
        return dict(tree)
    if isinstance(tree, tuple):
        return tree
    if hasattr(type(tree), "__dataclass_fields__") or OBJECTS[0].is_tree(tree):
        return attributes_of(tree)
    return None


def put_back_containers(holder: Holder | None) -> None:
    """Put the containers back that one held, each with what it held."""
    if holder is None:
        return
    for key, part in holder.inside.items():
        _put(holder, key, part.item)
    if type(holder.item) is list:
        holder.item[:] = holder.contents
    for part in holder.inside.values():
        put_back_containers(part)


def _put(holder: Holder, key: Any, part: Any) -> None:
    if isinstance(holder.item, tuple) or (type(holder.item) is list and key >= len(holder.item)):
        return
    if isinstance(holder.item, (list, dict)):
        holder.item[key] = part
    else:
        object.__setattr__(holder.item, key, part)


@dataclass(frozen=True)
class Replaced:
    """A place that got a new container, in the stead of one of several."""

    holder: Holder
    key: Any
    sources: list[Any]

    def note(self) -> None:
        """Say what the container there stands for, once it holds what it shall."""
        item = self.holder.item
        new = item[self.key] if isinstance(item, (list, dict)) else getattr(item, self.key)
        for made, *old in zip(_parts(new), *map(_parts, self.sources), strict=False):
            note_choice(made, old, set(), False)


def replace_changed(before: Holder | None, ends: Sequence[Holder | None]) -> Iterator[Replaced]:
    """Put new containers where a block leaves others than there were, so that what they hold from now on reaches none of those."""
    for key, part in before.inside.items() if before is not None else ():
        assert before is not None
        others = [None if end is None else end.inside.get(key) for end in ends]
        if all(_is_same(part, other) for other in others):
            yield from replace_changed(part, others)
            continue
        leaves, structure = flatten(part.item)
        _put(before, key, unflatten(structure, leaves))
        known = [other.item for other in others if other is not None]
        yield Replaced(before, key, [part.item, *known])


def _is_same(part: Holder, other: Holder | None) -> bool:
    """Tell whether the same container is still there; tuples are what they hold."""
    if other is None or not isinstance(part.item, tuple):
        return other is not None and part.item is other.item
    return part.inside.keys() == other.inside.keys() and all(
        _is_same(inner, other.inside[key]) for key, inner in part.inside.items()
    )


def _parts(item: Any) -> Iterator[Any]:
    """Yield what a choice is noted of: a container, or the items of a tuple."""
    yield from item if isinstance(item, tuple) else (item,)
