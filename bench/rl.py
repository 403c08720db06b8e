"""Trains the reasoner with OpenRLHF on seer-sgl's engines, and measures what it learns.

`python -m bench.rl [--seeds 1 2 3] [--out out/rl]`: for each seed the shipped checkpoint answers
held-out prompts, OpenRLHF's train_ppo_ray trains it with GRPO (integrations/openrlhf), and the
trained model answers the same prompts. `rl.json` has the figures of all seeds, `seed-N/steps.json`
those of every step.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.learning import gain, held_out, steps_of
from bench.reasoner.evaluate import read

ROOT = Path(__file__).resolve().parent.parent
ADAPTER = ROOT / "integrations" / "openrlhf"
TRAINER = ROOT / ".venv-openrlhf" / "bin" / "python"
ENGINES = ADAPTER / "tests" / "reasoner" / "engines.yaml"
MODEL = ROOT / "bench" / "reasoner" / "model"
HELD_OUT = ROOT / "bench" / "reasoner" / "prompts" / "held_out.jsonl"
TAIL_BYTES = 2000


def answers(model: Path, seed: int, out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Rolls the held-out prompts out with a model, and returns what the samples are."""
    settings = {
        "model.path": model,
        "rollout.prompts": HELD_OUT,
        "rollout.max_prompts": options.prompts,
        "rollout.n_samples_per_prompt": options.samples,
        "rollout.seed": seed,
        "sampling.max_response_len": options.longest,
    }
    words = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
    seer = Path(sys.executable).with_name("seer-sgl")
    _run([str(seer), "rollout", "--config", str(ENGINES), *words, "--out", str(out)], ROOT, out)
    with (out / "samples.jsonl").open() as lines:
        return held_out(read(lines))


def train(seed: int, folder: Path, options: argparse.Namespace) -> list[dict[str, float]]:
    """Trains with GRPO, and returns the figures of every step."""
    words = [str(TRAINER), "-m", "reasoner.grpo", "--folder", str(folder)]
    words += ["--steps", str(options.steps), "--seed", str(seed)]
    log = _run(words, ADAPTER / "tests", folder)
    return steps_of(log.read_text(errors="replace"))


def measure(seed: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one seed."""
    began = time.monotonic()
    before = answers(MODEL, seed, folder / "before", options)
    training = time.monotonic()
    steps = train(seed, folder / "training", options)
    trained = time.monotonic()
    after = answers(folder / "training" / "model", seed, folder / "after", options)
    (folder / "steps.json").write_text(json.dumps(steps, indent=1) + "\n")
    figures = {
        "seed": seed,
        "before": before,
        "after": after,
        "gain": gain(before["right_by_prompt"], after["right_by_prompt"]),
        "vllm_kl_max": max(abs(step["vllm_kl"]) for step in steps[2:]),
        "steps": len(steps),
        "training_s": round(trained - training, 1),
        "total_s": round(time.monotonic() - began, 1),
    }
    for each in (before, after):
        del each["right_by_prompt"]
    return figures


def _run(words: Sequence[str], where: Path, out: Path) -> Path:
    """Runs a command and returns its log. Ends this program if the command fails."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "output.log"
    with path.open("wb") as log:
        done = subprocess.run(words, cwd=where, stdout=log, stderr=log, check=False)
    if done.returncode:
        tail = path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        sys.exit(f"{tail}\nbench.rl: ended with status {done.returncode}; its log: {path}")
    return path


def _line(figures: dict[str, Any]) -> str:
    before, after, gained = figures["before"], figures["after"], figures["gain"]
    return (
        f"seed {figures['seed']}: right {before['right']:.3f} -> {after['right']:.3f}, "
        f"gain {gained['mean']:.3f} +- {gained['standard_error']:.3f}, "
        f"length {before['length_mean']:.0f} -> {after['length_mean']:.0f}, "
        f"abs(vllm_kl) <= {figures['vllm_kl_max']:.1e}, {figures['total_s'] / 60:.0f} min"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Trains the reasoner, and measures the gain.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--out", type=Path, default=Path("out") / "rl")
    parser.add_argument("--steps", type=int, default=20, help="of GRPO, with 16 x 8 samples each")
    parser.add_argument("--prompts", type=int, default=128, help="held-out prompts")
    parser.add_argument("--samples", type=int, default=4, help="for each held-out prompt")
    parser.add_argument("--longest", type=int, default=4096, help="tokens of a held-out response")
    options = parser.parse_args()
    out = options.out.resolve()
    seeds = []
    with contextlib.suppress(KeyboardInterrupt):
        for seed in options.seeds:
            seeds.append(measure(seed, out / f"seed-{seed}", options))
            print(_line(seeds[-1]), flush=True)
            (out / "rl.json").write_text(json.dumps(seeds, indent=1) + "\n")


if __name__ == "__main__":
    main()
