"""The config of a benchmark: that of the rollout it is about, and what is compared how often."""

import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from seer_sgl.config import (
    Config,
    FlagValue,
    Natural,
    Positive,
    Section,
    convert,
    place_of,
    read_tree,
)
from seer_sgl.config.contradictions import contradictions
from seer_sgl.errors import ConfigError
from seer_sgl.sim.config import PoolConfig, SpeculationConfig

from .arms import ARMS, GREEDY, Kind


class BenchSection(Section):
    """What is compared. A seed draws the prompts of a workload and all its samples."""

    arms: list[str] = msgspec.field(default_factory=lambda: [*ARMS, *GREEDY])
    rounds: Positive = 5
    seeds: Annotated[list[Natural], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [1, 2, 3]
    )
    # JSONL samples of an earlier rollout: prompts, and lengths that are imposed on every arm.
    # Without it, rollout.prompts and whatever lengths come of them.
    workload: str | None = None
    # Servers of all arms up at once. False: one kind at a time, started again each round, for
    # GPUs that hold no more.
    together: bool = True
    # Of servers that run already (engines.launch: external): where those of each kind are.
    urls: dict[Kind, list[str]] = msgspec.field(default_factory=dict)
    greedy_prompts: Positive = 64  # of greedy arms: one response each, all samples would be equal
    soak: Natural = 0  # rollouts in a row at the end, with an update of the weights after each
    # Of the simulation beside it, what is not measured on the servers.
    reserve_tokens: Natural | None = None  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION of the servers
    pool: PoolConfig = msgspec.field(default_factory=PoolConfig)
    speculation: SpeculationConfig = msgspec.field(default_factory=SpeculationConfig)
    # SGLang's own n-gram speculation (a greedy arm): its flags.
    ngram: dict[str, FlagValue] = msgspec.field(
        default_factory=lambda: {"speculative-num-draft-tokens": 8}
    )


class BenchConfig(Config):
    """A rollout with all techniques on, and what to compare it with by leaving them out."""

    bench: BenchSection = msgspec.field(default_factory=BenchSection)


def load_bench(path: Path | None, overrides: Sequence[str] = ()) -> BenchConfig:
    """Read a YAML file and apply `key.path=value` overrides.

    Raises ConfigError with one line that names the key and where it was set.
    """
    tree, where = read_tree(path, overrides)
    config = convert(tree, where, BenchConfig)
    for key, why in [*contradictions(config), *_complaints(config)]:
        raise ConfigError(f"{place_of(key, where)}{key}: {why}")
    return config


def _complaints(config: BenchConfig) -> list[tuple[str, str]]:
    known = [*ARMS, *GREEDY]
    unknown = [name for name in config.bench.arms if name not in known]
    found = []
    if unknown:
        found.append(("bench.arms", f"no arm {unknown[0]!r}; known: {', '.join(known)}"))
    if not config.bench.arms:
        found.append(("bench.arms", "none"))
    if len(set(config.bench.seeds)) < len(config.bench.seeds):
        found.append(("bench.seeds", "one is there twice"))
    if config.bench.workload is None and config.rollout.prompts is None:
        found.append(("rollout.prompts", "no prompts, and no bench.workload either"))
    if config.engines.launch == "external" and not config.bench.urls:
        found.append(("bench.urls", "launch: external needs it"))
    if config.scheduling.policy != "seer":
        found.append(("scheduling.policy", "each arm has its own"))
    return found


def asked_for(options: Mapping[str, Any]) -> list[str]:
    """The command line's own options as overrides."""
    overrides = []
    if options.get("workload") is not None:
        overrides.append(f"bench.workload={options['workload']}")
        # All of it, and every response as long as it says.
        overrides += ["rollout.max_prompts=null", "sampling.ignore_eos=true"]
    if options.get("rounds") is not None:
        overrides.append(f"bench.rounds={options['rounds']}")
    if options.get("arms") is not None:
        overrides.append(f"bench.arms=[{options['arms']}]")
    for engines in options.get("engines") or ():
        overrides += [f"engines.count={engines}"] if engines.isdigit() else _joined(engines)
    return overrides


def _joined(engines: str) -> list[str]:
    """`URL,URL` of plain servers, or `KIND=URL,URL`."""
    kind, equals, urls = engines.partition("=")
    if not equals:
        kind, urls = "plain", engines
    external = ["engines.launch=external", "engines.cores=null", "engines.environment={}"]
    return [*external, f"bench.urls.{kind}=[{urls}]", f"engines.urls=[{urls}]"]


def ready_config(gpu: bool) -> Path:
    """The config for this kind of machine that comes with seer-sgl."""
    name = "bench-gpu.yaml" if gpu else "bench-cpu.yaml"
    checkout = Path(__file__).resolve().parents[2] / "configs" / name
    installed = Path(sysconfig.get_path("data")) / "share" / "seer-sgl" / name
    return checkout if checkout.exists() else installed
