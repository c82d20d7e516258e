"""Judge a result by the targets of its case, and by those that hold for every case."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dsl.commands.bench.case import Target
from dsl.commands.bench.measure import Result

__all__ = ["Verdict", "judge"]

COMPILE_TARGETS = (
    Target(1.25, "jax"),
    Target(4.0, "numba"),
)  # 0.8 of JAX's time, a quarter of numba's
WARM_FIRST_CALL = 0.1  # seconds after import, the computation itself apart
EXTRA_MEMORY = 1 << 20


@dataclass(frozen=True)
class Verdict:
    """One target and what was measured; `kind` is run, time, compile, warm or memory."""

    kind: str
    target: str
    measured: str
    met: bool

    def __str__(self) -> str:
        return f"{'met' if self.met else 'MISSED'} {self.target}: {self.measured}"


def judge(result: Result) -> list[Verdict]:
    """Return a verdict for each target that could be measured; none for tiny sizes, for which no target is meant."""
    if result.quick or not result.contenders["dsl"].samples:
        return []
    return [*_run(result), *_compile(result), *_warm(result), *_memory(result)]


def _run(result: Result) -> Iterator[Verdict]:
    for target in result.case.targets:
        yield from _ratio("run", target, result.ratios)
    best, limit = result.contenders["dsl"].best, result.case.at_most
    if limit < math.inf:
        yield Verdict("time", f"{1e6 * limit:g} µs", f"{1e6 * best:.2f} µs", best <= limit)


def _compile(result: Result) -> Iterator[Verdict]:
    ours = result.contenders["dsl"].compile_time
    if ours is None:
        return
    theirs = {c.name: c.compile_time for c in result.contenders.values() if c.name != "dsl"}
    ratios = {name: time / max(ours, 1e-9) for name, time in theirs.items() if time is not None}
    for target in COMPILE_TARGETS:
        yield from _ratio("compile", target, ratios)


def _ratio(kind: str, target: Target, ratios: dict[str, float]) -> Iterator[Verdict]:
    measured = target.measured(ratios)
    if measured is not None:
        yield Verdict(kind, str(target), f"{measured:.2f}", measured >= target.ratio)


def _warm(result: Result) -> Iterator[Verdict]:
    if "overhead" not in result.warm:
        return
    spent, compiles = result.warm["overhead"], result.warm["llvm_compiles"]
    limit = f"{1e3 * WARM_FIRST_CALL:g} ms"
    yield Verdict("warm", limit, f"{1e3 * spent:.0f} ms", spent <= WARM_FIRST_CALL)
    if compiles is not None:
        yield Verdict("warm", "0 LLVM compiles", str(compiles), compiles == 0)


def _memory(result: Result) -> Iterator[Verdict]:
    extra = result.memory.get("dsl", {}).get("extra")
    if extra is not None:
        measured = f"{extra / 2**20:.1f} MB"
        yield Verdict("memory", "inputs + outputs + 1 MB", measured, extra <= EXTRA_MEMORY)
