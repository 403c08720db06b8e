"""The config of a benchmark: that of the rollout it is about, and what is compared how often."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from seer_sgl.config import (
    Config,
    DraftConfig,
    FlagValue,
    KvPoolConfig,
    Natural,
    Positive,
    Section,
    convert,
    place_of,
    read_tree,
)
from seer_sgl.config.contradictions import contradictions
from seer_sgl.config.masking import without_userinfo
from seer_sgl.errors import ConfigError
from seer_sgl.sim.config import PoolConfig, SpeculationConfig

from .arms import ARMS, GREEDY, Kind


class BenchSection(Section, frozen=True):
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


class BenchConfig(Config, frozen=True):
    """A rollout with all techniques on, and what to compare it with by leaving them out."""

    bench: BenchSection = msgspec.field(default_factory=BenchSection)


def load_bench(path: Path | None, overrides: Sequence[str] = ()) -> BenchConfig:
    """Read a YAML file and apply `key.path=value` overrides.

    Raises ConfigError with one line that names the key and where it was set.
    """
    tree, where = read_tree(path, overrides)
    config = convert(tree, where, BenchConfig)
    for key, why in [*_contradictions(config), *_complaints(config)]:
        raise ConfigError(f"{place_of(key, where)}{key}: {why}")
    return config


def load_ready(gpu: bool, overrides: Sequence[str] = ()) -> BenchConfig:
    """The config for this kind of machine that comes with seer-sgl, from any folder."""
    path = ready_config(gpu)
    return load_bench(path, [*_own_files(path), *overrides])


def _own_files(path: Path) -> Iterator[str]:
    """Overrides by which the files that a ready config names are found in its checkout."""
    tree, _ = read_tree(path)
    for key in ("model.path", "rollout.prompts", "bench.workload"):
        section, _, name = key.partition(".")
        file = tree.get(section, {}).get(name)
        if file is not None and not Path(file).exists():
            there = path.parents[1] / file
            if there.exists():
                yield f"{key}={json.dumps(str(there))}"


def _contradictions(config: BenchConfig) -> Iterator[tuple[str, str]]:
    """Those that concern every arm.

    Of servers that run already, a kind may lack what pool or drafts need: its arms are left out.
    """
    if config.engines.launch != "external":
        yield from contradictions(config)
        return
    plain = msgspec.structs.replace(config, kv_pool=KvPoolConfig(), draft=DraftConfig())
    yield from contradictions(plain)
    for kind, urls in config.bench.urls.items():
        engines = msgspec.structs.replace(config.engines, urls=urls)
        for key, why in contradictions(msgspec.structs.replace(plain, engines=engines)):
            if key == "engines.urls":
                yield f"bench.urls.{kind}", why


def _complaints(config: BenchConfig) -> list[tuple[str, str]]:
    known = [*ARMS, *GREEDY]
    unknown = [name for name in config.bench.arms if name not in known]
    found = []
    if unknown:
        found.append(("bench.arms", f"no arm {unknown[0]!r}; known: {', '.join(known)}"))
    for name, times in Counter(config.bench.arms).items():
        if times > 1:
            found.append(("bench.arms", f"{name!r} is there twice"))
    if not config.bench.arms:
        found.append(("bench.arms", "none"))
    if len(set(config.bench.seeds)) < len(config.bench.seeds):
        found.append(("bench.seeds", "one is there twice"))
    if config.bench.workload is None and config.rollout.prompts is None:
        found.append(("rollout.prompts", "no prompts, and no bench.workload either"))
    if config.bench.workload is not None and not config.sampling.ignore_eos:
        found.append(("sampling.ignore_eos", "true is needed for the lengths of bench.workload"))
    if config.engines.launch == "external" and not config.bench.urls:
        found.append(("bench.urls", "launch: external needs it"))
    if config.scheduling.policy != "seer":
        found.append(("scheduling.policy", "each arm has its own"))
    return found


def overrides_from(options: Mapping[str, Any]) -> list[str]:
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
    joined: set[str] = set()
    given = options.get("engines") or ()
    for engines in given:
        if engines.isdigit() and len(given) > 1:
            raise ConfigError(f"--engines {engines}: starts servers; nothing else goes with it")
        kind, _ = _kind_and_urls(engines)
        if kind in joined:
            raise ConfigError(
                f"--engines {without_userinfo(engines)}: twice; all of a kind go with commas"
            )
        joined.add(kind)
        overrides += [f"engines.count={engines}"] if engines.isdigit() else _joined(engines)
    return overrides


def _kind_and_urls(engines: str) -> tuple[str, str]:
    """`URL,URL` of plain servers, or `KIND=URL,URL`."""
    kind, equals, urls = engines.partition("=")
    return (kind, urls) if equals else ("plain", engines)


def _joined(engines: str) -> list[str]:
    kind, urls = _kind_and_urls(engines)
    external = ["engines.launch=external", "engines.cores=null", "engines.environment={}"]
    return [*external, f"bench.urls.{kind}=[{urls}]", f"engines.urls=[{urls}]"]


def ready_config(gpu: bool) -> Path:
    """Where the config for this kind of machine lies in the checkout. Raises ConfigError."""
    name = "bench-gpu.yaml" if gpu else "bench-cpu.yaml"
    path = Path(__file__).resolve().parents[2] / "configs" / name
    if not path.exists():
        raise ConfigError(
            "bench: no benchmark model in an installed seer-sgl; give --config with a model of "
            "yours"
        )
    return path
