"""How long dsl takes before anything runs: `python benchmarks/tracing.py`.

Prints (a) the time of tracing and of each pass for straight-line functions of growing length, (b) the time to trace a
loop of 10 and of 10,000,000 trips, (c) the time of `import dsl` in a fresh process, and NumPy's share of it, (d) the time
of one call of a tiny function once it is compiled. (a) is one try each, with the processor time beside it, which differs
from the total on a busy machine; the others are the best of several. Tracing includes converting the source.

`--quick` leaves out the longest functions.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dsl
from dsl.commands.progress import progress
from dsl.compile import Lowered
from dsl.config import config
from dsl.ir.verify import verify

SIZES = (100, 1_000, 5_000, 20_000)
TARGET_1000_OPS, TARGET_IMPORT = 1.0, 0.200  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="at most 1,000 ops")
    sizes = SIZES[:2] if parser.parse_args().quick else SIZES
    print(f"dsl {dsl.__version__}, Python {sys.version.split()[0]}, NumPy {np.__version__}\n")
    with tempfile.TemporaryDirectory() as folder:
        show_straight_line(sizes, Path(folder))
        show_loops(Path(folder))
    show_import()
    show_call()


# --- (a) straight-line functions -----------------------------------------------------------------

LINES = (
    "v{k} = v{a} + v{b} * 0.5",
    "v{k} = np.sin(v{a})",
    "v{k} = v{a} - v{b}",
    "v{k} = np.maximum(v{a}, v{b})",
    "v{k} = v{a} * v{b}",
)


def straight_line(ops: int) -> str:
    """Return the source of a function of about `ops` ops, none of which repeats another."""
    lines, count, k = ["    v0 = x", "    v1 = x + 1.0"], 1, 2
    while count < ops:
        template = LINES[k % len(LINES)]
        lines.append("    " + template.format(k=k, a=k - 1, b=max(k - 7, 0)))
        count += 2 if "0.5" in template else 1
        k += 1
    names = ", ".join(f"v{k - 1 - j}" for j in range(8))
    return "\n".join(["import numpy as np", "def f(x):", *lines, f"    return {names}", ""])


def load(folder: Path, name: str, source: str) -> Callable[..., Any]:
    """Write a module and return its function `f`; conversion reads the source from the file."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] = module.f
    return function


def show_straight_line(sizes: Sequence[int], folder: Path) -> None:
    rows = []
    for ops in progress(sizes, "compiling straight-line functions"):
        rows.append((ops, *compile_phases(load(folder, f"line{ops}", straight_line(ops)))))
    columns = [*rows[0][2], "total", "processor"]
    print("(a) milliseconds for straight-line functions")
    print(f"{'ops':>8} {'nodes':>7} " + " ".join(f"{c:>12}" for c in columns) + f" {'µs/op':>7}")
    for ops, nodes, times, processor in rows:
        total = sum(times.values())
        cells = " ".join(f"{1e3 * t:12.1f}" for t in (*times.values(), total, processor))
        print(f"{ops:>8} {nodes:>7} {cells} {1e6 * total / ops:7.1f}")
    found = next(sum(times.values()) for ops, _, times, _ in rows if ops == 1_000)
    verdict = "within" if found < TARGET_1000_OPS else "OVER"
    print(f"1,000 ops: {found:.2f} s, {verdict} the {TARGET_1000_OPS:g} s allowed\n")


def compile_phases(f: Callable[..., Any]) -> tuple[int, dict[str, float], float]:
    """Compile once and return the number of nodes, the time of each phase, and the processor time of all."""
    begin = time.process_time()
    with config.override(verify="off"):
        lowered: Lowered = dsl.jit(f).lower(np.ones(8))
    start = time.perf_counter()
    verify(lowered.graph("traced"))
    verify(lowered.optimized)
    times = lowered.times | {"verify": time.perf_counter() - start}
    return len(lowered.optimized.nodes), times, time.process_time() - begin


# --- (b) loops -----------------------------------------------------------------------------------

LOOP = """
def f(x):
    for i in range({trips}):
        x = x * 0.5 + i
    return x
"""


def show_loops(folder: Path) -> None:
    print("(b) milliseconds to compile a loop")
    for trips in (10, 10**7):
        tries = [load(folder, f"loop{trips}_{k}", LOOP.format(trips=trips)) for k in range(7)]
        best = min(timed(lambda f=f: dsl.jit(f).lower(np.ones(8))) for f in tries)
        print(f"  range({trips:>10,}): {1e3 * best:6.2f}")
    print()


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


# --- (c) import ----------------------------------------------------------------------------------

IMPORT = """
import time; start = time.perf_counter()
import numpy; middle = time.perf_counter()
import dsl; print(middle - start, time.perf_counter() - middle)
"""


def show_import() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # The first process writes the bytecode that an installed package has, whatever this one was told to do.
        environment = os.environ | {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
        tries = [import_times(environment) for _ in progress(range(6), "importing")]
    numpy, rest = min(tries[1:], key=sum)
    verdict = "within" if numpy + rest < TARGET_IMPORT else "OVER"
    print(
        f"(c) import dsl: {1e3 * (numpy + rest):.0f} ms, of which NumPy {1e3 * numpy:.0f} ms; ",
        end="",
    )
    print(f"{verdict} the {1e3 * TARGET_IMPORT:.0f} ms allowed (best of 5 fresh processes)\n")


def import_times(environment: dict[str, str]) -> list[float]:
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


# --- (d) calls -----------------------------------------------------------------------------------


def tiny(x: Any) -> Any:
    return x + 1.0


def show_call() -> None:
    compiled, x = dsl.jit(tiny), np.ones(3)
    compiled(x)
    ours = min(timed(lambda: [compiled(x) for _ in range(1000)]) for _ in range(5))
    plain = min(timed(lambda: [tiny(x) for _ in range(1000)]) for _ in range(5))
    print(
        f"(d) one call of x + 1.0 on 3 elements: {1e3 * ours:.1f} µs compiled, {1e3 * plain:.2f} µs in plain NumPy"
    )


if __name__ == "__main__":
    main()
