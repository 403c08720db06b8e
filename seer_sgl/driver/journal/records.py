"""The records of a journal, in msgpack.

Token ids and log probabilities are the bytes of the arrays of `types.py`: int32 and float32, in the
order of the machine (little-endian wherever SGLang runs). Times are seconds since the start of the
rollout, without the time between two runs. A request is named by its `order`.
"""

from typing import Any

import msgspec

from seer_sgl.routed_experts import RoutedExperts
from seer_sgl.types import Failure, FailureKind, FinishReason, WeightSpan


class Header(msgspec.Struct, array_like=True, tag=0, frozen=True, kw_only=True):
    """The facts that a resume must find again, and the names of the rollout.

    `seed_setting`: the seed that the user has set. `weights`: the plugin's name for the loaded
    weights. `pool`: the namespace of the KV in the pool. `groups`: a digest per group (facts.py).
    `limits`: the most response tokens per request.
    """

    rollout_id: str
    run_id: str  # the prefix of the request ids, of all runs
    seed: int
    seed_setting: int | None
    sampling: dict[str, Any]
    model: str
    weights: str | None
    weight_version: str
    deterministic: bool
    pool: str | None
    groups: list[bytes]
    limits: list[int]


class Returned(msgspec.Struct, array_like=True, tag=1, frozen=True, gc=False, kw_only=True):
    """A chunk that returned. `finish`: how it ended its request; None: the request continues.

    `input_tokens`: with those of images, as the engine counted them; None: it has no images.
    """

    order: int
    seed: int
    engine_id: str
    ids: bytes
    logprobs: bytes
    weight_spans: list[WeightSpan]
    verify_steps: int
    submitted_at: float
    started_at: float
    returned_at: float
    finish: FinishReason | None
    matched: int | str | None
    routed_experts: RoutedExperts | None = None
    input_tokens: int | None = None


class Ended(msgspec.Struct, array_like=True, tag=2, frozen=True, kw_only=True):
    """A request that ended without a chunk: its caller aborted it, or it failed for good."""

    order: int
    submitted_at: float
    started_at: float | None
    ended_at: float
    finish: FinishReason
    matched: int | str | None
    failure: Failure | None = None


class GivenUp(msgspec.Struct, array_like=True, tag=3, frozen=True, kw_only=True):
    """A group that was given up; `order`: of its first request."""

    order: int
    kind: FailureKind
    message: str


class Resumed(msgspec.Struct, array_like=True, tag=4, frozen=True, kw_only=True):
    """Another process continued the rollout; `run` counts from 1."""

    run: int
    at: float


class Extended(msgspec.Struct, array_like=True, tag=5, frozen=True, kw_only=True):
    """Prompts were added: what the header has of the first ones."""

    groups: list[bytes]
    limits: list[int]


class Complete(msgspec.Struct, array_like=True, tag=6, frozen=True, kw_only=True):
    """Every group is complete or given up. `report`: the report of the rollout, as JSON."""

    report: bytes


Record = Header | Returned | Ended | GivenUp | Resumed | Extended | Complete
encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def decode(record: bytes | memoryview) -> Record:
    """Returns a record. Raises msgspec.DecodeError."""
    return _decoder.decode(record)
