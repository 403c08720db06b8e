"""A hook of mkdocs (mkdocs.yml): links from the pages to files outside of docs/.

On a code host such a link opens the file. The site has no copy of the repository, and no address of
one: there a picture is copied beside the page, and any other link becomes its text.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = re.compile(r"(!?)\[([^\]]*)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")
PICTURES = (".png", ".svg")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Called by mkdocs for each page."""
    from mkdocs.structure.files import File

    def here(match: re.Match[str]) -> str:
        is_picture, text, target = match[1] == "!", match[2], match[3]
        if not (ROOT / target).exists():
            return match[0]  # mkdocs reports it
        if not (is_picture and target.endswith(PICTURES)):
            return text
        if files.get_file_from_path(target) is None:
            source = str(ROOT)
            files.append(File(target, source, config.site_dir, config.use_directory_urls))
        return f"![{text}]({target})"

    return OUTSIDE.sub(here, markdown)
