"""Measures the cost of a scheduling decision.

`python -m bench.scheduler --json` runs 10^5 requests on 10^3 engines through the real scheduler,
without engines, network or clock. Engines are always full, by their KV or by their number of
requests, and chunks return in random order. The CPU microseconds of each method are means over all
its calls, including calls of `next_assignment` that find no room.

Responses are short so that 10^5 of them fit into memory; the cost of a decision does not depend on
their length.
"""

import argparse
import json
import random
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from bench.memory import peak_mb
from seer_sgl.config import SchedulingConfig
from seer_sgl.driver.build_scheduler import build_scheduler, new_slot
from seer_sgl.driver.settings import Settings
from seer_sgl.engine_types import EngineInfo
from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.types import (
    Chunk,
    ChunkReply,
    ChunkResult,
    Group,
    Prompt,
    Request,
    WeightSpan,
)

CHUNK_TOKENS = 32
PROMPT_TOKENS = 64
MAX_RESPONSE_LEN = 1024
T = TypeVar("T")


class Stopwatch:
    """CPU time by method."""

    def __init__(self) -> None:
        self.spent_ns: defaultdict[str, int] = defaultdict(int)
        self.calls: defaultdict[str, int] = defaultdict(int)

    def time(self, call: Callable[..., T], *arguments: Any) -> T:
        """Times a call and returns its result; the key is the function's name."""
        verb = call.__name__
        before = time.thread_time_ns()
        result = call(*arguments)
        self.spent_ns[verb] += time.thread_time_ns() - before
        self.calls[verb] += 1
        return result

    def mean_us(self, verb: str) -> float:
        """Returns the mean microseconds per call."""
        return round(self.spent_ns[verb] / max(1, self.calls[verb]) / 1e3, 2)


def engine(number: int, options: argparse.Namespace) -> EngineInfo:
    """Returns an engine whose KV is full at about its limit of running requests."""
    usual = PROMPT_TOKENS + CHUNK_TOKENS  # tokens of a request's first chunk
    return EngineInfo(
        engine_id=f"e{number}",
        url="",
        sglang_version="",
        model_path="",
        max_total_num_tokens=options.max_inflight * usual,
        max_running_requests=options.max_inflight,
        max_request_len=PROMPT_TOKENS + MAX_RESPONSE_LEN,
        page_size=16,
        radix_cache=True,
        weight_version="",
        deterministic=True,
        has_tokenizer=True,
        plugin=None,
        pool="pool",
    )


def groups(options: argparse.Namespace) -> Iterator[Group]:
    """Yields all groups. Lengths are heavy-tailed, and similar among siblings (`Fake`)."""
    for number in range(options.requests // options.group_size):
        prompt = Prompt(
            prompt_id=str(number),
            prompt_ids=array("i", [number] * PROMPT_TOKENS),
            n=options.group_size,
        )
        group = Group(group_id=str(number), uid=str(number), prompt=prompt)
        group.requests = [
            Request(
                uid=f"{number}.{index}",
                order=number * options.group_size + index,
                group=group,
                index=index,
                seed=0,
                max_response_len=MAX_RESPONSE_LEN,
            )
            for index in range(options.group_size)
        ]
        yield group


class Fake:
    """Returns replies to chunks; each response ends at a predetermined length."""

    def __init__(self, dice: random.Random, group_size: int) -> None:
        self._dice = dice
        self._group_size = group_size
        self._medians: dict[str, float] = {}

    def length(self, request: Request) -> int:
        """Returns the response tokens of the request, the same in each call."""
        uid = request.group.uid
        if uid not in self._medians:
            self._medians[uid] = self._dice.lognormvariate(4.5, 0.8)
        dice = random.Random(request.order)
        return max(1, min(MAX_RESPONSE_LEN, int(self._medians[uid] * dice.uniform(0.6, 1.6))))

    def reply(self, chunk: Chunk) -> ChunkReply:
        """Returns the reply to a chunk."""
        left = self.length(chunk.request) - chunk.request.generated
        tokens = min(left, chunk.max_new_tokens)
        ends = left <= chunk.max_new_tokens
        return ChunkReply(
            ids=array("i", bytes(4 * tokens)),
            logprobs=array("f", bytes(4 * tokens)),
            weight_spans=[WeightSpan("", tokens)],
            finish="stop" if ends else "length",
        )


def drive(scheduler: Scheduler, options: argparse.Namespace) -> dict[str, Any]:
    """Rolls all requests out. Returns the figures."""
    dice, watch = random.Random(1), Stopwatch()
    fake = Fake(dice, options.group_size)
    for group in groups(options):
        watch.time(scheduler.submit, group)
    inflight: list[Chunk] = []
    chunks = most = moved = 0
    now = 0.0
    while True:
        while True:
            chunk = watch.time(scheduler.next_assignment, now)
            if chunk is None:
                break
            inflight.append(chunk)
            moved += chunk.migrated
        if not inflight:
            break
        most = max(most, len(inflight))
        pick = dice.randrange(len(inflight))
        inflight[pick], inflight[-1] = inflight[-1], inflight[pick]
        done = inflight.pop()
        now += 1e-4
        result = ChunkResult(chunk=done, now=now, reply=fake.reply(done))
        watch.time(scheduler.complete, result)
        watch.time(scheduler.stored, done.rid, True)
        chunks += 1
    busy_us = sum(watch.spent_ns[verb] for verb in ("next_assignment", "complete", "stored")) / 1e3
    return {
        "chunks": chunks,
        "migrations": moved,
        "most_inflight": most,
        **{
            f"{verb}_us": watch.mean_us(verb)
            for verb in ("submit", "next_assignment", "complete", "stored")
        },
        "us_per_chunk": round(busy_us / chunks, 2),
    }


def main() -> None:
    """Measures each policy; prints one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--engines", type=int, default=1000)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-inflight", type=int, default=64, help="requests per engine")
    parser.add_argument("--policies", nargs="+", default=["seer", "seer_published", "fcfs"])
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    arms: dict[str, Any] = {}
    for policy in options.policies:
        scheduling = SchedulingConfig(policy=policy, chunk_tokens=CHUNK_TOKENS)
        scheduler = build_scheduler(Settings(scheduling=scheduling))
        for number in range(options.engines):
            scheduler.add_engine(new_slot(scheduling, engine(number, options)))
        arms[policy] = drive(scheduler, options)
        if not options.json:
            print(policy)
            for key, value in arms[policy].items():
                print(f"  {key:20} {value}")
    print(
        json.dumps(
            {
                "requests": options.requests,
                "engines": options.engines,
                "group_size": options.group_size,
                "arms": arms,
                "peak_mb": round(peak_mb()),
            }
        )
    )


if __name__ == "__main__":
    main()
