"""What the differences of an audit come from, in sentences. Pure.

Each rule looks at one kind of evidence: weights, the server against itself, tokens, log
probabilities, and where in the responses they differ.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from .audit_report import COLD, PREFILL_DECODE, Compared, PassReport, SelfComparison
from .first_difference import FirstDifference
from .log_prob_figures import LogProbFigures, by_part
from .plan import AuditPlan
from .recorded import UNKNOWN
from .served import Provenance, ServedModel

# A token is an outlier if it differs by so many times the server's largest difference from itself,
# and by more than float32 rounds (docs/exactness.md: up to 1.1e-4). The factor is for the tail of
# that rounding, of which an audit sees few tokens. More outliers are no single errors.
OUTLIER, LEAST_OUTLIER, MOST_OUTLIERS = 3.0, 2e-4, 0.01
LEAST_SPREAD = 1e-4  # 99 % of the server's own differences are below it, unless they have a cause
CONCENTRATED, LEAST_TOKENS = 5.0, 16  # one part differs by so many times the others
ALTERED_AFTER, MOST_ALTERED = 4, 2  # tokens after a changed one, and how many others were changed


def findings(
    plan: AuditPlan, served: ServedModel, weights: Provenance, found: Compared
) -> list[str]:
    """Returns what was found, the most likely causes first."""
    lines = [
        *_weights(weights, served, len(plan.samples)),
        *_itself(found.itself, served),
        *_tokens(found.passes),
        *_log_probs(served, weights, found),
        *_parts(by_part(plan.samples, found.closest, 1.0)),
    ]
    notes = [*_prefill(found.itself), *_caches(found.passes, served)]
    return [*(lines or _agreement(found)), *notes]


def _weights(weights: Provenance, served: ServedModel, count: int) -> Iterator[str]:
    if weights.other_samples:
        yield (
            f"other weights: {weights.other_samples} of {count} samples were generated with another"
            " weight version than the server has; differences are expected"
        )
    elif weights.same_digest is False:
        yield (
            "other weights, or the same in another dtype (the server's is "
            f"{served.dtype or 'unknown'}): the digests differ although the versions do not; "
            "differences are expected"
        )


def _itself(itself: Sequence[SelfComparison], served: ServedModel) -> Iterator[str]:
    """The server gives two answers to one question: no sample can be right under both."""
    for varies in ("batch", "prefix cache"):
        pairs = [pair for pair in itself if pair.varies == varies and _differs(pair)]
        if not pairs:
            continue
        worst = max(pairs, key=lambda pair: (pair.changed, _most(pair)))
        why = (
            ""
            if served.deterministic
            else "; it runs without --enable-deterministic-inference, which prevents that"
        )
        yield (
            f"the server's own answers depend on the {varies}: between '{worst.first}' and "
            f"'{worst.second}' {worst.changed} of {worst.samples} responses differ, and log "
            f"probabilities of equal tokens by up to {_most(worst):.2g}{why}"
        )


def _differs(pair: SelfComparison) -> bool:
    return pair.changed > 0 or (pair.log_probs is not None and pair.log_probs.p99 > LEAST_SPREAD)


def _most(pair: SelfComparison) -> float:
    return pair.log_probs.max if pair.log_probs else 0.0


def _tokens(passes: Sequence[PassReport]) -> Iterator[str]:
    generated = [report for report in passes if report.same_samples is not None]
    worst = max(generated, key=lambda report: report.changed, default=None)
    if worst is None or not worst.changed:
        return
    always = set.intersection(
        *({difference.sample for difference in one.differences} for one in generated)
    )
    altered = [
        difference
        for difference in worst.differences
        if difference.sample in always and _is_altered(difference)
    ]
    for difference in altered:
        yield (
            f"a changed record: {difference.sample}, token {difference.position}: the file has "
            f"{difference.recorded}, the server generates {difference.generated}, and "
            f"{difference.agree_after:.0%} of the {difference.tokens_after} tokens after it are "
            "equal; so the file is wrong there"
        )
    others = [difference for difference in worst.differences if difference not in altered]
    ties = [difference for difference in others if difference.near_tie]
    varying = [
        difference
        for difference in others
        if not difference.near_tie and difference.sample not in always
    ]
    real = [
        difference
        for difference in others
        if difference.near_tie is False and difference.sample in always
    ]
    unknown = len(others) - len(ties) - len(varying) - len(real)
    where = f"in '{worst.name}' {worst.changed} of {worst.samples} responses differ"
    if ties:
        gap = max(difference.gap or 0.0 for difference in ties)
        yield (
            f"near ties: {where}; {len(ties)} at a gap of at most {gap:.2g}, which rounding decides"
        )
    if varying:
        yield (
            f"other tokens: {where}; {len(varying)} not known to be near ties, but another pass "
            "generates them as recorded: the batch or the prefix cache decides"
        )
    if real:
        first = real[0]
        yield (
            f"other tokens: {where}; {len(real)} at no near tie: {first.sample}, token "
            f"{first.position}, by {first.gap:.2g}: other weights, sampling parameters, seeds or "
            "kernels"
        )
    if unknown:
        yield f"other tokens: {where}; for {unknown} it is unknown how close the two tokens were"


def _is_altered(difference: FirstDifference) -> bool:
    """One token differs and those after it do not, and its log probability is that of the server's
    token: the server does not hold it for the record's."""
    if difference.agree_after is None or difference.near_tie:
        return False
    if difference.recorded_log_prob is not None and difference.server_log_prob is not None:
        own = abs(difference.recorded_log_prob - difference.server_log_prob)
        if own <= abs(difference.recorded_log_prob - difference.generated_log_prob):
            return False  # the record agrees with itself
    others = round((1 - difference.agree_after) * difference.tokens_after)
    return difference.tokens_after >= ALTERED_AFTER * (1 + others) and others <= MOST_ALTERED


