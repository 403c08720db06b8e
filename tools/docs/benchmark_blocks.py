"""The blocks of README.md and docs/benchmark.md that compare arms: a report in, a table out."""

from collections.abc import Mapping, Sequence
from operator import truediv
from statistics import median

from seer_sgl.benchmark.arms import BASELINE, SEER
from seer_sgl.benchmark.measure import Row
from seer_sgl.benchmark.summary import ratios

from .tables import (
    Lines,
    Report,
    code,
    decimals,
    gains,
    idle_shares,
    measured,
    per_seed,
    percent,
    rounds_of,
    seconds,
    spread,
    table,
    tail_cuts,
    values,
)

SINGLE = "request_round_robin"
PUBLISHED = "seer_published"
TECHNIQUES = (  # an arm, and the arm that it is compared with
    (SINGLE, BASELINE),
    ("divided", SINGLE),
    ("kv_pool", "divided"),
    ("context", "kv_pool"),
    (SEER, "context"),
    ("oracle", "context"),
    (SEER, SINGLE),
    (SEER, BASELINE),
)
IDLE_BANDS = (("30 % and more", 0.3, 1.1), ("10 to 30 %", 0.1, 0.3), ("below 10 %", 0.0, 0.1))


def headline(report: Report) -> Lines:
    """Yields the table of README.md: plain SGLang, seer-sgl and the paper."""
    rows = rounds_of(report)
    paper = report["arms"][SEER]["paper"]
    best = "plain SGLang, single requests in turn: the best of plain SGLang"
    return table(
        ["", "throughput: median (least to greatest)", "tail cut"],
        [
            ["plain SGLang, whole groups pinned to engines", "1.00", ""],
            [best, spread(gains(rows, SINGLE)), spread(tail_cuts(rows, SINGLE), percent)],
            [
                "**seer-sgl**",
                _strong(SEER, spread(gains(rows, SEER))),
                _strong(SEER, spread(tail_cuts(rows, SEER), percent)),
            ],
            [
                "the paper, Qwen2-VL-72B on GPUs",
                decimals(paper["throughput"]),
                percent(1 - paper["tail"]),
            ],
        ],
    )


def headline_single(report: Report) -> Lines:
    """Yields the item of README.md about the best of plain SGLang."""
    found = spread(gains(rounds_of(report), SEER, SINGLE))
    yield f"- **Over the best of plain SGLang**, single requests in turn: {found}."
    yield "  On this machine that gain comes from drafting."
    yield "  Division, pool and context cut the tail and the preemptions."


def seeds(report: Report) -> Lines:
    """Yields what the baseline did on each seed."""
    return table(
        ["seed", "idle share of the engines", "response tokens", "total time", "tail time"],
        [_baseline(seed, rows) for seed, rows in per_seed(rounds_of(report)).items()],
    )


def gain(report: Report) -> Lines:
    """Yields the gain of each arm in each round, by seed, beside the paper's."""
    every = rounds_of(report)
    seeds = per_seed(every)
    return table(
        ["arm", *(f"seed {seed}" for seed in seeds), "median of all rounds", "paper"],
        [
            [
                _strong(arm, code(arm)),
                *(", ".join(map(decimals, gains(rows, arm))) for rows in seeds.values()),
                _strong(arm, spread(gains(every, arm))),
                decimals(paper["throughput"]) if (paper := report["arms"][arm]["paper"]) else "",
            ]
            for arm in measured(every)
            if arm != BASELINE
        ],
    )


def tail(report: Report) -> Lines:
    """Yields the tail of each arm, by seed, and its cut beside the paper's."""
    every = rounds_of(report)
    seeds = per_seed(every)
    head = ["arm", *(f"tail, seed {seed}" for seed in seeds)]
    return table(
        [*head, "tail cut: median of all rounds", "paper"],
        [
            [
                _strong(arm, code(arm)),
                *(seconds(median(values(rows, arm, "tail_s"))) for rows in seeds.values()),
                *(["", ""] if arm == BASELINE else _tail_cut(report, every, arm)),
            ]
            for arm in measured(every)
        ],
    )


def work(report: Report) -> Lines:
    """Yields the work of each arm; a cell has one median per seed."""
    every = rounds_of(report)
    seeds = per_seed(every).values()
    named = {
        "preemptions": "retractions",
        "prefilled tokens": "prefilled_tokens",
        "forward steps": "forward_steps",
    }

    def cell(arm: str, figure: str) -> str:
        return " / ".join(f"{median(values(rows, arm, figure)):,.0f}" for rows in seeds)

    return table(
        ["arm", *named],
        [
            [_strong(arm, code(arm)), *(cell(arm, each) for each in named.values())]
            for arm in measured(every)
        ],
    )


