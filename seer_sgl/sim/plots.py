"""The pictures of `seer-sgl simulate --out`: lanes, tail curve, ablation and sweeps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from seer_sgl.report.bars import BAR_HEIGHT, Bar, draw_bars, paper_legend
from seer_sgl.report.lanes import Lanes, draw_rows, rows_legend
from seer_sgl.report.style import (
    DASHES,
    INK,
    MUTED,
    OURS,
    OURS_DARK,
    PAPER,
    PLAIN,
    headline,
    save,
    styled_figure,
)

from .outcome import Outcome
from .sweep import Point
from .variants import BASELINE, LABELS, ORACLE, Scenario

MODEL_NAMES = {"kimi-k2": "Kimi-K2", "moonlight": "Moonlight", "qwen2-vl-72b": "Qwen2-VL-72B"}
DIVIDED = "#7fb0dc"
COLOURS = {
    BASELINE: PLAIN,
    "request_round_robin": PLAIN,
    "fcfs": DIVIDED,
    "seer_published": OURS,
    "seer": OURS,
    ORACLE: OURS,
    "seer+sd": OURS_DARK,
}
DRAWN = tuple(COLOURS)  # group_least_loaded hides behind the baseline
DASHED = ("request_round_robin", "seer_published", ORACLE)


def draw_policies(scenario: Scenario, folder: Path) -> None:
    """Writes the pictures lanes, tail and ablation of a scenario."""
    draw_lanes(scenario, folder / "lanes")
    draw_tail(scenario, folder / "tail")
    draw_ablation(scenario, folder / "ablation")


def draw_lanes(scenario: Scenario, path: Path) -> list[Path]:
    """Draws when each engine runs and queues requests: pinned groups above, seer-sgl below."""
    plain, ours = (Lanes.of(scenario.record(name)) for name in (BASELINE, "seer"))
    with styled_figure(11, 8.0) as figure:
        headline(
            figure,
            f"The same requests in {ours.wall_s:,.0f} s instead of {plain.wall_s:,.0f} s",
            f"{_subject(scenario)}. A row is an engine; white: it is idle.",
        )
        halves = (
            (plain, "Plain SGLang, whole groups pinned to engines", PLAIN),
            (ours, "seer-sgl without speculation", OURS),
        )
        panels = figure.subplots(2, 1, sharex=True)
        for axis, (lanes, name, colour) in zip(panels, halves, strict=True):
            draw_rows(axis, lanes, colour)
            axis.set_title(
                f"{name}: {lanes.wall_s:,.0f} s, {lanes.tail_s:,.0f} s of it for the last 10 %",
                color=colour,
                fontweight="bold",
            )
            axis.set_xlim(0, max(plain.wall_s, ours.wall_s))
        panels[-1].set_xlabel("seconds since the rollout began")
        waiting = plain.kv_waiting or ours.kv_waiting
        rows_legend(figure, MUTED, kv_waiting=waiting)
        return save(figure, path)


def draw_tail(scenario: Scenario, path: Path) -> list[Path]:
    """Draws the unfinished requests over time, one line per policy."""
    with styled_figure(11, 6.0) as figure:
        before, after = (scenario.alone(name).tail_s for name in (BASELINE, "seer"))
        headline(
            figure,
            f"The last 10 % of the requests take {after:,.0f} s instead of {before:,.0f} s",
            f"{_subject(scenario)}. Pinned groups, and context-aware order.",
        )
        axis = figure.subplots()
        for name in DRAWN:
            ends = scenario.record(name).finished_at
            left = [100 * (1 - done / len(ends)) for done in range(len(ends) + 1)]
            axis.step(
                [0.0, *ends],
                left,
                where="post",
                color=COLOURS[name],
                ls=DASHES if name in DASHED else "-",
                label=_words(name),
                lw=2.2,
            )
        axis.axhline(10, color=PAPER, lw=1.4, ls=":")
        axis.annotate("the last 10 %", (0, 10), (8, 4), textcoords="offset points", color=PAPER)
        axis.set_xlim(0)
        axis.set_ylim(0, 100)
        axis.set_xlabel("seconds since the rollout began")
        axis.set_ylabel("unfinished requests, %")
        axis.legend()
        return save(figure, path)


def draw_ablation(scenario: Scenario, path: Path) -> list[Path]:
    """Draws throughput and tail of every policy, with the paper's figures as marks."""
    rows = [scenario.outcome(name) for name in DRAWN]
    names = [LABELS[name] for name in DRAWN]
    paper, tail_s = scenario.config.paper.rows, rows[0].tail_s
    speeds, tails = [], []
    for row in rows:
        published = paper.get(row.policy)
        colour = COLOURS[row.policy]
        tail = row.tail_s / tail_s if tail_s else 0.0
        speed = row.ratio_to_baseline or 0.0
        speeds.append(Bar(speed, colour, paper=published.throughput if published else None))
        tails.append(Bar(tail, colour, paper=published.tail if published else None))
    with styled_figure(12, 2.0 + BAR_HEIGHT * len(rows)) as figure:
        headline(figure, _finding(rows), f"{_subject(scenario)}.")
        left, right = figure.subplots(1, 2, sharey=True)
        draw_bars(left, names, speeds, "throughput, multiples of pinned groups")
        draw_bars(right, names, tails, "tail, multiples of pinned groups")
        if paper:
            paper_legend(figure, "the paper")
        return save(figure, path)


def _finding(rows: Sequence[Outcome]) -> str:
    best = max(rows, key=lambda row: row.ratio_to_baseline or 0.0)
    return f"Up to {best.ratio_to_baseline or 0.0:.2f} times the throughput of pinned groups"


def draw_sweeps(sweeps: Mapping[str, Sequence[Point]], path: Path) -> list[Path]:
    """Draws one panel per key: throughput and tail over its values, as multiples of the
    baseline's."""
    width = max(8.0, 4.4 * len(sweeps))
    with styled_figure(width, 5.0) as figure:
        first = next(iter(sweeps.values()))[0].outcome
        headline(
            figure,
            f"{_words(first.policy)}, over {', '.join(sweeps)}",
            f"{_model(first.workload)}, simulated.",
        )
        panels = figure.subplots(1, len(sweeps), squeeze=False)[0]
        for axis, (key, points) in zip(panels, sweeps.items(), strict=True):
            values = [str(point.value) for point in points]
            gains = [point.outcome.ratio_to_baseline or 0.0 for point in points]
            tails = [point.outcome.tail_s / (point.outcome.wall_s or 1.0) for point in points]
            axis.plot(
                values, gains, "o-", color=OURS, label="throughput, multiples of pinned groups"
            )
            axis.plot(values, tails, "^-", color=MUTED, label="tail, share of the time")
            axis.set_ylim(0)
            axis.set_xlabel(key, color=INK)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2)
        return save(figure, path)


def _subject(scenario: Scenario) -> str:
    count = scenario.config.engine.count
    return f"{_model(scenario.name)}, {count} engine{'' if count == 1 else 's'}, simulated"


def _model(workload: str) -> str:
    """Returns the name of a workload's model; the name of a trace stays."""
    return MODEL_NAMES.get(workload, workload)


def _words(name: str) -> str:
    return LABELS[name].replace("\n", " ")
