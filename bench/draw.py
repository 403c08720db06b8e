"""Draws the pictures of the documentation from committed data.

`python -m bench.draw [--out bench/pictures]` writes four pictures, each as SVG and PNG:

- `architecture`: the processes, and what flows between them.
- `chunk`: the eight steps of a chunk, from prompt to sample.
- `waterfall`: throughput over pinned groups, technique by technique, beside the paper's.
- `gain`: what seer-sgl gains, by how long pinned engines idle, a dot per seed.

The first part of this file computes and does not draw; the second part draws.
"""

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from seer_sgl.benchmark import summary
from seer_sgl.benchmark.measure import Row
from seer_sgl.report.style import (
    INK,
    MUTED,
    OURS,
    OURS_LIGHT,
    PAPER,
    PAPER_LIGHT,
    PLAIN,
    PLAIN_LIGHT,
    SMALL,
    TEXT,
    Canvas,
    Point,
    headline,
    save,
    styled_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = Path(__file__).parent / "pictures"
RESULTS = Path(__file__).parent / "results"
ARMS_REPORT = RESULTS / "2026-11-21-cpu" / "report.json"
SEEDS_REPORT = RESULTS / "2026-11-21-cpu-seeds" / "report.json"

PINNED, SINGLE, SEER = "group_round_robin", "request_round_robin", "seer"  # arms of a report
PAPER_IDLE, PAPER_GAIN = 0.37, 2.04  # the paper, Qwen2-VL-72B: idle baseline, throughput of Seer
DASHES = (0, (4, 3))


class Report(msgspec.Struct, frozen=True):
    """The part of a benchmark's report that is drawn."""

    rounds: list[Row]


class Ratio(NamedTuple):
    """How many times as fast one arm was as another in the same round."""

    seed: int
    round: int
    value: float


class Technique(NamedTuple):
    """An arm in words, and the throughput that the paper reports for it, if it does."""

    arm: str
    name: str
    paper: float | None = None


class Step(NamedTuple):
    """A technique with what was measured."""

    technique: Technique
    ratios: list[Ratio]
    median: float


class SeedGain(NamedTuple):
    """What seer-sgl gains on the prompts of one seed. `idle`: mean share of the pinned engines."""

    seed: int
    idle: float
    over_pinned: float
    over_single: float


class Box(NamedTuple):
    """A rectangle in points."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: "Box") -> bool:
        """Whether the two have an area in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )


TECHNIQUES = (
    Technique(PINNED, "plain SGLang,\ngroups pinned to engines", 1.00),
    Technique(SINGLE, "plain SGLang,\nsingle requests in turn"),
    Technique("divided", "divided rollout,\nwithout KV pool"),
    Technique("kv_pool", "+ KV pool", 1.42),
    Technique("context", "+ context-aware order", 1.56),
    Technique(SEER, "+ grouped speculation:\nseer-sgl", PAPER_GAIN),
)


def read_rounds(path: Path) -> list[Row]:
    """Returns the rounds of a `report.json`."""
    return msgspec.json.decode(path.read_bytes(), type=Report).rounds


def ratios(rounds: Sequence[Row], arm: str, over: str = PINNED) -> list[Ratio]:
    """Returns the wall time of `over` divided by that of `arm`, for each round that has both.

    All arms of a round produce the same tokens, so this is the ratio of their throughputs.
    """
    seeds = {row.round: row.seed for row in rounds}
    values = summary.ratios(rounds, over, arm, "wall_s")
    return [Ratio(seeds[number], number, value) for number, value in values.items()]


def steps(rounds: Sequence[Row], techniques: Sequence[Technique] = TECHNIQUES) -> list[Step]:
    """Returns the ratios of each technique to pinned groups; the median is over all rounds."""
    measured = ((technique, ratios(rounds, technique.arm)) for technique in techniques)
    return [Step(each, found, median(one.value for one in found)) for each, found in measured]


