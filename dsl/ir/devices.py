"""Device names as values: `/rank:1/cpu:0`, every part of which may be left out.

A name with a part left out is a constraint: `cpu` is any CPU, `/rank:2` any device of rank 2, the empty name any device.
A full name is one device; `canonical` fills what is left out with rank 0 and `cpu:0`.

>>> name = DeviceName.parse("cpu:1")
>>> name.matches(DeviceName.parse("/rank:3/cpu:1"))
True
>>> str(name.merge(DeviceName.parse("/rank:2")))
'/rank:2/cpu:1'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dsl.errors import DeviceError

__all__ = ["ANY_DEVICE", "DeviceName", "canonical", "listing"]

_FORM = re.compile(
    r"(?:/?rank:(?P<rank>\d+|\*))?(?:(?:^|/)(?P<kind>[a-z][a-z_-]*)(?::(?P<index>\d+|\*))?)?"
)
_REMEDY = 'a device is written "/rank:1/cpu:0", "cpu:0", "cpu" or "/rank:1"'


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A device, or what is asked of one: a part that is None may be anything. An index needs a kind."""

    rank: int | None = None
    kind: str | None = None
    index: int | None = None

    @classmethod
    def parse(cls, text: object) -> DeviceName:
        """Read a name; `*` stands for a part that is left out."""
        if isinstance(text, DeviceName):
            return text
        found = _FORM.fullmatch(text.strip().lower()) if isinstance(text, str) else None
        if found is None or found["kind"] == "rank":
            raise DeviceError(f"{text!r} is not the name of a device", remedy=_REMEDY)
        return cls(_number(found["rank"]), found["kind"], _number(found["index"]))

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"/rank:{self.rank}"
        kind = self.kind or ""
        index = "" if self.index is None else f":{self.index}"
        return f"{rank}{'/' if rank and kind else ''}{kind}{index}"

    @property
    def is_full(self) -> bool:
        return None not in (self.rank, self.kind, self.index)

    def matches(self, device: DeviceName) -> bool:
        """Tell whether a device has every part that this name has."""
        return self.conflict(device) == "" and self.within(device) == device

    def conflict(self, other: DeviceName) -> str:
        """Return the first part that both names have and in which they differ, or nothing."""
        for part in ("rank", "kind", "index"):
            mine, its = getattr(self, part), getattr(other, part)
            if None not in (mine, its) and mine != its:
                return part
        return ""

    def merge(self, other: DeviceName) -> DeviceName:
        """Return the name that asks for what both ask for."""
        if part := self.conflict(other):
            raise DeviceError(f"{str(self)!r} and {str(other)!r} differ in the {part}")
        return self.within(other)

    def within(self, outer: DeviceName) -> DeviceName:
        """Return this name, with what it leaves open taken from another: the block around a block."""
        rank = outer.rank if self.rank is None else self.rank
        if self.kind is None:
            return DeviceName(rank, outer.kind, outer.index)
        same = outer.kind == self.kind
        return DeviceName(
            rank, self.kind, outer.index if self.index is None and same else self.index
        )

    def softened(self) -> DeviceName:
        """Return the name without kind and index: what is kept of it under soft placement."""
        return replace(self, kind=None, index=None)


ANY_DEVICE = DeviceName()


def canonical(name: str | DeviceName) -> DeviceName:
    """Return the full name: rank 0, `cpu` and index 0 where a part is left out.

    >>> str(canonical("cpu"))
    '/rank:0/cpu:0'
    """
    found = DeviceName.parse(name)
    return DeviceName(found.rank or 0, found.kind or "cpu", found.index or 0)


def listing(devices: Iterable[DeviceName]) -> str:
    """Return devices as an error message lists them."""
    return ", ".join(map(str, devices)) or "none"


def _number(text: str | None) -> int | None:
    return None if text in (None, "*") else int(text or 0)
