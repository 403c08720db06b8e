"""The pictures of `seer-sgl simulate --out`: lanes, tail curve, ablation and sweeps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seer_sgl.report.figures import new_figure, open_frame, save
from seer_sgl.report.recorder import EngineRecord, Recorder
from seer_sgl.report.report import tail_begin

from .outcome import Outcome
from .sweep import Point
from .variants import BASELINE, ORACLE, Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    BASELINE: "#9a9a9a",
    "group_least_loaded": "#c7b299",
    "request_round_robin": "#eeca3b",
    "fcfs": "#72b7b2",
    "seer": "#4c78a8",
    ORACLE: "#54a24b",
    "seer+sd": "#b279a2",
}
PAPER, TAIL = "#e45756", "#b8860b"
CELLS = 600  # time cells of a lane


def draw_policies(scenario: Scenario, folder: Path) -> None:
    """Writes lanes.png, tail.png and ablation.png of a scenario."""
    save(_lanes(scenario), folder / "lanes.png")
    save(_tail(scenario), folder / "tail.png")
    save(_ablation(scenario), folder / "ablation.png")


def draw_sweeps(sweeps: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Draws one panel per key: throughput and tail over its values, as multiples of the
    baseline's."""
    figure = new_figure(3.9 * len(sweeps), 3.4)
    panels = figure.subplots(1, len(sweeps), squeeze=False)[0]
    for axis, (key, points) in zip(panels, sweeps.items(), strict=True):
        _sweep(axis, key, points)
    panels[0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{points[0].outcome.workload}, {points[0].outcome.policy}", x=0.01, ha="left")
    save(figure, path)


def _lanes(scenario: Scenario) -> "Figure":
    """Draws the number of requests on each engine over time: baseline above, seer below."""
    records = {name: scenario.record(name) for name in (BASELINE, "seer")}
    wall_s = max(record.finished_at[-1] for record in records.values())
    lanes = {name: _running(record, wall_s) for name, record in records.items()}
    most = max(float(np.quantile(grid, 0.995)) for grid in lanes.values())
    figure = new_figure(10, 6.2)
    panels = figure.subplots(2, 1, sharex=True)
    for axis, (name, grid) in zip(panels, lanes.items(), strict=True):
        extent = (0.0, wall_s, len(grid) + 0.5, 0.5)
        image = axis.imshow(
            np.where(grid > 0, grid, np.nan),
            aspect="auto",
            cmap="viridis_r",
            vmin=0,
            vmax=most,
            extent=extent,
            interpolation="nearest",
        )
        ends = records[name].finished_at
        begin, end = tail_begin(ends), ends[-1]
        axis.axvline(begin, color=PAPER, lw=1.4, ls="--")
        axis.axvline(end, color=PAPER, lw=1.4)
        axis.set_ylabel("engine")
        axis.set_title(
            f"{name}: {end:,.0f} s, of which {end - begin:,.0f} s for the last 10 % of requests",
            loc="left",
            fontsize=10,
        )
    panels[-1].set_xlabel("seconds    (red: tail begins, rollout ends; white: engine idle)")
    figure.colorbar(image, ax=panels, label="requests on the engine", pad=0.01)
    figure.suptitle(scenario.name, x=0.01, ha="left", fontweight="bold")
    return figure


def _running(
    record: Recorder, wall_s: float
) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Returns the requests in flight, engines x time cells."""
    middles = (np.arange(CELLS) + 0.5) * wall_s / CELLS
    return np.array([_at(engine, middles) for engine in record.engines.values()])


def _at(engine: EngineRecord, times: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[int]:
    counts = [0, *engine.inflight_count]
    return [counts[i] for i in np.searchsorted(np.array(engine.inflight_at), times, side="right")]


def _tail(scenario: Scenario) -> "Figure":
    """Draws the unfinished requests over time, one line per policy."""
    figure = new_figure(7.2, 4.0)
    axis = figure.subplots()
    for name, colour in COLOURS.items():
        if name == "group_least_loaded":  # hides behind the baseline
            continue
        ends = scenario.record(name).finished_at
        left = 100 * (1 - np.arange(1, len(ends) + 1) / len(ends))
        axis.step(ends, left, where="post", color=colour, label=name, lw=1.8)
    axis.axhline(10, color=TAIL, lw=1, ls=":")
    axis.annotate("the last 10 %", (0, 10.8), color=TAIL, fontsize=9)
    axis.set_xlim(0)
    axis.set_ylim(0, 100)
    axis.set_xlabel("seconds since the rollout began")
    axis.set_ylabel("unfinished requests, %")
    axis.set_title(scenario.name, loc="left", fontweight="bold", fontsize=11)
    axis.legend(frameon=False)
    open_frame(axis)
    return figure


def _ablation(scenario: Scenario) -> "Figure":
    """Draws throughput and tail of every policy, with the paper's figures as marks."""
    rows = [scenario.outcome(name) for name in COLOURS if name != "group_least_loaded"]
    baseline = rows[0]
    paper = scenario.config.paper.rows
    figure = new_figure(9.6, 3.8)
    left, right = figure.subplots(1, 2)
    throughputs = [row.ratio_to_baseline or 0.0 for row in rows]
    tails = [row.tail_s / baseline.tail_s if baseline.tail_s else 0.0 for row in rows]
    _bars(left, rows, throughputs, "throughput, x baseline")
    _bars(right, rows, tails, "tail, x baseline")
    for place, row in enumerate(rows):
        published = paper.get(row.policy)
        if published and published.throughput is not None:
            _mark(left, place, published.throughput)
        if published and published.tail is not None:
            _mark(right, place, published.tail)
    if paper:
        left.plot([], [], color=PAPER, lw=2.2, label="paper")
        left.legend(frameon=False, loc="upper left")
    figure.suptitle(scenario.name, x=0.01, ha="left", fontweight="bold")
    return figure


def _bars(axis: "Axes", rows: Sequence[Outcome], heights: Sequence[float], label: str) -> None:
    names = [row.policy.replace("_", "\n") for row in rows]
    bars = axis.bar(names, heights, color=[COLOURS[row.policy] for row in rows], width=0.66)
    axis.bar_label(bars, fmt="%.2f", fontsize=9, padding=2)
    axis.set_ylabel(label)
    axis.tick_params(axis="x", labelsize=8.5)
    axis.set_ylim(0, 1.15 * max(*heights, 1e-9))
    open_frame(axis)


def _mark(axis: "Axes", place: int, height: float) -> None:
    axis.hlines(height, place - 0.42, place + 0.42, color=PAPER, lw=2.2)


def _sweep(axis: "Axes", key: str, points: Sequence[Point]) -> None:
    values = [str(point.value) for point in points]
    gains = [point.outcome.ratio_to_baseline or 0.0 for point in points]
    tails = [point.outcome.tail_s / point.outcome.wall_s for point in points]
    axis.plot(values, gains, "o-", color=COLOURS["seer"], label="throughput, x baseline")
    axis.plot(values, tails, "^-", color=TAIL, label="tail, share of the time")
    axis.set_ylim(0)
    axis.set_xlabel(key)
    axis.tick_params(axis="x", labelsize=8)
    open_frame(axis)
