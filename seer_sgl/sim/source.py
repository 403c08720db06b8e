"""Where the settings of a simulation come from: a workload by name, or any YAML of that shape."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seer_sgl.config import convert, read_tree
from seer_sgl.config.ready import CONFIGS
from seer_sgl.errors import ConfigError

from .config import MOST_REQUESTS, SimConfig, page_size

WORKLOADS = CONFIGS / "sim"


def workload_names() -> list[str]:
    """The workloads that can be named."""
    return sorted(path.stem for path in WORKLOADS.glob("*.yaml"))


def workload_file(name: str) -> Path:
    """The file of a workload. Raises ConfigError for a name that is none."""
    if name not in workload_names():
        raise ConfigError(f"--workload {name}: unknown; known: {', '.join(workload_names())}")
    return WORKLOADS / f"{name}.yaml"


def load_settings(
    *paths: Path, overrides: Sequence[str] = (), known: Mapping[str, Any] | None = None
) -> SimConfig:
    """The settings in files, a later one over an earlier one, `key.path=value` over both.

    `known`: values for keys that nobody sets (of a trace). Raises ConfigError with one line that
    names the key and where it was set.
    """
    tree, where = dict(known or {}), dict[str, str]()
    for path in paths:
        above, places = read_tree(path)
        tree, where = merged(tree, above), where | places
    above, places = read_tree(None, overrides)
    tree, where = merged(tree, above), where | places
    config = convert(tree, where, SimConfig)
    check(config, where)
    return config


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two trees in one; where both have a value, that of `above`."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            both[key] = merged(below[key], above[key])
    return both


def check(config: SimConfig, where: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError for what cannot be simulated. `where`: key -> the place it was set."""
    workload, engine = config.workload, config.engine

    def refuse(key: str, why: str) -> None:
        place = (where or {}).get(key)
        raise ConfigError(f"{place}: {key}: {why}" if place else f"{key}: {why}")

    lengths = workload.lengths
    requests = workload.groups * workload.n_samples_per_prompt
    if requests > MOST_REQUESTS:
        refuse("workload.groups", f"{requests} requests; at most {MOST_REQUESTS} can be simulated")
    if not 1 <= lengths.mean <= lengths.max:
        refuse("workload.lengths.mean", f"{lengths.mean:g} is not between 1 and max {lengths.max}")
    page = page_size(config)
    longest = workload.prompt_tokens + lengths.max
    if -(-longest // page) > engine.kv_tokens // page:
        refuse(
            "engine.kv_tokens",
            f"{engine.kv_tokens} tokens in pages of {page} cannot hold one request of {longest} "
            f"({workload.prompt_tokens} of prompt, up to {lengths.max} of response)",
        )
    speculation = config.speculation
    references: Any = speculation.references
    if len(references) != len(speculation.accept_length) or not references:
        refuse("speculation.accept_length", "needs one value for each of speculation.references")
    if sorted(set(references)) != list(references):
        refuse("speculation.references", "must ascend")