def added(report: Report) -> Lines:
    """Yields each arm beside the arm without its technique."""
    rows = rounds_of(report)

    def times(arm: str, over: str, figure: str) -> str:
        return f"x {median(ratios(rows, arm, over, figure).values()):.2f}"

    return table(
        ["arm", "compared with", "gain", "forward steps", "prefilled tokens"],
        [
            [
                code(arm),
                code(over),
                spread(gains(rows, arm, over)),
                times(arm, over, "forward_steps"),
                times(arm, over, "prefilled_tokens"),
            ]
            for arm, over in TECHNIQUES
        ],
    )


def seeds_median(report: Report) -> Lines:
    """Yields the gains of seer over the other arms that were measured, in all rounds."""
    rows = rounds_of(report)
    over = {arm: gains(rows, SEER, arm) for arm in (BASELINE, SINGLE, PUBLISHED)}
    return table(
        [code(SEER), "median (least to greatest)"],
        [
            *([f"gain over {code(arm)}", spread(found)] for arm, found in over.items() if found),
            ["tail cut", spread(tail_cuts(rows, SEER), percent)],
        ],
    )


def steps(report: Report) -> Lines:
    """Yields how many steps each arm made, and what one costs: medians of all rounds."""
    rows = rounds_of(report)

    def line(arm: str) -> list[str]:
        count = values(rows, arm, "forward_steps")
        tokens = values(rows, arm, "response_tokens")
        cpu = values(rows, arm, "engine_cpu_s")
        accepted = values(rows, arm, "accept_length")
        return [
            _strong(arm, code(arm)),
            f"{median(count):,.0f}",
            decimals(median(map(truediv, tokens, count))),
            "" if None in accepted else decimals(median(accepted)),
            f"{1000 * median(map(truediv, cpu, count)):.1f} ms",
            f"{1e6 * median(map(truediv, cpu, tokens)):.0f} us",
        ]

    head = ["arm", "forward steps", "tokens per step", "of them per request, drafted"]
    return table([*head, "CPU per step", "CPU per token"], map(line, measured(rows)))


def seeds_by_idle(report: Report) -> Lines:
    """Yields the gains of seer by the idle share of the baseline."""
    head = [f"idle share under {code(BASELINE)}", "seeds"]
    lines = []
    for name, low, high in IDLE_BANDS:
        inside = {
            seed: rows
            for seed, rows in _most_idle_first(report).items()
            if low <= median(idle_shares(rows)) < high
        }
        if inside:
            found = [median(gains(rows, SEER)) for rows in inside.values()]
            lines.append([name, ", ".join(map(str, inside)), spread(found)])
    return table([*head, f"gain of {code(SEER)}: median (least to greatest)"], lines)


def seeds_all(report: Report) -> Lines:
    """Yields the medians of each seed's rounds. Without rounds, `seer_published` has no column."""
    published = [PUBLISHED] if PUBLISHED in measured(rounds_of(report)) else []
    arms = [SINGLE, *published, SEER]
    head = ["seed", "idle share", "response tokens", code(BASELINE), "its tail"]
    return table(
        [*head, *map(code, arms), f"{code(SEER)} over {code(SINGLE)}", "tail cut"],
        [
            [
                *_baseline(seed, rows),
                *(decimals(median(gains(rows, arm))) for arm in arms),
                decimals(median(gains(rows, SEER, SINGLE))),
                percent(median(tail_cuts(rows, SEER))),
            ]
            for seed, rows in _most_idle_first(report).items()
        ],
    )


def _baseline(seed: int, rows: Sequence[Row]) -> list[object]:
    """Returns five cells: what the baseline did on a seed."""
    return [
        seed,
        percent(median(idle_shares(rows))),
        f"{values(rows, BASELINE, 'response_tokens')[0]:,}",
        seconds(median(values(rows, BASELINE, "wall_s"))),
        seconds(median(values(rows, BASELINE, "tail_s"))),
    ]


def _most_idle_first(report: Report) -> Mapping[int, list[Row]]:
    """Returns the rollouts of each seed, by the idle share of the baseline."""
    seeds = per_seed(rounds_of(report))
    return dict(sorted(seeds.items(), key=lambda seed: -median(idle_shares(seed[1]))))


def _tail_cut(report: Report, rows: Sequence[Row], arm: str) -> list[str]:
    """Returns two cells: the cut, and the paper's."""
    paper = report["arms"][arm]["paper"]
    cut = spread(tail_cuts(rows, arm), percent)
    return [_strong(arm, cut), percent(1 - paper["tail"]) if paper else ""]


def _strong(arm: str, text: str) -> str:
    """Returns the text, in bold for seer-sgl."""
    return f"**{text}**" if arm == SEER else text
