"""Replays what rows of different widths would save in a verification on GPUs.

`python -m bench.draft_ragged [--json]` decodes groups of the reasoner's recorded responses
(bench.draft_replay) with the GPU costs of the simulator, in three ways: `policy`, as engines do,
with equally many drafts in every row, by what they have learnt, in three widths; `even`, the best
of all widths for known costs; `ragged`, for known costs as many drafts as pay in each row (SGLang's
`RaggedVerifyLayout`, FlashAttention). Drafts are chains, because FlashAttention verifies no trees.
It prints microseconds of engine time per token, and what `ragged` saves beside the other two.
"""

import argparse
import json
import random
from typing import NamedTuple

from bench.draft_replay import Setup, Totals, replay
from bench.draft_streams import recorded
from seer_sgl.draft.drafter import MIN_PROBABILITY
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.source import load_settings, workload_file, workload_names
from seer_sgl.sim.steps import StepTime

WIDTHS = (1, 5, 17)  # of a GPU engine
BATCHES, CONTEXTS = (8, 32, 128), (512, 8192)
GROUPS, SEEDS = 16, (1, 2, 3, 4)
DENSE_8B = "dense 8B on one H800"  # the simulator's defaults


class GpuCost(NamedTuple):
    """The simulator's time of a step."""

    step: StepTime
    verification_s: float
    draft_s: float  # of the host, per draft

    @classmethod
    def of(cls, config: SimConfig) -> "GpuCost":
        """Returns the cost of a config of the simulator."""
        own = config.speculation
        return cls(StepTime(config.engine), own.step_cpu_ms * 1e-3, own.draft_cpu_us * 1e-6)

    def seconds(self, batch: int, drafts: int, kv: int) -> float:
        """Returns the time of a step with so many rows, draft tokens and KV tokens."""
        mean: float = drafts / batch
        host = self.verification_s + drafts * self.draft_s if drafts else 0.0
        return self.step.fixed(batch, mean) + kv * self.step.attention(mean) + host


def costs() -> dict[str, GpuCost]:
    """Returns the costs by model."""
    configs = {DENSE_8B: SimConfig()}
    configs |= {name: load_settings(workload_file(name)) for name in workload_names()}
    return {name: GpuCost.of(config) for name, config in configs.items()}


def us_per_token(runs: list[Totals]) -> float:
    """Returns the microseconds of engine time per token."""
    return 1e6 * sum(run.seconds for run in runs) / sum(run.tokens for run in runs)


def main() -> None:
    """Prints a line per model, batch and context, and one JSON object last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    texts = recorded()
    draws = [random.Random(seed).sample(texts, GROUPS) for seed in SEEDS]
    rows = []
    for name, cost in costs().items():
        for batch in BATCHES:
            for context in CONTEXTS:
                setup = Setup(cost, WIDTHS, 1, batch, 1 << 40, context)
                policy, even, ragged = (
                    us_per_token([replay(draw, one, MIN_PROBABILITY) for draw in draws])
                    for one in (
                        setup,
                        setup._replace(choice="even"),
                        setup._replace(choice="ragged"),
                    )
                )
                row = {
                    "model": name,
                    "batch": batch,
                    "context": context,
                    "policy_us": round(policy, 1),
                    "even_us": round(even, 1),
                    "ragged_us": round(ragged, 1),
                    "saved_beside_policy": round(1 - ragged / policy, 3),
                    "saved_beside_even": round(1 - ragged / even, 3),
                }
                rows.append(row)
                if not options.json:
                    print(row, flush=True)
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
