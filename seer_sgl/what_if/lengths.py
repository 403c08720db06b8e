"""What the lengths of a trace look like. Pure."""

import math
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from seer_sgl.traces.trace import Responses

BINS = 12


class LengthFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths in tokens. `bins`: equally wide, from `edges[i]` to `edges[i + 1]`.

    `longest_over_mean`: of a group, the median over groups of two and more. `group_share`: the
    share of the variance of the logarithm of the length that the prompt determines (one-way
    analysis of variance, cut off at 0); None without two groups of two and more.
    """

    groups: int
    responses: int
    prompt_tokens: float
    mean: float
    p50: float
    p90: float
    p99: float
    longest: int
    bins: list[int]
    edges: list[float]
    longest_over_mean: float | None
    group_share: float | None


def length_figures(groups: Sequence[Responses]) -> LengthFigures:
    """Returns the figures of all groups."""
    lengths = np.array([length for group in groups for length in group.lengths])
    bins, edges = np.histogram(lengths, bins=BINS, range=(0, int(lengths.max())))
    p50, p90, p99 = (
        round(float(percentile), 1) for percentile in np.percentile(lengths, (50, 90, 99))
    )
    several = [group.lengths for group in groups if len(group.lengths) > 1]
    ratios = [max(responses) / statistics.mean(responses) for responses in several]
    return LengthFigures(
        groups=len(groups),
        responses=len(lengths),
        prompt_tokens=round(statistics.mean(len(group.prompt_ids) for group in groups), 1),
        mean=round(float(lengths.mean()), 1),
        p50=p50,
        p90=p90,
        p99=p99,
        longest=int(lengths.max()),
        bins=[int(count) for count in bins],
        edges=[round(float(edge), 1) for edge in edges],
        longest_over_mean=round(statistics.median(ratios), 2) if ratios else None,
        group_share=_group_share(several),
    )


def _group_share(groups: Sequence[Sequence[int]]) -> float | None:
    logs = [[math.log(length) for length in group] for group in groups]
    count, total = sum(map(len, logs)), len(logs)
    if total < 2:
        return None
    means = [statistics.mean(group) for group in logs]
    grand = sum(map(sum, logs)) / count
    within = sum((x - m) ** 2 for group, m in zip(logs, means, strict=True) for x in group)
    between = sum(len(group) * (m - grand) ** 2 for group, m in zip(logs, means, strict=True))
    within, between = within / (count - total), between / (total - 1)
    size = (count - sum(len(group) ** 2 for group in logs) / count) / (total - 1)
    variance = max(0.0, (between - within) / size)
    return round(variance / (variance + within), 2) if variance + within else 0.0
