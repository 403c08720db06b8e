"""Measures sampled responses: heavy tail of lengths, correlation among siblings, and accuracy.

``python -m bench.reasoner.evaluate SAMPLES.jsonl [--json] [--check]`` reads one sample per line,
``{"group_id": ..., "response_ids": [...], "text": ..., "finish_reason": ..., "metadata":
{"answer": ...}}`` (other keys are ignored). It prints the facts, and last one JSON object of them.
With ``--check`` it names every failed acceptance criterion of the model and then exits with 1.
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

import numpy as np

from bench.reasoner.reward import reward

NGRAM = 8  # tokens; half a step of the task, too long to be shared by wording alone

# The acceptance criteria of the shipped model, at temperature 1 over at least 64 held-out prompts.
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
    """Returns all facts of a non-empty set of samples; lengths in tokens, with the end token."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.group_id].append(sample)
    lengths = [[len(s.response_ids) for s in group] for group in groups.values()]
    every_length = [length for group in lengths for length in group]
    p99, middle = float(np.percentile(every_length, 99)), median(every_length)
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


def icc(groups: Sequence[Sequence[float]]) -> float:
    """Returns the intraclass correlation ICC(1): the share of the variance between groups.

    It is a one-way analysis of variance; groups may differ in size (n0 is the effective size). NaN
    without variance, with fewer than two groups, or if no group has two members.
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
    """Returns, for each sibling, the share of its distinct n-grams that another sibling has."""
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
    """Returns the value for JSON, which has no infinity and no NaN: they become None."""
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
