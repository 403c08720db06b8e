"""The data types of an engine: its description, its load and its server process."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from .routed_experts import ExpertShape


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a running engine (SGLang `/server_info`).

    An engine is a server, or one of the data-parallel ranks of a server: each has its own KV.
    """

    engine_id: str
    url: str
    sglang_version: str
    model_path: str
    max_total_num_tokens: int  # KV capacity, tokens
    max_running_requests: int
    max_request_len: int  # the longest prompt + response it accepts, tokens
    page_size: int
    radix_cache: bool  # siblings share the KV of their prompt
    weight_version: str
    deterministic: bool
    has_tokenizer: bool
    plugin: str | None  # the version of our plugin inside it; None for a stock server
    instance: str | None = None  # a name for this start of the server
    weights: str | None = None  # the plugin's name for the loaded weights; equal if they are equal
    pool: str | None = None  # the namespace of its pages in a KV pool; equal names share pages
    kv_bytes_per_token: int = 0  # in the pool, all ranks together
    draft_tokens: int = 0  # KV slots that a request may need for drafts, beyond its tokens
    pipeline_stages: int = 1  # SGLang's pp_size
    ranks: int = 1  # of the whole server; 0 for an engine that is not the first of its server
    dp_rank: int = 0  # SGLang's number of the data-parallel rank
    dp_size: int = 1  # the number of engines of its server
    dp_attention: bool = False  # SGLang's enable_dp_attention
    vocab_size: int | None = None  # the number of token ids it may return; None: not reported
    incremental_streaming: bool = False  # an event of its streams has the new tokens only
    inexact: str | None = None  # why its steps may round differently; None: they do not
    off: Mapping[str, str] = {}  # abilities of the plugin that its SGLang lacks, and why
    experts: ExpertShape | None = None  # the form of the routed experts that it can return
    reads_images: bool = False  # its model reads images
    sessions: bool = False  # it evicts the KV of sessions last (enable_session_radix_cache)
    continues_images: bool = False  # a chunk may continue a response behind a prompt with images

    @property
    def server_id(self) -> str:
        """The name of its server: the engine's id, without the rank."""
        return self.engine_id if self.dp_size == 1 else self.engine_id.rpartition(".")[0]


def rank_id(server_id: str, dp_rank: int, dp_size: int) -> str:
    """Returns the id of the engine that is a data-parallel rank of a server: `e0`, or `e0.dp1`."""
    return server_id if dp_size == 1 else f"{server_id}.dp{dp_rank}"


class EngineProblem(msgspec.Struct, frozen=True):
    """The reason why an engine cannot serve. `weights`: only its weights are in the way."""

    why: str
    weights: bool = False


class ServerPhase(Enum):
    """The phase of the server process of an engine."""

    RUNNING = "running"  # as far as is known; always, if it was started elsewhere
    ENDED = "ended"  # it will be restarted
    STARTING = "starting"  # it is being restarted, and is not ready
    QUARANTINED = "quarantined"  # it exited too often and stays down


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine's server process. `starts`: how often the fleet has restarted it.

    `url`: of the newest server, which may run on another machine than the first; None: unchanged.
    """

    phase: ServerPhase = ServerPhase.RUNNING
    why: str = ""
    starts: int = 0
    url: str | None = None


class EngineWork(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's work counters since its start.

    `prefilled_tokens`: input tokens that were not cached; for a preempted request, again.
    """

    forward_steps: int
    prefilled_tokens: int


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's load at one time (SGLang `/v1/loads`). `progress` changes while it works.

    Requests of all clients wait inside the engine, new or preempted: `queued` ones for a slot or
    for free KV, `kv_waiting` ones until their KV is read from the pool, although there is room.
    `requests`: all of them and the running ones; None if SGLang does not count all of them.
    """

    used_tokens: int
    progress: tuple[Any, ...]
    running: int = 0
    queued: int = 0
    kv_waiting: int = 0
    requests: int | None = None
    prefilled_tokens: int = 0  # since the engine started
