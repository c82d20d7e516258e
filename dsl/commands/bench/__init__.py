"""`python -m dsl bench`: dsl and the peers that are installed, on the same inputs, in one process, in turns.

Prints the ratios of their times with the targets met and missed, compile times cold and warm, and what else a case
measures. The exit code is 1 if dsl failed or a result differs from NumPy's; a missed target is not a failure.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsl.commands.bench.case import Case
from dsl.commands.bench.load import all_cases, matching
from dsl.commands.bench.measure import Pace, Result, measure, quicker
from dsl.commands.bench.peers import NAMES, Dsl, Peer, make_peers
from dsl.commands.bench.plot import draw
from dsl.commands.bench.probe import peak_memory, warm_start
from dsl.commands.bench.report import describe, failures, record, save, tables
from dsl.commands.progress import progress
from dsl.config import config
from dsl.errors import ConfigError

__all__ = ["run", "run_cases"]

PACES = {
    "quick": Pace(race=0.0, patience=0.0, compiles=0.0, starts=0),
    "short": Pace(race=0.2, patience=1.0, compiles=0.3, starts=2),
    "full": Pace(race=1.0, patience=5.0, compiles=1.5, starts=3),
}
PICTURES = {".pdf", ".png", ".svg"}


def run(words: Sequence[str]) -> int:
    """Do what the words of the command line say; return the exit code."""
    if words and words[0] == "mpi":
        from dsl.commands.bench.mpi import run_mpi

        return run_mpi(_parser().parse_args(words[1:]).json)
    given = _parser().parse_args(words)
    if given.static and given.family != "cuda":
        raise ConfigError("--static is for kernels", remedy="python -m dsl bench cuda --static")
    if given.family:
        return _run_family(given)
    cases = _chosen(given)
    if given.list:
        print("\n".join(f"{case.name:<32}  {case.row}" for case in cases))
        return 0
    _check_files(given)
    mode = "quick" if given.quick else "full" if given.full else "short"
    with tempfile.TemporaryDirectory(prefix="dsl-bench-") as folder:
        peers, missing = make_peers(_peer_names(given), NAMES, Dsl(Path(folder)))
        facts = describe(peers, missing, mode) | {"laps": given.laps}
        if missing:
            print(f"Not installed, so left out: {', '.join(missing)}", file=sys.stderr)
        with config.override(cache_dir=folder):
            results: list[Result] = []
            for result in run_cases(cases, peers, mode, given.laps):
                if len(results) < len(cases):
                    results.append(result)
                if given.json:
                    save(given.json, record(results, facts))
    print(tables(results, [name for name in peers if name != "dsl"]))
    if given.plot:
        draw(given.plot, record(results, facts))
    return 1 if _failed(results) else 0


def _run_family(given: argparse.Namespace) -> int:
    """Measure rates instead of calls, or on a GPU."""
    if given.family == "cuda":
        from dsl.commands.bench.cuda import run_cuda

        _check_files(given)
        return run_cuda(given, PACES)
    from dsl.commands.bench.executor import RATES, run_rates

    if given.list:
        print("\n".join(rate.name for rate in RATES))
        return 0
    _check_files(given)
    return run_rates("quick" if given.quick else "full" if given.full else "short", given.json)


def run_cases(
    cases: Sequence[Case], peers: dict[str, Peer], mode: str, laps: int = 1
) -> Iterator[Result]:
    """Measure the cases one after the other, in each of some laps, with a bar of progress; yield what is known of the case."""
    known: dict[str, Result] = {}
    for peer in peers.values():
        peer.start()
    for case in progress([*cases] * laps, "benchmarks"):
        first = known.get(case.name)
        result = measure(case, peers, PACES[mode], quick=mode == "quick", again=first is not None)
        if mode != "quick":
            _probe(result, peers, mode, memory=first is None)
        if first is None:
            known[case.name] = result
        else:
            first.add(result)
        yield known[case.name]


def _probe(result: Result, peers: dict[str, Peer], mode: str, *, memory: bool) -> None:
    """Measure what needs a process of its own; the memory of peers only in a full run, as NumPy's takes long."""
    case, ours = result.case, peers["dsl"]
    assert isinstance(ours, Dsl)
    if result.contenders["dsl"].error:
        return
    starts = (warm_start(case, ours.cache) for _ in range(PACES[mode].starts))
    result.warm = functools.reduce(quicker, starts)
    if case.memory and memory:
        names = [n for n in peers if n in case.ways] if mode == "full" else ["dsl"]
        result.memory = {name: peak_memory(case, name) for name in names}


def _failed(results: Sequence[Result]) -> bool:
    wrong = [line for line in failures(results) if " wrong: " in line]
    return bool(wrong or failures(results, of="dsl"))


def _chosen(given: argparse.Namespace) -> list[Case]:
    cases = all_cases()
    if given.case:
        found = matching(cases, given.case)
        if not found:
            raise ConfigError(
                f"no case matches {' or '.join(given.case)}", remedy="--list names them all"
            )
        return found
    return cases if given.full or given.quick or given.list else [c for c in cases if c.short]


def _peer_names(given: argparse.Namespace) -> list[str]:
    """The peers that were asked for, or all; torch.compile takes long, so it runs when asked for or with --full."""
    if given.peers is not None:
        return [name for name in given.peers.split(",") if name]
    return [name for name in NAMES if name != "torch.compile" or given.full]


def _check_files(given: argparse.Namespace) -> None:
    """Refuse what could not be written at the end, before the work."""
    for file in filter(None, (given.json, given.plot)):
        if not file.parent.is_dir():
            raise ConfigError(f"{file}: there is no folder {file.parent}")
    if given.plot and given.plot.suffix not in PICTURES:
        raise ConfigError(f"{given.plot}: expected one of {', '.join(sorted(PICTURES))}")
    if given.plot and importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib", remedy='pip install "dsl[bench]"')


def _positive(word: str) -> int:
    if not word.isdigit() or not int(word):
        raise argparse.ArgumentTypeError(f"{word!r} is not a positive whole number")
    return int(word)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dsl bench", description=__doc__)
    add = parser.add_argument
    add(
        "family", nargs="?", choices=["executor", "cuda"],
        help="executor: rates of steps, tokens, loops and queues, TensorFlow beside them; "
        "cuda: on an NVIDIA GPU, beside CuPy, JAX and PyTorch",
    )  # fmt: skip
    add("--static", action="store_true", help="cuda: what is known of the kernels without a GPU")
    add("--full", action="store_true", help="every case, measured longer, torch.compile included")
    add(
        "--laps", type=_positive, default=1, metavar="N",
        help="measure everything so many times, one round after the other: the best of all counts",
    )  # fmt: skip
    add("--quick", action="store_true", help="every case at a tiny size: whether it works")
    add("--case", action="append", metavar="PATTERN", help="cases whose name or row contains this")
    add("--peers", metavar="NAMES", help=f"some of {','.join(NAMES)}")
    add("--json", type=Path, metavar="FILE", help="write what was measured")
    add("--plot", type=Path, metavar="FILE", help="draw the ratios (.png, .svg, .pdf)")
    add("--list", action="store_true", help="name the cases and stop")
    return parser
