"""The result of an audit, as audit.json has it, from samples and answers. Pure."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from .client import Generated, Prefilled
from .first_difference import FirstDifference, equal_tokens, first_difference
from .log_prob_figures import LogProbFigures, by_part, log_prob_figures
from .plan import PASSES, AuditPlan, Pass
from .recorded import F64, RecordedSample, labels
from .rescale import MOST_ERROR, rescaled
from .running_passes import Answers

SHOWN = 8  # tokens with the largest differences
# A gap is a near tie up to so many times the server's own rounding, within these bounds.
TIE_ROUNDINGS, LEAST_TIE, MOST_TIE = 2.0, 1e-4, 0.1
ALONE, BATCH, COLD_BATCH, COLD, WARM, WARM_BATCH = (audit_pass.name for audit_pass in PASSES)
PREFILL_DECODE = "prefill against decode"
# Two passes that should agree, and what differs between them.
PAIRS = (
    (ALONE, BATCH, "batch"),
    (COLD, COLD_BATCH, "batch"),
    (WARM, WARM_BATCH, "batch"),
    (COLD, WARM, "prefix cache"),
    (COLD_BATCH, WARM_BATCH, "prefix cache"),
    (ALONE, COLD, PREFILL_DECODE),
)


class PassReport(msgspec.Struct, frozen=True, kw_only=True):
    """One pass against the samples.

    `same_samples`, `same_tokens`: responses with equal tokens only, and equal tokens before a first
    difference; None for a prefill. `log_probs`: over the tokens before a first difference.
    `differences`: the first SHOWN of `changed`.
    """

    name: str
    samples: int
    tokens: int
    cached_tokens: int
    same_samples: int | None = None
    same_tokens: int | None = None
    log_probs: LogProbFigures | None = None
    differences: list[FirstDifference] = []
    changed: int = 0
    near_ties: int = 0


class SelfComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two passes of the server against each other. `varies`: what differs between them.

    `changed`: samples whose tokens differ. `log_probs`: over the equal tokens.
    """

    first: str
    second: str
    varies: str
    samples: int
    changed: int
    log_probs: LogProbFigures | None


class LargeDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One of the tokens with the largest differences of log probability, and its parts."""

    sample: str
    position: int
    token: int
    recorded: float
    server: float
    parts: dict[str, str]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """All comparisons of an audit.

    `parts`: of the prefill. `closest`: per sample, the smallest difference that any pass found for
    each token; NaN from the first token on that a pass generated otherwise. What it has is no
    matter of how a prefill rounds. `rounding`: the largest difference of the server from itself.
    """

    passes: list[PassReport]
    itself: list[SelfComparison]
    parts: dict[str, dict[str, LogProbFigures]]
    largest: list[LargeDifference]
    closest: list[F64]
    rounding: float
    not_compared: dict[str, int]


def compared(plan: AuditPlan, answers: Answers, *, complete: bool, clip: float) -> Compared:
    """Returns all comparisons. `complete`: the prefills returned the whole vocabulary."""
    not_compared: dict[str, int] = {}
    prefilled = {
        name: [
            _at_temperature(sample, prefill, complete, not_compared if name == ALONE else {})
            for sample, prefill in zip(plan.samples, of_pass, strict=True)
        ]
        for name, of_pass in answers.prefilled.items()
    }
    alone = prefilled[ALONE]
    every: dict[str, Sequence[Generated | None]] = {**prefilled, **answers.generated}
    itself = [comparison for pair in PAIRS if (comparison := _against_itself(every, pair, clip))]
    itself += _probed(answers, clip)
    tie = min(MOST_TIE, max(LEAST_TIE, TIE_ROUNDINGS * _rounding(itself)))
    passes = [
        _pass_report(audit_pass, plan.samples, every[audit_pass.name], alone, tie=tie, clip=clip)
        for audit_pass in PASSES
        if audit_pass.name in every
    ]
    differences = [
        prefill.log_probs - sample.log_probs
        for sample, prefill in zip(plan.samples, alone, strict=True)
    ]
    closest = [
        _closest(sample, [alone[index], *(found[index] for found in answers.generated.values())])
        for index, sample in enumerate(plan.samples)
    ]
    decoded = [comparison for comparison in itself if comparison.varies != PREFILL_DECODE]
    return Compared(
        passes=passes,
        itself=itself,
        parts=by_part(plan.samples, differences, clip),
        largest=_largest(plan.samples, closest),
        closest=closest,
        rounding=_rounding(decoded if all(plan.generated) else itself),
        not_compared=not_compared,
    )


def _rounding(itself: Sequence[SelfComparison]) -> float:
    return max(
        (comparison.log_probs.max for comparison in itself if comparison.log_probs), default=0.0
    )


def _probed(answers: Answers, clip: float) -> list[SelfComparison]:
    if not answers.probes:
        return []
    differences = [prefilled - generated for generated, prefilled in answers.probes]
    return [
        SelfComparison(
            first="new tokens, generated",
            second="their prefill",
            varies=PREFILL_DECODE,
            samples=len(differences),
            changed=0,
            log_probs=log_prob_figures(np.concatenate(differences), clip),
        )
    ]


def _closest(sample: RecordedSample, answers: Sequence[Generated | None]) -> F64:
    """Returns Compared.closest of one sample, from the answers of all passes but one prefill."""
    known = [answer for answer in answers if answer is not None]
    equal = min(equal_tokens(sample.response_ids, answer.ids) for answer in known)
    every = np.stack([answer.log_probs - sample.log_probs for answer in known])
    size = np.where(np.isfinite(every), np.abs(every), np.inf)
    best = every[size.argmin(axis=0), np.arange(every.shape[1])]
    return np.where(np.arange(len(best)) < equal, best, np.nan)


def _at_temperature(
    sample: RecordedSample, prefilled: Prefilled, complete: bool, not_compared: dict[str, int]
) -> Generated:
    """Returns the recorded tokens with a prefill's log probabilities at the sample's temperature.

    They are NaN where the prefill gives none; `not_compared` counts those tokens, by reason.
    """
    ids, count = sample.response_ids, len(sample.response_ids)
    if sample.shifted_by:
        reason = f"with {', '.join(sample.shifted_by)}, which a prefill ignores"
        not_compared[reason] = not_compared.get(reason, 0) + count
        return Generated(ids, np.full(count, np.nan), prefilled.cached)
    result = rescaled(prefilled.log_probs, prefilled.top, sample.temperature, complete)
    unsure = result.error > MOST_ERROR
    if unsure.any():
        reason = "the likeliest tokens do not determine them at their temperature"
        not_compared[reason] = not_compared.get(reason, 0) + int(unsure.sum())
    return Generated(ids, np.where(unsure, np.nan, result.log_probs), prefilled.cached)


def _pass_report(
    audit_pass: Pass,
    samples: Sequence[RecordedSample],
    answers: Sequence[Generated | None],
    alone: Sequence[Generated],
    *,
    tie: float,
    clip: float,
) -> PassReport:
    tokens = same_tokens = cached = 0
    found: list[FirstDifference] = []
    differences = []
    for sample, again, prefilled in zip(samples, answers, alone, strict=True):
        if again is None:
            continue
        equal = equal_tokens(sample.response_ids, again.ids)
        tokens += len(again.ids)
        same_tokens += equal
        cached += again.cached
        differences.append((again.log_probs - sample.log_probs)[:equal])
        if (first := first_difference(sample, again, prefilled.log_probs, tie)) is not None:
            found.append(first)
    generates = audit_pass.kind == "generate"
    return PassReport(
        name=audit_pass.name,
        samples=len(differences),
        tokens=tokens,
        cached_tokens=cached,
        same_samples=len(differences) - len(found) if generates else None,
        same_tokens=same_tokens if generates else None,
        log_probs=log_prob_figures(np.concatenate(differences), clip),
        differences=found,
        changed=len(found),
        near_ties=sum(bool(difference.near_tie) for difference in found),
    )


def _against_itself(
    every: Mapping[str, Sequence[Generated | None]], pair: tuple[str, str, str], clip: float
) -> SelfComparison | None:
    """Returns the comparison of two passes; None if one of them did not run."""
    first, second, varies = pair
    changed, differences = 0, []
    for one, other in zip(every.get(first, ()), every.get(second, ()), strict=False):
        if one is None or other is None:
            continue
        equal = equal_tokens(one.ids, other.ids)
        changed += equal < len(one.ids)
        differences.append((other.log_probs - one.log_probs)[:equal])
    if not differences:
        return None
    return SelfComparison(
        first=first,
        second=second,
        varies=varies,
        samples=len(differences),
        changed=changed if varies != PREFILL_DECODE else 0,
        log_probs=log_prob_figures(np.concatenate(differences), clip),
    )


def _largest(samples: Sequence[RecordedSample], closest: Sequence[F64]) -> list[LargeDifference]:
    flat = [
        (abs(value), index, position)
        for index, values in enumerate(closest)
        for position in np.argsort(-np.abs(np.nan_to_num(values)))[:SHOWN].tolist()
        if np.isfinite(value := values[position]) and value != 0
    ]
    return [
        LargeDifference(
            sample=samples[index].name,
            position=position,
            token=samples[index].response_ids[position],
            recorded=float(samples[index].log_probs[position]),
            server=float(samples[index].log_probs[position] + closest[index][position]),
            parts={kind: names[position] for kind, names in labels(samples[index]).items()},
        )
        for _, index, position in sorted(flat, reverse=True)[:SHOWN]
    ]
