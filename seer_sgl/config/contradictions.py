"""Checks that types cannot express: contradictions, and settings impossible on this machine."""

import os
from collections.abc import Callable, Iterator, Mapping

from seer_sgl.admission.sampling import invalid

from .addresses import is_address, is_url
from .tree import (
    UNDIVIDED,
    Config,
    DraftConfig,
    EnginesConfig,
    KvPoolConfig,
    ServerConfig,
)
from .values import Complaint

# SGLang flags that have their own key.
RESERVED_FLAGS = {
    "model-path": "model.path",
    "model": "model.path",
    "tokenizer-path": "model.tokenizer_path",
    "trust-remote-code": "model.trust_remote_code",
    "api-key": "engines.api_key",
}
SEVERAL_NODES = ("nnodes", "node-rank", "dist-init-addr")  # SGLang flags
LEAST_MEMORY = 16 << 20  # bytes; Mooncake mounts segments in pieces of 16 MiB
LEAST_DRAFT_MEMORY = 1 << 20  # bytes; about ten thousand tokens in an engine's index
LEAST_BODY = 1 << 20  # bytes; a prompt of a hundred thousand tokens
# SGLang flags that the KV pool sets.
POOL_FLAGS = {
    "page-size": "kv_pool.page_size",
    "hicache-ratio": "kv_pool.host_ratio",
    "hicache-storage-backend": "kv_pool.backend",
    "hicache-storage-backend-extra-config": "kv_pool",
    "hicache-write-policy": "kv_pool",
    "hicache-storage-prefetch-policy": "kv_pool",
    "enable-hierarchical-cache": "kv_pool.backend",
    "enable-cache-report": "kv_pool",
    "disable-radix-cache": "kv_pool.backend: none",
}


# SGLang flags that let steps round differently, on any machine.
INEXACT_FLAGS = (
    "enable-mixed-chunk",
    "enable-torch-compile",
    "quantization",
    "rl-on-policy-target",
)


def contradictions(config: Config) -> Iterator[Complaint]:
    """Yields every complaint, the most important first."""
    engines = config.engines
    yield from WRONG_LAUNCH[engines.launch](engines)
    if engines.launch != "ray":
        for key in ("ray_address", "ray_resources"):
            if getattr(engines, key):
                yield f"engines.{key}", "only for launch: ray"
    yield from _wrong_pool(config.kv_pool, engines)
    yield from _wrong_draft(config.draft, engines)
    yield from _wrong_exact(engines)
    yield from _wrong_scheduling(config)
    yield from _wrong_server(config.server)
    for name, why in invalid(config.sampling):
        yield f"sampling.{name}".rstrip("."), why
    if engines.launch != "external" and config.model.path is None:
        yield "model.path", f"missing; engines.launch: {engines.launch} needs a model"


def _wrong_external(engines: EnginesConfig) -> Iterator[Complaint]:
    if not engines.urls:
        yield "engines.urls", "launch: external needs at least one URL"
    for url in engines.urls:
        if not is_url(url):
            yield "engines.urls", f"{url!r} is not of the form http://host:port"
    if len({url.rstrip("/") for url in engines.urls}) < len(engines.urls):
        yield "engines.urls", "an engine is listed twice"
    if engines.link is not None and not is_address(engines.link):
        yield "engines.link", f"{engines.link!r} is not of the form host:port"
    if engines.environment:
        yield "engines.environment", "only for engines that are started, not for launch: external"


def _wrong_started(engines: EnginesConfig) -> Iterator[Complaint]:
    """Yields complaints about engines that the driver starts, here or on a cluster."""
    if engines.urls:
        yield "engines.urls", "only for launch: external"
    if engines.link is not None:
        yield "engines.link", "only for launch: external; other engines get the driver's address"
    for name in engines.environment:
        if not name or "=" in name:
            yield "engines.environment", f"{name!r} cannot be the name of a variable"
    flags = engines.flags()
    for flag, key in RESERVED_FLAGS.items():
        if flag in flags:
            yield f"engines.sglang.{flag}", f"use {key}"
    if "port" in flags:
        yield "engines.sglang.port", f"{engines.launch} engines listen on free ports"
    if "host" in flags:
        where = "loopback only, for their driver" if engines.launch == "local" else "their node"
        yield "engines.sglang.host", f"{engines.launch} engines listen on {where}"


