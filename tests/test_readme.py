"""The front page tells the truth: its examples run and print what it shows, its commands and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_examples import check_page

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted([README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def test_examples_print_what_is_shown(bless: bool) -> None:
    assert check_page(README, bless=bless) >= 2


@pytest.mark.parametrize(
    "command", ["pip install -e . && python -m dsl demo", 'pip install -e ".[test]" && pytest']
)
def test_the_two_commands_stand_on_lines_of_their_own(command: str) -> None:
    assert command in README.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(found), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
