"""From the log to a timeline: one `Event` for each thing that took time, on the row of its thread or device.

In: records of `dsl.events`. Out: events in the order of their start; on a row each lies within another one or apart from
it. A program's record becomes an event for each of its sites that ran; what ran inside a loop is part of the loop's event
(`inside`), added up. Waits that overlap, because no thread waits for them, get rows of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.events import ROWS, WORDS, Record, Site
from dsl.ir.location import Location

__all__ = ["Event", "Inside", "make_events", "parents", "shown_line"]


@dataclass(frozen=True)
class Inside:
    """What ran in a loop: how often, how many seconds in all, and the bytes that it read and wrote, if they are known."""

    name: str
    kind: str
    places: tuple[Location, ...]
    count: int
    seconds: float
    bytes: int | None
    parent: int = -1  # the number, among those of the event, of the loop around it

    @property
    def line(self) -> str:
        """The user's lines."""
        return shown_line(self.places)


@dataclass(frozen=True)
class Event:
    """Something that ran, or waited. `start`, from the start of the profile, and `seconds` are in seconds."""

    name: str
    kind: str
    start: float
    seconds: float
    row: str
    places: tuple[Location, ...] = ()
    bytes: int | None = None
    inside: tuple[Inside, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return self.start + self.seconds

    @property
    def line(self) -> str:
        """The user's lines."""
        return shown_line(self.places)


def shown_line(places: Sequence[Location]) -> str:
    """Return the file, without its directory, and the lines of the places in it; of the first one's file.

    >>> shown_line([Location("/home/me/train.py", 7), Location("/home/me/train.py", 5)])
    'train.py:5-7'
    """
    if not places:
        return ""
    file = places[0].file
    lines = [place.line for place in places if place.file == file]
    low, high = min(lines), max(lines)
    return f"{os.path.basename(file)}:{low}" + (f"-{high}" if high > low else "")


def make_events(records: Iterable[Record], start: int) -> list[Event]:
    """Return the events of records, those that began after `start`, a time of the log's clock."""
    kept = [record for record in records if record.start >= start]
    made = [event for record in kept for event in _events(record, start)]
    pending = sorted(
        (record for record in kept if record.kind == "pending"), key=lambda record: record.start
    )
    made += [_plain(record, start, "wait", row) for record, row in _lanes(pending)]
    return sorted(made, key=lambda event: (event.start, -event.seconds))


def _events(record: Record, start: int) -> Iterator[Event]:
    if record.kind == "program":
        yield from _of_program(record, start)
    elif record.kind != "pending":
        yield _plain(record, start, record.kind, _row(record))


def _plain(record: Record, start: int, kind: str, row: str) -> Event:
    places = () if record.where is None else (record.where,)
    begun, spent = 1e-9 * (record.start - start), 1e-9 * (record.end - record.start)
    return Event(record.name, kind, begun, spent, row, places, args=record.data or {})


def _row(record: Record) -> str:
    thread, device = (name.replace("/rank:0/", "") for name in ROWS[record.row])
    if not device:
        return thread
    return device if thread == f"dsl {device}" else f"{device} ({thread})"


def _lanes(records: Sequence[Record]) -> Iterator[tuple[Record, str]]:
    """Give each of the records, ordered by start, the first row of its thread's waits that is free by then."""
    free: dict[int, list[int]] = {}
    for record in records:
        ends = free.setdefault(record.row, [])
        lane = next((k for k, end in enumerate(ends) if end <= record.start), len(ends))
        ends[lane:] = [record.end, *ends[lane + 1 :]]
        yield record, f"{_row(record)} waits" + (f" {lane + 1}" if lane else "")


# -- programs --------------------------------------------------------------------------------------------------------


def _of_program(record: Record, start: int) -> Iterator[Event]:
    """Yield the program's event, and those of its sites that ran."""
    sites, data = record.data
    words = np.frombuffer(data, np.int64)[:-2].reshape(len(sites), WORDS)
    row = _row(record)
    yield _plain(record._replace(data=None), start, "program", row)
    for k, site in enumerate(sites):
        begun, ended, counted = map(int, words[k])
        if not site.repeats and ended:
            yield Event(
                site.name, site.kind, 1e-9 * (begun - start), 1e-9 * (ended - begun), row,
                site.places, _bytes(site, 1, counted), tuple(_inside(k, sites, words)),
            )  # fmt: skip


def _bytes(site: Site, count: int, counted: int) -> int | None:
    if site.bytes is not None:
        return count * site.bytes
    return counted or None


def _inside(loop: int, sites: Sequence[Site], words: np.ndarray) -> Iterator[Inside]:
    numbers = {loop: -1}
    for k, site in enumerate(sites):
        if not site.repeats or site.parent not in numbers:
            continue  # a site that runs once, such as the copy before an update, is an event of its own
        count, spent, counted = map(int, words[k])
        numbers[k] = len(numbers) - 1
        yield Inside(
            site.name, site.kind, site.places, count, 1e-9 * spent, _bytes(site, count, counted),
            numbers[site.parent],
        )  # fmt: skip


# -- nesting ---------------------------------------------------------------------------------------------------------


def parents(events: Sequence[Event]) -> list[int]:
    """Return for each event, ordered as `make_events` has them, the number of the one around it on its row, or -1."""
    found: list[int] = []
    open_ones: dict[str, list[int]] = {}
    for k, event in enumerate(events):
        around = open_ones.setdefault(event.row, [])
        while around and events[around[-1]].end < event.end:
            around.pop()
        found.append(around[-1] if around else -1)
        around.append(k)
    return found
