"""The pictures of a benchmark: lanes of two arms, throughput and tail of all arms, the soak."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seer_sgl.report.figures import new_figure, open_frame, save
from seer_sgl.report.recorder import EngineRecord, Recorder
from seer_sgl.report.report import tail_begin
from seer_sgl.report.timeline import RUNNING, TAIL

from .arms import BASELINE, GREEDY, SEER
from .measure import Measurement
from .soak import SoakRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR, PAPER, OURS = "#9a9a9a", "#e45756", "#4c78a8"


Pair = tuple[Measurement, Measurement]  # the baseline and seer in the same round


def typical_pair(measurements: Sequence[Measurement]) -> Pair | None:
    """Returns the baseline and seer in the round with the (lower) median ratio of throughputs, for
    the first seed with rounds of both; None if there are no such rounds."""
    pairs = _pairs(measurements)
    return sorted(pairs, key=_gain)[(len(pairs) - 1) // 2] if pairs else None


def _pairs(measurements: Sequence[Measurement]) -> list[Pair]:
    """Returns the pairs of the first seed that has any."""
    by_round = {(one.row.arm, one.row.seed, one.row.round): one for one in measurements}
    pairs = [
        (one, by_round[SEER, seed, number])
        for (arm, seed, number), one in by_round.items()
        if arm == BASELINE and one.row.throughput_tok_s and (SEER, seed, number) in by_round
    ]
    paired = {pair[0].row.seed for pair in pairs}
    first = next((one.row.seed for one in measurements if one.row.seed in paired), None)
    return [pair for pair in pairs if pair[0].row.seed == first]


def _gain(pair: Pair) -> float:
    base, seer = pair
    return seer.row.throughput_tok_s / base.row.throughput_tok_s


def lanes_title(pair: Pair, rounds: Sequence[int]) -> str:
    """Returns the title of the picture. `rounds`: the rounds that the pair was chosen from."""
    base, seer = (one.row for one in pair)
    chosen = f"x {_gain(pair):.2f}"
    if len(rounds) > 1:
        listed = f"{', '.join(map(str, rounds[:-1]))} and {rounds[-1]}"
        chosen += f", the {'' if len(rounds) % 2 else 'lower '}median of rounds {listed}"
    same = f"the same {pair[0].record.requests} requests"
    if base.identical_share == seer.identical_share == 1:
        same += ", the same tokens"
    return f"seed {base.seed}, round {base.round} ({chosen}): {same}"


def draw_lanes(measurements: Sequence[Measurement], path: Path) -> None:
    """Draws the requests on each engine over time: the baseline above, seer below, on one time
    axis.

    `measurements`: all rollouts; the typical pair is drawn.
    """
    pair = typical_pair(measurements)
    if pair is None:
        return
    records = [one.record for one in pair]
    lanes = [(record, engine) for record in records for engine in record.engines.values()]
    most = max(max(engine.inflight_count, default=1) for _, engine in lanes)
    longest = max(record.finished_at[-1] for record in records)
    figure = new_figure(11, 1.6 + 1.15 * len(lanes))
    panels = figure.subplots(len(lanes), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, (record, engine) in zip(panels, lanes, strict=True):
        _lane(axis, record, engine)
        axis.set_xlim(0, longest)
        axis.set_ylim(0, most * 1.08)
    for axis, record, name in zip(
        panels[:: len(lanes) // 2],
        records,
        ("plain SGLang, whole groups in turn", "seer-sgl"),
        strict=True,
    ):
        ends = record.finished_at
        tail = ends[-1] - tail_begin(ends)
        axis.set_title(
            f"{name}: {ends[-1]:.1f} s, of which {tail:.1f} s for the last 10 % of the requests",
            loc="left",
            fontsize=10,
        )
    panels[-1].set_xlabel("seconds since the rollout began; height: requests on the engine")
    title = lanes_title(pair, sorted(base.row.round for base, _ in _pairs(measurements)))
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    save(figure, path)


def _lane(axis: "Axes", record: Recorder, engine: EngineRecord) -> None:
    end = record.finished_at[-1]
    times = [0.0, *engine.inflight_at, end]
    counts = [0, *engine.inflight_count, 0]
    axis.fill_between(times, counts, step="post", color=RUNNING, alpha=0.75, lw=0)
    axis.axvspan(tail_begin(record.finished_at), end, color=TAIL, alpha=0.28, lw=0, zorder=0)
    axis.axvline(end, color=PAPER, lw=1.4)
    axis.set_ylabel(engine.info.engine_id, rotation=0, ha="right", va="center", fontweight="bold")
    axis.tick_params(axis="y", labelsize=8)
    open_frame(axis)


def draw_arms(report: Mapping[str, Any], path: Path) -> None:
    """Draws throughput and tail of every arm as multiples of the baseline's in the same round.

    A bar is the median over all rounds; a mark is the paper's value.
    """
    arms = {
        name: arm
        for name, arm in report["arms"].items()
        if name not in GREEDY and arm["speedup"] is not None and arm["tail_cut"] is not None
    }
    if not arms:  # there is no baseline, or no tail
        return
    figure = new_figure(11.5, 4.2)
    left, right = figure.subplots(1, 2)
    published = [arm["paper"]["throughput"] for arm in arms.values() if arm["paper"]] or [1.0]
    _bars(
        left, arms, "speedup", label="throughput, x baseline", shown=lambda x: x, top=max(published)
    )
    _bars(right, arms, "tail_cut", label="tail, x baseline", shown=lambda x: 1 - x, top=1.0)
    for place, arm in enumerate(arms.values()):
        if arm["paper"] is not None:
            for axis, key in ((left, "throughput"), (right, "tail")):
                axis.hlines(arm["paper"][key], place - 0.42, place + 0.42, color=PAPER, lw=2.2)
    left.plot([], [], color=PAPER, lw=2.2, label="the paper, Qwen2-VL-72B")
    figure.legend(frameon=False, loc="outside upper right", fontsize=9)
    title = "Medians over all rounds; whiskers: least and greatest round"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    save(figure, path)


def _bars(
    axis: "Axes",
    arms: Mapping[str, Any],
    key: str,
    *,
    label: str,
    shown: Callable[[float], float],
    top: float,
) -> None:
    """Draws one bar per arm. `shown`: maps the figure `key` to the height; `top`: the highest
    mark."""
    names = [name.replace("_", "\n") for name in arms]
    heights = [shown(arm[key]) for arm in arms.values()]
    ranges = [sorted(shown(value) for value in arm["range"][key]) for arm in arms.values()]
    errors = [
        [max(0.0, height - low) for height, (low, _) in zip(heights, ranges, strict=True)],
        [max(0.0, high - height) for height, (_, high) in zip(heights, ranges, strict=True)],
    ]
    colours = [OURS if name == SEER else BAR for name in arms]
    bars = axis.bar(names, heights, yerr=errors, color=colours, width=0.66, ecolor="#54585d")
    axis.bar_label(bars, fmt="%.2f", fontsize=9, padding=2)
    axis.set_ylabel(label)
    axis.tick_params(axis="x", labelsize=7.5)
    axis.set_ylim(0, 1.12 * max([*heights, *(high for _, high in ranges), top]))
    open_frame(axis)


def draw_soak(rows: Sequence[SoakRow], path: Path) -> None:
    """Draws time, memory growth and KV hits over the rollouts of the soak."""
    figure = new_figure(11, 3.2)
    time, memory, hits = figure.subplots(1, 3)
    numbers = [row.number + 1 for row in rows]
    time.plot(numbers, [row.wall_s for row in rows], "o-", color=OURS)
    time.set_ylabel("seconds")
    time.set_ylim(0, 1.15 * time.get_ylim()[1])
    for name, style, colour in (
        ("driver", "o-", OURS),
        ("engines", "^-", BAR),
        ("others", "s-", PAPER),
    ):
        used: list[float] = [getattr(row, f"{name}_mb") for row in rows]
        label = f"{name}, above {used[0]:,.0f}"
        memory.plot(numbers, [mb - used[0] for mb in used], style, color=colour, label=label)
    memory.axhline(0, color="#54585d", lw=0.8, zorder=0)
    memory.set_ylabel("MB above the first rollout's")
    memory.legend(frameon=False, fontsize=8)
    shares = [math.nan if row.kv_hit_share is None else row.kv_hit_share for row in rows]
    hits.plot(numbers, shares, "o-", color=OURS)
    hits.set_ylabel("KV of continuations found, share")
    hits.set_ylim(0, 1.02)
    for axis in (time, memory, hits):
        axis.set_xlabel("rollout")
        axis.xaxis.get_major_locator().set_params(integer=True)
        open_frame(axis)
    save(figure, path)
