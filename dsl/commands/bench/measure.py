"""Measure one case: first calls, agreement of the results, then the race.

The contenders take turns, so that what disturbs the machine disturbs them alike. First each is built afresh and called, several
times, which gives the time of a cold compile, less that of the next call; its result is compared with NumPy's, or with that of the
first contender where plain Python is too slow. Then they are called until each has used its share of time; the best of its samples
counts. A sample is as many calls as fill two milliseconds. `Result.add` takes what was measured of the same case at another time.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsl.commands.bench.case import Case, Function
from dsl.commands.bench.peers import Peer, llvm_compiles

__all__ = ["Contender", "Pace", "Result", "disagreement", "make_timer", "measure", "quicker"]

FILL = 2e-3  # seconds that a sample lasts at least
TURN = 0.15  # seconds; threads of OpenBLAS that had the turn before spin through 0.1 of them
MOST_SAMPLES = 500
TRIES = 10  # of a cold compile


@dataclass(frozen=True)
class Pace:
    """How long to measure: seconds for each contender in the race, the same for three samples, and for cold compiles; and how
    many second processes start."""

    race: float
    patience: float
    compiles: float
    starts: int


def median(times: Sequence[float]) -> float:
    """Return the time in the middle."""
    return sorted(times)[len(times) // 2]


@dataclass
class Contender:
    """One contender in one case, and what was measured of it. Times are seconds."""

    name: str
    peer: Peer
    firsts: list[float] = field(default_factory=list)  # first calls, each of a newly built function
    seconds: list[float] = field(default_factory=list)  # the call after each of these
    samples: list[float] = field(default_factory=list)
    error: str = ""
    spent: float = 0.0
    number: int = 1
    timer: timeit.Timer | None = None

    @property
    def best(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def compile_time(self) -> float | None:
        """The quickest first call, less the quickest second one; unknown where these vary by as much as that.

        What comes right after a compile finds caches as the first call found them, and is as many samples.
        """
        if not (self.peer.compiles and self.firsts and self.seconds):
            return None
        first = min(self.firsts)
        return first - min(self.seconds) if first > median(self.seconds) else None


@dataclass
class Result:
    """What was measured of one case."""

    case: Case
    contenders: dict[str, Contender]
    quick: bool
    checked_against: str = ""
    input_bytes: int = 0
    warm: dict[str, Any] = field(default_factory=dict)  # filled by dsl.commands.bench.probe
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> dict[str, float]:
        """Return, for each peer that finished, its time over dsl's."""
        ours = self.contenders["dsl"]
        if not ours.samples:
            return {}
        raced = [c for c in self.contenders.values() if c.samples and c is not ours]
        return {c.name: c.best / ours.best for c in raced}

    def add(self, other: Result) -> None:
        """Take what was measured of the same case at another time: the best of all samples counts."""
        for name, contender in self.contenders.items():
            found = other.contenders[name]
            contender.firsts += found.firsts
            contender.seconds += found.seconds
            contender.samples += found.samples
            contender.error = contender.error or found.error
        self.warm = quicker(self.warm, other.warm)


