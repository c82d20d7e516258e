"""What is measured in a process of its own: the first call with a warm disk cache, and the peak of memory.

`warm_start` and `peak_memory` start the process and return what it printed; `report_warm_start` and
`report_peak_memory` are what it runs.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import dsl
from dsl.commands.bench.case import Case
from dsl.commands.bench.load import case_named
from dsl.commands.bench.measure import make_timer
from dsl.commands.bench.peers import NAMES, Dsl, Peer, llvm_compiles

__all__ = ["peak_memory", "warm_start"]

WARM = """
import time; start = time.perf_counter()
import dsl; dsl.jit; imported = time.perf_counter() - start
from dsl.commands.bench.probe import report_warm_start
report_warm_start({case!r}, imported)
"""
MEMORY = """
from dsl.commands.bench.probe import report_peak_memory
report_peak_memory({case!r}, {peer!r})
"""
DEADLINE = 600.0  # seconds


def warm_start(case: Case, cache: Path) -> dict[str, Any]:
    """Return the times of import and first call in a new process that finds the code in `cache`.

    Keys: `import`, `first_call`, `steady`, `overhead` (the first call less a steady one), all in seconds; and
    `llvm_compiles`, which is None while dsl does not count them.
    """
    return _run(WARM.format(case=case.name), {"DSL_CACHE_DIR": str(cache)})


def peak_memory(case: Case, peer: str) -> dict[str, Any]:
    """Return the bytes that a call takes beyond its inputs and outputs.

    Keys: `first` and `again`, for the first and the second call at full size; `compiled`, whether the first may
    have compiled, which takes memory too; `extra`, the one to judge by; `inputs` and `outputs`.
    """
    with tempfile.TemporaryDirectory() as cache:
        return _run(MEMORY.format(case=case.name, peer=peer), {"DSL_CACHE_DIR": cache})


def _run(text: str, environment: dict[str, str]) -> dict[str, Any]:
    path = [str(Path(dsl.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **environment}
    environment.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # a second process has the bytecode of the first
    command = [sys.executable, "-c", text]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer after {DEADLINE:g} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- In the new process --------------------------------------------------------------------------


def report_warm_start(name: str, imported: float) -> None:
    """Print what `warm_start` returns."""
    case = case_named(name)
    inputs = case.make_inputs(quick=False)
    call = dsl.jit(static_argnames=case.static)(case.own or case.program)
    start = time.perf_counter()
    result = call(*inputs)
    first = time.perf_counter() - start
    timer = make_timer(Peer(), call, list(inputs), result)
    steady = min(timer.repeat(repeat=3, number=1))
    print(
        json.dumps(
            {
                "import": imported,
                "first_call": first,
                "steady": steady,
                "overhead": max(0.0, first - steady),
                "llvm_compiles": llvm_compiles(),
            }
        )
    )


def report_peak_memory(name: str, peer_name: str) -> None:
    """Print what `peak_memory` returns.

    Two calls at other sizes come first: they make what is kept between calls, and have dsl compile for any size, so
    that the first call at full size shows its arrays and nothing else. What it keeps for later calls shows too.
    """
    case = case_named(name)
    peer = Dsl(Path(os.environ["DSL_CACHE_DIR"])) if peer_name == "dsl" else NAMES[peer_name]()
    call = peer.build(case.ways[peer_name])
    for part in (64, 32):
        small = case.inputs(np.random.default_rng(1), *(max(n // part, 2) for n in case.size))
        peer.wait(call(*map(peer.give, small)))
    del small
    inputs = case.make_inputs(quick=False)
    args = [peer.give(argument) for argument in inputs]
    sizes = {"inputs": sum(x.nbytes for x in inputs if isinstance(x, np.ndarray))}
    del inputs
    misses = _misses(call)
    first, outputs = _extra(peer, call, args)
    compiled = misses is None or misses != _misses(call)
    again, _ = _extra(peer, call, args)
    found = {"first": first, "again": again, "compiled": compiled, "outputs": outputs}
    print(json.dumps(found | sizes | {"extra": again if compiled else first}))


def _extra(peer: Peer, call: Any, args: list[Any]) -> tuple[int, int]:
    """Call, and return the bytes that were held at the peak beyond the outputs, and the bytes of the outputs."""
    gc.collect()
    before = _resident()
    _reset_peak()
    result = peer.wait(call(*args))
    peak = _peak()
    parts = result if isinstance(result, tuple | list) else [result]
    outputs = sum(np.asarray(peer.take(part)).nbytes for part in parts)
    return peak - before - outputs, outputs


def _misses(call: Any) -> int | None:
    return call.cache_info().misses if isinstance(call, dsl.Compiled) else None


def _resident() -> int:
    """The bytes of memory that this process holds now."""
    return _status("VmRSS") or _peak()


def _peak() -> int:
    """The most that it held since `_reset_peak`; since its start where the system cannot reset."""
    if found := _status("VmHWM"):
        return found
    import resource  # not everywhere

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the peak then counts from the start of the process, so that extra memory may look larger


def _status(name: str) -> int:
    file = Path("/proc/self/status")
    if not file.exists():
        return 0
    found = [line.split() for line in file.read_text().splitlines() if line.startswith(name)]
    return 1024 * int(found[0][1]) if found else 0
