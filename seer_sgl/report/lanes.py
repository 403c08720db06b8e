"""Running and queued requests of each engine over time: sampled from a record, and drawn.

A few engines are lanes: running requests solid, queued ones hatched on top of them, requests that
wait for KV dotted between them. Many engines are rows, in one colour or of a map from white (idle)
to dark (full), hatched while requests are queued, dotted while requests wait for KV.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from .recorder import EngineRecord, Recorder
from .report import tail_begin
from .style import DASHES, DOTS, HATCH, INK, KV, MUTED, PAPER, TAIL, idle_to_full

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

CELLS = 600  # time cells of a lane
MAX_LANES = 6  # more engines are drawn as a map
ROW = 0.8  # height of a row in one colour, of the distance to the next
GAP_POLLS = 3.0  # an engine that has not answered for so many polls is drawn as idle

Series = NDArray[np.float64]


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: requests of all clients and the share of its KV capacity in use, by cell.

    `queued` requests wait for room, `kv_waiting` ones for KV; empty: none at any time.
    """

    engine_id: str
    running: list[float]
    queued: list[float]
    kv: list[float]
    kv_waiting: list[float] = []


class Lanes(msgspec.Struct, frozen=True, kw_only=True):
    """The engines of one rollout over time, in equally long cells from 0 to `wall_s` (seconds)."""

    wall_s: float
    tail_at: float
    engines: list[Lane]

    @classmethod
    def of(cls, record: Recorder, cells: int = CELLS) -> Self:
        """Returns the lanes of a recorded rollout."""
        wall_s = record.finished_at[-1] if record.finished_at else 0.0
        middles = (np.arange(cells) + 0.5) * wall_s / cells
        return cls(
            wall_s=wall_s,
            tail_at=tail_begin(record.finished_at, record.awaited),
            engines=[_lane(engine, middles) for engine in record.engines.values()],
        )

    @property
    def tail_s(self) -> float:
        """Seconds spent on the last 10 % of the requests."""
        return self.wall_s - self.tail_at

    def idle_s(self, lane: Lane) -> float:
        """Returns the seconds in which an engine had no request."""
        idle = sum(not any(counts) for counts in _counts(lane))
        return self.wall_s * idle / (len(lane.running) or 1)

    @property
    def most(self) -> float:
        """The most requests on an engine at one time, running or waiting; at least 1."""
        return (
            max((float(sum(at)) for lane in self.engines for at in _counts(lane)), default=1) or 1
        )

    @property
    def kv_waiting(self) -> bool:
        """Whether requests waited for KV."""
        return any(any(lane.kv_waiting) for lane in self.engines)

    @property
    def most_running(self) -> float:
        """The most requests that ran on an engine at one time; at least 1."""
        return max((max(lane.running, default=0.0) for lane in self.engines), default=1) or 1


def _counts(lane: Lane) -> Iterator[tuple[float, float, float]]:
    """Yields the running requests of each cell, those that wait for KV, and the queued ones."""
    waiting = lane.kv_waiting or [0.0] * len(lane.running)
    return zip(lane.running, waiting, lane.queued, strict=True)


def _lane(engine: EngineRecord, times: Series) -> Lane:
    kv = nearest(engine.load_at, engine.used_tokens, times) / engine.info.max_total_num_tokens
    waiting = nearest(engine.load_at, engine.kv_waiting, times) if any(engine.kv_waiting) else None
    return Lane(
        engine_id=engine.info.engine_id,
        running=nearest(engine.load_at, engine.running, times).tolist(),
        queued=nearest(engine.load_at, engine.queued, times).tolist(),
        kv=kv.round(4).tolist(),
        kv_waiting=[] if waiting is None else waiting.tolist(),
    )


def nearest(polled_at: Sequence[float], values: Sequence[float], times: Series) -> Series:
    """Returns the value of the poll nearest to each of the ascending `times`.

    It is 0 where no poll is near, because the engine did not answer.
    """
    if not len(polled_at):
        return np.zeros(len(times))
    at = np.asarray(polled_at, dtype=np.float64)
    after = np.searchsorted(at, times).clip(0, len(at) - 1)
    before = (after - 1).clip(0)
    chosen = np.where(times - at[before] <= at[after] - times, before, after)
    reach = GAP_POLLS * float(np.median(np.diff(at))) if len(at) > 1 else np.inf
    found = np.asarray(values, dtype=np.float64)[chosen]
    return np.where(np.abs(at[chosen] - times) <= reach, found, 0.0)


def draw_lane(axis: "Axes", lanes: Lanes, lane: Lane, colour: str) -> None:
    """Draws one engine: running requests solid, requests that wait for KV dotted on top of them,
    queued ones hatched above; the tail, and a line for the KV cache in use."""
    counts = np.array(list(_counts(lane))).T
    changes = np.flatnonzero(np.diff(counts, axis=1).any(axis=0)) + 1  # a step per change
    edges = np.concatenate(([0], changes, [counts.shape[1]])) * lanes.wall_s / counts.shape[1]
    running, waiting, queued = counts[:, np.concatenate(([0], changes))]
    axis.stairs(running, edges, fill=True, color=colour)
    base = running
    for part, marks in ((waiting, _dots()), (queued, _stripes(colour))):
        if part.any():
            axis.stairs(base + part, edges, baseline=base, fill=True, **marks)
        base = base + part
    axis.set_ylabel(lane.engine_id, rotation=0, ha="right", va="center", color=INK)
    shade_tail(axis, lanes)
    _draw_kv(axis, lanes, lane)


