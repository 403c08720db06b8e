"""How much of the engines' time a rollout could give back before it ends: `python -m bench.fold`.

It simulates a rollout under `seer` and looks at it at many moments. At each, the requests that have
not ended are spread over as few engines as end all of them within the time of the rollout and a
slack, with their true lengths known, KV moved for nothing, and batches as the engine runs them. An
engine that is not needed from a moment on is given back then. So the share is one that a policy,
which knows no lengths and pays for its moves, can come near to but hardly exceed: every moment
starts from the rollout that was not folded, in which requests are further on.
"""

import argparse
import heapq
import json
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from seer_sgl.config import with_values
from seer_sgl.driver.observer import Observer
from seer_sgl.sim.config import EngineConfig
from seer_sgl.sim.opening import SimRequest
from seer_sgl.sim.simulate import simulate
from seer_sgl.sim.source import workload_names
from seer_sgl.sim.steps import StepTime
from seer_sgl.sim.variants import VARIANTS
from seer_sgl.types import Chunk, ChunkResult

POLICY = "seer"
SLACKS = (0.0, 0.02, 0.05)
FROM = (0.5, 0.75)  # of the time, when engines may be given back at the earliest
TAIL = 0.9  # the share of the requests that end before the tail, another such moment
MOMENTS = 100
CHUNK_STEPS = 512  # steps after which an engine of the plan chooses its batch again


class Left(NamedTuple):
    """What a request has left: tokens to generate, and tokens of KV that it holds."""

    tokens: int
    kv: int


class Progress(Observer):
    """Records when each request had how many tokens."""

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[float, int]]] = {}  # by uid: seconds, response tokens
        self.prompt_len: dict[str, int] = {}

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        request = chunk.request
        self.prompt_len[request.uid] = len(request.group.prompt.prompt_ids)
        self.points.setdefault(request.uid, []).append((now, request.generated))

    @override
    def grown(self, result: ChunkResult) -> None:
        request = result.chunk.request
        self.points[request.uid].append((result.now, request.generated))

    def unfinished(self, at_s: float) -> list[Left]:
        """Returns what the requests that have not ended by then have left."""
        found = []
        for uid, points in self.points.items():
            times, tokens = zip(*points, strict=True)
            if times[-1] > at_s:
                done = float(np.interp(at_s, times, tokens)) if at_s > times[0] else 0.0
                more = max(1, round(tokens[-1] - done))
                found.append(Left(more, self.prompt_len[uid] + round(done)))
        return found


def ends_in(left: Sequence[Left], engines: int, config: EngineConfig) -> float:
    """Returns the seconds in which so many engines end the requests: the longest first, each to the
    engine with the fewest tokens to generate."""
    plans: list[tuple[int, int, list[Left]]] = [(0, number, []) for number in range(engines)]
    for request in sorted(left, reverse=True):
        tokens, number, requests = plans[0]
        requests.append(request)
        heapq.heapreplace(plans, (tokens + request.tokens, number, requests))
    step = StepTime(config)
    return max(_decoded_in(requests, step, config) for _, _, requests in plans)


def _decoded_in(requests: Sequence[Left], step: StepTime, config: EngineConfig) -> float:
    """Returns the seconds in which one engine decodes them, those with the most left first."""
    seconds, waiting = 0.0, sorted(requests, reverse=True)
    while waiting:
        batch, held = [waiting[0]], waiting[0].kv
        for request in waiting[1:]:
            needs = request.kv + min(request.tokens, CHUNK_STEPS)
            if len(batch) < config.max_running_requests and held + needs <= config.kv_tokens:
                batch.append(request)
                held += request.kv
        steps = min(CHUNK_STEPS, *(request.tokens for request in batch))
        kv = held + len(batch) * steps / 2
        seconds += steps * (step.fixed(len(batch)) + kv * step.attention())
        chosen = {id(request) for request in batch}
        rest = [request for request in waiting if id(request) not in chosen]
        grown = [Left(request.tokens - steps, request.kv + steps) for request in batch]
        waiting = sorted([*rest, *(each for each in grown if each.tokens)], reverse=True)
    return seconds


def given_back(
    progress: Progress, total_s: float, from_s: float, slack: float, config: EngineConfig
) -> tuple[float, list[tuple[float, int]]]:
    """Returns the share of all engine-seconds that are given back from a moment on, and when how
    many engines are left."""
    end_s, engines, given_s = total_s * (1 + slack), config.count, 0.0
    curve = []
    for at_s in np.linspace(from_s, total_s, MOMENTS, endpoint=False).tolist():
        least, most, left = 1, engines, progress.unfinished(at_s)
        while least < most:
            middle = (least + most) // 2
            if ends_in(left, middle, config) <= end_s - at_s:
                most = middle
            else:
                least = middle + 1
        if least < engines:
            given_s += (engines - least) * (end_s - at_s)
            engines = least
            curve.append((round(at_s / total_s, 3), engines))
    return given_s / (config.count * end_s), curve


def measure(workload: str, seed: int) -> dict[str, Any]:
    """Returns the shares of one draw of a workload's lengths, by first moment and slack."""
    scenario = SimRequest(workload=workload, overrides=[f"workload.lengths.seed={seed}"]).open()
    config = with_values(scenario.config, VARIANTS[POLICY])
    progress = Progress()
    run = simulate(scenario.responses, config, scenario.prior, [progress])
    ends = list(run.record.finished_at)
    total_s, tail_begins_s = ends[-1], ends[int(TAIL * len(ends))]
    moments = {str(share): share * total_s for share in FROM} | {"tail": tail_begins_s}
    found = {
        f"from {name}, slack {slack}": given_back(progress, total_s, from_s, slack, config.engine)
        for name, from_s in moments.items()
        for slack in SLACKS
    }
    return {
        "tail": round(1 - tail_begins_s / total_s, 3),
        "given_back": {name: round(share, 4) for name, (share, _) in found.items()},
        "engines_left": {name: curve for name, (_, curve) in found.items()},
    }


def main() -> None:
    """Simulates; prints a line per draw, and one JSON object last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = list(workload_names())
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these workloads")
    parser.add_argument("--draws", type=int, default=3, help="of each workload's lengths")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    for workload in options.only:
        for seed in range(1, 1 + options.draws):
            row = measure(workload, seed)
            found.setdefault(workload, []).append(row)
            if not options.json:
                print(workload, seed, "tail", row["tail"], row["given_back"], flush=True)
    print(json.dumps({name: _means(rows) for name, rows in found.items()}))


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {
        name: round(statistics.mean(row["given_back"][name] for row in rows), 4)
        for name in rows[0]["given_back"]
    }


if __name__ == "__main__":
    main()
