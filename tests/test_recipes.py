"""A second process finds code by what it is made from: it makes no text, and nothing else is different."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsl
from dsl.codegen.cpu import cache, elf, recipes
from dsl.config import config

pytestmark = pytest.mark.skipif(not elf.runs_here(), reason="elsewhere LLVM links all code")

HOME = Path(dsl.__file__).parent

PROGRAM = """
import sys
import time
from dsl.codegen.cpu import recipes
recipes._imported = time.time() + 3600  # as if nobody had edited anything lately

import numpy as np
import dsl

@dsl.jit
def work(x, y):
    print("rows", len(x))
    return np.sort(np.tanh(x @ y).sum(axis=1))[::-1], x.argmax()

@dsl.jit
def pick(x, places):
    total = 0.0
    for k in places:
        total += x[k]
    return total

x = np.linspace(-1, 1, 30 * 40).reshape(30, 40)
print(work(x, x.T.copy())[0][:3], work(x, x.T.copy())[1])
"""
REST = """
print(dsl.cache_stats().llvm_compiles, "dsl.codegen.program" in sys.modules)
try:
    pick(x[0], np.array([0, 50]))
except IndexError as error:
    print(error, error.__notes__)
print(work.lower(x, x.T.copy()).text("kernels"))
print(work.lower(x, x.T.copy()).fallbacks())
print(work.explain())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with config.override(cache_dir=str(tmp_path)):
        yield tmp_path


def run(file: Path, folder: Path, text: str = PROGRAM + REST) -> list[str]:
    """Run a program in a process of its own and return its lines."""
    file.write_text(text)
    environment = {**os.environ, "DSL_CACHE_DIR": str(folder), "PYTHONPATH": str(HOME.parent)}
    done = subprocess.run(
        [sys.executable, str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_second_process_makes_no_text_and_does_the_same(folder: Path) -> None:
    text = PROGRAM.replace('    print("rows", len(x))\n', "") + REST
    file = folder / "program.py"
    first, second = run(file, folder, text), run(file, folder, text)
    assert re.fullmatch(r"[1-9]\d* True", first[1])
    assert second[1] == "0 False"
    assert first[:1] + first[2:] == second[:1] + second[2:]
    assert "index 50 is out of bounds for axis 0 with size 40" in second[2]


def test_callbacks_run_in_a_second_process(folder: Path) -> None:
    file = folder / "program.py"
    first, second = run(file, folder), run(file, folder)
    assert first[0] == "rows 30"
    assert [line for line in first if "True" not in line] == [
        line for line in second if not line.startswith("0 ")
    ]


def test_a_note_without_its_code_is_as_good_as_none(folder: Path) -> None:
    file = folder / "program.py"
    first = run(file, folder)
    for object_file in folder.glob("*.dsl"):
        if b"\x7fELF" in object_file.read_bytes():
            object_file.unlink()
    assert run(file, folder) == first


def test_a_damaged_note_is_none() -> None:
    key = recipes.recipe("test", "x") or "unsettled"
    recipes.keep(key, "code", needs=["a"], is_long=True)
    assert recipes.find(key) == ("code", {"needs": ["a"], "is_long": True})
    for content in (b"", b"no json", b"[1]"):
        cache.store().put(key, content)
        assert recipes.find(key) is None
    assert recipes.find(None) is None


def test_notes_are_not_counted_as_code() -> None:
    before = cache.totals()
    recipes.keep("key", "code")
    recipes.find("key")
    recipes.find("another key")
    assert cache.totals() == before


def test_a_changed_source_changes_every_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "codegen" / "cpu").mkdir(parents=True)
    file = tmp_path / "codegen" / "cpu" / "emit.py"
    monkeypatch.setattr(recipes, "_home", lambda: str(tmp_path))
    monkeypatch.setattr(recipes, "_imported", time.time() + 3600)
    found = []
    for text, changed in (("a = 1", 1000), ("a = 2", 1001), ("a = 10", 1001)):
        file.write_text(text)
        os.utime(file, (changed, changed))
        found.append(recipes._sources.__wrapped__())
    assert len(set(found)) == 3


def test_sources_that_changed_lately_are_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ir").mkdir()
    (tmp_path / "ir" / "graph.py").write_text("")
    monkeypatch.setattr(recipes, "_home", lambda: str(tmp_path))
    assert recipes._sources.__wrapped__() is None
    monkeypatch.setattr(recipes, "_home", lambda: str(tmp_path / "archive.zip"))
    assert recipes._sources.__wrapped__() is None


def test_text_is_made_by_modules_that_keys_tell_apart() -> None:
    """What `codegen` and `ir` import of dsl is in those folders, or cannot change a text."""
    harmless = {"config", "errors", "events", "logs"}
    for folder in recipes._FOLDERS:
        for file in (HOME / folder).rglob("*.py"):
            found = re.findall(r"^\s*(?:from|import) dsl\.(\w+)", file.read_text(), re.MULTILINE)
            assert set(found) <= harmless | set(recipes._FOLDERS), file
