"""The config of a benchmark: the config of its rollout, the arms to compare and the rounds."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from seer_sgl.bounds import Natural, Positive
from seer_sgl.config import (
    Config,
    DraftConfig,
    ExternalEngines,
    KvPoolConfig,
    LocalEngines,
    Section,
    convert,
    place_of,
    read_tree,
)
from seer_sgl.config.masking import without_userinfo
from seer_sgl.config.ready import CONFIGS, own_files
from seer_sgl.config.validate import validate
from seer_sgl.errors import ConfigError

from .arms import ARMS, GREEDY, Kind

ELSEWHERE = {"router": "python -m bench.full --router has it, in a checkout"}  # arms


class BenchSection(Section, frozen=True):
    """The arms, rounds and seeds. A seed draws the prompts of a workload and all its samples."""

    arms: list[str] = msgspec.field(default_factory=lambda: [*ARMS, *GREEDY])
    """The arms to compare."""
    rounds: Positive = 5
    """Rollouts per arm."""
    seeds: Annotated[list[Natural], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [1, 2, 3]
    )
    """A seed draws `rollout.max_prompts` prompts and all samples; rounds take the seeds in turn."""
    workload: str | None = None
    """JSONL samples of an earlier rollout: its prompts, and its lengths, which are imposed on every
    arm. Default: `rollout.prompts` with the lengths that the model generates."""
    colocate_servers: bool = True
    """Run the servers of all arms at once. False: one kind at a time, restarted each round, for
    machines that cannot hold all of them."""
    urls: dict[Kind, list[str]] = msgspec.field(default_factory=dict)
    """Servers that already run, by kind: `{plain: [...], pool: [...], drafting: [...], ngram:
    [...]}`."""


class BenchConfig(Config, frozen=True):
    """The config of a rollout with all techniques, and of the arms that leave some out."""

    bench: BenchSection = msgspec.field(default_factory=BenchSection)


def load_bench(path: Path | None, overrides: Sequence[str] = ()) -> BenchConfig:
    """Reads a YAML file and applies `key.path=value` overrides.

    Raises ConfigError with one line that names the key and the place where it was set.
    """
    tree, where = read_tree(path, overrides)
    config = convert(tree, where, BenchConfig)
    for key, problem in [*_check_config(config), *_check_bench(config)]:
        raise ConfigError(f"{place_of(key, where)}{key}: {problem}")
    return config


def load_ready_bench(gpu: bool, overrides: Sequence[str] = ()) -> BenchConfig:
    """Returns the benchmark's config that comes with seer-sgl for this kind of machine, under
    `key.path=value` overrides. Its files are found from any folder. Raises ConfigError.
    """
    path = CONFIGS / ("bench-gpu.yaml" if gpu else "bench-cpu.yaml")
    return load_bench(path, [*own_files(path), *overrides])


def _check_config(config: BenchConfig) -> Iterator[tuple[str, str]]:
    """Yields the problems that concern every arm.

    Servers that already run may lack the settings for pool or drafts: their arms are skipped.
    """
    if not isinstance(config.engines, ExternalEngines):
        yield from validate(config)
        return
    plain = msgspec.structs.replace(config, kv_pool=KvPoolConfig(), draft=DraftConfig())
    yield from validate(plain)
    for kind, urls in config.bench.urls.items():
        if not urls:
            yield f"bench.urls.{kind}", "launch: external needs at least one URL"
        engines = msgspec.structs.replace(config.engines, urls=urls)
        for key, problem in validate(msgspec.structs.replace(plain, engines=engines)):
            if key == "engines.urls":
                yield f"bench.urls.{kind}", problem


def _check_bench(config: BenchConfig) -> Iterator[tuple[str, str]]:
    known = [*ARMS, *GREEDY]
    unknown = [name for name in config.bench.arms if name not in known]
    if unknown:
        hint = ELSEWHERE.get(unknown[0], f"known: {', '.join(known)}")
        yield "bench.arms", f"no arm {unknown[0]!r}; {hint}"
    for name, times in Counter(config.bench.arms).items():
        if times > 1:
            yield "bench.arms", f"{name!r} is listed twice"
    if not config.bench.arms:
        yield "bench.arms", "the list is empty"
    if len(set(config.bench.seeds)) < len(config.bench.seeds):
        yield "bench.seeds", "a seed is listed twice"
    if config.bench.workload is None and config.rollout.prompts is None:
        yield "rollout.prompts", "set this key or bench.workload"
    if config.bench.workload is not None and not config.sampling.ignore_eos:
        yield "sampling.ignore_eos", "bench.workload needs true for its lengths"
    if not isinstance(config.engines, LocalEngines | ExternalEngines):
        yield "engines.launch", "the benchmark needs local or external"
    if isinstance(config.engines, ExternalEngines) and not config.bench.urls:
        yield "bench.urls", "launch: external needs this key"
    if config.scheduling.policy != "seer":
        yield "scheduling.policy", "each arm sets its own policy"
    if config.scheduling.lengths is not None:
        yield "scheduling.lengths", "no arm has a prior, and oracle takes those of the workload"


def load_from_options(
    *, config: Path | None, gpu: bool, overrides: Sequence[str], **options: Any
) -> BenchConfig:
    """Returns the config of a command line, under its `options` (`overrides_from`) and `overrides`.

    Raises ConfigError.
    """
    if gpu and config is not None:
        raise ConfigError("--gpu: it uses configs/bench-gpu.yaml; not together with --config")
    changes = [*overrides_from(options), *overrides]
    return load_ready_bench(gpu, changes) if config is None else load_bench(config, changes)


def overrides_from(options: Mapping[str, Any]) -> list[str]:
    """Returns the command line's own options as overrides."""
    overrides = []
    if options.get("workload") is not None:
        overrides.append(f"bench.workload={json.dumps(options['workload'])}")
        # All prompts of the trace, every response with the length of the trace.
        overrides += ["rollout.max_prompts=null", "sampling.ignore_eos=true"]
    if options.get("rounds") is not None:
        overrides.append(f"bench.rounds={options['rounds']}")
    if options.get("arms") is not None:
        overrides.append(f"bench.arms=[{options['arms']}]")
    joined: set[str] = set()
    given = options.get("engines") or ()
    for engines in given:
        if engines.isdigit() and len(given) > 1:
            raise ConfigError(
                f"--engines {engines}: starts servers; give no other --engines with it"
            )
        kind, _ = _kind_and_urls(engines)
        if kind in joined:
            raise ConfigError(
                f"--engines {without_userinfo(engines)}: kind given twice; separate the URLs of a "
                "kind with commas"
            )
        joined.add(kind)
        overrides += [f"engines.count={engines}"] if engines.isdigit() else _joined(engines)
    return overrides


def _kind_and_urls(engines: str) -> tuple[str, str]:
    """Parses `URL,URL` (plain servers) or `KIND=URL,URL`."""
    kind, equals, urls = engines.partition("=")
    return (kind, urls) if equals else ("plain", engines)


def _joined(engines: str) -> list[str]:
    kind, urls = _kind_and_urls(engines)
    unset = set(LocalEngines.__struct_fields__) - set(ExternalEngines.__struct_fields__)
    external = ["engines.launch=external", *(f"engines.{key}=null" for key in sorted(unset))]
    return [*external, f"bench.urls.{kind}=[{urls}]", f"engines.urls=[{urls}]"]