def _log_probs(served: ServedModel, weights: Provenance, found: Compared) -> Iterator[str]:
    flat = np.abs(np.concatenate(found.closest))
    flat = flat[np.isfinite(flat)]
    limit = max(LEAST_OUTLIER, OUTLIER * found.rounding)
    outliers = int((flat > limit).sum())
    if not outliers:
        return
    if outliers > max(1.0, MOST_OUTLIERS * flat.size):
        cause = (
            "as other weights do"
            if weights.other_samples or weights.same_digest is False
            else "other weights under one name, another dtype (the server's is "
            f"{served.dtype or 'unknown'}), other kernels, or other sampling parameters than "
            "those of --set, above all the temperature"
        )
        yield (
            f"spread over the tokens: {outliers / flat.size:.0%} of {flat.size} differ by more than"
            f" {limit:.2g}, which is beyond the server's own rounding: {cause}"
        )
        return
    at = found.largest[0]
    yield (
        f"single log probabilities: {outliers} of {flat.size} tokens differ by more than "
        f"{limit:.2g}, which is beyond the server's own rounding; the largest is {at.sample}, "
        f"token {at.position}: the file has {at.recorded:.6f}, the server {at.server:.6f}: "
        "the record was changed, or one step of the rollout computed something else"
    )


def _parts(parts: dict[str, dict[str, LogProbFigures]]) -> Iterator[str]:
    for kind, of_kind in parts.items():
        known = {
            name: figures
            for name, figures in of_kind.items()
            if name != UNKNOWN and figures.tokens >= LEAST_TOKENS
        }
        if len(known) < 2:
            continue
        name, worst = max(known.items(), key=lambda item: item[1].mean)
        others = [figures for figures in known.values() if figures is not worst]
        mean = sum(figures.mean * figures.tokens for figures in others) / sum(
            e.tokens for e in others
        )
        if worst.p99 > LEAST_OUTLIER and worst.mean > CONCENTRATED * mean:
            yield (
                f"concentrated by {kind}: '{name}' differs by {worst.mean:.2g} on average, all "
                f"others by {mean:.2g}"
            )


def _agreement(found: Compared) -> list[str]:
    by_name = {report.name: report for report in found.passes}
    generated = by_name.get(COLD)
    sizes = np.abs(np.concatenate(found.closest))
    sizes = sizes[np.isfinite(sizes)]
    parts = []
    if generated is not None:
        parts.append(f"all {generated.tokens} generated tokens are the recorded ones")
    if sizes.size:
        parts.append(f"log probabilities of {sizes.size} tokens agree within {sizes.max():.2g}")
    return [f"no differences beyond rounding: {', and '.join(parts)}"] if parts else []


def _prefill(itself: Sequence[SelfComparison]) -> Iterator[str]:
    """A trainer that computes log probabilities by a prefill sees this in all samples."""
    for pair in itself:
        figures = pair.log_probs
        if pair.varies == PREFILL_DECODE and figures and figures.max > LEAST_OUTLIER:
            yield (
                "note: the server's own prefill and decode steps round differently: log "
                f"probabilities differ by {figures.mean:.2g} on average, at most {figures.max:.2g}"
            )


def _caches(passes: Sequence[PassReport], served: ServedModel) -> Iterator[str]:
    """A warm pass without cached tokens shows nothing about the cache."""
    for report in passes:
        if "warm" in report.name and report.samples and not report.cached_tokens:
            why = "" if served.prefix_cache else ": the server runs without a prefix cache"
            yield f"note: '{report.name}' found nothing in the prefix cache{why}"
        if "cold" in report.name and report.cached_tokens:
            yield f"note: '{report.name}' found {report.cached_tokens} tokens in the prefix cache"
