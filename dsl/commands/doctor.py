"""`python -m dsl doctor`: what a bug report needs to know about this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from dsl.codegen.cpu import cache
from dsl.commands.job import Job, Plan
from dsl.commands.launch import environment
from dsl.config import OPTIONS, config, launched_rank
from dsl.errors import ConfigError, DslError
from dsl.logs import help_text
from dsl.mpi.mpirun import INSTALL, Mpirun, find_mpirun
from dsl.mpi.ring import RESULT

__all__ = ["run"]

RING_SECONDS = 30
NEEDED = ("dsl", "numpy", "scipy", "ml_dtypes", "opt_einsum", "llvmlite")
OPTIONAL = {
    "numba": "user kernels, `@dsl.kernel`",
    "matplotlib": "the plot of `python -m dsl bench`",
    "jax": "a peer in benchmarks",
    "torch": "a peer in benchmarks",
}
VECTORS = (
    "sse4",
    "avx",
    "fma",
    "f16c",
    "amx",
    "neon",
    "sve",
    "dotprod",
)  # features that matter here


def run() -> int:
    """Print versions, processor, native code, MPI, CUDA, options, log topics and packages; 1 if something needed is missing."""
    versions = {name: version(name) for name in NEEDED}
    table(
        "versions",
        [("Python", f"{platform.python_version()} ({sys.implementation.name})"), *versions.items()],
    )
    table(
        "machine",
        [
            ("system", f"{platform.system()} {platform.machine()}"),
            ("CPU", cpu_name()),
            ("cores", cores()),
        ],
    )
    table("native code (docs/native-code.md)", native(versions["llvmlite"]))
    table("many processes (docs/launching.md)", mpi())
    table("CUDA (docs/cuda.md)", cuda())
    table(
        "options in force (docs/debugging.md)",
        [(o.env, option(name)) for name, o in OPTIONS.items()],
    )
    print(f"\n{help_text()}")
    table(
        "optional packages", [(name, f"{version(name)}: {use}") for name, use in OPTIONAL.items()]
    )
    return 1 if "missing" in versions.values() else 0


def table(title: str, rows: Iterable[tuple[str, str]]) -> None:
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    print("\n".join([f"\n{title}:", *(f"  {name:<{width}}  {text}" for name, text in rows)]))


def version(package: str) -> str:
    """Return the version of a package without importing it."""
    if importlib.util.find_spec(package) is None:
        return "missing"
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return own_version() if package == "dsl" else "present, version unknown"


def own_version() -> str:
    """The version of dsl when it is run from its sources."""
    import dsl

    return f"{dsl.__version__} (not installed)"


def option(name: str) -> str:
    value, default = getattr(config, name), OPTIONS[name].default
    shown = ", ".join(sorted(value)) or "none" if isinstance(value, frozenset) else str(value)
    return shown if value == default else f"{shown}   (default: {default})"


def cpu_name() -> str:
    """The processor as the system calls it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or "unknown")


def native(llvmlite: str) -> list[tuple[str, str]]:
    """What machine code is made for, what runs it and where it is kept."""
    if llvmlite == "missing":
        return [("missing", "llvmlite is needed")]
    from dsl.codegen.cpu import jit

    name, features = jit._cpu()
    present = [f[1:] for f in features.split(",") if f.startswith("+")]
    used = sorted(f for f in present if f.startswith(VECTORS))
    return [
        ("target", name),
        ("features", " ".join(used) or "none that matter"),
        ("threads", threads()),
        ("cache", cache_directory()),
        ("cached", cached()),
    ]


def mpi() -> list[tuple[str, str]]:
    """What MPI there is, and whether two ranks can send each other a number with it."""
    if version("mpi4py") == "missing":
        return [("mpi4py", f"missing: one process alone; {INSTALL}")]
    rows = [("mpi4py", version("mpi4py"))]
    try:
        found = find_mpirun()
    except ConfigError as error:
        return [*rows, ("mpirun", f"missing: {error.message}; {INSTALL}")]
    rows.append(("mpirun", f"{found.path}, {found.kind} {found.version}"))
    return rows + ring(found)


