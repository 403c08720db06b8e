"""The pages for people: their links lead somewhere, and what is made from the code is current."""

from pathlib import Path

import pytest

from tools.docs.pages import ROOT, outdated

from .links import anchors, links

MOST_COLUMNS = 160
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        target, _, anchor = link.partition("#")
        file = page if not target else (page.parent / target).resolve()
        assert file.exists(), link
        assert file.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(file), link


def test_pages_made_from_the_code_and_the_results_are_current() -> None:
    assert outdated() == [], "`python -m tools.docs.pages` writes them"


def test_the_index_lists_every_page() -> None:
    docs = ROOT / "docs"
    listed = {(docs / link.partition("#")[0]).resolve() for link in links(docs / "index.md")}
    assert not {*docs.rglob("*.md")} - {docs / "index.md"} - listed


def test_the_landing_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 140


def test_prose_is_no_wider_than_a_window() -> None:
    wide = []
    for page in PAGES:
        code = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            code ^= line.lstrip().startswith("```")
            prose = not code and not line.lstrip().startswith(("|", "!", "#", "<!--"))
            if prose and len(line) > MOST_COLUMNS:
                wide.append(f"{page.name}:{number}")
    assert wide == []
