"""The picture of a training with OpenRLHF: right answers and response lengths, step by step."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from seer_sgl.report.style import (
    MUTED,
    OURS,
    OURS_DARK,
    headline,
    save,
    styled_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS = "osD^v"
LINES = ("-", "--", ":")
COLOURS = (OURS, OURS_DARK, MUTED)


class Training(NamedTuple):
    """One seed. `steps`: the figures of every step; `held_out`: as `bench.rl` writes them."""

    seed: int
    steps: list[dict[str, float]]
    held_out: dict[str, Any]


def read_trainings(folder: Path) -> list[Training]:
    """Returns the seeds of `python -m bench.rl --out FOLDER`."""
    return [
        Training(
            found["seed"],
            json.loads((folder / f"seed-{found['seed']}" / "steps.json").read_text()),
            found,
        )
        for found in json.loads((folder / "rl.json").read_text())
    ]


def draw_learning(trainings: Sequence[Training], path: Path) -> list[Path]:
    """Lines: the samples that were trained on. Marks: held-out prompts."""
    before = fmean(each.held_out["before"]["right"] for each in trainings)
    after = fmean(each.held_out["after"]["right"] for each in trainings)
    steps = len(trainings[0].steps)
    with styled_figure(10, 8) as figure:
        headline(
            figure,
            f"{steps} steps of GRPO with OpenRLHF raise right answers on held-out prompts\n"
            f"from {100 * before:.0f} % to {100 * after:.0f} %",
            f"{len(trainings)} seeds on two CPU engines. Lines: 128 samples of each step. Marks "
            "before and after: held-out\nprompts, of which some are longer than any that was "
            "trained on; their gain, with two standard errors.",
            fit=False,
        )
        upper = figure.add_axes((0.1, 0.41, 0.885, 0.42))
        lower = figure.add_axes((0.1, 0.085, 0.885, 0.27), sharex=upper)
        for place, training in enumerate(trainings):
            _draw(upper, lower, training, place)
        upper.tick_params(labelbottom=False)
        upper.set_yticks([0.8, 0.85, 0.9, 0.95, 1], ["80 %", "85 %", "90 %", "95 %", "100 %"])
        upper.set_ylim(top=1.005)
        upper.set_ylabel("right answers")
        upper.legend(loc="lower right", borderpad=0)
        lower.set_ylabel("mean tokens")
        lower.set_ylim(0, 1.1 * lower.get_ylim()[1])
        middle = range(5, steps + 1, 5)
        lower.set_xticks(
            [0, *middle, steps + 3], ["before", *(f"step {step}" for step in middle), "after"]
        )
        return save(figure, path)


def _draw(upper: "Axes", lower: "Axes", training: Training, place: int) -> None:
    at = [step["step"] for step in training.steps]
    held_out = training.held_out
    colour, mark = COLOURS[place % len(COLOURS)], MARKS[place % len(MARKS)]
    aside = 0.45 * (place - 1)  # marks of equal values stay apart
    ends = (aside, len(at) + 3 + aside)
    points = 100 * (held_out["after"]["right"] - held_out["before"]["right"])
    gain = f"{points:.1f} ± {200 * held_out['gain']['standard_error']:.1f} points"
    for axis, key, of_held_out in (
        (upper, "reward", "right"),
        (lower, "response_length", "length_mean"),
    ):
        axis.plot(
            at,
            [step[key] for step in training.steps],
            LINES[place % len(LINES)],
            color=colour,
            lw=1.6,
            marker=mark,
            ms=4,
            zorder=1,
        )
        values = [held_out[when][of_held_out] for when in ("before", "after")]
        label = f"seed {training.seed}: +{gain}" if axis is upper else None
        axis.plot(ends, values, mark, ms=9, color=colour, mec="white", label=label)
