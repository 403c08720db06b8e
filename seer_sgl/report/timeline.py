"""The timeline of a rollout: the requests and the KV cache of each engine, unfinished requests."""

from pathlib import Path
from typing import TYPE_CHECKING

from .lanes import (
    MAX_LANES,
    Lanes,
    draw_lane,
    draw_map,
    lanes_legend,
    map_of,
    shade_tail,
)
from .recorder import Recorder
from .style import MUTED, OURS, PLAIN_LIGHT, headline, save, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 11.0  # inches
LANE_HEIGHT, MAP_HEIGHT, OTHER_HEIGHT = 1.5, 2.6, 2.6


def draw_timeline(record: Recorder, path: Path) -> list[Path]:
    """Writes the picture as SVG and PNG and returns both paths. `path`: without a suffix.

    Up to MAX_LANES engines are lanes; more are the rows of two maps.
    """
    lanes = Lanes.of(record)
    few = len(lanes.engines) <= MAX_LANES
    height = OTHER_HEIGHT + (LANE_HEIGHT * len(lanes.engines) if few else 2 * MAP_HEIGHT)
    with styled_figure(WIDTH, height) as figure:
        headline(figure, finding(record, lanes), details(record, lanes))
        panels = len(lanes.engines) if few else 2
        axes: list[Axes] = [*figure.subplots(panels + 1, 1, sharex=True, squeeze=False)[:, 0]]
        if few:
            _draw_lanes(axes[:panels], lanes)
            lanes_legend(figure, OURS, kv_waiting=lanes.kv_waiting)
        else:
            _draw_maps(figure, axes[:panels], lanes)
        _draw_unfinished(axes[-1], record, lanes)
        axes[-1].set_xlim(0, lanes.wall_s or 1)
        axes[-1].set_xlabel("seconds since the rollout began")
        return save(figure, path)


def finding(record: Recorder, lanes: Lanes) -> str:
    """Returns the picture's title."""
    requests = f"{len(record.finished_at):,} samples in {lanes.wall_s:,.1f} s"
    if len(record.finished_at) < record.awaited:  # it has ended early
        return f"{requests}, of {record.requests:,}"
    return f"{requests}; the last 10 % of them took {lanes.tail_s:,.1f} s"


def details(record: Recorder, lanes: Lanes) -> str:
    """Returns the line below the title."""
    tokens = sum(record.response_lens)
    rate = tokens / lanes.wall_s if lanes.wall_s else 0.0
    return f"{tokens:,} tokens, {rate:,.0f} tokens per second"


def _draw_lanes(axes: "list[Axes]", lanes: Lanes) -> None:
    for axis, lane in zip(axes, lanes.engines, strict=True):
        draw_lane(axis, lanes, lane, OURS)
        axis.set_ylim(0, 1.08 * lanes.most)


def _draw_maps(figure: "Figure", axes: "list[Axes]", lanes: Lanes) -> None:
    running, cache = axes
    image = draw_map(running, lanes, lanes.most_running)
    figure.colorbar(image, ax=running, label="running", pad=0.01, format="%d")
    dotted = "; dotted: others wait for KV" if lanes.kv_waiting else ""
    running.set_title(f"Running requests; hatched: others are queued{dotted}")
    shares = [[100 * share for share in lane.kv] for lane in lanes.engines]
    image = map_of(cache, shares, lanes.wall_s, 100)
    figure.colorbar(image, ax=cache, label="%", pad=0.01)
    cache.set_title("KV cache in use")


def _draw_unfinished(axis: "Axes", record: Recorder, lanes: Lanes) -> None:
    ends = [0.0, *record.finished_at]
    left = [record.requests - done for done in range(len(ends))]
    axis.fill_between(ends, left, step="post", color=PLAIN_LIGHT, lw=0)
    axis.step(ends, left, where="post", color=MUTED)
    shade_tail(axis, lanes)
    axis.set_ylim(0, 1.08 * (record.requests or 1))
    axis.set_title("Unfinished requests")
