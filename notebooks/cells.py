"""A notebook from the text of its cells: built, run, and written with its outputs.

`===` stands before a cell of prose, `---` before one of code. The output of a cell that begins with
`# Differs from machine to machine.` is shown and not compared by the tests.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import nbformat
from nbclient import NotebookClient

__all__ = ["build", "execute", "write"]

FOLDER = Path(__file__).parent


def write(name: str, text: str) -> None:
    """Write the notebook of that name, as it looks after it has run."""
    target = FOLDER / f"{name}.ipynb"
    nbformat.write(execute(build(text)), target)
    print(f"wrote {target.name}")


def cells(text: str) -> list[nbformat.NotebookNode]:
    """Return the cells: `===` ends a code cell before text, `---` begins a code cell."""
    found = []
    for section in textwrap.dedent(text).strip().split("\n===\n"):
        prose, *codes = section.split("\n---\n")
        found.append(nbformat.v4.new_markdown_cell(prose))
        found += [nbformat.v4.new_code_cell(code) for code in codes]
    for number, cell in enumerate(found):
        cell["id"] = f"cell-{number:02d}"
    return found


def build(text: str) -> nbformat.NotebookNode:
    """Return the notebook without outputs."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells(text), metadata={"kernelspec": kernel})


def execute(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run every cell in this folder, and drop what differs from run to run."""
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata.pop("language_info", None)
    return notebook
