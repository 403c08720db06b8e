"""The YAML blocks of the pages. Each is a whole config of a rollout."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from seer_sgl.config import Config, load

from .blocks import PAGES, blocks


@dataclass(frozen=True)
class PageConfig:
    """A YAML block. `file`: the name in its first line (`# mine.yaml`), or its page's."""

    place: str
    file: str
    text: str

    def load(self) -> Config:
        """Returns the checked config. Raises ConfigError."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / self.file
            path.write_text(self.text)
            return load(path)


def configs() -> list[PageConfig]:
    """Returns the YAML blocks of all pages."""
    found: list[PageConfig] = []
    for block in (block for page in PAGES for block in blocks(page) if block.language == "yaml"):
        first = block.code.partition("\n")[0]
        name = first.removeprefix("# ") if first.startswith("# ") else "of-the-page.yaml"
        found.append(PageConfig(block.place, name, block.code))
    return found
