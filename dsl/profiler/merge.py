"""One Chrome trace of all ranks: each rank writes its own, and rank 0 puts them together.

A rank's trace says beside its events which rank it is, when its clock was 0, and which tokens it sent to or received from other ranks.
In the whole, a rank is a process, with its rows below it; times are those of one clock, and arrows lead from rank to rank.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dsl import events as log
from dsl.profiler.chrome import chrome_trace, flows, rows_of, write_trace
from dsl.profiler.timeline import Event

__all__ = ["merge", "merge_when_there", "write_part"]

WAIT = 15.0
"""Seconds that rank 0 waits, at its end, for the traces of the others."""


# -- a part ---------------------------------------------------------------------------------------


def write_part(path: Path, events: Sequence[Event], start: int, rank: int) -> None:
    """Write the trace of a rank, whose events count from `start`, a time of the log's clock."""
    trace = chrome_trace(events)
    trace["dsl"] = {
        "rank": rank, "boot": _boot(), "monotonic": start, "wall": time.time_ns() - (log.now() - start),
        "ends": list(_ends(events)),
    }  # fmt: skip
    write_trace(trace, path)


def _boot() -> str:
    """Return what processes with the same monotonic clock have in common."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _ends(events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """Yield what came from other ranks or went there: the token's name, when, and the row."""
    rows = rows_of(events)
    here = {id(event) for pair in flows(events) for event in pair}
    for event in events:
        for way in ("sent", "received"):
            name = _name(event.args.get(way))
            if name and id(event) not in here:
                at = event.start if way == "sent" else event.end
                yield {"way": way, "token": name, "ts": 1e6 * at, "tid": rows[event.row]}


def _name(key: Any) -> str:
    """Return the name of a token that goes from rank to rank: the step, the edge, the iterations."""
    if key is None or not isinstance(key[0], tuple):
        return ""
    step, (edge, tag) = key
    return f"{step} {edge} {[iteration for _, iteration in tag]}"


# -- the whole ------------------------------------------------------------------------------------


def merge_when_there(parts: Sequence[Path], target: Path, keep: bool) -> None:
    """Put the traces of all ranks together when all are there; after a while, those that are."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end and not all(part.exists() for part in parts):
        time.sleep(0.02)
    there = [part for part in parts if part.exists()]
    write_trace(merge([_read(part) for part in there]), target)
    for part in there if not keep else ():
        part.unlink()


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return found


def merge(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one trace of those of several ranks."""
    parts = sorted(parts, key=lambda part: part["dsl"]["rank"])
    shifts = _shifts([part["dsl"] for part in parts])
    listed: list[dict[str, Any]] = []
    for part, shift in zip(parts, shifts):
        listed += _moved(part, shift)
    listed += _arrows(parts, shifts)
    return {"traceEvents": listed, "displayTimeUnit": "ms"}


def _shifts(about: Sequence[dict[str, Any]]) -> list[float]:
    """Return the microseconds from the first rank's start to that of each."""
    one_clock = len({part["boot"] for part in about}) == 1 and about[0]["boot"] != ""
    starts = [part["monotonic" if one_clock else "wall"] for part in about]
    return [1e-3 * (start - min(starts)) for start in starts]


def _moved(part: dict[str, Any], shift: float) -> Iterator[dict[str, Any]]:
    rank = part["dsl"]["rank"]
    yield _about(rank, "process_sort_index", sort_index=rank)
    for event in part["traceEvents"]:
        moved = {**event, "pid": rank}
        if "ts" in event:
            moved["ts"] = event["ts"] + shift
        if "id" in event:
            moved["id"] = f"{rank}.{event['id']}"
        if event["name"] == "process_name":
            moved["args"] = {"name": f"rank {rank}: {event['args']['name']}"}
        yield moved


def _about(rank: int, kind: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": 0, "args": args}


def _arrows(parts: Sequence[dict[str, Any]], shifts: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield an arrow for each token that one rank sent and another received; its name is that of no other."""
    sent: dict[str, dict[str, Any]] = {}
    received: list[tuple[str, dict[str, Any]]] = []
    for part, shift in zip(parts, shifts):
        for end in part["dsl"]["ends"]:
            place = {"pid": part["dsl"]["rank"], "tid": end["tid"], "ts": end["ts"] + shift}
            if end["way"] == "sent":
                sent[end["token"]] = place
            else:
                received.append((end["token"], place))
    for number, (token, place) in enumerate(received):
        if token in sent:
            shared = {"name": "token", "cat": "send", "id": f"rank.{number}"}
            yield {**shared, "ph": "s", **sent[token]}
            yield {
                **shared,
                "ph": "f",
                "bp": "e",
                **place,
                "ts": max(place["ts"], sent[token]["ts"]),
            }
