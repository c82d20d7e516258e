"""A timeline as a Chrome trace, which chrome://tracing, Perfetto (ui.perfetto.dev) and Speedscope show.

Every event is a complete one (`"ph": "X"`, times in microseconds); metadata (`"M"`) names the process and the rows;
arrows (`"s"` to `"f"`) lead from each send to where its token was received.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dsl.profiler.timeline import Event, Inside

__all__ = ["chrome_trace", "flows", "rows_of", "write", "write_trace"]


def chrome_trace(events: Sequence[Event]) -> dict[str, Any]:
    """Return the trace as what JSON holds."""
    rows = rows_of(events)
    pid = os.getpid()
    listed = [
        *_names(rows, pid),
        *(_complete(event, pid, rows[event.row]) for event in events),
        *_arrows(events, pid, rows),
    ]
    return {"traceEvents": listed, "displayTimeUnit": "ms"}


def rows_of(events: Sequence[Event]) -> dict[str, int]:
    """Return the number of each row in a trace."""
    return {row: k + 1 for k, row in enumerate(dict.fromkeys(event.row for event in events))}


def write(events: Sequence[Event], path: str | os.PathLike[str]) -> None:
    """Write the trace to a file, whole or not at all; compressed if its name ends in `.gz`."""
    write_trace(chrome_trace(events), path)


def write_trace(trace: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a trace that is made."""
    target = Path(path)
    text = json.dumps(trace, allow_nan=False).encode()
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_bytes(gzip.compress(text, 6) if target.suffix == ".gz" else text)
    os.replace(draft, target)


def _names(rows: dict[str, int], pid: int) -> Iterator[dict[str, Any]]:
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    yield _metadata("process_name", pid, 0, name=f"dsl {program}".strip())
    for row, tid in rows.items():
        yield _metadata("thread_name", pid, tid, name=row)
        yield _metadata("thread_sort_index", pid, tid, sort_index=tid)


def _metadata(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}


def _complete(event: Event, pid: int, tid: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.kind,
        "ts": 1e6 * event.start,
        "dur": 1e6 * event.seconds,
        "pid": pid,
        "tid": tid,
        "args": _args(event),
    }


def _args(event: Event) -> dict[str, Any]:
    args = _described(event)
    args |= {k: v for k, v in event.args.items() if k not in ("sent", "received")}
    if event.inside:
        args["inside"] = [
            {
                "name": i.name,
                "count": i.count,
                "total_us": round(1e6 * i.seconds, 3),
                **_described(i),
            }
            for i in event.inside
        ]
    return args


def _described(item: Event | Inside) -> dict[str, Any]:
    """Return the user's lines, with the text of the first, and bytes."""
    args: dict[str, Any] = {}
    if item.places:
        first = item.places[0]
        args |= {"file": first.file, "line": first.line, "source": first.source().strip()}
        if len(item.places) > 1:
            args["lines"] = sorted({str(place) for place in item.places})
    if item.bytes is not None:
        args["bytes"] = item.bytes
        if item.seconds > 0:
            args["GB/s"] = round(1e-9 * item.bytes / item.seconds, 3)
    return args


# -- arrows ----------------------------------------------------------------------------------------------------------


def flows(events: Sequence[Event]) -> Iterator[tuple[Event, Event]]:
    """Yield each send with the event that received its token. Keys come again in later steps, in the same order."""
    sent: dict[Any, deque[Event]] = {}
    for event in events:
        if "sent" in event.args:
            sent.setdefault(event.args["sent"], deque()).append(event)
    for event in sorted(events, key=lambda event: event.end):
        waiting = sent.get(event.args.get("received"))
        if waiting and waiting[0].start <= event.end:
            yield waiting.popleft(), event


def _arrows(events: Sequence[Event], pid: int, rows: dict[str, int]) -> Iterator[dict[str, Any]]:
    for number, (send, receive) in enumerate(flows(events), 1):
        shared = {"name": "token", "cat": "send", "id": number, "pid": pid}
        start, stop = 1e6 * send.start, max(1e6 * send.start, 1e6 * receive.end)
        yield {**shared, "ph": "s", "ts": start, "tid": rows[send.row]}
        yield {**shared, "ph": "f", "bp": "e", "ts": stop, "tid": rows[receive.row]}
