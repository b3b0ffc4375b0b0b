"""Links between the pages: the file exists, and so does the heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.reading import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")


def anchor_of(heading: str) -> str:
    """The anchor of a heading, by the rules of common renderers.

    >>> anchor_of("`[[sources]]`"), anchor_of("The file in force")
    ('sources', 'the-file-in-force')
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def is_broken(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    found = (page.parent / name).resolve() if name else page
    if not found.exists() or not anchor:
        return not found.exists()
    return anchor not in map(anchor_of, re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert [target for target in LINK.findall(page.read_text()) if is_broken(page, target)] == []


def test_a_broken_link_is_noticed() -> None:
    assert is_broken(ROOT / "README.md", "docs/none.md")
    assert is_broken(ROOT / "README.md", "docs/tutorial.md#no-such-heading")
    assert not is_broken(ROOT / "README.md", "docs/tutorial.md#1-install")


def test_every_page_can_be_reached_from_the_readme() -> None:
    pages, reached = [ROOT / "README.md"], set()
    while pages:
        page = pages.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        targets = (target.partition("#")[0] for target in LINK.findall(page.read_text()))
        pages += [(page.parent / name).resolve() for name in targets if name]
    listed = {page for page in PAGES if page.parent.name != "decisions"}
    assert listed - reached - {ROOT / "SECURITY.md"} == set()
