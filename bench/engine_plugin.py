"""A plugin for SGLang inside engines that a benchmark or a test starts, beside ours.

SGLang finds plugins by the entry points of installed packages. A package is installed if its
metadata is in a folder on the path, so a folder with metadata is enough.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment(folder: Path, name: str, entry: str) -> dict[str, str]:
    """Returns the variables that make an engine load a plugin.

    folder: receives the metadata of the plugin's package (`write`). entry: `module:function`.
    """
    write(folder, name, entry)
    return variables(folder)


def write(folder: Path, name: str, entry: str) -> None:
    """Writes the metadata of a package with a plugin."""
    package = folder / f"{name}-0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0")
    (package / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {entry}\n")


def variables(folder: Path) -> dict[str, str]:
    """Returns the variables of an engine that loads the plugins in `folder`."""
    path = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}
