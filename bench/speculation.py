"""What grouping brings to speculative decoding, on two real engines, the same samples in every arm.

`python -m bench.speculation --json` keeps the engines of all arms up at once and lets them roll out
the same prompts in turn, round after round: plain SGLang, drafts from a request's own history (what
SGLang's n-gram drafting has of a request), from the siblings on the same engine, and from all of
them. Seeded, so every arm has the same samples; the order of arms changes from round to round.
Wall time says what it was worth, steps and CPU time of the engines' schedulers say it without the
noise of a shared machine.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from seer_sgl import Rollout
from seer_sgl.types import EngineInfo

ARMS = ("none", "request", "engine", "fleet")  # draft.scope
REASONER = Path(__file__).parent / "reasoner"
FIGURES = ("throughput_tok_s", "wall_s", "tail_s", "accept_length", "steps", "scheduler_cpu_s")


def config(scope: str, options: argparse.Namespace) -> dict[str, Any]:
    """Two engines, one core each."""
    return {
        "model": {"path": str(REASONER / "model")},
        "engines": {
            "count": 2,
            "cores": "auto",
            "sglang": {
                "dtype": "float32",
                "max-total-tokens": 32_768,
                "max-running-requests": options.max_running,
                "enable-deterministic-inference": True,
                "skip-server-warmup": True,
            },
        },
        "scheduling": {"chunk_tokens": 256},
        "draft": {"scope": scope, "paths": options.paths},
        "sampling": {"max_response_len": options.longest, "temperature": options.temperature},
        "rollout": {"seed": options.seed, "n_samples_per_prompt": options.samples},
    }


def schedulers(engines: Sequence[EngineInfo]) -> list[psutil.Process]:
    """SGLang's scheduler processes of engines that were started here."""
    ports = {info.url.rpartition(":")[2] for info in engines}
    servers = [
        child
        for child in psutil.Process().children()
        if "seer_sgl.plugin.server" in child.cmdline() and ports & set(child.cmdline())
    ]
    return [
        child
        for server in servers
        for child in server.children(recursive=True)
        if "scheduler" in " ".join(child.cmdline())
    ]


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Seconds of CPU they have used."""
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


async def measure(options: argparse.Namespace) -> tuple[dict[str, list[Any]], dict[str, float]]:
    """Every arm's rounds, and the share of samples that are identical to plain decoding's."""
    rounds: dict[str, list[Any]] = {arm: [] for arm in options.arms}
    identical: dict[str, float] = {}
    async with contextlib.AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        arms = {}
        for arm in options.arms:
            rollout = Rollout(config(arm, options), log_dir=logs / arm)
            arms[arm] = await stack.enter_async_context(rollout)
        for number in range(options.rounds):
            order = options.arms if number % 2 else options.arms[::-1]
            samples = {}
            for arm in order:
                samples[arm], figures = await once(arms[arm], options.prompts)
                rounds[arm].append(figures)
            reference = samples[options.arms[0]]
            for arm, made in samples.items():
                same = sum(made[key] == ids for key, ids in reference.items()) / len(reference)
                identical[arm] = min(same, identical.get(arm, 1.0))
    return rounds, identical


async def once(rollout: Rollout, prompts: int) -> tuple[dict[Any, list[int]], dict[str, Any]]:
    """One rollout: its samples' tokens by group and index, and its figures."""
    processes = schedulers(rollout.engines)
    ready = rollout.read_prompts(REASONER / "prompts" / "held_out.jsonl")[:prompts]
    before = cpu_s(processes)
    groups = [group async for group in rollout.run(ready)]
    used = cpu_s(processes) - before
    report = rollout.report()
    figures = {key: report[key] for key in ("throughput_tok_s", "wall_s", "tail_s")}
    figures["accept_length"] = report["accept_length"] or 1.0
    figures["steps"] = round(report["response_tokens"] / figures["accept_length"])
    figures["scheduler_cpu_s"] = round(used, 2)
    figures["response_tokens"] = report["response_tokens"]
    figures["drafting"] = report.get("drafting")
    made = {
        (sample.group_id, sample.index): list(sample.response_ids)
        for group in groups
        for sample in group.samples
    }
    return made, figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--samples", type=int, default=8, help="of each prompt")
    parser.add_argument("--longest", type=int, default=3000, help="response tokens")
    parser.add_argument("--max-running", type=int, default=16, help="requests of an engine")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--paths", type=int, default=4)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    rounds, identical = asyncio.run(measure(options))
    medians = {
        arm: {key: statistics.median(one[key] for one in made) for key in FIGURES}
        for arm, made in rounds.items()
    }
    if not options.json:
        show(medians, rounds, identical)
    print(json.dumps({"arms": medians, "identical_share": identical, "rounds": rounds}))


def show(
    medians: dict[str, dict[str, float]],
    rounds: dict[str, list[Any]],
    identical: dict[str, float],
) -> None:
    """A table for people."""
    table = Table("drafts from", *(key.replace("_", " ") for key in FIGURES), "identical")
    for arm, figures in medians.items():
        cells = []
        for key in FIGURES:
            values = [one[key] for one in rounds[arm]]
            cells.append(f"{figures[key]:.5g} ({min(values):.4g}-{max(values):.4g})")
        table.add_row(arm, *cells, f"{identical[arm]:.1%}")
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
