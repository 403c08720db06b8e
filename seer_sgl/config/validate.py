"""Checks that types cannot express: keys that exclude each other, values that no machine has."""

from collections.abc import Iterator

from seer_sgl.admission.sampling import invalid

from .addresses import is_address
from .engines import (
    BUFFER_ONLY,
    HOST_MODE,
    PIPELINE_PARALLEL,
    Engines,
    ExternalEngines,
    LocalEngines,
    StartedEngines,
)
from .tree import UNDIVIDED, Config, DraftConfig, KvPoolConfig, ServerConfig, bytes_of
from .values import Problem

LEAST_MEMORY = 16 << 20  # bytes; Mooncake mounts segments in pieces of 16 MiB
LEAST_DRAFT_MEMORY = 1 << 20  # bytes; about ten thousand tokens in an engine's index
LEAST_BODY = 1 << 20  # bytes; a prompt of a hundred thousand tokens
EXPERTS = "enable-return-routed-experts"
# SGLang flags that an engine refuses if it drafts, with their values for none.
NOT_WITH_DRAFTS = {
    "enable-dp-attention": False,
    "enable-return-hidden-states": False,
    "enable-two-batch-overlap": False,
    "enable-pdmux": False,
    **dict.fromkeys(PIPELINE_PARALLEL, 1),
}
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


def validate(config: Config) -> Iterator[Problem]:
    """Yields every problem, the most important first."""
    engines = config.engines
    if engines.api_key == "":
        yield "engines.api_key", "an empty token"
    yield from engines.problems()
    yield from _check_pool(config.kv_pool, engines)
    yield from _check_draft(config.draft, engines)
    yield from _check_scheduling(config)
    yield from _check_server(config.server)
    for name, why in invalid(config.sampling):
        yield f"sampling.{name}".rstrip("."), why
    wanted = config.sampling.return_routed_experts and isinstance(engines, StartedEngines)
    if wanted and not engines.flags().get(EXPERTS):
        yield "sampling.return_routed_experts", f"needs engines.sglang.{EXPERTS}: true"
    if isinstance(engines, StartedEngines) and config.model.path is None:
        yield "model.path", f"missing; engines.launch: {engines.launch} needs a model"


def _check_pool(pool: KvPoolConfig, engines: Engines) -> Iterator[Problem]:
    if pool.backend == "none":
        return
    if isinstance(engines, ExternalEngines):
        yield from _check_shared_pool(pool, engines)
    elif pool.namespace is not None:
        yield "kv_pool.namespace", "only for launch: external; each other run has its own namespace"
    if not isinstance(engines, LocalEngines):
        yield from _check_elsewhere(pool)
    flags = engines.flags()
    for flag, key in POOL_FLAGS.items():
        if flag in flags:
            yield f"engines.sglang.{flag}", f"the KV pool sets it; use {key}"
    if pool.host_ratio is not None and pool.host_ratio <= 1 and engines.keeps_host_copies:
        yield "kv_pool.host_ratio", f"at most 1 only with engines.sglang.{HOST_MODE}: {BUFFER_ONLY}"
    if pool.backend != "mooncake" and pool.master is not None:
        yield "kv_pool.master", "only for backend: mooncake"
    if pool.backend == "file":
        if pool.open_ports:
            yield "kv_pool.open_ports", "only for backend: mooncake"
        return
    yield from _check_size("kv_pool.memory", pool.memory, LEAST_MEMORY)
    if pool.master is not None and not is_address(pool.master):
        yield "kv_pool.master", f"{pool.master!r} is not of the form host:port"


def _check_elsewhere(pool: KvPoolConfig) -> Iterator[Problem]:
    """Yields settings that a pool of engines on other machines cannot have or lacks."""
    if pool.backend == "auto":
        yield "kv_pool.backend", "auto is only for launch: local; name the pool of these engines"
    if pool.open_ports:
        yield "kv_pool.open_ports", "only for launch: local; the address of an engine decides here"
    if pool.backend == "file" and not pool.directory:
        yield "kv_pool.directory", "backend: file needs a folder that every engine can access"


def _check_shared_pool(pool: KvPoolConfig, engines: ExternalEngines) -> Iterator[Problem]:
    """Yields missing settings of engines that are started separately from the driver."""
    if engines.link is None:
        yield "engines.link", "a KV pool of external engines needs the driver's host:port here"
    if not pool.namespace:
        yield "kv_pool.namespace", "external engines need a new name for each training run"
    if pool.backend == "mooncake" and pool.master is None:
        yield "kv_pool.master", "external engines need a Mooncake that already runs"


def _check_draft(draft: DraftConfig, engines: Engines) -> Iterator[Problem]:
    yield from _check_size("draft.memory", draft.memory, LEAST_DRAFT_MEMORY)
    if draft.hub is not None and draft.scope != "fleet":
        yield "draft.hub", f"only for scope: fleet, not for scope: {draft.scope}"
    for address in () if draft.hub is None else draft.hub.split(","):
        if not is_address(address.strip()):
            yield "draft.hub", f"{address.strip()!r} is not of the form host:port"
    if draft.history is not None and draft.scope not in ("engine", "fleet"):
        yield "draft.history", f"needs scope: engine or fleet, not scope: {draft.scope}"
    if draft.scope == "none":
        return
    for flag, value in engines.flags().items():
        if flag.startswith("speculative-"):
            yield f"engines.sglang.{flag}", "drafting sets SGLang's speculative flags; use draft"
        if value != NOT_WITH_DRAFTS.get(flag, value):
            yield f"engines.sglang.{flag}", f"not with draft.scope: {draft.scope}; set none"
    if isinstance(engines, ExternalEngines) and draft.hub is None:
        for key, used in (("scope", draft.scope == "fleet"), ("history", draft.history)):
            if used:
                yield f"draft.{key}", "external engines need draft.hub for this key"


def _check_scheduling(config: Config) -> Iterator[Problem]:
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


def _check_server(server: ServerConfig) -> Iterator[Problem]:
    yield from _check_size("server.max_body", server.max_body, LEAST_BODY)
    for key in ("api_key", "admin_api_key"):
        if getattr(server, key) == "":
            yield f"server.{key}", "an empty token"


def _check_size(key: str, size: str, least: int) -> Iterator[Problem]:
    try:
        if bytes_of(size) < least:
            yield key, f"{size} is less than {least >> 20}mb"
    except ValueError as error:
        yield key, str(error)
