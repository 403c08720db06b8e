"""The most that a rollout could give back before it ends: an upper bound.

A rollout that was simulated under `seer` is looked at at many moments. At each, the requests that
have not ended are spread over as few engines as end all of them within the time of the rollout and
a slack, evenly or packed, with their true lengths known and KV moved for nothing. An engine that is
not needed from a moment on is given back then. The bound is loose: every moment starts from the
rollout that was not folded, in which requests are further on, and has the whole slack.
"""

import functools

import numpy as np
from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.sim.config import EngineConfig
from seer_sgl.types import Chunk, ChunkResult

from .packing import Packer
from .plan import Left, Plan, fewest
from .policy import BEGIN

MOMENTS = 100


class Course(Observer):
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

    def ended_s(self, share: float) -> float:
        """Returns when so large a share of the requests had ended."""
        return float(np.quantile([points[-1][0] for points in self.points.values()], share))

    def unfinished(self, at_s: float) -> Left:
        """Returns what the requests that have not ended by then have left."""
        left, kv = [], []
        for uid, points in self.points.items():
            times, tokens = zip(*points, strict=True)
            if times[-1] > at_s:
                done = float(np.interp(at_s, times, tokens)) if at_s > times[0] else 0.0
                left.append(max(1, round(tokens[-1] - done)))
                kv.append(self.prompt_len[uid] + round(done))
        return Left(np.array([left], dtype=np.int64), np.array(kv, dtype=np.int64))


def given_back(
    course: Course, total_s: float, slack: float, config: EngineConfig
) -> tuple[float, list[tuple[float, int]]]:
    """Returns the share of all engine-seconds that are given back from the moment on from which the
    policy gives engines back, and when how many are left."""
    plan, packer = Plan(config), Packer(config)
    end_s, engines, given_s = total_s * (1 + slack), config.count, 0.0
    curve, from_s = [], course.ended_s(BEGIN)
    for at_s in np.linspace(from_s, total_s, MOMENTS, endpoint=False).tolist():
        left, within_s = course.unfinished(at_s), end_s - at_s
        even = fewest(functools.partial(plan.ends_in, left), engines, within_s)
        works = packer.works(left, [""] * len(left.kv), within_s, config.count)
        least = min(even, len(packer.packed(works, within_s, engines)[0]))
        if least < engines:
            given_s += (engines - least) * (end_s - at_s)
            engines = least
            curve.append((round(at_s / total_s, 3), engines))
    return given_s / (config.count * end_s), curve
