"""A test's own plugin for SGLang inside the engines that it starts.

SGLang finds plugins by the entry points of installed packages. A package is installed if its
metadata is in a folder on the path, so a folder of the test is enough.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment(folder: Path, name: str, entry: str) -> dict[str, str]:
    """Returns the variables that make an engine load a plugin.

    folder: receives the metadata of the plugin's package. entry: `module:function`.
    """
    package = folder / f"{name}-0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0")
    (package / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {entry}\n")
    path = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}