def quicker(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the quicker of two starts in a new process, with the compiles of both; one that failed, if one did."""
    if not one or not other or "error" in one or "error" in other:
        return other if "error" in other else one or other
    compiles = one["llvm_compiles"], other["llvm_compiles"]
    most = None if None in compiles else max(compiles)
    return {**min(one, other, key=lambda warm: warm["overhead"]), "llvm_compiles": most}


def measure(
    case: Case, peers: Mapping[str, Peer], pace: Pace, *, quick: bool, again: bool = False
) -> Result:
    """Run one case with the peers that it has a way for; `again` when it has been run before."""
    inputs = case.make_inputs(quick=quick)
    skipped = {"numpy"} if case.plain_is_slow and not quick else set()
    names = [n for n in peers if n in case.ways and n not in skipped]
    result = Result(case, {name: Contender(name, peers[name]) for name in names}, quick)
    result.input_bytes = sum(x.nbytes for x in inputs if isinstance(x, np.ndarray))
    # dsl comes last, so that there is something to compare it with.
    _first_calls(result, sorted(result.contenders.values(), key=_order), inputs, pace, again)
    if not result.checked_against:
        _check_tiny(result)
    _race([c for c in result.contenders.values() if not c.error], pace)
    return result


def _order(contender: Contender) -> tuple[bool, bool]:
    return contender.name == "dsl", contender.name != "numpy"


def _check_tiny(result: Result) -> None:
    """Where nothing else ran, compare dsl with plain Python at a size that Python can do."""
    case, ours = result.case, result.contenders["dsl"]
    if ours.error:
        return
    inputs = case.make_inputs(quick=True)
    mine, plain = ours.peer.build(case.ways["dsl"])(*inputs), case.program(*inputs)
    ours.error = disagreement(arrays(mine, ours.peer), arrays(plain, ours.peer), case)
    result.checked_against = "numpy, at a small size"


# --- First calls ---------------------------------------------------------------------------------


def _first_calls(
    result: Result, contenders: Sequence[Contender], inputs: tuple[Any, ...], pace: Pace, again: bool
) -> None:  # fmt: skip
    """Build and call in turns, again while that is quick; compare the first results; leave timers for the race."""
    given = {c.name: [c.peer.give(argument) for argument in inputs] for c in contenders}
    reference, running = None, list(contenders)
    for k in range(TRIES):
        for contender in running:
            found = _first_call(contender, result.case, given[contender.name], again or k > 0)
            if found is None or k > 0:
                continue
            if reference is None and contender.name != "dsl":
                result.checked_against, reference = contender.name, found
            elif reference is not None:
                contender.error = disagreement(found, reference, result.case)
        running = [c for c in running if _wants_another(c, pace)]


def _wants_another(contender: Contender, pace: Pace) -> bool:
    return (
        contender.peer.compiles and not contender.error and sum(contender.firsts) <= pace.compiles
    )


def _first_call(
    contender: Contender, case: Case, args: list[Any], again: bool
) -> list[np.ndarray] | None:
    """Build and call; leave a timer. Return the result, or None."""
    peer = contender.peer
    contender.timer = None  # so that nothing keeps the last try's code alive
    try:
        with peer.cold(again=again):
            counted = llvm_compiles()
            call = peer.build(case.ways[contender.name])
            result, spent = _timed_call(peer, call, args)
            compiled = llvm_compiles()
            _, again_spent = _timed_call(peer, call, args)
    except Exception as error:
        contender.error = f"{type(error).__name__}: {_first_line(error)}"
        return None
    # A later try of dsl that compiled nothing, because the process remembers the code, was not cold.
    remembered = contender.name == "dsl" and counted is not None and counted == compiled
    if not (again and remembered):
        contender.firsts.append(spent)
        contender.seconds.append(again_spent)
    contender.timer = make_timer(peer, call, args, result)
    return arrays(result, peer)


def _timed_call(peer: Peer, call: Function, args: list[Any]) -> tuple[Any, float]:
    """Return the result of a call, and the seconds until it was there."""
    start = time.perf_counter()
    result = peer.wait(call(*args))
    return result, time.perf_counter() - start


def make_timer(peer: Peer, call: Function, args: list[Any], result: Any) -> timeit.Timer:
    """Return a timer of the call, spelled out so that the loop around it costs as little as can be."""
    named = {f"a{k}": argument for k, argument in enumerate(args)}
    return timeit.Timer(
        peer.call_text(named, result), globals={"call": call, "wait": peer.wait, **named}
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


# --- Agreement -----------------------------------------------------------------------------------


def arrays(result: Any, peer: Peer) -> list[np.ndarray]:
    """Return a result as a list of NumPy arrays."""
    parts = result if isinstance(result, tuple | list) else [result]
    return [np.asarray(peer.take(part)) for part in parts]


def disagreement(found: list[np.ndarray], expected: list[np.ndarray], case: Case) -> str:
    """Say how results differ by more than the case allows, or nothing."""
    if len(found) != len(expected):
        return f"wrong: {len(found)} results, expected {len(expected)}"
    return next(filter(None, (_difference(*pair, case) for pair in zip(found, expected))), "")


def _difference(found: np.ndarray, expected: np.ndarray, case: Case) -> str:
    if found.shape != expected.shape:
        return f"wrong: shape {found.shape}, expected {expected.shape}"
    if found.dtype.kind != expected.dtype.kind:
        return f"wrong: dtype {found.dtype}, expected {expected.dtype}"
    if not found.size:
        return ""
    if found.dtype.kind in "biu":
        off = found != expected
    else:
        off = ~_close(found, expected, case.tolerance or _tolerance(found, expected))
    share = float(np.mean(off))
    return "" if share <= case.mismatches else f"wrong: {100 * share:.3g} % of the elements differ"


def _close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    size = np.abs(expected)
    scale = np.max(size, where=np.isfinite(size), initial=0.0)
    near = np.isclose(found, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return np.asarray(near)


def _tolerance(*results: np.ndarray) -> float:
    single = any(r.dtype in (np.float32, np.complex64) for r in results)
    return 1e-5 if single else 1e-9


# --- The race ------------------------------------------------------------------------------------


def _race(contenders: list[Contender], pace: Pace) -> None:
    """Take turns, there and back, so that nobody always comes after the same one."""
    for contender in contenders:
        _set_number(contender)
    running = contenders
    while running:
        for contender in running:
            _take_turn(contender, min(TURN, pace.race))
        running = [c for c in reversed(running) if _wants_more(c, pace)]


def _set_number(contender: Contender) -> None:
    """Choose the number of calls in a sample."""
    assert contender.timer is not None
    once = min(contender.timer.repeat(repeat=2, number=1))
    contender.number = max(1, min(10_000, round(FILL / max(once, 1e-9))))


def _take_turn(contender: Contender, seconds: float) -> None:
    """Take samples for some time, and one at least: the last ones find caches and cores as this contender left them."""
    assert contender.timer is not None
    begin = time.perf_counter()
    end = begin + seconds
    while not contender.samples or time.perf_counter() < end:
        contender.samples.append(contender.timer.timeit(contender.number) / contender.number)
    contender.spent += time.perf_counter() - begin


def _wants_more(contender: Contender, pace: Pace) -> bool:
    if len(contender.samples) >= MOST_SAMPLES:
        return False
    few = len(contender.samples) < 3
    return contender.spent < (pace.patience if few else pace.race)
