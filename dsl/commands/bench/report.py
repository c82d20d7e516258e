"""Results as text and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsl.commands.bench.measure import Contender, Result
from dsl.commands.bench.peers import Peer, cores, version
from dsl.commands.bench.verdict import judge
from dsl.commands.doctor import cpu_name

__all__ = ["describe", "failures", "record", "save", "tables"]


# --- Text ----------------------------------------------------------------------------------------


def tables(results: Sequence[Result], peers: Sequence[str]) -> str:
    """Return the table of ratios, that of compile times, what else was measured, and the summary."""
    parts = [
        "Time of dsl, and the time of each peer over it (above 1, dsl is faster)",
        table(["case", "dsl", *peers, "targets"], [_ratio_row(r, peers) for r in results]),
        "Compile times, cold (a first call less the next one), and dsl's first call in a second process",
        table(
            ["case", "dsl", *_compiling(results, peers), "warm", "LLVM", "import", "targets"],
            [_compile_row(r, _compiling(results, peers)) for r in results],
        ),
        _notes(results),
        _summary(results),
    ]
    return "\n\n".join(filter(None, parts))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return columns under their heads: the first and the last to the left, the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [text.rjust(width) for text, width in zip(line, widths)]
    cells[0], cells[-1] = line[0].ljust(widths[0]), line[-1]
    return "  ".join(cells).rstrip()


def _ratio_row(result: Result, peers: Sequence[str]) -> list[str]:
    ours = result.contenders["dsl"]
    cells = [_ratio_cell(result, peer) for peer in peers]
    return [result.case.name, _time_cell(ours), *cells, _verdicts(result, "run", "time")]


def _time_cell(contender: Contender) -> str:
    if contender.samples:
        return seconds(contender.best)
    return "WRONG" if contender.error.startswith("wrong") else "failed"


def _ratio_cell(result: Result, peer: str) -> str:
    if peer in result.ratios:
        return f"{result.ratios[peer]:.2f}"
    return _time_cell(result.contenders[peer]) if peer in result.contenders else "."


def _compiling(results: Sequence[Result], peers: Sequence[str]) -> list[str]:
    """The peers that compiled anything."""
    return [
        p
        for p in peers
        if any(p in r.contenders and r.contenders[p].peer.compiles for r in results)
    ]


def _compile_row(result: Result, peers: Sequence[str]) -> list[str]:
    found = [result.contenders.get(peer) for peer in ("dsl", *peers)]
    times = [c.compile_time if c is not None else None for c in found]
    warm = [seconds(result.warm[k]) if k in result.warm else "." for k in ("overhead", "import")]
    compiles = result.warm.get("llvm_compiles")
    return [
        result.case.name,
        *("." if time is None else seconds(time) for time in times),
        warm[0],
        "." if compiles is None else str(compiles),
        warm[1],
        _verdicts(result, "compile", "warm"),
    ]


def _verdicts(result: Result, *kinds: str) -> str:
    """`met`, or the targets that were missed."""
    found = [v for v in judge(result) if v.kind in kinds]
    missed = [str(v) for v in found if not v.met]
    return "; ".join(missed) or ("met" if found else "")


def seconds(time: float) -> str:
    """Return a time in the unit that suits it.

    >>> seconds(0.00031), seconds(2.5)
    ('310 µs', '2.5 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if time >= size:
            return f"{time / size:.3g} {unit}"
    return f"{time / 1e-9:.0f} ns"


def _notes(results: Sequence[Result]) -> str:
    kinds = (_rates, _memory, _failed_probes)
    lines = [line for result in results for kind in kinds for line in kind(result)]
    return "\n".join(lines + failures(results))


def _rates(result: Result) -> list[str]:
    if not result.case.throughput:
        return []
    raced = [c for c in result.contenders.values() if c.samples]
    rates = ", ".join(f"{c.name} {result.input_bytes / c.best / 1e9:.1f}" for c in raced)
    return [f"{result.case.name}, GB/s read: {rates}"]


def _memory(result: Result) -> list[str]:
    if not result.memory:
        return []
    extras = {p: m["extra"] for p, m in result.memory.items() if "extra" in m}
    text = ", ".join(f"{peer} {extra / 2**20:.1f}" for peer, extra in extras.items())
    return [f"{result.case.name}, MB of memory beyond inputs and outputs: {text}"]


def _failed_probes(result: Result) -> list[str]:
    probes = {"a second process": result.warm} | {
        f"memory of {p}": m for p, m in result.memory.items()
    }
    failed = {what: found["error"] for what, found in probes.items() if "error" in found}
    return [f"{result.case.name}: {what} failed: {why}" for what, why in failed.items()]


def failures(results: Iterable[Result], *, of: str | None = None) -> list[str]:
    """Return a line for each contender, or for those named `of`, that raised or gave another result."""
    return [
        f"{r.case.name}: {c.name} {c.error if c.error.startswith('wrong') else f'failed: {c.error}'}"
        for r in results
        for c in r.contenders.values()
        if c.error and of in (None, c.name)
    ]


def _summary(results: Sequence[Result]) -> str:
    """The rows of the targets, as a table in Markdown; nothing if nothing was judged."""
    rows = list(dict.fromkeys(result.case.row for result in results))
    lines = [
        *(_row([r for r in results if r.case.row == row], row, "run", "time") for row in rows),
        _row(results, "compile, cold", "compile"),
        _row(results, "second process, warm disk cache", "warm"),
        _row(results, "peak memory", "memory"),
    ]
    found = [line for line in lines if line]
    return "\n".join(
        ["| row | targets met | missed |", "| --- | --- | --- |", *found] if found else []
    )


def _row(results: Sequence[Result], title: str, *kinds: str) -> str:
    pairs = [(r.case.name, v) for r in results for v in judge(r) if v.kind in kinds]
    if not pairs:
        return ""
    missed = [f"{name} {v.target}: {v.measured}" for name, v in pairs if not v.met]
    return f"| {title} | {len(pairs) - len(missed)} of {len(pairs)} | {'; '.join(missed)} |"


# --- JSON ----------------------------------------------------------------------------------------


def record(results: Iterable[Result], facts: dict[str, Any]) -> dict[str, Any]:
    """Return all there is to know of a run, in the types of JSON."""
    return {**facts, "cases": [_as_json(r) for r in results]}


def save(file: Path, record: dict[str, Any]) -> None:
    """Write a record; called after every case, so that what is done is kept if a later one crashes."""
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def describe(peers: Mapping[str, Peer], missing: Iterable[str], mode: str) -> dict[str, Any]:
    """Return what the numbers depend on: machine, versions, mode."""
    return {
        "mode": mode,
        "machine": {
            "cpu": cpu_name(),
            "cores": cores(),
            "system": f"{platform.system()} {platform.release()}",
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        },
        "versions": {"python": platform.python_version()}
        | {name: version(peer) for name, peer in peers.items()},
        "missing": list(missing),
    }


def _as_json(result: Result) -> dict[str, Any]:
    rate = result.input_bytes / 1e9 if result.case.throughput else None
    return {
        "name": result.case.name,
        "row": result.case.row,
        "checked_against": result.checked_against,
        "input_bytes": result.input_bytes,
        "contenders": {n: _contender_json(c, rate) for n, c in result.contenders.items()},
        "ratios": result.ratios,
        "targets": [{"ratio": t.ratio, "peers": list(t.peers)} for t in result.case.targets],
        "verdicts": [asdict(verdict) for verdict in judge(result)],
        "warm": result.warm,
        "memory": result.memory,
    }


def _contender_json(contender: Contender, gigabytes: float | None) -> dict[str, Any]:
    best = contender.best if contender.samples else None
    return {
        "best": best,
        "samples": len(contender.samples),
        "median": contender.median if best else None,
        "first_call": min(contender.firsts, default=None),
        "compile": contender.compile_time,
        "gigabytes_per_second": gigabytes / best if gigabytes and best else None,
        "error": contender.error,
    }
