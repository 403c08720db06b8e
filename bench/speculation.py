"""Measures the gain of grouped speculative decoding on two real engines, with equal samples.

`python -m bench.speculation --json` runs the engines of all arms at once; in each round, the arms
roll out the same prompts in turn. The arms are plain SGLang, and drafts from three sources: the
request's own history (as SGLang's n-gram drafting), the siblings on the same engine, and all
siblings. Rollouts are seeded, so every arm has the same samples; the order of arms alternates. Wall
time shows the gain; steps and CPU time of the engines' schedulers show it without the noise of a
shared machine.
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

from bench.cpu_engines import HELD_OUT, two_engines
from seer_sgl import Rollout
from seer_sgl.engine_types import EngineInfo

ARMS = ("none", "request", "engine", "fleet")  # draft.scope
FIGURES = ("throughput_tok_s", "wall_s", "tail_s", "accept_length", "steps", "scheduler_cpu_s")


def config(scope: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the config of two engines, one core each."""
    return two_engines(32_768, options.max_running) | {
        "scheduling": {"chunk_tokens": 256},
        "draft": {"scope": scope, "paths": options.paths},
        "sampling": {"max_response_len": options.longest, "temperature": options.temperature},
        "rollout": {"seed": options.seed, "n_samples_per_prompt": options.samples},
    }


def schedulers(engines: Sequence[EngineInfo]) -> list[psutil.Process]:
    """Returns SGLang's scheduler processes of the engines that this process started."""
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
    """Returns the CPU seconds that the processes have used."""
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


async def measure(options: argparse.Namespace) -> tuple[dict[str, list[Any]], dict[str, float]]:
    """Returns every arm's rounds, and its least share of samples identical to the first arm's."""
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
            for arm, own in samples.items():
                same = sum(own[key] == ids for key, ids in reference.items()) / len(reference)
                identical[arm] = min(same, identical.get(arm, 1.0))
    return rounds, identical


async def once(rollout: Rollout, prompts: int) -> tuple[dict[Any, list[int]], dict[str, Any]]:
    """Runs one rollout. Returns its samples' tokens by group and index, and its figures."""
    processes = schedulers(rollout.engines)
    ready = rollout.read_prompts(HELD_OUT)[:prompts]
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
    samples = {
        (sample.group_id, sample.index): list(sample.response_ids)
        for group in groups
        for sample in group.samples
    }
    return samples, figures


def main() -> None:
    """Measures all arms; prints one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--samples", type=int, default=8, help="per prompt")
    parser.add_argument("--longest", type=int, default=3000, help="response tokens")
    parser.add_argument("--max-running", type=int, default=16, help="requests per engine")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--paths", type=int, default=4)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    rounds, identical = asyncio.run(measure(options))
    medians = {
        arm: {key: statistics.median(one[key] for one in figures) for key in FIGURES}
        for arm, figures in rounds.items()
    }
    if not options.json:
        show(medians, rounds, identical)
    print(json.dumps({"arms": medians, "identical_share": identical, "rounds": rounds}))


def show(
    medians: dict[str, dict[str, float]],
    rounds: dict[str, list[Any]],
    identical: dict[str, float],
) -> None:
    """Prints a table with one row per arm."""
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
