"""What an audit asks the server: its passes, and the samples that a budget of tokens allows."""

from collections import Counter
from typing import Literal

import msgspec
import numpy as np

from .formats import SampleFile
from .recorded import RecordedSample
from .served import ServedModel

Kind = Literal["prefill", "generate"]


class Pass(msgspec.Struct, frozen=True):
    """All samples once. `batch`: several at a time. `cache`: calls of equal names share KV; `warm`:
    an earlier pass has filled it."""

    name: str
    kind: Kind
    batch: bool
    cache: str
    warm: bool = False


# The warm passes reuse the KV of the cold one before them.
PASSES = (
    Pass("prefill, alone", "prefill", False, "a"),
    Pass("prefill, batch", "prefill", True, "b"),
    Pass("generate, cold, batch", "generate", True, "c"),
    Pass("generate, cold, alone", "generate", False, "d"),
    Pass("generate, warm, alone", "generate", False, "d", warm=True),
    Pass("generate, warm, batch", "generate", True, "d", warm=True),
)


# Where no sample can be generated again, some prompts show how differently a prefill and a decode
# step of the server round.
PROBES, PROBE_TOKENS = 8, 64


class AuditPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The samples that are audited.

    `generated[i]`: whether sample i is generated again. `tokens`: input and output tokens of all
    passes. `probes`: samples whose prompts get a new response, which is then prefilled.
    `not_generated`, `left_out`: how many of the file's chosen samples, by reason.
    """

    samples: list[RecordedSample]
    generated: list[bool]
    probes: list[RecordedSample]
    tokens: int
    not_generated: dict[str, int]
    left_out: dict[str, int]


def plan(file: SampleFile, served: ServedModel, budget: int | None) -> AuditPlan:
    """Returns what the server can be asked of a file's samples within a budget of tokens."""
    chosen: list[RecordedSample] = []
    generated: list[bool] = []
    not_generated: Counter[str] = Counter()
    left_out = Counter(file.left_out)
    total = 0
    for sample in file.samples:
        reason = _unfit(sample, served)
        if reason is not None:
            left_out[reason] += 1
            continue
        fixed = sample.unrepeatable or _seedless(sample, served)
        passes = [
            audit_pass for audit_pass in PASSES if audit_pass.kind == "prefill" or fixed is None
        ]
        cost = len(passes) * sample.tokens
        if budget is not None and total + cost > budget:
            left_out["beyond the budget of tokens"] += 1
            continue
        total += cost
        chosen.append(sample)
        generated.append(fixed is None)
        if fixed is not None:
            not_generated[fixed] += 1
    probes: list[RecordedSample] = []
    for probe in map(_probe, [] if any(generated) else chosen[:PROBES]):
        if budget is None or total + 2 * probe.tokens <= budget:
            total += 2 * probe.tokens
            probes.append(probe)
    return AuditPlan(
        samples=chosen,
        generated=generated,
        probes=probes,
        tokens=total,
        not_generated=dict(not_generated),
        left_out=dict(left_out),
    )


def _probe(sample: RecordedSample) -> RecordedSample:
    """Returns a sample whose tokens are to be generated, from the model's own distribution."""
    return RecordedSample(
        name=sample.name,
        prompt_ids=sample.prompt_ids,
        response_ids=[0] * min(PROBE_TOKENS, len(sample.response_ids)),
        log_probs=np.full(0, np.nan),
    )


def _unfit(sample: RecordedSample, served: ServedModel) -> str | None:
    if served.longest is not None and sample.tokens >= served.longest:
        return "longer than the server accepts"
    if served.vocab_size is not None and sample.largest_id >= served.vocab_size:
        return "tokens outside the server's vocabulary"
    return None


def _seedless(sample: RecordedSample, served: ServedModel) -> str | None:
    if served.deterministic or sample.greedy:
        return None
    return "SGLang ignores seeds without --enable-deterministic-inference"