def _wrong_ray(engines: EnginesConfig) -> Iterator[Complaint]:
    yield from _wrong_started(engines)
    address = engines.ray_address
    if address is not None and address.startswith("ray://"):
        yield "engines.ray_address", "no ray:// address: run the driver on a node of the cluster"
    elif address not in (None, "auto", "local") and not is_address(str(address)):
        yield "engines.ray_address", f"{address!r} is not host:port, auto or local"
    if engines.cores is not None:
        yield "engines.cores", "only for launch: local"
    for flag in (*SEVERAL_NODES, "base-gpu-id"):
        if flag in engines.flags():
            yield f"engines.sglang.{flag}", "not for launch: ray, which gives an engine one node"


def _wrong_local(engines: EnginesConfig) -> Iterator[Complaint]:
    yield from _wrong_started(engines)
    if isinstance(engines.cores, list):
        if len(engines.cores) != engines.count:
            yield "engines.cores", f"{len(engines.cores)} lists for count: {engines.count}"
        if not all(engines.cores):
            yield "engines.cores", "an engine without a core"
        absent = {core for cores in engines.cores for core in cores} - os.sched_getaffinity(0)
        if absent:
            yield "engines.cores", f"no core {min(absent)} on this machine"


WRONG_LAUNCH: Mapping[str, Callable[[EnginesConfig], Iterator[Complaint]]] = {
    "local": _wrong_local,
    "ray": _wrong_ray,
    "external": _wrong_external,
}


def _wrong_pool(pool: KvPoolConfig, engines: EnginesConfig) -> Iterator[Complaint]:
    if pool.backend == "none":
        return
    if engines.launch == "external":
        yield from _wrong_shared_pool(pool, engines)
    elif pool.namespace is not None:
        yield "kv_pool.namespace", "only for launch: external; each other run has its own namespace"
    if engines.launch == "ray":
        yield from _wrong_cluster_pool(pool)
    flags = engines.flags()
    for flag, key in POOL_FLAGS.items():
        if flag in flags:
            yield f"engines.sglang.{flag}", f"the KV pool sets it; use {key}"
    if pool.backend == "auto" and pool.master is not None:
        yield "kv_pool.master", "only for backend: mooncake"
    yield from (_wrong_files if pool.backend == "file" else _wrong_mooncake)(pool)


def _wrong_files(pool: KvPoolConfig) -> Iterator[Complaint]:
    if pool.open_ports:
        yield "kv_pool.open_ports", "only for backend: mooncake"


def _wrong_mooncake(pool: KvPoolConfig) -> Iterator[Complaint]:
    try:
        if pool.memory_bytes() < LEAST_MEMORY:
            yield "kv_pool.memory", f"{pool.memory} is less than {LEAST_MEMORY >> 20}mb"
    except ValueError as error:
        yield "kv_pool.memory", str(error)
    if pool.master is not None and not is_address(pool.master):
        yield "kv_pool.master", f"{pool.master!r} is not of the form host:port"


def _wrong_shared_pool(pool: KvPoolConfig, engines: EnginesConfig) -> Iterator[Complaint]:
    """Yields missing settings of engines that are started separately from the driver."""
    if pool.backend == "auto":
        yield "kv_pool.backend", "auto is only for launch: local; name the pool of these engines"
    if pool.open_ports:
        yield "kv_pool.open_ports", "only for launch: local; here each engine's --host decides"
    if engines.link is None:
        yield "engines.link", "a KV pool of external engines needs the driver's host:port here"
    if not pool.namespace:
        yield "kv_pool.namespace", "external engines need a new name for each training run"
    if pool.backend == "mooncake" and pool.master is None:
        yield "kv_pool.master", "external engines need a Mooncake that already runs"
    if pool.backend == "file" and not pool.directory:
        yield "kv_pool.directory", "backend: file needs a folder that every engine can access"


