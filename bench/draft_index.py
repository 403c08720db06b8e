"""Measures the cost of the group's suffix index and the value of its drafts, beside two in C++.

`python -m bench.draft_index [--json]` compares `seer_sgl.draft` with the real `SuffixTree` of
ArcticInference and `NgramCorpus` of SGLang in one run: they take turns on the same texts, and
figures are medians of the rounds. Ours and ArcticInference draft what is at least 10 % likely; one
more row has ours from 3 % on, as engines do by default.

SGLang builds its corpus at first use, which needs g++. ArcticInference is a separate package:
`pip install arctic-inference==0.3.0`. The measured extension alone can be built with nanobind:

    pip download --no-deps --no-binary :all: arctic-inference==0.3.0 && tar xzf arctic_inference-*
    cmake -S arctic_inference-0.3.0/csrc/suffix_decoding -B build -DCMAKE_BUILD_TYPE=Release
    cmake --build build  # then put build/_C*.so beside arctic_inference/suffix_decoding/*.py
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from bench.draft_acceptance import Acceptance, replay
from bench.draft_contenders import Contender, Ours, Row, Tokens, contenders
from bench.draft_streams import Siblings, recorded, synthetic
from seer_sgl.draft import drafter

GROUPS, SIBLINGS, NEW, BUDGET = 8, 8, 3, 16  # per step
TREE_PATHS = 4
BLOCK = 20  # steps per turn of a contender
NOISES = (0.05, 0.10, 0.15)
REFERENCES = (0, 1, 5, 7, 15)
# Mean acceptance length with the bonus token, by finished siblings (paper section 3).
PAPER = {
    1: {0: 1.70, 1: 2.04, 5: 2.32, 15: 2.53},
    2: {0: 1.77, 1: 2.14, 5: 2.44, 15: 2.69},
    4: {0: 1.85, 1: 2.25, 5: 2.59, 15: 2.85},
}
Figures = dict[str, dict[str, float | None]]


def microseconds(call: Callable[[Any], Any], batch: Any) -> float:
    """Returns the time of one call."""
    before = time.perf_counter_ns()
    call(batch)
    return (time.perf_counter_ns() - before) / 1e3


def step_rows(groups: Sequence[Siblings], texts: Sequence[Sequence[Tokens]], at: int) -> list[Row]:
    """Returns the rows of the step that adds tokens at..at+NEW of all responses."""
    return [
        Row(str(number), sequence, text[start + at : start + at + NEW], text[: start + at + NEW])
        for number, group in enumerate(groups)
        for sequence, text in enumerate(texts[number])
        for start in [len(group.prompt)]
    ]


def measure_steps(length: int) -> Figures:
    """Times a step of 64 sequences in 8 groups, and its parts, while responses grow to `length`."""
    groups = [synthetic(SIBLINGS, length, 0.10, seed) for seed in range(GROUPS)]
    texts = [
        [np.concatenate([group.prompt, response]) for response in group.responses]
        for group in groups
    ]
    arms = [
        (paths, arm)
        for paths in (1, TREE_PATHS)
        for arm in [
            *contenders(paths, BUDGET),
            Ours(paths, drafter.MIN_PROBABILITY, f"from {drafter.MIN_PROBABILITY:.0%} on"),
        ]
    ]
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _, arm in arms:
        for number, group in enumerate(groups):
            arm.open(str(number), group.prompt)
    rows = GROUPS * SIBLINGS
    for block in range(0, length - 2 * BLOCK * NEW, 2 * BLOCK * NEW):
        for paths, arm in arms:
            kind = "chain" if paths == 1 else "tree"
            rounds: dict[str, list[float]] = defaultdict(list)
            for at in range(block, block + 2 * BLOCK * NEW, 2 * NEW):
                first = arm.prepare(step_rows(groups, texts, at), BUDGET)
                second = arm.prepare(step_rows(groups, texts, at + NEW), BUDGET)
                rounds["append_us_a_token"].append(microseconds(arm.append, first) / rows / NEW)
                rounds[f"{kind}_us"].append(microseconds(arm.draft, first) / rows)
                rounds[f"{kind}_step_us"].append(microseconds(arm.step, second))
            for figure, values in rounds.items():
                spent[arm.name, figure].append(median(values))
    figures: Figures = defaultdict(dict)
    for (name, figure), values in spent.items():
        figures[name][figure] = round(median(values), 2)
    return figures


def measure_group(siblings: int, length: int, piece: int = 512) -> Figures:
    """Measures one large group that grows by interleaved pieces: cost per token, the slowest piece,
    memory, and the time to free it."""
    group = synthetic(siblings, length, 0.10, 99)
    texts = [np.concatenate([group.prompt, response]) for response in group.responses]
    arms = contenders(1, BUDGET)
    spent: dict[str, list[float]] = defaultdict(list)
    for arm in arms:
        arm.open("g", group.prompt)
    start = len(group.prompt)
    for at in range(0, length, piece):
        for arm in arms:
            for sequence, text in enumerate(texts):
                end = min(start + at + piece, len(text))
                row = Row("g", sequence, text[start + at : end], text[:end])
                batch = arm.prepare([row], BUDGET)
                spent[arm.name].append(microseconds(arm.append, batch) / len(row.new))
    figures: Figures = {}
    for arm in arms:
        size = arm.nbytes()
        before = time.perf_counter_ns()
        arm.close("g")
        figures[arm.name] = {
            "append_us_a_token": round(fmean(spent[arm.name]), 3),
            "slowest_piece_us_a_token": round(max(spent[arm.name]), 2),
            "bytes_a_token": None if size is None else round(size / siblings / length, 1),
            "free_ms": None if size is None else round((time.perf_counter_ns() - before) / 1e6, 3),
        }
    return figures


def measure_pauses(siblings: int, length: int) -> dict[str, float]:
    """Times our appends of NEW tokens in a large group; some of them include index growth."""
    group = synthetic(siblings, length, 0.10, 98)
    ours = Ours(1)
    ours.open("g", group.prompt)
    spent = []
    for at in range(0, length - NEW, NEW):
        rows = [Row("g", k, text[at : at + NEW], text) for k, text in enumerate(group.responses)]
        spent.append(microseconds(ours.append, ours.prepare(rows, 0)))
    return {
        "median_us": round(median(spent), 1),
        "p99_us": round(float(np.percentile(spent, 99)), 1),
        "longest_us": round(max(spent), 1),
    }


def together(results: Sequence[Acceptance]) -> Acceptance:
    """Returns the means over the steps of all results."""
    steps = sum(result.steps for result in results)
    return Acceptance(
        sum(result.drafted * result.steps for result in results) / steps,
        sum(result.accepted * result.steps for result in results) / steps,
        steps,
    )


def measure_worth(length: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Returns [accepted, drafted] tokens per step. "full": ours without its minimum probability.

    Every group has its own index. SGLang's has one per group too, because it would mix groups.
    """
    streams: dict[str, tuple[list[Siblings], list[int], int]] = {
        f"noise {noise:.0%}": (
            [synthetic(8, length, noise, seed) for seed in range(4)],
            list(range(8)),
            0,
        )
        for noise in NOISES
    }
    for references in (0, 1, 7, 15):
        streams[f"reasoner +{references}"] = (recorded(), [15], references)
    table: dict[str, dict[str, dict[str, list[float]]]] = {}
    for budget, paths in ((8, 1), (16, 1), (16, TREE_PATHS)):
        kind = f"{'chain' if paths == 1 else 'tree'} of {budget}"
        table[kind] = {}
        for stream, (groups, live, references) in streams.items():
            results: dict[str, list[Acceptance]] = defaultdict(list)
            for group in groups:
                arms: list[tuple[str, Contender]] = [
                    (arm.name, arm) for arm in contenders(paths, budget)
                ]
                arms.append(("seer-sgl, full", Ours(paths, min_probability=1e-6)))
                for name, arm in arms:
                    results[name].append(replay(arm, [group], live, references, budget))
            table[kind][stream] = {
                name: [round(total.accepted, 3), round(total.drafted, 2)]
                for name, total in ((name, together(each)) for name, each in results.items())
            }
    return table


