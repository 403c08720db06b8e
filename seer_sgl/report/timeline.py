"""`timeline.png`: one lane per engine with its running requests and its KV cache usage."""

from pathlib import Path
from typing import TYPE_CHECKING

from .recorder import EngineRecord, Recorder
from .report import tail_begin

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RUNNING, KV, TAIL, LEFT = "#4c78a8", "#e45756", "#f2cf5b", "#54585d"
LANE_INCHES, MAX_INCHES = 1.15, 24.0


def draw_timeline(record: Recorder, path: Path, title: str) -> None:
    """Writes the plot. The tail (last 10 % of requests to finish) is shaded in every lane."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ends = record.finished_at
    wall_s = ends[-1] if ends else 0.0
    begin = tail_begin(ends)
    lanes = len(record.engines)
    height = min(MAX_INCHES, 2.6 + LANE_INCHES * lanes)
    figure, axes = plt.subplots(
        lanes + 1,
        1,
        sharex=True,
        squeeze=False,
        figsize=(11, height),
        layout="constrained",
        height_ratios=[1.0] * lanes + [0.9],
    )
    most = max((max(e.inflight_count, default=1) for e in record.engines.values()), default=1)
    for axis, engine in zip(axes[:, 0], record.engines.values(), strict=False):
        _lane(axis, engine, wall_s, most, crowded=height == MAX_INCHES)
    _left(axes[-1, 0], record, wall_s)
    for axis in axes[:, 0]:
        axis.axvspan(begin, wall_s, color=TAIL, alpha=0.28, lw=0, zorder=0)
        axis.set_xlim(0, wall_s or 1)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    share = (wall_s - begin) / wall_s if wall_s else 0.0
    figure.suptitle(title, x=0.008, ha="left", fontsize=11)
    figure.legend(
        handles=[
            Patch(color=RUNNING, alpha=0.75, label="running requests"),
            Line2D([], [], color=KV, label="KV cache in use"),
            Patch(color=TAIL, alpha=0.4, label=f"tail: last 10 % of requests, {share:.0%} of time"),
        ],
        loc="outside upper right",
        ncols=3,
        fontsize=9,
        frameon=False,
    )
    axes[-1, 0].set_xlabel("seconds since the rollout began")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _lane(axis: "Axes", engine: EngineRecord, wall_s: float, most: int, crowded: bool) -> None:
    last = max(wall_s, engine.inflight_at[-1] if engine.inflight_at else 0.0)
    times = [0.0, *engine.inflight_at, last]
    counts = [0, *engine.inflight_count, engine.inflight]
    axis.fill_between(times, counts, step="post", color=RUNNING, alpha=0.75, lw=0)
    axis.set_ylim(0, most * 1.08)
    axis.set_ylabel(engine.info.engine_id, rotation=0, ha="right", va="center", fontweight="bold")
    axis.tick_params(axis="y", colors=RUNNING, labelsize=8)
    kv_axis = axis.twinx()
    capacity = engine.info.max_total_num_tokens
    kv_axis.plot(engine.load_at, [100 * used / capacity for used in engine.used_tokens], color=KV)
    kv_axis.set_ylim(0, 108)
    kv_axis.set_yticks([0, 50, 100], ["0", "50", "100 %"])
    if crowded:  # otherwise the labels of adjacent lanes overlap
        axis.set_yticks([most])
        kv_axis.set_yticks([100], ["100 %"])
    kv_axis.tick_params(axis="y", colors=KV, labelsize=8)
    for side in ("top", "left"):
        kv_axis.spines[side].set_visible(False)


def _left(axis: "Axes", record: Recorder, wall_s: float) -> None:
    total = record.requests
    left = [total - done for done in range(len(record.finished_at) + 1)]
    axis.step([0.0, *record.finished_at], left, where="post", color=LEFT)
    axis.fill_between([0.0, *record.finished_at], left, step="post", color=LEFT, alpha=0.15, lw=0)
    axis.set_ylim(0, (total or 1) * 1.08)
    axis.set_ylabel("requests\nunfinished", fontsize=8, rotation=0, ha="right", va="center")
    axis.tick_params(axis="y", labelsize=8)
