"""Where NVIDIA's tools are on this machine: libdevice, the mathematical functions, and ptxas, the assembler.

In: Python's packages, the environment, the file system. Out: paths, or None; nothing is imported and no GPU is asked.
The packages that `pip install "dsl[cuda13]"` brings come first, since their versions are known, then what an
environment variable names, then the places where installers put CUDA.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Found", "explain", "find_libdevice", "find_ptxas", "libdevice", "package_version", "ptxas"]  # fmt: skip

LIBDEVICE = "nvvm/libdevice/libdevice.10.bc"
PTXAS = "bin/ptxas"
INSTALL = "pip install nvidia-cuda-nvcc (CUDA 13) or nvidia-cuda-nvcc-cu12"

_VERSION_SECONDS = (
    20  # a ptxas on a cold network disk takes its time; one that hangs is as good as none
)


@dataclass(frozen=True)
class Found:
    """A file, who brought it, and its version as far as it is known."""

    path: Path
    origin: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({', '.join(filter(None, [self.version, self.origin]))})"


def libdevice() -> Path | None:
    """Return the path of `libdevice.10.bc`, LLVM bitcode of the mathematical functions, or None."""
    found = find_libdevice()
    return found.path if found else None


def ptxas() -> Path | None:
    """Return the path of a `ptxas` that runs, or None."""
    found = find_ptxas()
    return found.path if found else None


def find_libdevice() -> Found | None:
    """Return the libdevice to use, with its origin and the version of its CUDA."""
    places = [(root / LIBDEVICE, root, origin) for root, origin in _roots()]
    places += [(root / "lib" / "libdevice.10.bc", root, origin) for root, origin in _triton()]
    for path, root, origin in places:
        if path.is_file():
            return Found(path, origin, _root_version(root, "nvidia-nvvm"))
    return None


def find_ptxas() -> Found | None:
    """Return the ptxas to use: the first that tells its version."""
    places = [(root / PTXAS, origin) for root, origin in _roots()]
    if on_path := shutil.which("ptxas"):
        places.append((Path(on_path), "PATH"))
    places += [(root / PTXAS, origin) for root, origin in _triton()]
    for path, origin in places:
        if path.is_file() and (version := _asked_version(path)):
            return Found(path, origin, version)
    return None


def explain() -> list[tuple[str, str]]:
    """Return what was found where, and what to install for what is missing, as rows of two texts."""
    found = {"libdevice": find_libdevice(), "ptxas": find_ptxas()}
    uses = {
        "libdevice": "without it dsl's own sin, exp, … are used",
        "ptxas": "without it nothing tells the registers of a kernel",
    }
    return [
        (name, str(it) if it else f"missing: {uses[name]}; {INSTALL}") for name, it in found.items()
    ]


# --- Places --------------------------------------------------------------------------------------


def _roots() -> Iterator[tuple[Path, str]]:
    """Yield the folders that may hold a CUDA toolkit, and what to call each."""
    for folder in _package_folders("nvidia"):
        for root in sorted(folder.glob("cu[0-9]*"), key=_number, reverse=True):
            yield root, "a package of Python"
        yield folder / "cuda_nvcc", "a package of Python"
    for variable in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        if value := os.environ.get(variable):
            yield Path(value), variable
    yield Path(sys.prefix), "sys.prefix"
    yield Path("/usr/local/cuda"), "/usr/local/cuda"
    yield Path("/usr/lib/cuda"), "/usr/lib/cuda"  # Debian and Ubuntu
    if on_path := shutil.which("ptxas"):
        yield Path(on_path).resolve().parent.parent, "beside ptxas"


def _triton() -> Iterator[tuple[Path, str]]:
    """Triton comes with a libdevice and a ptxas of its own, laid out in its own way; PyTorch needs Triton."""
    for folder in _package_folders("triton"):
        yield folder / "backends" / "nvidia", "the package triton"


def _package_folders(name: str) -> list[Path]:
    """Return the folders of a package without importing it; a namespace package has several."""
    try:
        spec = importlib.util.find_spec(name)
    except (
        ImportError,
        ValueError,
    ):  # ValueError: somebody put a module without a spec into sys.modules
        return []
    return [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]


def _number(root: Path) -> int:
    return int(re.sub(r"\D", "", root.name))


# --- Versions ------------------------------------------------------------------------------------


def package_version(*names: str) -> str:
    """Return the version of the first of these distributions that is installed, or nothing.

    >>> package_version("no-such-package")
    ''
    """
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _root_version(root: Path, package: str) -> str:
    """The version of a toolkit: by its package, else as its file `version.json` says."""
    if re.fullmatch(r"cu\d+", root.name):
        return package_version(package)
    if root.name == "cuda_nvcc":
        return package_version("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc-cu11")
    try:
        told = json.loads((root / "version.json").read_text(encoding="utf-8"))
        return str(told["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


@functools.cache
def _asked_version(path: Path) -> str:
    """What a ptxas says of itself; nothing if it does not run here."""
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"\bV(\d+[.\d]*)", done.stdout)
    return found[1] if found else ""