def _wrong_cluster_pool(pool: KvPoolConfig) -> Iterator[Complaint]:
    """Yields missing settings of a pool for engines on the nodes of a cluster."""
    if pool.backend == "auto":
        yield "kv_pool.backend", "auto is only for launch: local; name the pool of these engines"
    if pool.open_ports:
        yield "kv_pool.open_ports", "only for launch: local; here the nodes' addresses decide"
    if pool.backend == "file" and not pool.directory:
        yield "kv_pool.directory", "backend: file needs a folder that every node can access"


def _wrong_draft(draft: DraftConfig, engines: EnginesConfig) -> Iterator[Complaint]:
    try:
        if draft.memory_bytes() < LEAST_DRAFT_MEMORY:
            yield "draft.memory", f"{draft.memory} is less than 1mb"
    except ValueError as error:
        yield "draft.memory", str(error)
    if draft.hub is not None and draft.scope != "fleet":
        yield "draft.hub", f"only for scope: fleet, not for scope: {draft.scope}"
    for address in () if draft.hub is None else draft.hub.split(","):
        if not is_address(address.strip()):
            yield "draft.hub", f"{address.strip()!r} is not of the form host:port"
    if draft.history is not None and draft.scope not in ("engine", "fleet"):
        yield "draft.history", f"needs scope: engine or fleet, not scope: {draft.scope}"
    if draft.scope == "none":
        return
    for name in engines.sglang:
        flag = name.replace("_", "-")
        if flag.startswith("speculative-"):
            yield f"engines.sglang.{flag}", "drafting sets SGLang's speculative flags; use draft"
    if engines.launch == "external" and draft.hub is None:
        for key, used in (("scope", draft.scope == "fleet"), ("history", draft.history)):
            if used:
                yield f"draft.{key}", "external engines need draft.hub for this key"


def _wrong_exact(engines: EnginesConfig) -> Iterator[Complaint]:
    """Yields flags that cannot be exact anywhere. Those of a GPU: engine/launch/exact.py."""
    if not engines.exact:
        return
    flags = engines.flags()
    if flags.get("enable-deterministic-inference") is False:
        yield "engines.sglang.enable-deterministic-inference", "engines.exact needs it"
    for flag, value in flags.items():
        if (flag in INEXACT_FLAGS and value is not False) or flag.startswith("speculative-"):
            yield f"engines.sglang.{flag}", "not with engines.exact"


def _wrong_scheduling(config: Config) -> Iterator[Complaint]:
    """Yields keys that the chosen policy would silently ignore."""
    scheduling, policy = config.scheduling, f"policy: {config.scheduling.policy}"
    if scheduling.policy == "oracle" and scheduling.lengths is None:
        yield "scheduling.policy", "oracle needs scheduling.lengths"
    uses_lengths = scheduling.policy in ("seer", "seer_published", "oracle")
    if not uses_lengths and scheduling.lengths is not None:
        yield "scheduling.lengths", f"{policy} uses no lengths"
    if scheduling.policy in UNDIVIDED:
        whole = f"{policy} sends whole requests at once and never moves them"
        if config.kv_pool.backend != "none":
            yield "kv_pool.backend", whole
        if scheduling.max_inflight_per_engine is not None:
            yield "scheduling.max_inflight_per_engine", whole


def _wrong_server(server: ServerConfig) -> Iterator[Complaint]:
    try:
        if server.body_bytes() < LEAST_BODY:
            yield "server.max_body", f"{server.max_body} is less than 1mb"
    except ValueError as error:
        yield "server.max_body", str(error)
    for key in ("api_key", "admin_api_key"):
        if getattr(server, key) == "":
            yield f"server.{key}", "an empty token"
