"""The costliest ops of a profile, and what each function cost, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dsl.profiler.timeline import Event, parents

__all__ = ["Cost", "costs", "shown_time", "table"]

OPS = frozenset(("kernel", "library", "update", "copy", "loop", "python", "send", "wait"))
"""Kinds of events that are rows of the table of ops."""
_PHASES = ("trace", "passes", "emit", "llvm", "link")
_WIDEST = 44


@dataclass
class Cost:
    """What an op or a kernel cost in all. `own` leaves out what other rows say; `bytes` is None if some are not known."""

    name: str
    kind: str
    line: str
    calls: int = 0
    total: float = 0.0
    own: float = 0.0
    bytes: int | None = 0

    def add(self, calls: int, seconds: float, own: float, bytes: int | None) -> None:
        self.calls += calls
        self.total += seconds
        self.own += own
        self.bytes = None if bytes is None or self.bytes is None else self.bytes + bytes

    @property
    def gigabytes_per_second(self) -> float | None:
        """The rate at which it went through memory, each array counted once."""
        return 1e-9 * self.bytes / self.total if self.bytes and self.total else None


def costs(events: Sequence[Event]) -> list[Cost]:
    """Return what each op cost, costliest first. Ops of one name on one line are one."""
    found: dict[tuple[str, str, str], Cost] = {}

    def add(item: Event | Cost, calls: int, seconds: float, own: float, bytes: int | None) -> None:
        key = item.name, item.kind, item.line
        found.setdefault(key, Cost(*key)).add(calls, seconds, own, bytes)

    owned = _own(events)
    for event, own in zip(events, owned, strict=True):
        if event.kind in OPS:
            add(event, 1, event.seconds, own, event.bytes)
            for item in _insides(event):
                add(item, item.calls, item.total, item.own, item.bytes)
    return sorted(found.values(), key=lambda cost: -cost.total)


def _insides(event: Event) -> Iterator[Cost]:
    """Yield what ran inside a loop, each with the time that is its own."""
    own = [item.seconds for item in event.inside]
    for item in event.inside:
        if item.parent >= 0:
            own[item.parent] -= item.seconds
    for item, left in zip(event.inside, own, strict=True):
        if item.count:
            yield Cost(item.name, item.kind, item.line, item.count, item.seconds, left, item.bytes)


def _own(events: Sequence[Event]) -> list[float]:
    """Return the seconds of each event without those of the events within it."""
    own = [event.seconds for event in events]
    for k, parent in enumerate(parents(events)):
        own[k] -= sum(item.seconds for item in events[k].inside if item.parent < 0)
        if parent >= 0:
            own[parent] -= events[k].seconds
    return own


# -- text ------------------------------------------------------------------------------------------------------------


def table(events: Sequence[Event], n: int, seconds: float, dropped: int) -> str:
    """Return the `n` costliest ops and a summary of each function."""
    parts = [_head(events, seconds, dropped), _ops(events, n), _functions(events)]
    return "\n\n".join(part for part in parts if part)


def _head(events: Sequence[Event], seconds: float, dropped: int) -> str:
    count = sum(event.kind in ("call", "step") for event in events)
    rows = len({event.row for event in events})
    where = "one row" if rows == 1 else f"{rows} rows"
    lines = [f"profile of {shown_time(seconds)}: {count} calls and steps on {where}"]
    phases = _phases(events)
    if phases:
        listed = ", ".join(f"{name} {shown_time(spent)}" for name, spent in phases.items())
        lines.append(f"compiling: {listed}")
    if dropped:
        lines.append(f"{dropped:,} events are missing: there was no room for more")
    return "\n".join(lines)


def _phases(events: Iterable[Event]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for event in events:
        if event.kind == "compile":
            phase = event.name if event.name in _PHASES else "llvm"
            spent[phase] = spent.get(phase, 0.0) + event.seconds
    return {phase: spent[phase] for phase in _PHASES if phase in spent}


def _ops(events: Sequence[Event], n: int) -> str:
    found = costs(events)
    if not found:
        return ""
    busy = sum(cost.own for cost in found if cost.kind != "wait") or 1.0
    rows: list[tuple[str, ...]] = [("op", "line", "calls", "total", "self", "share", "GB/s")]
    rows += [_op(cost, busy) for cost in found[:n]]
    left = len(found) - n
    more = [f"… and {left} more"] if left > 0 else []
    return "\n".join([*_aligned(rows, left=2), *more])


def _op(cost: Cost, busy: float) -> tuple[str, ...]:
    waits = cost.kind == "wait"
    rate = cost.gigabytes_per_second
    label = f"{cost.name} ({cost.kind})" if cost.kind in ("wait", "loop", "python") else cost.name
    return (
        _short(label),
        cost.line,
        f"{cost.calls:,}",
        shown_time(cost.total),
        shown_time(cost.own),
        "" if waits else f"{100 * cost.own / busy:.1f} %",
        "" if rate is None else f"{rate:.1f}",
    )


_CALLS = ("call", "step", "part")


def _functions(events: Sequence[Event]) -> str:
    """One row for each function, each graph that sessions ran, and each device's part of one: where its time went."""
    found: dict[tuple[str, str], list[float]] = {}
    around = parents(events)
    for k, event in enumerate(events):
        outer = event if event.kind in _CALLS else _call_of(k, events, around)
        if outer is None:
            continue
        spent = found.setdefault((_label(outer), outer.line), [0, 0.0, 0.0, 0.0])
        if outer is event:
            spent[0] += 1
            spent[1] += event.seconds
        elif event.kind in ("program", "compile"):
            spent[2 if event.kind == "program" else 3] += event.seconds
    rows: list[tuple[str, ...]] = [
        ("function", "line", "calls", "total", "each", "programs", "compiling")
    ]
    for (label, line), (calls, total, *rest) in sorted(found.items(), key=lambda i: -i[1][1]):
        times = map(shown_time, (total, total / max(calls, 1), *rest))
        rows.append((_short(label), line, f"{calls:,.0f}", *times))
    return "\n".join(_aligned(rows, left=2)) if found else ""


def _label(event: Event) -> str:
    if event.kind == "part":
        return f"{event.name} on {event.row.partition(' ')[0]}"
    return event.name if event.kind == "call" else f"{event.name} (step)"


def _call_of(k: int, events: Sequence[Event], around: Sequence[int]) -> Event | None:
    while (k := around[k]) >= 0:
        if events[k].kind in _CALLS:
            return events[k]
    return None


def _aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return lines of columns, the first `left` of which begin where the others end."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if k < left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def shown_time(seconds: float) -> str:
    """Return a time in a unit that suits it.

    >>> shown_time(0.00123)
    '1.23 ms'
    """
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if abs(seconds) * scale >= 1:
            return f"{seconds * scale:.3g} {unit}" if seconds * scale < 1000 else f"{seconds:.0f} s"
    return f"{seconds * 1e9:.0f} ns"
