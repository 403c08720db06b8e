"""The diagrams of the documentation: the processes, and the life of a chunk."""

from pathlib import Path
from typing import NamedTuple

from bench.canvas import Canvas
from seer_sgl.report.style import (
    MUTED,
    OURS,
    OURS_LIGHT,
    PLAIN,
    PLAIN_LIGHT,
    SMALL,
    Point,
    headline,
    save,
    styled_figure,
)


def draw_architecture(path: Path) -> list[Path]:
    """Processes as boxes, data as arrows."""
    with styled_figure(10, 8.8) as figure:
        headline(
            figure, "Stock SGLang servers, and one driver that decides what runs where", fit=False
        )
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
    canvas.text((11.25, 68.2), "RL trainer or\ncommand line", 16, weight="bold")
    canvas.text((11.25, 61.8), "HTTP, Python, shell", 13)
    canvas.arrow((21.5, 69), (33, 69))
    canvas.text((27, 71.2), "prompts", 14)
    canvas.arrow((33, 64), (21.5, 64))
    canvas.text((27.5, 61.6), "samples", 14)
    canvas.box((33, 59), (41, 15), fill=OURS)
    canvas.text((53.5, 71.6), "Driver", 18, "white", weight="bold")
    canvas.text((53.5, 68.2), "in seer-sgl serve, rollout or your Python", 13, "white")
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
    canvas.box((3, 2), (37, 12), fill=OURS)
    canvas.text((21.5, 8), "Draft hub", 18, "white", weight="bold")
    canvas.arrow((33.75, 14), (33.75, 25), both=True, colour=OURS)
    canvas.text((32, 19.5), "WebSocket of each server:\ntokens of siblings", 14, OURS, ha="right")
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
        "The request: the most\ntokens possible first",
        "scheduling/longest_possible.py",
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
        headline(
            figure, "A request runs in chunks, and each chunk may run on another engine", fit=False
        )
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
