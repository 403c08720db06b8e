"""Measures the cost of moving a chunk on real SGLang servers: no pool, files, or Mooncake.

`python -m bench.kv_pool --json` runs two servers per arm, and the arms take turns. First, it
generates a sequence of growing length on one server, continues it on the other, and measures the
time to the first token there. Then it runs whole rollouts in which every chunk moves, by chunk
size. Figures are medians over the rounds. The plot is bench/pictures/kv_pool.png.
"""

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from seer_sgl import Rollout
from seer_sgl.report.style import OURS, PAPER_LIGHT, PLAIN, headline, save, styled_figure

from .cpu_engines import HELD_OUT, flush, two_engines
from .elsewhere import AlwaysElsewhere

ARMS = ("none", "file", "mooncake")
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 7168)
CHUNKS = (64, 256, 1024)
PAGE = 16
MIN_STEPS, MAX_STEPS = 60, 130  # of the prompts: responses of about 1,000 to 3,000 tokens
STORE_S = 0.3  # longer than the slowest measured acknowledgement
PICTURE = Path(__file__).parent / "pictures" / "kv_pool"


def config(arm: str, chunk_tokens: int, folder: Path) -> dict[str, Any]:
    """Returns the config of two servers, one core each, with the pool of the arm."""
    pool = {"backend": arm, "page_size": PAGE, "memory": "1gb", "directory": str(folder / "pages")}
    flags = {"page_size": PAGE} if arm == "none" else {}
    return two_engines(32_768, 48, **flags) | {
        "kv_pool": pool,
        "scheduling": {"chunk_tokens": chunk_tokens},
        "sampling": {"max_response_len": 3000},
        "rollout": {"seed": 3, "n_samples_per_prompt": 4, "prompts": str(HELD_OUT)},
    }


async def first_token(
    session: aiohttp.ClientSession, url: str, ids: list[int]
) -> tuple[float, int]:
    """Returns (seconds to one token after `ids`, tokens of `ids` found in a cache)."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, "sampling_seed": 1},
    }
    began = time.perf_counter()
    async with session.post(f"{url}/generate", json=body) as response:
        reply = await response.json()
    return time.perf_counter() - began, int(reply["meta_info"]["cached_tokens"])


async def move_once(
    session: aiohttp.ClientSession, rollout: Rollout, context: int
) -> tuple[float, int]:
    """Prefills a new sequence of `context` tokens on one engine, then requests its first token on
    the other. Returns the result of `first_token` there."""
    ids = [random.randrange(3, 64) for _ in range(context)]
    home, other = (engine.url for engine in rollout.engines)
    await first_token(session, home, ids)
    await asyncio.sleep(STORE_S)
    return await first_token(session, other, ids)


async def by_context(rollouts: dict[str, Rollout], rounds: int) -> dict[str, Any]:
    """Returns {arm: {context: {ms, cached}}}."""
    times: dict[tuple[str, int], list[float]] = {}
    cached: dict[tuple[str, int], list[int]] = {}
    connector = aiohttp.TCPConnector(force_close=True)  # SGLang closes idle connections after 5 s
    async with aiohttp.ClientSession(connector=connector) as session:
        for turn in range(rounds + 1):
            for context in CONTEXTS:
                for arm, rollout in rollouts.items():
                    seconds, hits = await move_once(session, rollout, context)
                    if turn:  # the first turn warms up
                        times.setdefault((arm, context), []).append(seconds)
                        cached.setdefault((arm, context), []).append(hits)
    return {
        arm: {
            context: {
                "ms": round(1e3 * statistics.median(times[arm, context]), 1),
                "cached": statistics.median(cached[arm, context]),
            }
            for context in CONTEXTS
        }
        for arm in rollouts
    }


async def by_chunk(
    rollouts: dict[str, Rollout], rounds: int, count: int
) -> dict[str, list[dict[str, Any]]]:
    """Returns {arm: reports}; the arms take turns. Every chunk of a rollout moves."""
    reports: dict[str, list[dict[str, Any]]] = {arm: [] for arm in rollouts}
    for _ in range(rounds):
        for arm, rollout in rollouts.items():
            await flush(engine.url for engine in rollout.engines)
            everything = rollout.read_prompts(rollout.config.rollout.prompts or "")
            prompts = [p for p in everything if MIN_STEPS <= p.metadata["steps"] <= MAX_STEPS]
            async for _group in rollout.run(prompts[:count]):
                pass
            reports[arm].append(rollout.report())
    return reports


def summary(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the medians of the main figures."""
    return {
        key: statistics.median(report[key] for report in reports)
        for key in ("wall_s", "throughput_tok_s", "recomputed_tokens", "migrations", "moved_bytes")
    }


