"""The pages in docs/ tell the truth: their examples run, their tables are up to date, every page is linked."""

from __future__ import annotations

from pathlib import Path

from markdown_examples import check_page

from dsl import errors

DOCS = Path(__file__).parent.parent / "docs"


def test_the_examples_of_errors_fail_and_succeed_as_shown(bless: bool) -> None:
    assert check_page(DOCS / "errors.md", fresh=True, bless=bless) >= 2 * len(errors.__all__) - 4


def test_the_examples_of_sharp_bits_print_what_is_shown(bless: bool) -> None:
    assert check_page(DOCS / "sharp-bits.md", bless=bless) >= 18


def test_every_exception_has_an_anchor() -> None:
    lines = (DOCS / "errors.md").read_text(encoding="utf-8").splitlines()
    assert sorted(line[3:] for line in lines if line.startswith("## ")) == sorted(errors.__all__)


def test_the_index_links_to_every_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    missing = [p.name for p in DOCS.glob("*.md") if f"({p.name})" not in index]
    assert missing in ([], ["index.md"])
