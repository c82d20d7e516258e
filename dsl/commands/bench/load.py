"""Find the files of cases and import them.

In a clone they are `benchmarks/cases/*.py`; a wheel carries the same files as `dsl_benchmarks/`. They lie outside the
package because dsl leaves its own modules unconverted: the programs must be a user's code.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import dsl
from dsl.commands.bench.case import ROWS, Case
from dsl.commands.bench.gpu_case import GpuCase
from dsl.config import did_you_mean
from dsl.errors import ConfigError

__all__ = ["all_cases", "case_named", "gpu_cases", "matching"]

PACKAGE = "dsl_benchmarks"
AnyCase = TypeVar("AnyCase", bound=Case)


def all_cases() -> list[Case]:
    """Return every case, in the order of the rows."""
    files = sorted(_folder().glob("*.py"))
    cases: list[Case] = [case for file in files for case in _module(file).CASES]
    return sorted(cases, key=lambda case: ROWS.index(case.row))


def gpu_cases() -> list[GpuCase]:
    """Return the cases of `python -m dsl bench cuda`, in the order of their files."""
    files = sorted((_folder() / "gpu").glob("*.py"))
    return [case for file in files for case in _module(file, "gpu_").CASES]


def case_named(name: str) -> Case:
    """Return one case."""
    cases = {case.name: case for case in all_cases()}
    if name not in cases:
        raise ConfigError(f"there is no case {name!r}{did_you_mean(name, cases)}")
    return cases[name]


def matching(cases: Iterable[AnyCase], patterns: Iterable[str]) -> list[AnyCase]:
    """Return the cases that a pattern names, or whose name or row contains it; `*` stands for anything."""
    cases = list(cases)
    names = {case.name for case in cases}
    wanted = [p if p in names else f"*{p.lower()}*" for p in patterns]
    return [case for case in cases if any(_matches(case, pattern) for pattern in wanted)]


def _matches(case: Case, pattern: str) -> bool:
    return case.name == pattern or fnmatch(f"{case.name} {case.row}".lower(), pattern)


def _folder() -> Path:
    beside = Path(dsl.__file__).parent.parent
    # The clone first: an editable install has a copy from the day it was installed.
    for folder in (beside / "benchmarks" / "cases", beside / PACKAGE, *_installed()):
        if folder.is_dir():
            return folder
    raise ConfigError(
        "the files of benchmark cases are missing",
        remedy="run from a clone, or install dsl from a wheel",
    )


def _installed() -> list[Path]:
    spec = importlib.util.find_spec(PACKAGE)
    return [Path(place) for place in (spec and spec.submodule_search_locations) or ()]


def _module(file: Path, prefix: str = "") -> ModuleType:
    name = f"{PACKAGE}.{prefix}{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
