"""The program that starts ranks: where it is, whose it is, and how it is asked for so many of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsl.errors import ConfigError

__all__ = ["INSTALL", "Mpirun", "find_mpirun", "library"]

INSTALL = 'pip install "dsl[mpi]", which brings mpi4py and Open MPI, or load your site\'s MPI'
_NAMES = ("mpirun", "mpiexec")
_SECONDS = 20


@dataclass(frozen=True)
class Mpirun:
    """A launcher of MPI: its path, its kind (`Open MPI`, `MPICH` or `unknown`), and what it says of its version."""

    path: str
    kind: str
    version: str

    def command(self, ranks: int, words: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        """Return the command line that runs a program on so many ranks, more than there are cores and as root too."""
        flags = ["--oversubscribe"] if self.kind == "Open MPI" else []
        if self.kind == "Open MPI" and hasattr(os, "geteuid") and os.geteuid() == 0:
            flags.append("--allow-run-as-root")
        return [self.path, *flags, "-n", str(ranks), *options, *words]


def find_mpirun(path: str | None = None) -> Mpirun:
    """Return the launcher at a path, or beside Python, or on PATH."""
    found = _located(path)
    if found is None:
        wanted = "mpirun" if path is None else path
        raise ConfigError(f"there is no {wanted}, which starts ranks", remedy=INSTALL)
    return _asked(found)


def _located(path: str | None) -> str | None:
    if path is not None:
        return shutil.which(path)
    beside = str(Path(sys.executable).parent)
    for place in (beside, None):
        for name in _NAMES:
            if found := shutil.which(name, path=place):
                return found
    return None


def _asked(path: str) -> Mpirun:
    """Ask a launcher who it is."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{path} does not run: {error}", remedy=INSTALL) from None
    return Mpirun(path, *_read_version(done.stdout + done.stderr))


def _read_version(text: str) -> tuple[str, str]:
    """Return the kind and the version that a launcher tells.

    >>> _read_version("mpirun (Open MPI) 5.0.11\\n")
    ('Open MPI', '5.0.11')
    >>> _read_version("HYDRA build details:\\n    Version:    4.1.2\\n")
    ('MPICH', '4.1.2')
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "says nothing of its version"
    if "Open MPI" in first or "OpenRTE" in first or "Open RTE" in first:
        return "Open MPI", first.split()[-1]
    if "HYDRA" in text or "Intel(R) MPI" in text:
        said = next((line for line in lines if line.startswith("Version:")), first)
        return "MPICH", said.removeprefix("Version:").strip()
    return "unknown", first


def library() -> list[tuple[str, str]]:
    """Return what mpi4py says of the MPI that it uses: the library, the standard, what threads may do."""
    from mpi4py import MPI

    levels = {
        MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled", MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }  # fmt: skip
    standard = ".".join(map(str, MPI.Get_version()))
    said = MPI.Get_library_version().strip("\x00 \n").splitlines()[0]
    level = levels.get(MPI.Query_thread(), "unknown")
    return [("library", said), ("standard", f"MPI {standard}"), ("threads", level)]