def _draw_kv(axis: "Axes", lanes: Lanes, lane: Lane) -> None:
    kv_axis = axis.twinx()
    cell_s = lanes.wall_s / len(lane.kv)
    middles = [(place + 0.5) * cell_s for place in range(len(lane.kv))]
    kv_axis.plot(middles, [100 * share for share in lane.kv], color=KV, lw=1.6)
    kv_axis.set_ylim(0, 108)
    kv_axis.set_yticks([0, 50, 100], ["0", "50", "100 %"])
    kv_axis.tick_params(axis="y", colors=KV)
    kv_axis.spines["right"].set_visible(True)


def _stripes(colour: str) -> dict[str, Any]:
    """Returns how queued requests are drawn."""
    return {"facecolor": "white", "edgecolor": colour, "hatch": HATCH, "lw": 0}


def _dots() -> dict[str, Any]:
    """Returns how requests that wait for KV are drawn."""
    return {"facecolor": "white", "edgecolor": KV, "hatch": DOTS, "lw": 0}


def shade_tail(axis: "Axes", lanes: Lanes) -> None:
    """Shades the tail and marks the end of the rollout."""
    axis.axvspan(lanes.tail_at, lanes.wall_s, color=TAIL, lw=0, zorder=0)
    axis.axvline(lanes.wall_s, color=MUTED, lw=1.4)


def lanes_legend(figure: "Figure", colour: str, *, kv_waiting: bool = False) -> None:
    """Explains lanes of a colour and their KV lines, below them. `kv_waiting`: requests wait for
    KV in them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    waiting = [Patch(**_dots(), label="requests that wait for KV")] if kv_waiting else []
    handles = [
        Patch(color=colour, label="running requests"),
        Patch(**_stripes(colour), label="queued requests"),
        *waiting,
        Line2D([], [], color=KV, label="KV cache in use"),
        Patch(color=TAIL, label="tail: last 10 % of the requests"),
    ]
    ncols = 3 if waiting else len(handles)  # five are wider than the picture
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols)


def draw_map(axis: "Axes", lanes: Lanes, full: float) -> "AxesImage":
    """Draws one row per engine. `full`: the running requests that are drawn darkest."""
    image = map_of(axis, [lane.running for lane in lanes.engines], lanes.wall_s, full, log=True)
    _mark_waits(axis, lanes, 1.0)
    _mark_ends(axis, lanes)
    return image


def draw_rows(axis: "Axes", lanes: Lanes, colour: str) -> None:
    """Draws one row per engine, in one colour while it runs requests."""
    for row, lane in enumerate(lanes.engines, 1):
        for begin, seconds in spans_above_zero(lane.running, lanes.wall_s):
            axis.barh(row, seconds, ROW, begin, color=colour, lw=0)
    _mark_waits(axis, lanes, ROW)
    _mark_ends(axis, lanes)
    axis.set_ylim(len(lanes.engines) + 0.5, 0.5)
    _label_rows(axis)


def rows_legend(figure: "Figure", colour: str, *, kv_waiting: bool = False) -> None:
    """Explains rows of a colour, below them. `kv_waiting`: requests wait for KV in them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marked: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "lw": 0}
    waiting = [Patch(**marked, hatch=DOTS, label="others wait for KV")] if kv_waiting else []
    handles = [
        Patch(color=colour, label="runs requests"),
        Patch(**marked, hatch=HATCH, label="others are queued"),
        *waiting,
        Line2D([], [], color=PAPER, ls=DASHES, label="90 % finished"),
        Line2D([], [], color=PAPER, label="all finished"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def _mark_waits(axis: "Axes", lanes: Lanes, height: float) -> None:
    """Hatches the rows while requests are queued, and dots them while requests wait for KV."""
    for row, lane in enumerate(lanes.engines, 1):
        for counts, hatch in ((lane.queued, HATCH), (lane.kv_waiting, DOTS)):
            spans = spans_above_zero(counts, lanes.wall_s)
            if spans:
                axis.broken_barh(
                    spans,
                    (row - height / 2, height),
                    facecolor="none",
                    edgecolor="white",
                    hatch=hatch,
                    lw=0,
                )


def _mark_ends(axis: "Axes", lanes: Lanes) -> None:
    """Marks the begin of the tail and the end of the rollout."""
    axis.axvline(lanes.tail_at, color=PAPER, lw=1.6, ls=DASHES)
    axis.axvline(lanes.wall_s, color=PAPER, lw=1.6)


def _label_rows(axis: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylabel("engine")


def map_of(
    axis: "Axes",
    rows: Sequence[Sequence[float]],
    wall_s: float,
    full: float,
    *,
    log: bool = False,
) -> "AxesImage":
    """Draws one row of cells per engine, from white (0) to dark (`full`).

    `log`: a scale from 1 on. A few long requests fill an engine as well as many short ones.
    """
    from matplotlib.colors import LogNorm, Normalize

    image = axis.imshow(
        np.where(np.array(rows) > 0, rows, np.nan),
        aspect="auto",
        cmap=idle_to_full(),
        norm=LogNorm(1, max(full, 2)) if log else Normalize(0, full),
        extent=(0.0, wall_s or 1.0, len(rows) + 0.5, 0.5),
        interpolation="nearest",
    )
    _label_rows(axis)
    return image


def spans_above_zero(values: Sequence[float], wall_s: float) -> list[tuple[float, float]]:
    """Returns the begin and the length in seconds of each run of cells with a value above 0."""
    above = np.concatenate(([False], np.array(values) > 0, [False])).astype(int)
    steps = np.diff(above)
    begins, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    cell_s = wall_s / len(values) if values else 0.0
    return [
        (float(begin * cell_s), float((end - begin) * cell_s))
        for begin, end in zip(begins, ends, strict=True)
    ]
