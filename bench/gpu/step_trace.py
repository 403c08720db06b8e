"""Measures where the time of a decode step goes: GPU busy share, host waits, kernels.

`python -m bench.gpu.step_trace OUT.json` loads one plain engine and then drafting ones with the
same requests, first as few as in the tail of a rollout, has torch's profiler record some steps of
each load (SGLang's /start_profile), and reads the traces. The model is the reasoner; with
`--inputs` a shape with its prompts and its text (bench.gpu.shapes), whose steps cost what they cost
in a larger model. Drafts are accepted in both.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import logging
import urllib.request
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seer_sgl import Rollout
from seer_sgl.errors import SeerError
from seer_sgl.rollout.prompts import PromptLike
from seer_sgl.traces.reading import read_trace

from . import imposed
from .combinations import REASONER, Servers, Setup, Way, Work, config, kinds
from .machine import require_gpu, write_json
from .shapes import PLUGIN, TEXT

PROGRAM = "bench.gpu.step_trace"
ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})  # categories of trace events
HOST = "cuda_runtime"
SHOWN = 20  # kernels and calls in the report
LOADED_S = 3.0  # until all requests decode
TRACE_S = 120.0  # until a trace must be there
ENGINES = ("plain", "chains", "trees")
# One batch each, which decodes for a while.
LOADS = (Work(prompts=1, samples=4, tokens=7000), Work(prompts=8, samples=8, tokens=7000))
KV_TOKENS = 1 << 19  # all of it

Event = Mapping[str, Any]  # of a Chrome trace; times in microseconds


def breakdown(events: Iterable[Event], steps: int) -> dict[str, Any]:
    """Returns the GPU's busy share, and the time of the longest kernels and host calls per step.

    Raises ValueError if the trace has no GPU work.
    """
    timed = [event for event in events if "dur" in event]
    gpu = [event for event in timed if event.get("cat") in ON_GPU]
    if not gpu:
        raise ValueError("the trace has no GPU work")
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in gpu)
    total = max(end for _, end in spans) - spans[0][0]
    return {
        "steps": steps,
        "ms_per_step": round(total / steps / 1e3, 3),
        "gpu_busy": round(covered(spans) / total, 4),
        "gpu": _longest(gpu, steps),
        "host": _longest([event for event in timed if event.get("cat") == HOST], steps),
    }


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Returns the length of the union of spans, which are sorted."""
    length, reached = 0.0, float("-inf")
    for begin, end in spans:
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length


def _longest(events: Iterable[Event], steps: int) -> list[dict[str, Any]]:
    us: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in events:
        us[event["name"][:100]] += event["dur"]
        calls[event["name"][:100]] += 1
    return [
        {
            "name": name,
            "us_per_step": round(time / steps, 1),
            "calls": round(calls[name] / steps, 2),
        }
        for name, time in us.most_common(SHOWN)
    ]


def load(setup: Setup, servers: Servers, inputs: Path | None) -> dict[str, Any]:
    """Returns the config of an engine."""
    tree = config(setup, servers, Way("whole"), LOADS[-1])
    tree["engines"] |= {"count": 1}
    tree["engines"]["sglang"] |= {"max-total-tokens": KV_TOKENS}
    tree["sampling"] |= {"ignore_eos": True}  # the batch stays full
    if inputs is not None:
        tree["model"] |= {"path": str(inputs / "model")}
        tree["engines"]["sglang"] |= {"load-format": "dummy", "skip-tokenizer-init": True}
        tree["engines"]["environment"] = imposed.environment(inputs / PLUGIN, inputs / TEXT)
    return tree


def prompts_of(rollout: Rollout, inputs: Path | None, work: Work) -> Sequence[PromptLike]:
    """Returns the prompts of a load: of a shape those whose responses have the most text."""
    if inputs is None:
        held_out = rollout.read_prompts(REASONER / "prompts" / "held_out.jsonl")[: work.prompts]
        return [{"prompt_ids": list(one.prompt_ids), "n": work.samples} for one in held_out]
    groups = read_trace(inputs / "trace.jsonl").groups
    groups.sort(key=lambda group: -min(group.lengths[: work.samples]))
    return [
        {"id": group.group_id, "prompt_ids": list(group.prompt_ids or ()), "n": work.samples}
        for group in groups[: work.prompts]
    ]


async def traced(
    setup: Setup, servers: Servers, options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """Returns the breakdown of an engine's steps by load. Raises SeerError, TimeoutError, and
    ValueError for a trace without GPU work."""
    found: dict[str, Any] = {}
    tree = load(setup, servers, options.inputs)
    async with Rollout(tree, log_dir=folder / "engines") as rollout:
        for work in LOADS:
            name = f"{work.prompts * work.samples} requests"
            prompts = prompts_of(rollout, options.inputs, work)
            trace = await _trace_under(rollout, prompts, options.steps, folder / name)
            events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
            found[name] = {
                **breakdown(events, options.steps),
                "drafting": rollout.report()["drafting"],
            }
    return found


async def _trace_under(
    rollout: Rollout, prompts: Sequence[PromptLike], steps: int, folder: Path
) -> Path:
    """Returns a trace of the engine while it generates for these prompts, and ends them."""
    (engine,) = rollout.engines
    async with contextlib.aclosing(rollout.run(prompts)) as groups:
        running = asyncio.create_task(_exhaust(groups))
        try:
            await asyncio.sleep(LOADED_S)
            await asyncio.to_thread(_start_profile, engine.url, folder, steps)
            return await _trace_in(folder)
        finally:
            running.cancel()
            await asyncio.wait([running])


async def _exhaust(groups: AsyncGenerator[Any, None]) -> None:
    async for _ in groups:
        pass


def _start_profile(url: str, folder: Path, steps: int) -> None:
    activities = ["CPU", "GPU"]
    body = {"output_dir": str(folder), "num_steps": steps, "activities": activities}
    data = json.dumps(body | {"with_stack": False}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/start_profile", data, headers)):
        pass


async def _trace_in(folder: Path) -> Path:
    """Waits for a complete trace. Raises TimeoutError if there is none in time."""
    async with asyncio.timeout(TRACE_S):
        before = _traces(folder)
        while True:
            await asyncio.sleep(2)
            now = _traces(folder)
            for trace, size in now.items():
                if size == before.get(trace):
                    return trace
            before = now


def _traces(folder: Path) -> dict[Path, int]:
    """Returns the size of each trace."""
    return {trace: trace.stat().st_size for trace in folder.glob("**/*.trace.json.gz")}


def _busy(figures: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {of['gpu_busy']:.0%} busy" for name, of in figures.items())


def main() -> None:
    """Exits with status 1 if an engine gave no trace; its row has the reason."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="JSON file; traces and logs go beside it")
    parser.add_argument("--setup", default="triton-bfloat16")
    parser.add_argument("--inputs", type=Path, help="folder of bench.gpu.shapes")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    try:
        setup = Setup.parse(options.setup)
    except ValueError as error:
        parser.error(str(error))
    require_gpu(PROGRAM)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    rows: dict[str, Any] = {"setup": options.setup}
    failed = False
    for servers in (one for one in kinds(setup) if one.name in ENGINES):
        folder = options.out.with_suffix("") / servers.name
        try:
            rows[servers.name] = asyncio.run(traced(setup, servers, options, folder))
        except (SeerError, OSError, TimeoutError, ValueError) as error:
            failed, rows[servers.name] = True, {"error": str(error) or "no trace"}
        write_json(options.out, rows)
        shown = rows[servers.name]
        print(servers.name, shown.get("error") or _busy(shown), flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
