"""Facts about sampled responses: are they heavy-tailed, correlated among siblings, and right?

``python -m bench.reasoner.evaluate SAMPLES.jsonl [--json] [--check]`` reads one sample a line,
``{"group_id": ..., "response_ids": [...], "text": ..., "finish_reason": ..., "metadata":
{"answer": ...}}`` (other keys are ignored), prints the facts, and last one JSON object of them.
With ``--check`` it exits with 1 if an acceptance criterion of the model fails, and names it.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from bench.reasoner.reward import reward

NGRAM = 8  # tokens; half a step of the task, long enough not to be shared by wording alone

# What the shipped model has to show at temperature 1 over at least 64 held-out prompts.
CRITERIA: dict[str, Callable[[dict[str, Any]], bool]] = {
    "groups >= 64": lambda facts: facts["groups"] >= 64,
    "length_p99_over_median >= 6": lambda facts: facts["length_p99_over_median"] >= 6,
    "length_max >= 2000": lambda facts: facts["length_max"] >= 2000,
    "icc_log_length >= 0.5": lambda facts: facts["icc_log_length"] >= 0.5,
    "accuracy >= 0.6": lambda facts: facts["accuracy"] >= 0.6,
    "finished_share >= 0.99": lambda facts: facts["finished_share"] >= 0.99,
    "all_siblings_differ": lambda facts: facts["all_siblings_differ"],
}


class Sample(NamedTuple):
    group_id: str
    response_ids: tuple[int, ...]
    text: str
    finish_reason: str  # "stop", "length" or "abort"
    answer: int


def read(lines: Iterable[str]) -> list[Sample]:
    records = map(json.loads, filter(str.strip, lines))
    return [
        Sample(
            group_id=str(record["group_id"]),
            response_ids=tuple(record["response_ids"]),
            text=record["text"],
            finish_reason=record["finish_reason"],
            answer=record["metadata"]["answer"],
        )
        for record in records
    ]


def measure(samples: Sequence[Sample]) -> dict[str, Any]:
    """All facts of a non-empty set of samples; lengths in tokens, the end token included."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.group_id].append(sample)
    lengths = [[len(s.response_ids) for s in group] for group in groups.values()]
    every_length = [length for group in lengths for length in group]
    p99, middle = percentile(every_length, 99), median(every_length)
    duplicates = sum(len(g) - len({s.response_ids for s in g}) for g in groups.values())
    return {
        "samples": len(samples),
        "groups": len(groups),
        "accuracy": fmean(reward(s.text, s.answer) for s in samples),
        "length_median": middle,
        "length_mean": fmean(every_length),
        "length_p99": p99,
        "length_max": max(every_length),
        "length_p99_over_median": p99 / middle if middle else math.inf,
        "icc_length": icc(lengths),
        "icc_log_length": icc([[math.log(max(1, n)) for n in group] for group in lengths]),
        "finished_share": fmean(s.finish_reason == "stop" for s in samples),
        "all_siblings_differ": duplicates == 0,
        "duplicate_siblings": duplicates,
        "shared_ngram_share": fmean(
            share for group in groups.values() for share in shared_ngrams(group)
        ),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest ranks, as numpy does by default."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low, high = math.floor(rank), math.ceil(rank)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def icc(groups: Sequence[Sequence[float]]) -> float:
    """Intraclass correlation ICC(1): the share of the variance that lies between groups.

    One-way analysis of variance; groups may differ in size (n0 is the effective size). NaN if
    there are not at least two groups, one of them with two members, or no variance at all.
    """
    sizes = [len(group) for group in groups]
    total, count = sum(sizes), len(groups)
    if count < 2 or total <= count:
        return math.nan
    grand = sum(map(sum, groups)) / total
    means = [fmean(group) for group in groups]
    between = sum(n * (m - grand) ** 2 for n, m in zip(sizes, means, strict=True)) / (count - 1)
    within = sum(
        (value - mean) ** 2 for group, mean in zip(groups, means, strict=True) for value in group
    ) / (total - count)
    n0 = (total - sum(n * n for n in sizes) / total) / (count - 1)
    spread = between + (n0 - 1) * within
    return (between - within) / spread if spread else math.nan


def shared_ngrams(group: Sequence[Sample]) -> list[float]:
    """For each sibling, the share of its distinct n-grams that another sibling has too."""
    grams = [ngrams(sample.response_ids) for sample in group]
    owners: dict[tuple[int, ...], int] = defaultdict(int)
    for own in grams:
        for gram in own:
            owners[gram] += 1
    return [fmean(owners[gram] > 1 for gram in own) if own else 0.0 for own in grams]


def ngrams(ids: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {ids[i : i + NGRAM] for i in range(len(ids) - NGRAM + 1)}


def failed_criteria(facts: dict[str, Any]) -> list[str]:
    return [name for name, holds in CRITERIA.items() if not holds(facts)]


def jsonable(value: Any) -> Any:
    """JSON knows neither infinity nor NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("samples", type=Path, help="JSON lines of samples")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    parser.add_argument("--check", action="store_true", help="fail if a criterion is not met")
    options = parser.parse_args(arguments)
    with options.samples.open() as lines:
        facts = measure(read(lines))
    if not options.json:
        for name, value in facts.items():
            print(f"{name:24} {value:.4g}" if isinstance(value, float) else f"{name:24} {value}")
    print(json.dumps({name: jsonable(value) for name, value in facts.items()}))
    failed = failed_criteria(facts) if options.check else []
    for name in failed:
        print(f"failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
