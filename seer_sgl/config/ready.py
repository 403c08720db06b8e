"""The files that come with seer-sgl: ready configs, a small model with prompts, pinned lists.

In a checkout `seer_sgl/ready` has links to them; a wheel has the files themselves.
"""

import importlib.resources
import json
from collections.abc import Iterator
from pathlib import Path

from seer_sgl.errors import ConfigError

from .reading import read_tree

ROOT = Path(str(importlib.resources.files("seer_sgl"))) / "ready"
CONFIGS = ROOT / "configs"
REQUIREMENTS = {
    "cpu": ROOT / "requirements-cpu.txt",
    "gpu-overrides": ROOT / "requirements-gpu-overrides.txt",
}
FILES = ("model.path", "rollout.prompts", "bench.workload")  # keys of files, relative to ROOT
BENCHMARK = "bench-"  # begins the names of the benchmark's configs


def ready_names() -> list[str]:
    """Returns the names of the ready configs of a rollout, sorted."""
    names = (path.stem for path in CONFIGS.glob("*.yaml"))
    return sorted(name for name in names if not name.startswith(BENCHMARK))


def ready_config(name: str) -> Path:
    """Returns the file of a ready config. Raises ConfigError if there is none of that name."""
    if name not in ready_names():
        raise ConfigError(f"--ready {name}: unknown; known: {', '.join(ready_names())}")
    return CONFIGS / f"{name}.yaml"


def own_files(path: Path) -> Iterator[str]:
    """Yields overrides that name the files of a ready config by their absolute paths, unless they
    are found from the working folder, as in a checkout."""
    tree, _ = read_tree(path)
    for key in FILES:
        section, _, name = key.partition(".")
        file = tree.get(section, {}).get(name)
        if file is not None and not Path(file).exists() and (ROOT / file).exists():
            yield f"{key}={json.dumps(str(ROOT / file))}"
