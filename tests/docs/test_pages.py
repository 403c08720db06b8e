"""The pages for people: their links lead somewhere, and what is made from the code is current."""

from pathlib import Path

import pytest

from tools.docs.pages import ROOT, outdated

from .links import anchors, links

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


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


def test_the_landing_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
