"""Drafts from an earlier epoch, whose weights are older: `python -m bench.history [--out DIR]`.

The prompts of every seed are rolled out with the shipped weights: the history. Then the weights
take a few steps of policy gradient on it (bench/reasoner/updates.py). The new weights roll the same
prompts out under two arms in turn: `seer`, and `seer_history`, which also drafts from the history.
Their samples have to be identical. `history.json` has all figures, for each number of updates.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import override

from bench.reasoner.batches import Graded, graded
from bench.reasoner.updates import update
from seer_sgl.benchmark.arms import ARMS, SEER, Arm
from seer_sgl.benchmark.config import BenchConfig, load_bench
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.benchmark.runner import Runner
from seer_sgl.benchmark.workloads import Source
from seer_sgl.config import Config, with_values

HERE = Path(__file__).resolve().parent
CONFIG = HERE.parent / "configs" / "bench-cpu.yaml"
HISTORY = msgspec.structs.replace(
    ARMS[SEER],
    name="seer_history",
    label="seer-sgl with the drafts\nof an earlier epoch",
    description="as seer, drafting also from an earlier epoch",
    compared_with=SEER,
)


class HistoryRunner(Runner):
    """Runs `seer` and `seer_history`. The config names the history; only the latter keeps it."""

    def __init__(self, config: BenchConfig, out: Path) -> None:
        """Raises ConfigError and InputError like Runner."""
        super().__init__(config, out)
        self.arms = [ARMS[SEER], HISTORY]

    @override
    def rollout_config(self, arm: Arm, seed: int, lengths: str | None) -> Config:
        config = super().rollout_config(arm, seed, lengths)
        return config if arm is HISTORY else with_values(config, {"draft.history": None})


def roll_out(config: BenchConfig, seeds: Sequence[int], folder: Path) -> list[Graded]:
    """Rolls the prompts of the seeds out with another seed, and returns the samples with rewards.
    `folder` gets samples.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    source, written = Source(config), folder / "prompts.jsonl"
    prompts = {prompt.prompt_id: prompt for s in seeds for prompt in source.draw(s).prompts}
    lines = Path(config.rollout.prompts or "").read_text().splitlines()
    chosen = [line for line in lines if json.loads(line)["id"] in prompts]
    written.write_text("".join(f"{line}\n" for line in chosen))
    values = {"rollout.prompts": str(written), "rollout.max_prompts": None, "rollout.seed": 1000}
    tree = msgspec.to_builtins(with_values(config, values))
    del tree["bench"]
    (folder / "c.yaml").write_bytes(msgspec.yaml.encode(tree))
    command = [sys.executable, "-m", "seer_sgl", "rollout", "--config", str(folder / "c.yaml")]
    with (folder / "rollout.log").open("wb") as log:
        subprocess.run([*command, "--out", str(folder)], stdout=log, stderr=log, check=True)
    with (folder / "samples.jsonl").open() as file:
        return [graded(json.loads(line)) for line in file]


async def compare(config: BenchConfig, out: Path) -> list[Measurement]:
    """Runs both arms in turn."""
    runner = HistoryRunner(config, out)
    try:
        return [measurement async for measurement in runner.rounds()]
    finally:
        await runner.aclose()


def figures(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Returns the gain of the history per round, and both arms' steps."""
    rows = {arm: [m.row for m in measurements if m.row.arm == arm] for arm in (SEER, HISTORY.name)}
    gains = [a.wall_s / b.wall_s for a, b in zip(*rows.values(), strict=True)]
    return {
        "gain": {
            "median": round(statistics.median(gains), 3),
            "least": round(min(gains), 3),
            "most": round(max(gains), 3),
        },
        "rows": {arm: msgspec.to_builtins(each) for arm, each in rows.items()},
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out") / "history")
    parser.add_argument("--updates", type=int, nargs="+", default=[0, 8, 32])
    parser.add_argument("--seeds", type=int, nargs="+", default=[9, 1, 8])
    options = parser.parse_args()
    out = options.out.resolve()
    config = load_bench(CONFIG)
    samples = roll_out(config, options.seeds, out / "epoch")
    found = []
    for updates in options.updates:
        folder = out / f"updates-{updates}"
        divergence = update(Path(config.model.path or ""), samples, updates, folder / "model")
        values = {
            "model.path": str(folder / "model"),
            "draft.history": str(out / "epoch" / "samples.jsonl"),
            "bench.seeds": options.seeds,
            "bench.rounds": len(options.seeds),
        }
        measured = asyncio.run(compare(with_values(config, values), folder))
        found.append({"updates": updates, "divergence": divergence, **figures(measured)})
        print(updates, f"updates, divergence {divergence:.2g}:", found[-1]["gain"], flush=True)
        (out / "history.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
