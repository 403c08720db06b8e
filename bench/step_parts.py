"""Where the CPU time of a decoding step goes, part by part, on plain and drafting CPU engines.

`python -m bench.step_parts --json` decodes the same responses of one prompt on an engine without
and one with drafts, one core each. A plugin in the engines adds up the CPU time of the scheduler's
thread by part, for steps of the whole batch; a part does not count what parts inside it count.
`other` is what no part counts. Times are milliseconds per step. bench.host_times has the same
plugin in an engine whose loop is a GPU's.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from bench import engine_plugin
from bench.cpu_engines import HELD_OUT, two_engines
from seer_sgl import Rollout

FULL = "SEER_BENCH_FULL"  # environment variable of the engine: the requests of a whole batch
KEY = "step_parts"  # in `internal_states` of `/server_info`
SGLANG = "sglang.srt"
SCHEDULER = f"{SGLANG}.managers.scheduler.Scheduler"
VERIFY = "seer_sgl.plugin.speculation.worker.GroupedWorker._verify"
PARTS = {
    "linear layers": f"{SGLANG}.layers.quantization.unquant.UnquantizedLinearMethod.apply",
    "attention": f"{SGLANG}.layers.radix_attention.RadixAttention.forward",
    "rest of the model": f"{SGLANG}.model_executor.model_runner.ModelRunner.forward",
    "logits": f"{SGLANG}.layers.logits_processor.LogitsProcessor.forward",
    "sampler": f"{SGLANG}.layers.sampler.Sampler.forward",
    "draws, walk": "seer_sgl.plugin.speculation.worker.verify",
    "layout": "seer_sgl.plugin.speculation.worker.lay_out",
    "mask": "seer_sgl.plugin.speculation.worker.attention_mask",
    "nodes, slots": VERIFY,
    "forward batch": f"{SGLANG}.managers.tp_worker.TpModelWorker.forward_batch_generation",
    "drafting": "seer_sgl.plugin.speculation.planner.Planner.plan",
    "results": f"{SCHEDULER}.process_batch_result",
    "next batch": f"{SCHEDULER}.get_next_batch_to_run",
    "receiving": f"{SCHEDULER}.ingest_requests",
}


class Parts:
    """The seconds of each kind of step, by part. full: requests of a whole batch."""

    def __init__(self, full: int) -> None:
        self._full = full
        self._steps: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._step: dict[str, float] = defaultdict(float)
        self._inside = [0.0]  # seconds of the parts inside each part under way
        self._began = 0.0
        self._kind: str | None = None

    def begins(self, _: object, batch: Any, *__: object, **___: object) -> None:
        """Ends the step under way, because `batch` runs next."""
        now = time.thread_time()
        if self._kind is not None:
            self._steps[self._kind] += 1
            total = self._seconds[self._kind]
            for part, seconds in self._step.items():
                total[part] += seconds
            total["other"] += now - self._began - sum(self._step.values())
        whole = batch.forward_mode.is_decode() and len(batch.reqs) == self._full
        self._kind = "1 node" if whole else None
        self._step.clear()
        self._began = time.thread_time()

    def verifies(self, _: object, __: object, plan: Any, *___: object, **____: object) -> None:
        """Notes that the step under way is a verification."""
        if self._kind is not None:
            self._kind = f"{plan.width} nodes"

    def timed(self, part: str) -> Callable[..., Any]:
        """Returns a hook around a part."""

        def around(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
            self._inside.append(0.0)
            began = time.thread_time()
            try:
                return call(*args, **options)
            finally:
                took = time.thread_time() - began
                self._step[part] += took - self._inside.pop()
                self._inside[-1] += took

        return around

    def report(self, result: Any, *_: object, **__: object) -> Any:
        """Adds the steps and the seconds to `/server_info`."""
        seconds = {kind: dict(parts) for kind, parts in self._seconds.items()}
        result.internal_state[KEY] = {"steps": dict(self._steps), "seconds": seconds}
        return result


def environment(folder: Path, full: int) -> dict[str, str]:
    """Returns the variables that make an engine measure. folder: see `engine_plugin.write`."""
    variables = engine_plugin.environment(folder, "seer_sgl_step_parts", "bench.step_parts:load")
    return variables | {FULL: str(full)}


def load() -> None:
    """Measures in this process; called by SGLang's `load_plugins`."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    parts = Parts(int(os.environ[FULL]))
    for part, target in PARTS.items():
        HookRegistry.register(target, parts.timed(part), HookType.AROUND)
    HookRegistry.register(VERIFY, parts.verifies, HookType.BEFORE)
    HookRegistry.register(f"{SCHEDULER}.run_batch", parts.begins, HookType.BEFORE)
    HookRegistry.register(f"{SCHEDULER}.get_internal_state", parts.report, HookType.AFTER)


async def reported(url: str) -> dict[str, dict[str, Any]]:
    """Returns the steps of an engine that measures, and their seconds by part, by kind of step."""
    async with aiohttp.ClientSession(url) as session, session.get("/server_info") as response:
        found: dict[str, dict[str, Any]] = (await response.json())["internal_states"][0][KEY]
    return found


def config(scope: str, options: argparse.Namespace, variables: dict[str, str]) -> dict[str, Any]:
    """Returns the config of an engine on one core."""
    tree = two_engines(32_768, options.batch)
    tree["engines"] |= {"count": 1, "cores": [[0]], "environment": variables}
    return tree | {
        "scheduling": {"divide": False},
        "draft": {"scope": scope},
        "sampling": {"max_response_len": options.tokens, "ignore_eos": True},
        "rollout": {"n_samples_per_prompt": options.batch},
    }


async def measured(scope: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Returns the steps of each kind and their milliseconds by part."""
    tree = config(scope, options, environment(folder / "plugin", options.batch))
    async with Rollout(tree, log_dir=folder / "engines") as rollout:
        prompts = rollout.read_prompts(HELD_OUT)[:1]
        async for _ in rollout.run(prompts):
            pass
        found = await reported(rollout.engines[0].url)
    return {
        kind: {"steps": steps}
        | {part: round(1e3 * s / steps, 3) for part, s in found["seconds"][kind].items()}
        for kind, steps in found["steps"].items()
    }


def table(figures: dict[str, dict[str, Any]]) -> Table:
    """Returns the figures with a row per part."""
    columns = [(scope, kind) for scope, kinds in figures.items() for kind in kinds]
    shown = Table("part", *(f"{scope}, {kind}" for scope, kind in columns))
    cells = [figures[scope][kind] for scope, kind in columns]
    for part in ("steps", *PARTS, "other"):
        shown.add_row(part, *(str(cell.get(part, "")) for cell in cells))
    sums = [sum(ms for part, ms in cell.items() if part != "steps") for cell in cells]
    shown.add_row("sum", *(f"{total:.2f}" for total in sums))
    return shown


def main() -> None:
    """Prints the milliseconds of each kind of step by part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=8, help="requests that run at once")
    parser.add_argument("--tokens", type=int, default=1500, help="tokens per response")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    figures = {}
    for scope in ("none", "engine"):
        with tempfile.TemporaryDirectory() as folder:
            figures[scope] = asyncio.run(measured(scope, options, Path(folder)))
    if not options.json:
        Console().print(table(figures))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