def cuda() -> list[tuple[str, str]]:
    """What there is for GPUs, and which there are; else in a sentence why there are none."""
    from dsl.codegen.cuda import toolkit

    cupy = toolkit.package_version("cupy-cuda13x", "cupy-cuda12x", "cupy")
    rows = [("cupy", cupy or "missing"), *toolkit.explain()]
    return [*rows, *gpus(), ("cuda-emulator:0", "works everywhere: runs kernels on the CPU")]


def gpus() -> list[tuple[str, str]]:
    """The GPUs by name, and the driver. Whatever drivers do, the doctor goes on."""
    from dsl.codegen.cuda import cupy_driver

    try:
        cupy, _ = cupy_driver.available()
        runtime = cupy.cuda.runtime
        driver, own = map(
            cupy_driver.cuda_version, (runtime.driverGetVersion(), runtime.runtimeGetVersion())
        )
        found = [(f"cuda:{facts.index}", str(facts)) for facts in cupy_driver.devices()]
    except DslError as error:
        return [("GPUs", f"none: {error.message}; {error.remedy}")]
    except Exception as error:
        return [("GPUs", f"none: {type(error).__name__}: {error}")]
    return [("driver", f"knows CUDA {driver}; CuPy is for CUDA {own}"), *found]


def ring(mpirun: Mpirun) -> list[tuple[str, str]]:
    """Pass a number round two ranks, and return what they say of their MPI and how it went."""
    if launched_rank() is not None:
        return [("ring", "not tried: this process is itself a rank")]
    plan = Plan(mpirun, 2, [sys.executable, "-m", "dsl.mpi.ring"], limit=RING_SECONDS, shown=False)
    settings = {k: v for k, v in environment(2).items() if not k.startswith("DSL_")}
    with tempfile.TemporaryDirectory(prefix="dsl-doctor-") as folder:
        failure = Job(plan, Path(folder), settings).run()
        result = Path(folder) / RESULT
        if failure is not None or not result.exists():
            lines = " ".join(failure.lines) if failure is not None else "no rank said how it went"
            return [("ring", f"FAILED: {lines}")]
        said = json.loads(result.read_text(encoding="utf-8"))
    round_trip = f"works: 2 ranks passed a number round in {1e3 * said['seconds']:.2f} ms"
    return [*(tuple(row) for row in said["library"]), ("ring", round_trip)]


def threads() -> str:
    """How many threads compiled code uses, and who says so."""
    from dsl.codegen.cpu import pool

    if config.num_threads:
        why = "DSL_NUM_THREADS"
    elif pool.count() != pool.available():
        why = "OMP_NUM_THREADS"
    else:
        why = "the CPUs that affinity and control groups grant"
    return f"{pool.count()}, from {why}"


def cache_directory() -> str:
    """The directory of compiled code, with the user's home left out, and whether it can be used."""
    folder = cache.store().directory
    if folder is None:
        return "off"
    path = Path(folder)
    near = next(p for p in (path, *path.parents) if p.exists())
    state = "" if near == path else " (made when first needed)"
    if not os.access(near, os.W_OK):
        state = " (read only)" if near == path else " (cannot be made)"
    home = os.path.expanduser("~")
    return (
        folder.replace(home, "~", 1) + state if folder.startswith(home + os.sep) else folder + state
    )


def cached() -> str:
    """What the directory of compiled code holds."""
    folder = cache.store().directory
    if folder is None:
        return "nothing is kept between processes"
    sizes = [file.stat().st_size for file in Path(folder).glob("*.dsl")]
    return f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB of at most {config.cache_size / 1e6:,.0f} MB"


def cores() -> str:
    """How many there are, and how many this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{os.cpu_count()}, of which this process may use {usable}"