def crossover(contexts: dict[str, Any], arm: str) -> int | None:
    """Returns the context length from which the arm is faster than a new prefill; None: never."""
    slower = [c for c in CONTEXTS if contexts[arm][c]["ms"] >= contexts["none"][c]["ms"]]
    later = [c for c in CONTEXTS if not slower or c > max(slower)]
    return later[0] if later else None


def draw(figures: dict[str, Any], path: Path) -> None:
    """Draws the two comparisons side by side. `path`: without a suffix."""
    from matplotlib.ticker import LogLocator

    colours = {"none": PLAIN, "file": PAPER_LIGHT, "mooncake": OURS}
    labels = {"none": "no pool: computed again", "file": "files", "mooncake": "Mooncake"}
    with styled_figure(13, 5.4) as figure:
        headline(figure, finding(figures), "Two engines with one CPU core each, a small model.")
        left, middle, right = figure.subplots(1, 3)
        for arm in ARMS:
            by_length = figures["contexts"][arm]
            milliseconds = [by_length[context]["ms"] for context in CONTEXTS]
            left.plot(CONTEXTS, milliseconds, "o-", color=colours[arm], label=labels[arm], lw=2)
        left.set(xscale="log", yscale="log", xlabel="tokens of the sequence", ylabel="ms")
        left.set_title("First token on another engine")
        left.set_xticks(CONTEXTS, [str(context) for context in CONTEXTS], rotation=45)
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.yaxis.set_major_formatter("{x:g}")
        left.minorticks_off()
        for axis, key, title in (
            (middle, "wall_s", "Seconds, every chunk moves"),
            (right, "recomputed_tokens", "Tokens computed again"),
        ):
            for offset, arm in enumerate(ARMS):
                heights = [figures["chunks"][str(chunk)][arm][key] for chunk in CHUNKS]
                places = [number + 0.27 * (offset - 1) for number in range(len(CHUNKS))]
                axis.bar(places, heights, 0.25, color=colours[arm])
            axis.set_xticks(range(len(CHUNKS)), [str(chunk) for chunk in CHUNKS])
            axis.set_xlabel("tokens per chunk")
            axis.set_title(title)
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        save(figure, path)


def finding(figures: dict[str, Any]) -> str:
    """Returns the picture's title."""
    longest = max(CONTEXTS)
    again, moved = (figures["contexts"][arm][longest]["ms"] for arm in ("none", "mooncake"))
    return (
        f"A sequence of {longest:,} tokens moves to another engine in {moved:.0f} ms; "
        f"computing it again takes {again:.0f} ms"
    )


async def measure(rounds: int, prompts: int, log: Any) -> dict[str, Any]:
    """Returns all figures; passes intermediate ones to `log`."""
    figures: dict[str, Any] = {"contexts": {}, "chunks": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for number, chunk_tokens in enumerate(CHUNKS):
            async with contextlib.AsyncExitStack() as stack:
                rollouts = {
                    arm: await stack.enter_async_context(
                        Rollout(
                            config(arm, chunk_tokens, Path(scratch)),
                            log_dir=Path(scratch) / f"{arm}{chunk_tokens}",
                            placement=AlwaysElsewhere(fetch=arm != "none"),
                        )
                    )
                    for arm in ARMS
                }
                if number == 0:
                    figures["contexts"] = await by_context(rollouts, rounds)
                    log(figures["contexts"])
                reports = await by_chunk(rollouts, rounds, prompts)
                figures["chunks"][str(chunk_tokens)] = {
                    arm: summary(some) for arm, some in reports.items()
                }
                log(figures["chunks"][str(chunk_tokens)])
    figures["crossover_tokens"] = {
        arm: crossover(figures["contexts"], arm) for arm in ARMS if arm != "none"
    }
    return figures


def main() -> None:
    """Measures, draws, and prints one JSON object last."""
    parser = argparse.ArgumentParser(description="Compares moving KV with computing it again.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    log = (lambda _: None) if options.json else print
    figures = asyncio.run(measure(options.rounds, options.prompts, log))
    draw(figures, PICTURE)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