def idle_shares(rounds: Iterable[Row]) -> dict[int, float]:
    """Returns by seed how long pinned engines idle (mean of engines and rounds), longest first."""
    shares: dict[int, list[float]] = {}
    for row in rounds:
        if row.arm == PINNED and row.idle:
            shares.setdefault(row.seed, []).append(fmean(row.idle))
    means = {seed: fmean(found) for seed, found in shares.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def seed_gains(rounds: Sequence[Row]) -> list[SeedGain]:
    """Returns the gain of each seed (mean over its rounds), longest idle first."""

    def mean(seed: int, over: str) -> float:
        return fmean(one.value for one in ratios(rounds, SEER, over) if one.seed == seed)

    return [
        SeedGain(seed, share, mean(seed, PINNED), mean(seed, SINGLE))
        for seed, share in idle_shares(rounds).items()
    ]


def place_labels(
    points: Sequence[Point], widths: Sequence[float], obstacles: Sequence[Box], height: float
) -> list[Point]:
    """Returns the lower left corner of a label beside each point, all in points.

    A label goes to the first of these places where it covers neither an obstacle nor an earlier
    label: right, left, above, below. It goes to the right if there is no such place.
    """
    gap, taken, corners = 10.0, list(obstacles), []
    for (x, y), width in zip(points, widths, strict=True):
        boxes = [
            Box(left, low, left + width, low + height)
            for left, low in (
                (x + gap, y - height / 2),
                (x - gap - width, y - height / 2),
                (x - width / 2, y + gap),
                (x - width / 2, y - gap - height),
            )
        ]
        free = (box for box in boxes if not any(box.meets(other) for other in taken))
        chosen = next(free, boxes[0])
        taken.append(chosen)
        corners.append((chosen.left, chosen.bottom))
    return corners


# From here on: drawing.


def draw_waterfall(rounds: Sequence[Row], path: Path) -> list[Path]:
    """Bars: medians and the paper's values. Marks: every round, a shape and a lane per seed."""
    found, idle = steps(rounds), idle_shares(rounds)
    gain = {step.technique.arm: step.median for step in found}
    shapes = dict(zip(idle, "osD^v<>", strict=False))
    with styled_figure(10, 8.4) as figure:
        headline(
            figure,
            f"Spreading requests brings {gain[SINGLE]:.2f}x, and drafts from siblings raise it\n"
            f"to {gain[SEER]:.2f}x; the paper reports {PAPER_GAIN}x for all of Seer",
            f"Bars: medians of {len(found[0].ratios)} rounds. Marks: every round. Measured on two "
            "engines, one CPU core each, a small model.\nThe paper: Qwen2-VL-72B on 128 GPUs.",
        )
        axis = figure.add_axes((0.285, 0.16, 0.7, 0.67))
        for place, step in enumerate(found):
            _draw_step(axis, place, step)
            for lane, (seed, shape) in enumerate(shapes.items()):
                values = [one.value for one in step.ratios if one.seed == seed]
                at = [place - 0.43 + 0.1 * lane] * len(values)
                axis.plot(values, at, shape, color=INK, ms=6.5, mec="white", mew=0.6)
        axis.axvline(1, color=MUTED, lw=1.2, ls=DASHES, zorder=0)
        axis.set_yticks(range(len(found)), [step.technique.name for step in found])
        axis.tick_params(axis="y", length=0, labelsize=TEXT, labelcolor=INK)
        axis.set_ylim(len(found) - 0.5, -0.6)
        axis.set_xlim(0, 2.65)
        axis.spines["left"].set_visible(False)
        axis.set_xlabel("throughput, multiples of plain SGLang with pinned groups")
        _legends(figure, {shape: f"{100 * idle[seed]:.0f} %" for seed, shape in shapes.items()})
        return save(figure, path)


def _draw_step(axis: "Axes", place: int, step: Step) -> None:
    """The median, and below it the paper's value."""
    colour = PLAIN if step.technique.arm in (PINNED, SINGLE) else OURS
    axis.barh(place, step.median, height=0.3, color=colour)
    _value(axis, (step.median, place), colour, 15)
    below = place + 0.26
    if step.technique.paper is None:
        axis.text(0.01, below, "not in the paper", va="center", fontsize=SMALL, color=MUTED)
    else:
        axis.barh(below, step.technique.paper, height=0.17, color=PAPER_LIGHT)
        _value(axis, (step.technique.paper, below), PAPER, TEXT)


def _value(axis: "Axes", at: Point, colour: str, size: float) -> None:
    axis.annotate(
        f"{at[0]:.2f}",
        at,
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=size,
        fontweight="bold",
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )


def _legends(figure: "Figure", idle_by_shape: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    colours = {PLAIN: "plain SGLang", OURS: "seer-sgl", PAPER_LIGHT: "the paper"}
    bars = [Patch(color=colour, label=name) for colour, name in colours.items()]
    marks = [
        Line2D([], [], marker=shape, ls="", color=INK, ms=8, label=share)
        for shape, share in idle_by_shape.items()
    ]
    words = Line2D([], [], ls="", label="Each mark is a round. Pinned engines idle:")
    for handles, y in ((bars, 0.045), ([words, *marks], 0.008)):
        figure.legend(
            handles=handles,
            loc="lower right",
            bbox_to_anchor=(0.985, y),
            ncols=len(handles),
            columnspacing=1.4,
            handletextpad=0.3,
            handlelength=1.3,
            borderpad=0,
        )


def draw_gain(rounds: Sequence[Row], path: Path) -> list[Path]:
    """A dot per seed over pinned groups, a lighter one over single requests in turn."""
    gains = seed_gains(rounds)
    at = [100 * gain.idle for gain in gains]
    dark, light = [gain.over_pinned for gain in gains], [gain.over_single for gain in gains]
    with styled_figure(10, 7) as figure:
        headline(
            figure,
            "The more pinned engines idle, the more seer-sgl gains",
            f"{len(gains)} seeds, a rollout per seed and system, on two engines with one CPU core "
            f"each and a small model.\nMedians: {median(dark):.2f}x over pinned groups, "
            f"{median(light):.2f}x over single requests in turn.",
        )
        axis = figure.add_axes((0.085, 0.115, 0.9, 0.735))
        axis.vlines(at, light, dark, color=OURS_LIGHT, lw=2.5, zorder=1)
        axis.axhline(1, color=MUTED, lw=1.2, ls=DASHES, zorder=0)
        for values, size, fill, edge, name in (
            (dark, 11, OURS, "white", "plain SGLang with pinned groups"),
            (light, 8, OURS_LIGHT, OURS, "plain SGLang with single requests in turn"),
        ):
            axis.plot(
                at,
                values,
                "o",
                ms=size,
                color=fill,
                mec=edge,
                label=f"seer-sgl over {name}",
            )
        axis.plot(
            100 * PAPER_IDLE,
            PAPER_GAIN,
            "D",
            ms=11,
            color=PAPER,
            label="the paper: Seer over pinned groups, Qwen2-VL-72B",
        )
        axis.set_xlim(-1.5, 51)
        axis.set_ylim(0.85, 2.7)
        axis.set_yticks([1, 1.5, 2, 2.5])
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:.0f} %")
        axis.set_xlabel("share of the time that engines idle when whole groups are pinned to them")
        axis.set_ylabel("throughput of seer-sgl, multiples")
        axis.legend(loc="upper left", labelspacing=0.7, borderpad=0)
        _label_dots(axis, gains)
        return save(figure, path)


def _label_dots(axis: "Axes", gains: Sequence[SeedGain]) -> None:
    """The number of each seed and its gain, and the paper's point."""
    points_per_pixel = 72 / axis.figure.dpi

    def point(x: float, y: float) -> Point:
        across, up = axis.transData.transform((100 * x, y)) * points_per_pixel
        return float(across), float(up)

    dark = [point(gain.idle, gain.over_pinned) for gain in gains]
    light = [point(gain.idle, gain.over_single) for gain in gains]
    paper = point(PAPER_IDLE, PAPER_GAIN)
    (left, _), (_, level) = point(axis.get_xlim()[0] / 100, 1), point(0, 1)
    obstacles = [
        Box(-math.inf, -math.inf, left, math.inf),  # the axis
        Box(-math.inf, level - 1, math.inf, level + 1),  # the line at 1
        Box(paper[0] - 9, paper[1] - 9, paper[0] + 9, paper[1] + 9),
        *(Box(x - 6, y - 6, x + 6, y + 6) for x, y in (*dark, *light)),
        *(
            Box(x - 1, min(y, z), x + 1, max(y, z))
            for (x, y), (_, z) in zip(dark, light, strict=True)
        ),
    ]
    best = max(gains, key=lambda gain: gain.over_pinned)
    labels = [
        f"{'seed ' if gain is best else ''}{gain.seed}: {gain.over_pinned:.2f}" for gain in gains
    ]
    labels.append(f"{100 * PAPER_IDLE:.0f} % idle: {PAPER_GAIN:.2f}")
    corners = place_labels([*dark, paper], [7.4 * len(word) for word in labels], obstacles, 13)
    for place, (word, corner) in enumerate(zip(labels, corners, strict=True)):
        axis.annotate(
            word,
            (corner[0], corner[1] + 2.2),  # the baseline
            xycoords="figure points",
            fontsize=SMALL + 1,
            fontweight="bold",
            color=OURS if place < len(gains) else PAPER,
        )


def draw_architecture(path: Path) -> list[Path]:
    """Processes as boxes, data as arrows."""
    with styled_figure(10, 8.8) as figure:
        headline(figure, "Stock SGLang servers, and one driver that decides what runs where")
        canvas = Canvas(figure)
        _key(canvas, 79.2)
        _draw_front(canvas)
        _draw_servers(canvas)
        _draw_helpers(canvas)
        return save(figure, path)


def _key(canvas: Canvas, y: float) -> None:
    for x, fill, edge, words in (
        (1.5, OURS, OURS, "seer-sgl"),
        (19, PLAIN, PLAIN, "stock SGLang and Mooncake"),
        (57, "white", MUTED, "yours"),
    ):
        canvas.box((x, y), (3.2, 2.4), fill=fill, edge=edge)
        canvas.text((x + 4.4, y + 1.2), words, 14, ha="left")


def _draw_front(canvas: Canvas) -> None:
    """Trainer, driver and files."""
    canvas.box((1, 59), (20.5, 15), edge=MUTED)
    canvas.text((11.25, 66.5), "RL trainer or\ncommand line", 16, weight="bold")
    canvas.arrow((21.5, 69), (33, 69))
    canvas.text((27, 71.2), "prompts", 14)
    canvas.arrow((33, 64), (21.5, 64))
    canvas.text((27.5, 61.6), "samples", 14)
    canvas.box((33, 59), (41, 15), fill=OURS)
    canvas.text((53.5, 70.4), "Driver", 18, "white", weight="bold")
    for x, words in ((33.6, "scheduler"), (47.05, "KV ledger"), (60.5, "placement")):
        canvas.box((x, 60.5), (12.9, 6), fill="white", z=2)
        canvas.text((x + 6.45, 63.5), words, 14, OURS, weight="bold")
    canvas.arrow((74, 66.5), (80.5, 66.5))
    canvas.box((80.5, 59), (18.5, 15), edge=MUTED)
    canvas.text((89.75, 66.5), "samples.jsonl\nreport.json", 15)


def _draw_servers(canvas: Canvas) -> None:
    """The servers with the plugin in each, and their lines to the driver."""
    canvas.box((1, 25), (98, 21), fill=PLAIN_LIGHT)
    for x, number in ((3, "1"), (35.5, "2"), (68, "n")):
        canvas.box((x, 27), (29, 17), fill=PLAIN, z=2)
        canvas.text((x + 14.5, 39.5), f"SGLang server {number}", 17, "white", weight="bold")
        canvas.box((x + 6.5, 28.8), (16, 6.4), fill=OURS, z=3)
        canvas.text((x + 14.5, 32), "plugin", 16, "white", weight="bold")
    canvas.text((66.25, 35.5), "…", 18, PLAIN, weight="bold")
    canvas.arrow((36.5, 59), (36.5, 46))
    canvas.text((35, 52.5), "HTTP /generate:\nprompt + tokens so far", 14, ha="right")
    canvas.arrow((41, 46), (41, 59))
    canvas.text((42.5, 52.5), "new tokens,\nlogprobs", 14, ha="left")
    canvas.arrow((68, 46), (68, 59), both=True, colour=OURS)
    canvas.text(
        (69.5, 52.5), "WebSocket: KV is stored,\nKV is no longer needed", 14, OURS, ha="left"
    )


def _draw_helpers(canvas: Canvas) -> None:
    """Draft hub and KV pool."""
    canvas.box((3, 2), (29, 12), fill=OURS)
    canvas.text((17.5, 8), "Draft hub", 18, "white", weight="bold")
    canvas.arrow((17.5, 14), (17.5, 25), both=True, colour=OURS)
    canvas.text((19, 19.5), "WebSocket:\ntokens of siblings", 14, OURS, ha="left")
    canvas.box((44, 2), (53, 12), fill=PLAIN)
    canvas.text((70.5, 11.3), "KV pool: Mooncake", 17, "white", weight="bold")
    for x, words in ((45.5, "master"), (62.75, "store node"), (80, "store node")):
        canvas.box((x, 3.2), (15.5, 5.4), fill="white", z=2)
        canvas.text((x + 7.75, 5.9), words, 14)
    canvas.arrow((70.5, 14), (70.5, 25), both=True)
    canvas.text((72, 19.5), "KV pages", 14, ha="left")


class Stage(NamedTuple):
    """A step in the life of a chunk. `corner`: of its box; `inside`: inside an SGLang server."""

    corner: Point
    name: str
    what: str
    module: str
    inside: bool = False


SIZE = (30.0, 21.0)  # of a stage's box
LEFT, MIDDLE, RIGHT = 1.0, 35.0, 69.0
LOW, HALF, HIGH = 2.0, 29.0, 56.0
STAGES = (
    Stage((LEFT, HIGH), "Group", "A prompt becomes\na group of n requests", "driver/groups.py"),
    Stage(
        (MIDDLE, HIGH),
        "Pick",
        "The request: probes\nfirst, then longest group",
        "scheduling/context_aware.py",
    ),
    Stage(
        (RIGHT, HIGH),
        "Check",
        "Prompt + generated +\nbudget must fit the KV",
        "scheduling/ledger.py",
    ),
    Stage(
        (RIGHT, HALF),
        "Place",
        "The engine: cached\nprefix, or least loaded",
        "scheduling/placement.py",
    ),
    Stage((RIGHT, LOW), "Send", "POST /generate with\nthe tokens so far", "engine/client.py"),
    Stage(
        (MIDDLE, LOW),
        "Decode",
        "Drafts from siblings are\nverified; KV to the pool",
        "plugin/speculation/, pool.py",
        inside=True,
    ),
    Stage(
        (LEFT, LOW),
        "Append",
        "Checked reply: tokens,\nlogprobs, weight version",
        "engine/wire.py, types.py",
    ),
    Stage(
        (LEFT, HALF),
        "Complete",
        "The KV reservation ends;\nis the request finished?",
        "scheduling/scheduler.py",
    ),
)


def draw_chunk(path: Path) -> list[Path]:
    """Eight numbered boxes around a ring; the way back from the last one to the second."""
    with styled_figure(10, 8.6) as figure:
        headline(figure, "A request runs in chunks, and each chunk may run on another engine")
        canvas = Canvas(figure)
        for number, stage in enumerate(STAGES, 1):
            _draw_stage(canvas, number, stage)
        for start, end in (
            ((31, 66.5), (35, 66.5)),
            ((65, 66.5), (69, 66.5)),
            ((84, 56), (84, 50)),
            ((84, 29), (84, 23)),
            ((69, 12.5), (65, 12.5)),
            ((35, 12.5), (31, 12.5)),
            ((16, 23), (16, 29)),
        ):
            canvas.arrow(start, end)
        canvas.arrow((31, 44.5), (46, 56), path="angle,angleA=0,angleB=90,rad=6", colour=OURS)
        canvas.text((48, 49), "not finished:\nready again,\non any engine", 14, OURS, ha="left")
        canvas.arrow((31, 34), (45, 34))
        canvas.text((37.4, 36), "finished", 14)
        canvas.box((45, 30.5), (16, 7), edge=MUTED)
        canvas.text((53, 34), "Sample", 17, weight="bold")
        return save(figure, path)


def _draw_stage(canvas: Canvas, number: int, stage: Stage) -> None:
    (x, y), (width, height) = stage.corner, SIZE
    top = y + height - 3.9
    colour, fill = (PLAIN, PLAIN_LIGHT) if stage.inside else (OURS, OURS_LIGHT)
    canvas.box(stage.corner, SIZE, fill=fill, edge=colour)
    canvas.box((x + 1.5, top - 2.35), (4.7, 4.7), fill=colour, z=2)
    canvas.text((x + 3.85, top), str(number), 16, "white", weight="bold")
    canvas.text((x + 7.6, top), stage.name, 17, colour, weight="bold", ha="left")
    if stage.inside:
        canvas.text((x + width - 1.6, top), "in SGLang", SMALL + 1, MUTED, ha="right")
    canvas.text((x + 1.6, y + 9.6), stage.what, 14, ha="left")
    canvas.text((x + 1.6, y + 2.6), stage.module, SMALL, MUTED, ha="left")


def draw_all(out: Path) -> list[Path]:
    """Write all pictures into a folder and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    return [
        *draw_architecture(out / "architecture"),
        *draw_chunk(out / "chunk"),
        *draw_waterfall(read_rounds(ARMS_REPORT), out / "waterfall"),
        *draw_gain(read_rounds(SEEDS_REPORT), out / "gain"),
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation.")
    parser.add_argument("--out", type=Path, default=PICTURES, help="folder of the pictures")
    for path in draw_all(parser.parse_args().out):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
