"""A second process finds code by what it is made from: it makes no text, and nothing else is different."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsl
from dsl.codegen.cpu import cache, elf, jit, recipes
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


def test_a_damaged_object_is_as_good_as_none(folder: Path) -> None:
    file = folder / "program.py"
    first = run(file, folder)
    for object_file in folder.glob("*.dsl"):
        content = object_file.read_bytes()
        if (at := content.find(b"\x7fELF")) >= 0:
            object_file.write_bytes(content[: at + 40])
    assert run(file, folder) == first


def code_of(key: str | None, number: int, name: str = "f") -> jit.Code:
    text = f"define i64 @{name}() {{\n  ret i64 {number}\n}}"
    return recipes.load(key, text, level=2, flags=(), needs=["a"], is_long=True)


def test_what_is_kept_has_a_note_and_the_object() -> None:
    code = code_of("key", 1)
    note = recipes.find("key")
    assert note is not None
    assert note.facts == {"needs": ["a"], "is_long": True}
    assert note.content.startswith(b"\x7fELF")
    assert jit.link_object(note.code, note.content) is code
    del code
    gc.collect()
    again = jit.link_object(note.code, note.content)
    assert again is not None
    assert again.from_cache
    assert again.address("f")


def test_a_damaged_note_is_none() -> None:
    for content in (b"", b"no json", b"[1]", b"[1]\n\x7fELF"):
        cache.store().put("key", content)
        assert recipes.find("key") is None
    assert recipes.find(None) is None


def test_recipes_of_one_text_both_have_its_object() -> None:
    compiles = jit.stats().llvm_compiles
    assert code_of("one", 2) is code_of("other", 2)
    assert jit.stats().llvm_compiles == compiles + 1
    notes = [recipes.find(key) for key in ("one", "other")]
    assert notes[0] == notes[1]
    assert notes[0] is not None


def test_only_code_is_counted() -> None:
    def counted() -> tuple[int, int]:
        return cache.totals().hits, cache.totals().misses

    hits, misses = counted()
    code_of("key", 3)
    assert counted() == (hits, misses + 1)
    assert recipes.find("another key") is None
    note = recipes.find("key")
    assert counted() == (hits, misses + 1)
    assert note is not None
    gc.collect()
    assert jit.link_object(note.code, note.content) is not None
    assert counted() == (hits + 1, misses + 1)


def test_code_without_a_recipe_is_kept_under_its_text() -> None:
    compiles = jit.stats().llvm_compiles
    for _ in range(2):
        assert code_of(None, 4).address("f")
        gc.collect()
    assert jit.stats().llvm_compiles == compiles + 1


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
