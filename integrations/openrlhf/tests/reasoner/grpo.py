"""The command line of a GRPO run of the reasoner on a CPU, with OpenRLHF's own flags.

    python -m reasoner.grpo --folder OUT [--steps 20] [--seed 1]

writes the prompts and runs the training, in the folder `tests` and the second environment.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import prompts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]  # of the checkout
MODEL = ROOT / "bench" / "reasoner" / "model"
PROMPTS = ROOT / "bench" / "reasoner" / "prompts"
ENGINES = HERE / "engines.yaml"  # for --seer.config, with ROOT as the working directory
REWARD = HERE / "reward.py"
COMMAND = HERE.parent / "cpu_command.py"
SEER = f"{ROOT}/.venv/bin/python -m seer_sgl"  # the checkout's, also if another one is installed
OWN_SERVER = ("--seer.config", str(ENGINES), "--seer.command", SEER)


@dataclass(frozen=True)
class Run:
    """One run; the dataset has `prompts_per_step` prompts for each of its steps."""

    dataset: Path
    folder: Path  # of the checkpoints, the model and the tensorboard logs
    prompts_per_step: int = 4
    samples_per_prompt: int = 4
    context_tokens: int = 1024  # prompt and response; longer responses are truncated
    learning_rate: float = 1e-4
    zero_stage: int = 2
    seed: int = 42


def arguments(run: Run) -> list[str]:
    """Returns the flags of openrlhf.cli.train_ppo_ray.

    One optimizer step per rollout. `is_correction_level token` asks for the engines' log
    probabilities, which give the metric `vllm_kl`. Without a KL term there is no reference model.
    """
    flags: dict[str, object] = {
        "actor.model_name_or_path": MODEL,
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": 1,
        "actor.adam.lr": run.learning_rate,
        "actor.lr_scheduler": "constant_with_warmup",
        "actor.lr_warmup_ratio": 0.03,
        "algo.advantage.estimator": "group_norm",
        "algo.advantage.is_correction_level": "token",
        "algo.kl.init_coef": 0,
        "ckpt.output_dir": run.folder / "model",
        "ckpt.path": run.folder / "checkpoints",
        "data.input_key": "input",
        "data.label_key": "label",
        "data.max_len": run.context_tokens,
        "data.prompt_dataset": run.dataset,
        "ds.attn_implementation": "eager",
        "ds.param_dtype": "bf16",
        "ds.zero_stage": run.zero_stage,
        "logger.tensorboard_dir": run.folder / "tensorboard",
        "reward.remote_url": REWARD,
        "rollout.batch_size": run.prompts_per_step,
        "rollout.micro_batch_size": 4,
        "rollout.n_samples_per_prompt": run.samples_per_prompt,
        "rollout.temperature": 1.0,
        "rollout.top_p": 1.0,
        "train.batch_size": run.prompts_per_step * run.samples_per_prompt,
        "train.max_epochs": 1,
        "train.micro_batch_size": 4,
        "train.num_episodes": 1,
        "train.seed": run.seed,
        "vllm.num_engines": 2,
        "vllm.sync_backend": "gloo",
        "vllm.tensor_parallel_size": 1,
    }
    return [text for name, value in flags.items() for text in (f"--{name}", str(value))]


def command(
    run: Run,
    python: Path,
    seer: Sequence[str] = OWN_SERVER,
    program: Sequence[str] = (str(COMMAND),),
) -> list[str]:
    """Returns the whole command; `python` is the second environment's.

    `seer` has the flags `--seer.*`; the default starts a server. `program`: a script and its own
    arguments. Run it in ROOT.
    """
    return [str(python), *program, *seer, *arguments(run)]


def environment() -> dict[str, str]:
    """Returns the variables of the run: one thread per process, nothing fetched, no telemetry."""
    return {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }


def main() -> None:
    """The command line. Its process becomes that of the training."""
    parser = argparse.ArgumentParser(description="Trains the reasoner with GRPO.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(
        dataset=folder / "prompts.jsonl",
        folder=folder,
        prompts_per_step=16,
        samples_per_prompt=8,
        context_tokens=2048,
        learning_rate=3e-4,
        seed=chosen.seed,
    )
    count = chosen.steps * run.prompts_per_step
    prompts.write(PROMPTS / "train.jsonl", run.dataset, count, most_steps=60)
    words = command(run, Path(sys.executable))
    os.chdir(ROOT)
    os.execve(words[0], words, {**os.environ, **environment()})


if __name__ == "__main__":
    main()
