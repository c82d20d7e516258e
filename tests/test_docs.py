"""The pages in docs/ tell the truth: their examples run, their tables are up to date, every page is linked."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_examples import check_page

from dsl import errors

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
TABLES = runpy.run_path(str(DOCS / "make_op_table.py"))["PAGES"]


def test_the_examples_of_errors_fail_and_succeed_as_shown(bless: bool) -> None:
    # Two for each class but the base and InternalError, and but those that need several ranks or a GPU.
    classes = set(errors.__all__) - {"DeviceMemoryError", "MismatchError", "PeerError"}
    assert check_page(DOCS / "errors.md", fresh=True, bless=bless) == 2 * len(classes) - 3


def test_every_exception_has_an_anchor() -> None:
    lines = (DOCS / "errors.md").read_text(encoding="utf-8").splitlines()
    assert sorted(line[3:] for line in lines if line.startswith("## ")) == sorted(errors.__all__)


def test_the_examples_of_sharp_bits_print_what_is_shown(bless: bool) -> None:
    assert check_page(DOCS / "sharp-bits.md", bless=bless) >= 18


def test_adding_an_op_works_as_shown(bless: bool) -> None:
    """In a process of its own: the page registers an op."""
    page = DOCS / "add-an-op.md"
    code = f"from pathlib import Path; from markdown_examples import check_page; print(check_page(Path({str(page)!r}), bless={bless}))"
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 6


def test_user_kernels_work_as_shown(bless: bool) -> None:
    pytest.importorskip("numba")
    assert check_page(DOCS / "user-kernels.md", bless=bless) >= 8


def test_gpus_do_what_their_page_shows(bless: bool) -> None:
    pytest.importorskip("numba")
    assert check_page(DOCS / "cuda.md", bless=bless) == 3


def test_devices_do_what_their_page_shows(bless: bool) -> None:
    assert check_page(DOCS / "devices.md", bless=bless) == 2


def test_ranks_do_what_their_page_shows(bless: bool) -> None:
    assert check_page(DOCS / "parallel.md", bless=bless) == 5


def test_profiling_works_as_shown(bless: bool) -> None:
    assert check_page(DOCS / "profiling.md", bless=bless) == 3


def test_native_code_does_what_its_page_shows(bless: bool) -> None:
    assert check_page(DOCS / "native-code.md", bless=bless) >= 8


def test_checkpoints_work_as_shown(bless: bool) -> None:
    assert check_page(DOCS / "checkpoints.md", bless=bless) >= 3


def test_summaries_are_written_and_read_as_shown(bless: bool) -> None:
    assert check_page(DOCS / "summaries.md", bless=bless) >= 2


def test_graphs_and_sessions_work_as_shown(bless: bool) -> None:
    assert check_page(DOCS / "graphs.md", bless=bless) >= 10


def test_queues_work_as_shown(bless: bool) -> None:
    assert check_page(DOCS / "queues.md", bless=bless) >= 5


def test_the_table_of_ops_says_how_each_is_compiled() -> None:
    """What the samples show is what the tables of the back end say."""
    from dsl.codegen.library import LOWERINGS
    from dsl.codegen.plan import REDUCTIONS, UPDATES

    rows = re.findall(
        r"^\| `(\w+)` \|.* \| ([^|]*) \| [^|]* \| [^|]*\|$", TABLES["ops.md"](), re.MULTILINE
    )
    native = {name: how.partition(";")[0] for name, how in rows}
    assert {name for name, how in native.items() if how == "library"} == set(LOWERINGS)
    assert {native[name] for name in REDUCTIONS | UPDATES} == {"kernel"}
    assert [name for name, how in native.items() if how == "NumPy"] == ["polygamma", "print"]


@pytest.mark.parametrize("name", TABLES)
def test_generated_tables_are_up_to_date(name: str, bless: bool) -> None:
    if bless:
        (DOCS / name).write_text(TABLES[name](), encoding="utf-8")
    assert (DOCS / name).read_text(encoding="utf-8") == TABLES[name](), (
        "run `python docs/make_op_table.py`"
    )


def test_the_tables_list_what_was_promised() -> None:
    assert TABLES["numpy-support.md"]().count("\n| `") >= 250


def test_the_index_links_to_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    missing = [p.name for p in DOCS.glob("*.md") if f"({p.name})" not in index]
    assert missing == ["index.md"]
