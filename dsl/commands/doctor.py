"""`python -m dsl doctor`: what a bug report needs to know about this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

from dsl.config import OPTIONS, config
from dsl.logs import help_text

__all__ = ["run"]

NEEDED = ("dsl", "numpy", "scipy", "ml_dtypes", "opt_einsum")
OPTIONAL = {
    "llvmlite": "native code (to come)",
    "numba": "benchmarks",
    "mpi4py": "many processes (to come)",
    "cupy": "CUDA (to come)",
}


def run() -> int:
    """Print versions, processor, options, log topics and optional packages; 1 if something needed is missing."""
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


def cores() -> str:
    """How many there are, and how many this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{os.cpu_count()}, of which this process may use {usable}"
