"""The tour runs from top to bottom and shows what dsl prints today."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
TOUR = ROOT / "notebooks" / "tour.ipynb"


@pytest.fixture(scope="module")
def stored() -> Any:
    return nbformat.read(TOUR, as_version=4)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell: Any) -> str:
    """The text of a cell's outputs; a kernel may send what was printed in several pieces."""
    return "".join(output.get("text") or output["data"]["text/plain"] for output in cell.outputs)


# What a kernel and its client warn of is theirs.
@pytest.mark.filterwarnings("default")
def test_the_tour_runs_and_prints_what_it_shows(
    stored: Any, bless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    for name in [name for name in os.environ if name.startswith("DSL_")]:
        monkeypatch.delenv(name)
    script = runpy.run_path(str(TOUR.parent / "make_tour.py"))
    fresh = script["execute"](script["build"](), TOUR.parent)
    if bless:
        nbformat.write(fresh, TOUR)
        return
    assert [cell.source for cell in stored.cells] == [cell.source for cell in fresh.cells]
    for old, new in zip(code(stored), code(fresh)):
        assert printed(old) == printed(new), f"run `python notebooks/make_tour.py`:\n{old.source}"


def test_the_stored_outputs_have_pictures_and_no_errors(stored: Any) -> None:
    outputs = [output for cell in code(stored) for output in cell.outputs]
    assert all(output.output_type != "error" for output in outputs)
    pictures = [o for o in outputs if "<svg" in o.get("data", {}).get("text/html", "")]
    assert len(pictures) >= 3


def test_the_stored_outputs_name_no_directories(stored: Any) -> None:
    text = "".join(str(cell.outputs) for cell in code(stored))
    assert not re.search(r"/(tmp|home|root|Users|var)/|ipykernel_|[A-Z]:\\\\", text)
