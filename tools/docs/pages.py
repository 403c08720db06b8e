"""Writes the pages that are made from the code and from results: `python -m tools.docs.pages`.

The pages of MADE are made whole. In other pages and in the README a block between
`<!-- from SOURCE: NAME -->` and `<!-- end -->` is filled from a benchmark's report.json.
"""

from pathlib import Path

from . import config_page, figures, hooks_page, reference_page, report_page

ROOT = Path(__file__).resolve().parents[2]
MADE = {
    "configuration.md": config_page.text,
    "report.md": report_page.text,
    "hooks.md": hooks_page.text,
    "reference.md": reference_page.text,
}
NOTE = "<!-- made by `python -m tools.docs.pages`; edit the code it is made from -->\n\n"


def current() -> dict[Path, str]:
    """Returns the text that each page should have."""
    pages = {ROOT / "docs" / name: NOTE + make() for name, make in MADE.items()}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if page not in pages:
            pages[page] = figures.filled(page.read_text(encoding="utf-8"), ROOT)
    return pages


def outdated() -> list[str]:
    """Returns the names of pages whose text is another one."""
    return [
        page.name
        for page, text in current().items()
        if not page.exists() or page.read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    for page, text in current().items():
        page.write_text(text, encoding="utf-8")
