"""Validates the simulator: the same prompts and policies, simulated and on two real engines.

`python -m bench.sim_reality --json` first measures the step times of this machine (decode by batch
and context, prefill). Then it rolls prompts out on real SGLang servers under each policy, and
simulates the resulting lengths with those step times. It compares makespan, tail, retractions, and
the order of first dispatches by Spearman's rank correlation. The real order of events that are less
than a chunk's time apart is random.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from bench.cpu_engines import HELD_OUT, MODEL, flush, two_engines
from seer_sgl import Rollout
from seer_sgl.config import with_values
from seer_sgl.driver.observer import Observer
from seer_sgl.sim.config import EngineConfig, SimConfig
from seer_sgl.sim.outcome import Outcome, outcome
from seer_sgl.sim.simulate import simulate
from seer_sgl.traces.trace import Responses
from seer_sgl.types import Chunk, Group
from seer_sgl.what_if.constants import measured_engine

POLICIES = ("seer", "fcfs", "group_round_robin")
KV_BYTES = 1536.0  # per token of the reasoner; only its ratio to the bandwidth matters
KV_TOKENS = 16_384
MAX_RUNNING = 16
CHUNK_TOKENS = 256
LONGEST = 4000  # response tokens


class FirstDispatch(Observer):
    """The requests by (group, index) in the order in which their first chunks were sent."""

    def __init__(self) -> None:
        self.order: list[tuple[str, int]] = []

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        name = chunk.request.group.group_id, chunk.request.index
        if name not in self.order:
            self.order.append(name)


def joined(policy: str, urls: Sequence[str]) -> dict[str, Any]:
    """Returns the config of a rollout on these servers."""
    return {
        "model": MODEL,
        "engines": {"launch": "external", "urls": list(urls)},
        "scheduling": {"policy": policy, "chunk_tokens": CHUNK_TOKENS},
        "sampling": {"max_response_len": LONGEST},
        "rollout": {"seed": 5, "n_samples_per_prompt": 8},
    }


async def real(
    policy: str, urls: Sequence[str], prompts: int
) -> tuple[dict[str, Any], FirstDispatch, list[Group]]:
    """Runs one rollout on running servers. Returns its report, dispatch order and groups."""
    seen = FirstDispatch()
    async with Rollout(joined(policy, urls)) as rollout:
        ready = rollout.read_prompts(HELD_OUT)[:prompts]
        groups = [group async for group in rollout.run(ready, [seen])]
        return rollout.report(), seen, groups


def simulated(
    policy: str, groups: Sequence[Group], engine: EngineConfig
) -> tuple[Outcome, FirstDispatch]:
    """Simulates the same lengths under the same policy."""
    config = with_values(
        SimConfig(engine=engine),
        {
            "pool.enabled": False,
            "scheduling.policy": policy,
            "scheduling.chunk_tokens": CHUNK_TOKENS,
            "workload.lengths.max": LONGEST,
        },
    )
    responses = [
        Responses(
            group.group_id,
            group.prompt.prompt_ids,
            [sample.response_length for sample in sorted(group.samples, key=lambda s: s.index)],
        )
        for group in sorted(groups, key=lambda group: group.requests[0].order)
    ]
    seen = FirstDispatch()
    record = simulate(responses, config, observers=[seen]).record
    return outcome("reasoner", policy, record), seen


def agreement(one: FirstDispatch, other: FirstDispatch) -> float:
    """Returns Spearman's rank correlation of two orders of the same requests; 1: equal."""
    rank = {request: place for place, request in enumerate(other.order)}
    ranks = [rank[request] for request in one.order]
    return float(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1])


def compared(
    report: dict[str, Any], happened: FirstDispatch, predicted: Outcome, expected: FirstDispatch
) -> dict[str, float]:
    """Returns the figures of one rollout and of its simulation."""
    return {
        "wall_s": report["wall_s"],
        "predicted_wall_s": predicted.wall_s,
        "error": predicted.wall_s / report["wall_s"] - 1,
        "tail_s": report["tail_s"],
        "predicted_tail_s": predicted.tail_s,
        "retractions": report["retractions"],
        "predicted_retractions": predicted.preemptions,
        "order": agreement(happened, expected),
    }


async def compare(prompts: int, rounds: int) -> dict[str, Any]:
    """Runs and simulates every policy in turn. Returns medians over the rounds."""
    rows: dict[str, list[dict[str, float]]] = {policy: [] for policy in POLICIES}
    steps: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as logs:
        async with Rollout(two_engines(KV_TOKENS, MAX_RUNNING), log_dir=logs) as fleet:
            urls = [info.url for info in fleet.engines]
            for number in range(rounds):
                engine = await measured_engine(fleet.engines, KV_BYTES)
                steps.append(facts(engine))
                for policy in POLICIES:
                    await flush(urls)
                    report, happened, groups = await real(policy, urls, prompts)
                    outcome = await asyncio.to_thread(simulated, policy, groups, engine)
                    rows[policy].append(compared(report, happened, *outcome))
                    print(number, policy, rounded(rows[policy][-1]), flush=True)
    return {
        "policies": {policy: medians(of) for policy, of in rows.items()},
        "steps": medians(steps),
    }


def facts(engine: EngineConfig) -> dict[str, float]:
    """Returns the measured step times in readable units."""
    return {
        "step_ms": engine.overhead_ms,
        "row_us": engine.row_overhead_us,
        "kv_token_ns": KV_BYTES / engine.bandwidth_gb_s,
        "prefill_tok_s": engine.prefill_tok_s,
    }


def medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns the median of each figure over the rounds."""
    return rounded({key: statistics.median(row[key] for row in rows) for key in rows[0]})


def rounded(figures: dict[str, float]) -> dict[str, float]:
    """Returns the figures rounded to three decimals."""
    return {key: round(float(value), 3) for key, value in figures.items()}


def table(figures: dict[str, Any]) -> Table:
    """Returns a table with one row per policy: measured beside predicted."""
    shown = Table("policy", "wall s", "predicted", "error", "tail s", "predicted", "order")
    for policy, row in figures["policies"].items():
        shown.add_row(
            policy,
            f"{row['wall_s']:.1f}",
            f"{row['predicted_wall_s']:.1f}",
            f"{row['error']:+.1%}",
            f"{row['tail_s']:.1f}",
            f"{row['predicted_tail_s']:.1f}",
            f"{row['order']:.3f}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    arguments = parser.parse_args()
    figures = asyncio.run(compare(arguments.prompts, arguments.rounds))
    Console().print(table(figures))
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
