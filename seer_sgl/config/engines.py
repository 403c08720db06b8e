"""The section `engines`: a type for each `launch`, with its keys and what contradicts them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, get_args

import msgspec
from typing_extensions import override

from seer_sgl.bounds import Natural

from .addresses import is_address, is_url
from .section import Processes, Seconds, Section
from .values import Problem

FlagValue = bool | int | float | str | list[int | float | str]
Cores = list[list[Natural]] | Literal["auto"] | None
DEFAULT_LAUNCH = "local"
# SGLang flags of engines that are started, and what sets them instead.
RESERVED_FLAGS = {
    "model-path": "use model.path",
    "model": "use model.path",
    "tokenizer-path": "use model.tokenizer_path",
    "trust-remote-code": "use model.trust_remote_code",
    "api-key": "use engines.api_key",
    "host": "the driver chooses the addresses of engines that it starts",
    "port": "the driver chooses the ports of engines that it starts",
    "disaggregation-mode": "every engine prefills and decodes its requests itself",
}
# SGLang's names of the flag for the number of pipeline stages.
PIPELINE_PARALLEL = ("pp-size", "pipeline-parallel-size", "pp")
# SGLang's flag for what host memory holds of the KV with a pool, and the value for no copies.
HOST_MODE, BUFFER_ONLY = "hicache-host-memory-mode", "buffer_only"
CPU_START_S, GPU_START_S = 600.0, 1800.0
ONE_NODE_FLAGS = ("nnodes", "node-rank", "dist-init-addr", "base-gpu-id")  # Ray places an engine
# SGLang flags that let steps round differently, on any machine.
INEXACT_FLAGS = (
    "enable-mixed-chunk",
    "enable-torch-compile",
    "quantization",
    "rl-on-policy-target",
)


class EnginesConfig(Section, frozen=True, tag_field="launch"):
    """The SGLang servers. `launch` decides who starts them, and which keys there are."""

    sglang: dict[str, FlagValue] = msgspec.field(default_factory=dict)
    """SGLang's own server flags, passed through unchanged: `{tp-size: 8, mem-fraction-static:
    0.85}`. Reports mask flags named after a key, token, password or secret."""
    exact: bool = False
    """On a GPU: run every step with one attention kernel, so that neither division nor drafts
    change a bit, and refuse what cannot be exact: FlashAttention 3 on Hopper, which costs no more
    than deterministic inference; else Triton, whose plain steps become slower. On a CPU: require
    deterministic inference.
    ([What holds where](exactness.md#what-does-each-mode-promise-and-what-does-it-cost))"""
    stall_timeout_s: Seconds = 120.0
    """An engine that has work and makes no progress for this long loses its chunks."""
    recovery_timeout_s: Seconds = 60.0
    """Seconds that a rollout waits while no engine serves."""
    api_key: str | None = None
    """Bearer token of the engines. Default: `SEER_SGL_API_KEY`; on a Ray cluster of several
    machines, a new one."""

    @property
    def launch(self) -> str:
        """The name of this type in a config."""
        return str(self.__struct_config__.tag)

    def flags(self) -> dict[str, FlagValue]:
        """Returns the user's own SGLang flags, spelled as on a command line."""
        return {name.replace("_", "-"): value for name, value in self.sglang.items()}

    @property
    def keeps_host_copies(self) -> bool:
        """Whether an engine with a KV pool copies all KV on its device to host memory too."""
        return self.flags().get(HOST_MODE) != BUFFER_ONLY

    def problems(self) -> Iterator[Problem]:
        """Yields keys that contradict each other or this machine, each with the reason.

        What `exact` rules out on a GPU only: engine/launch/exact.py.
        """
        if not self.exact:
            return
        flags = self.flags()
        if flags.get("enable-deterministic-inference") is False:
            yield "engines.sglang.enable-deterministic-inference", "engines.exact needs it"
        for flag, value in flags.items():
            if (flag in INEXACT_FLAGS and value is not False) or flag.startswith("speculative-"):
                yield f"engines.sglang.{flag}", "not with engines.exact"


class StartedEngines(EnginesConfig, frozen=True):
    """Servers that the driver starts and ends."""

    count: Processes = 1
    """Servers to start."""
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    """Environment variables of the engines. Reports mask their values."""
    start_timeout_s: Seconds | None = None
    """Seconds that an engine may take to start. Default: 1800 on a GPU, where the first start
    compiles kernels and each captures graphs for all draft widths; else 600."""

    def start_limit_s(self, gpu: bool) -> float:
        """Returns the seconds that an engine may take to start. gpu: whether it runs on a GPU."""
        return self.start_timeout_s or (GPU_START_S if gpu else CPU_START_S)

    @override
    def problems(self) -> Iterator[Problem]:
        for name in self.environment:
            if not name or "=" in name:
                yield "engines.environment", f"{name!r} cannot be the name of a variable"
        flags = self.flags()
        for flag, why in RESERVED_FLAGS.items():
            if flag in flags:
                yield f"engines.sglang.{flag}", why
        yield from super().problems()


class LocalEngines(StartedEngines, frozen=True, tag="local"):
    """Servers that the driver starts on its own machine."""

    cores: Cores = None
    """CPU cores to pin each engine to, one list per engine; `auto`: all cores in equal shares where
    there is a GPU, else one core per engine, in turn."""

    @override
    def problems(self) -> Iterator[Problem]:
        if isinstance(self.cores, list):
            if len(self.cores) != self.count:
                yield "engines.cores", f"{len(self.cores)} lists for count: {self.count}"
            if not all(self.cores):
                yield "engines.cores", "an engine without a core"
            absent = {core for cores in self.cores for core in cores} - os.sched_getaffinity(0)
            if absent:
                yield "engines.cores", f"no core {min(absent)} on this machine"
        yield from super().problems()


class RayEngines(StartedEngines, frozen=True, tag="ray"):
    """Servers that the driver starts on the nodes of a Ray cluster
    ([how](fleet.md#engines-on-a-ray-cluster))."""

    ray_address: str | None = None
    """host:port of a Ray cluster that this machine is a node of; `auto`: the one that runs here;
    `local`: a new one for this command. Default: `RAY_ADDRESS`, else `local`."""
    ray_resources: dict[str, Annotated[float, msgspec.Meta(gt=0.0)]] = msgspec.field(
        default_factory=dict
    )
    """What Ray reserves for an engine: `{GPU: 8, CPU: 16}`. Default: a GPU per rank; on a cluster
    without GPUs, a CPU per rank."""

    @override
    def problems(self) -> Iterator[Problem]:
        key, address = "engines.ray_address", self.ray_address
        if address is not None and address.startswith("ray://"):
            yield key, "no ray:// address: run the driver on a node of the cluster"
        elif address not in (None, "auto", "local") and not is_address(str(address)):
            yield key, f"{address!r} is not host:port, auto or local"
        for flag in ONE_NODE_FLAGS:
            if flag in self.flags():
                yield (
                    f"engines.sglang.{flag}",
                    "not for launch: ray, which gives an engine one node",
                )
        yield from super().problems()


class ExternalEngines(EnginesConfig, frozen=True, tag="external"):
    """Servers that already run, which the driver joins."""

    urls: list[str] = msgspec.field(default_factory=list)
    """Addresses of the engines. None: `seer-sgl serve` waits for those that join it by
    `POST /workers`."""
    link: str | None = None
    """host:port where the driver listens for the plugins of the engines; the token is in
    `SEER_SGL_LINK_TOKEN`."""

    @override
    def problems(self) -> Iterator[Problem]:
        for url in self.urls:
            if not is_url(url):
                yield "engines.urls", f"{url!r} is not of the form http://host:port"
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            yield "engines.urls", "an engine is listed twice"
        if self.link is not None and not is_address(self.link):
            yield "engines.link", f"{self.link!r} is not of the form host:port"
        yield from super().problems()


Engines = LocalEngines | RayEngines | ExternalEngines
LAUNCHES: Mapping[str, type[EnginesConfig]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(Engines)
}
KEYS: Mapping[str, Sequence[str]] = {  # the values of `launch` whose engines have a key
    key: [launch for launch, kind in LAUNCHES.items() if key in kind.__struct_fields__]
    for kind in LAUNCHES.values()
    for key in kind.__struct_fields__
}
