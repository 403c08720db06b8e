"""The settings of a simulation, read from a named workload or a YAML file of the same shape."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seer_sgl.config import convert, read_tree
from seer_sgl.config.ready import CONFIGS
from seer_sgl.errors import ConfigError

from .config import MOST_REQUESTS, SimConfig, page_size
from .speculation import most_drafts
from .steps import StepTime

# A forward pass outside is a wrong unit, and would be simulated for ever.
SHORTEST_S, LONGEST_S = 1e-9, 3600.0
WORKLOADS = CONFIGS / "sim"


def workload_names() -> list[str]:
    """Returns the names of all workloads."""
    return sorted(path.stem for path in WORKLOADS.glob("*.yaml"))


def workload_file(name: str) -> Path:
    """Returns the file of a workload. Raises ConfigError if the name is unknown."""
    if name not in workload_names():
        raise ConfigError(f"--workload {name}: unknown; known: {', '.join(workload_names())}")
    return WORKLOADS / f"{name}.yaml"


def load_settings(
    *paths: Path, overrides: Sequence[str] = (), known: Mapping[str, Any] | None = None
) -> SimConfig:
    """Returns the settings of the files; later files override earlier ones, and `key.path=value`
    overrides all files.

    `known`: values of a trace for keys that are not set. Raises ConfigError with one line that
    names the key and the place where it was set.
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
    """Returns both trees in one; if both have a value, `above` takes precedence."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            both[key] = merged(below[key], above[key])
    return both


def check(config: SimConfig, where: Mapping[str, str] | None = None) -> None:
    """Raises ConfigError if the config cannot be simulated. `where`: key -> where it was set."""
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
    if engine.experts_per_token > engine.experts:
        refuse("engine.experts_per_token", f"{engine.experts_per_token:g} of {engine.experts}")
    times, input_tokens = StepTime(engine), workload.prompt_tokens + lengths.max
    steps = {
        "a step of one sequence": times.fixed(1) + times.attention() * input_tokens,
        "a prefill": times.prefill(input_tokens),
    }
    for name, seconds in steps.items():
        if not SHORTEST_S <= seconds <= LONGEST_S:  # also not a number
            refuse("engine", f"{name} takes {seconds:g} s, not {SHORTEST_S:g} to {LONGEST_S:g}")
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
    most = most_drafts(speculation)
    if not all(1 <= length <= most + 1 for length in speculation.accept_length):
        refuse("speculation.accept_length", f"must be between 1 and {most + 1} (drafts + 1)")
    if sorted(set(references)) != list(references):
        refuse("speculation.references", "must ascend")
