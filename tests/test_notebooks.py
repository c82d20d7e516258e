"""The notebooks run from top to bottom and show what dsl prints today."""

from __future__ import annotations

import os
import re
import runpy
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
VARIES = "# Differs from machine to machine."
PICTURES = {"tour": 3, "stages": 2, "ode": 0, "graphs": 0, "parallel": 0, "cuda": 1}

every_notebook = pytest.mark.parametrize("name", PICTURES)


def stored(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell: Any) -> str:
    """The text of a cell's outputs; a kernel may send what was printed in several pieces."""
    return "".join(output.get("text") or output["data"]["text/plain"] for output in cell.outputs)


# What a kernel and its client warn of is theirs.
@pytest.mark.filterwarnings("default")
@every_notebook
def test_a_notebook_runs_and_prints_what_it_shows(
    name: str, bless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    for variable in [variable for variable in os.environ if variable.startswith("DSL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.syspath_prepend(FOLDER)
    cells = import_module("cells")
    script = runpy.run_path(str(FOLDER / f"make_{name}.py"))
    fresh = cells.execute(cells.build(script["CELLS"]))
    if bless:
        nbformat.write(fresh, FOLDER / f"{name}.ipynb")
        return
    old = stored(name)
    assert [cell.source for cell in old.cells] == [cell.source for cell in fresh.cells]
    for before, after in zip(code(old), code(fresh)):
        if before.source.startswith(VARIES):
            assert printed(after), before.source
        else:
            message = f"run `python notebooks/make_{name}.py`:\n{before.source}"
            assert printed(before) == printed(after), message


@every_notebook
def test_the_stored_outputs_have_pictures_and_no_errors(name: str) -> None:
    outputs = [output for cell in code(stored(name)) for output in cell.outputs]
    assert all(output.output_type != "error" for output in outputs)
    pictures = [o for o in outputs if "<svg" in o.get("data", {}).get("text/html", "")]
    assert len(pictures) >= PICTURES[name]


def test_the_stages_end_with_a_plot_of_the_benchmark() -> None:
    outputs = code(stored("stages"))[-1].outputs
    assert [list(output.data) for output in outputs] == [["image/png", "text/plain"]]


def test_the_fit_of_an_ode_ends_with_a_plot() -> None:
    outputs = code(stored("ode"))[-1].outputs
    assert "image/png" in outputs[-1].data


def test_the_queue_fed_training_ends_with_a_plot() -> None:
    plotted = [
        o
        for cell in code(stored("graphs"))
        for o in cell.outputs
        if "image/png" in o.get("data", {})
    ]
    assert len(plotted) == 1


def test_the_examples_on_ranks_were_run_and_end_with_a_plot() -> None:
    outputs = [output for cell in code(stored("parallel")) for output in cell.outputs]
    assert "image/png" in outputs[-1].data
    assert "skipped" not in str([output.get("text") for output in outputs])


@every_notebook
def test_the_stored_outputs_name_no_directories(name: str) -> None:
    outputs = [output for cell in code(stored(name)) for output in cell.outputs]
    for output in outputs:
        output.get("data", {}).pop("image/png", None)
    assert not re.search(r"/(tmp|home|root|Users|var)/|ipykernel_|[A-Z]:\\\\", str(outputs))
