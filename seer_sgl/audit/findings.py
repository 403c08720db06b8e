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
        pairs = [each for each in itself if each.varies == varies and _differs(each)]
        if not pairs:
            continue
        worst = max(pairs, key=lambda each: (each.changed, _most(each)))
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


def _differs(each: SelfComparison) -> bool:
    return each.changed > 0 or (each.log_probs is not None and each.log_probs.p99 > LEAST_SPREAD)


def _most(each: SelfComparison) -> float:
    return each.log_probs.max if each.log_probs else 0.0


def _tokens(passes: Sequence[PassReport]) -> Iterator[str]:
    generated = [each for each in passes if each.same_samples is not None]
    worst = max(generated, key=lambda each: each.changed, default=None)
    if worst is None or not worst.changed:
        return
    always = set.intersection(*({each.sample for each in one.differences} for one in generated))
    altered = [each for each in worst.differences if each.sample in always and _is_altered(each)]
    for each in altered:
        yield (
            f"a changed record: {each.sample}, token {each.position}: the file has {each.recorded},"
            f" the server generates {each.generated}, and {each.agree_after:.0%} of the "
            f"{each.tokens_after} tokens after it are equal; so the file is wrong there"
        )
    others = [each for each in worst.differences if each not in altered]
    ties = [each for each in others if each.near_tie]
    varying = [each for each in others if not each.near_tie and each.sample not in always]
    real = [each for each in others if each.near_tie is False and each.sample in always]
    unknown = len(others) - len(ties) - len(varying) - len(real)
    where = f"in '{worst.name}' {worst.changed} of {worst.samples} responses differ"
    if ties:
        gap = max(each.gap or 0.0 for each in ties)
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


def _is_altered(each: FirstDifference) -> bool:
    """One token differs and those after it do not, and its log probability is that of the server's
    token: the server does not hold it for the record's."""
    if each.agree_after is None or each.near_tie:
        return False
    if each.recorded_log_prob is not None and each.server_log_prob is not None:
        own = abs(each.recorded_log_prob - each.server_log_prob)
        if own <= abs(each.recorded_log_prob - each.generated_log_prob):
            return False  # the record agrees with itself
    others = round((1 - each.agree_after) * each.tokens_after)
    return each.tokens_after >= ALTERED_AFTER * (1 + others) and others <= MOST_ALTERED


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
            name: each
            for name, each in of_kind.items()
            if name != UNKNOWN and each.tokens >= LEAST_TOKENS
        }
        if len(known) < 2:
            continue
        name, worst = max(known.items(), key=lambda item: item[1].mean)
        others = [each for each in known.values() if each is not worst]
        mean = sum(each.mean * each.tokens for each in others) / sum(e.tokens for e in others)
        if worst.p99 > LEAST_OUTLIER and worst.mean > CONCENTRATED * mean:
            yield (
                f"concentrated by {kind}: '{name}' differs by {worst.mean:.2g} on average, all "
                f"others by {mean:.2g}"
            )


def _agreement(found: Compared) -> list[str]:
    by_name = {each.name: each for each in found.passes}
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
    for each in itself:
        figures = each.log_probs
        if each.varies == PREFILL_DECODE and figures and figures.max > LEAST_OUTLIER:
            yield (
                "note: the server's own prefill and decode steps round differently: log "
                f"probabilities differ by {figures.mean:.2g} on average, at most {figures.max:.2g}"
            )


def _caches(passes: Sequence[PassReport], served: ServedModel) -> Iterator[str]:
    """A warm pass without cached tokens shows nothing about the cache."""
    for each in passes:
        if "warm" in each.name and each.samples and not each.cached_tokens:
            why = "" if served.prefix_cache else ": the server runs without a prefix cache"
            yield f"note: '{each.name}' found nothing in the prefix cache{why}"
        if "cold" in each.name and each.cached_tokens:
            yield f"note: '{each.name}' found {each.cached_tokens} tokens in the prefix cache"
