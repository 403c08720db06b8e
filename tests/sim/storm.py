"""A storm: a rollout on engines with many faults, drawn from a seed, and the checks of its result.

`python -m tests.sim.storm SEED [REQUESTS]` repeats one.
"""

import random
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec
from typing_extensions import override

from bench.faults.faulted import Faulted, simulate_faulted
from bench.faults.faults import (
    AckConfig,
    DeathConfig,
    FaultsConfig,
    OutageConfig,
    ReplyConfig,
)
from seer_sgl.config import UNDIVIDED, with_values
from seer_sgl.driver.observer import Observer
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.engine import VERSION
from seer_sgl.sim.steps import StepTime
from seer_sgl.sim.variants import VARIANTS
from seer_sgl.sim.workload import sample
from seer_sgl.traces.trace import Responses
from seer_sgl.types import Chunk, ChunkResult, Failure, Group, Request, RequestState, Sample

STEP_MS = 100.0  # slow engines: a response takes as long as a few outages
PATIENCE_S = 100_000.0  # no group is given up; a rollout without progress ends as a failure


class Storm(msgspec.Struct, frozen=True):
    """A rollout and its faults."""

    responses: list[Responses]
    config: SimConfig
    faults: FaultsConfig


def storm(seed: int, requests: int) -> Storm:
    """Returns the storm of a seed, of about so many requests with several chunks each."""
    draw = random.Random(f"storm {seed}")
    size, chunk = draw.choice([1, 2, 4, 8]), draw.choice([16, 32, 64])
    longest = chunk * draw.randint(4, 12)
    engines = draw.randint(1, 6)
    values = {
        "workload.groups": -(-requests // size),
        "workload.n_samples_per_prompt": size,
        "workload.prompt_tokens": draw.choice([1, 40, 300]),
        "workload.lengths.mean": longest * draw.uniform(0.3, 0.6),
        "workload.lengths.max": longest,
        "workload.lengths.seed": seed,
        "engine.count": engines,
        "engine.kv_tokens": (longest + 400) * draw.choice([2, 8, 40]),
        "engine.max_running_requests": max(2, requests // (engines * draw.randint(1, 4))),
        "engine.overhead_ms": STEP_MS,
        "pool.enabled": draw.random() < 0.7,
        "scheduling.chunk_tokens": chunk,
    }
    config = with_values(SimConfig(), values)
    config = with_values(config, VARIANTS[draw.choice([*["seer"] * 3, *sorted(VARIANTS)])])
    response_s = longest * StepTime(config.engine).fixed(1)
    if config.scheduling.policy in UNDIVIDED:  # a fault costs all that waits in the engine, too
        response_s *= 10
    return Storm(sample(config.workload), config, faults_of(draw, seed, response_s))


def faults_of(draw: random.Random, seed: int, response_s: float) -> FaultsConfig:
    """Returns faults so frequent that many requests meet several, and so rare that the longest
    response, of `response_s` seconds, ends in the end."""

    def outages() -> OutageConfig:
        mean_s = draw.choice([None, *[response_s * draw.uniform(2, 10)] * 2])
        seconds = draw.uniform(0, 2), draw.uniform(2, 60)
        together = draw.choice([0.0, 0.3, 0.8])
        return OutageConfig(mean_s=mean_s, seconds=seconds, together=together)

    def share(most: float) -> float:
        return draw.choice([0.0, most * draw.random()])

    deaths, hangs, cuts = outages(), outages(), outages()
    return FaultsConfig(
        seed=seed,
        stall_timeout_s=draw.choice([5.0, 20.0, 120.0]),
        recovery_timeout_s=PATIENCE_S,
        deaths=DeathConfig(
            mean_s=deaths.mean_s or response_s * 5,
            seconds=deaths.seconds,
            together=deaths.together,
            other_weights=share(0.6),
        ),
        hangs=hangs,
        cuts=cuts,
        replies=ReplyConfig(
            lost=share(0.03), late=share(0.1), late_s=(0.0, 60.0), doubled=share(0.05)
        ),
        acks=AckConfig(
            lost=share(0.2),
            late=share(0.2),
            late_s=(0.0, 60.0),
            doubled=share(0.2),
            untrue=share(0.2),
        ),
        reads=outages(),
    )


class ExactlyOnce(Observer):
    """Checks that every request ends once, with the tokens of a rollout without faults.

    A simulated token that is lost, repeated or another response's raises an error where it joins
    its response (sim/tokens.py), so lengths and weight versions are left to check.
    """

    def __init__(self, responses: Sequence[Responses], longest: int) -> None:
        self._lengths = {
            (planned.group_id, index): length
            for planned in responses
            for index, length in enumerate(planned.lengths)
        }
        self._longest = longest
        self._in_flight: set[str] = set()  # uids
        self.finishes: Counter[tuple[str, int]] = Counter()
        self.failures: list[Failure] = []

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        request = chunk.request
        assert request.uid not in self._in_flight
        assert request.state is RequestState.RUNNING
        assert chunk.input_len == request.total_len
        self._in_flight.add(request.uid)

    @override
    def grown(self, result: ChunkResult) -> None:
        self._in_flight.remove(result.chunk.request.uid)

    @override
    def lost(self, result: ChunkResult) -> None:
        self._in_flight.remove(result.chunk.request.uid)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        place = sample.group_id, sample.index
        length = self._lengths[place]
        assert sample.response_length == len(sample.rollout_log_probs) == length
        assert [(span.version, span.tokens) for span in sample.weight_spans] == [(VERSION, length)]
        assert sample.finish_reason == ("length" if length == self._longest else "stop")
        self.finishes[place] += 1

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        if failure is not None:
            self.failures.append(failure)

    def check(self) -> None:
        """Raises AssertionError if a request has not ended exactly once."""
        assert self.failures == []
        assert not self._in_flight
        assert self.finishes == Counter(self._lengths.keys())


def weather(seed: int, requests: int, observers: Sequence[Observer] = ()) -> Faulted:
    """Runs a storm. Raises if it breaks an invariant; the simulation itself checks what the driver
    and the scheduler hold at the end."""
    case = storm(seed, requests)
    once = ExactlyOnce(case.responses, case.config.workload.lengths.max)
    result = simulate_faulted(case.responses, case.config, case.faults, None, [once, *observers])
    once.check()
    return result


if __name__ == "__main__":
    print(weather(int(sys.argv[1]), int((sys.argv[2:] or ["200"])[0])).counts)