def measure_paper() -> dict[str, dict[str, float]]:
    """Returns the paper's table, measured on the reasoner: accepted tokens per step with the bonus
    token.

    "share of gain": the gain by n references, as a share of the paper's gain.
    """
    table: dict[str, dict[str, float]] = {}
    groups = recorded()
    for paths in (1, 2, 4):
        row = {
            references: 1
            + together(
                [
                    replay(Ours(paths, 1e-6), groups, [live], references, BUDGET)
                    for live in (3, 9, 15)
                ]
            ).accepted
            for references in REFERENCES
        }
        paper = PAPER[paths]
        table[f"{paths} paths"] = {
            **{f"n={references}": round(value, 2) for references, value in row.items()},
            **{
                f"share of gain, n={references}": round(
                    (row[references] - row[0]) / (paper[references] - paper[0]), 2
                )
                for references in (1, 5, 15)
            },
        }
    return table


def show(title: str, figures: dict[str, Any]) -> None:
    """Prints one table of the readable report."""
    print(title)
    columns = list(dict.fromkeys(key for values in figures.values() for key in values))
    widths = [max(len(column), 13) for column in columns]
    print(f"  {'':20}", *(f"{c:>{w}}" for c, w in zip(columns, widths, strict=True)))
    for name, values in figures.items():
        cells = [values.get(column) for column in columns]
        texts = [
            "-" if cell is None else " / ".join(map(str, cell)) if isinstance(cell, list) else cell
            for cell in cells
        ]
        print(f"  {name:20}", *(f"{t:>{w}}" for t, w in zip(texts, widths, strict=True)))


def main() -> None:
    """Measures; prints one JSON object last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=4000, help="response tokens in the step test")
    parser.add_argument("--siblings", type=int, default=16, help="siblings in the large group")
    parser.add_argument("--large", type=int, default=65_536, help="tokens of each such sibling")
    parser.add_argument("--worth", type=int, default=2000, help="response tokens for acceptance")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    steps = measure_steps(options.length)
    group = measure_group(options.siblings, options.large)
    pauses = measure_pauses(options.siblings, options.large)
    worth = measure_worth(options.worth)
    paper = measure_paper()
    if not options.json:
        show(f"64 sequences in 8 groups, append {NEW}, draft {BUDGET}: medians", steps)
        show(f"one group of {options.siblings} x {options.large} tokens", group)
        show(f"its {options.siblings} sequences append {NEW} tokens per call", {"ours": pauses})
        for kind, figures in worth.items():
            show(f"accepted / drafted tokens per step, {kind}", figures)
        show("mean acceptance length on the reasoner, by finished siblings", paper)
    print(
        json.dumps(
            {"steps": steps, "group": group, "pauses": pauses, "worth": worth, "paper": paper}
        )
    )


if __name__ == "__main__":
    main()
