"""The simulation of the same benchmark, with costs measured on the servers."""

import contextlib
import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from seer_sgl.benchmark.arms import ARMS, BASELINE, SEER, Arm
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.benchmark.runner import FAILURES, Runner
from seer_sgl.config import SchedulingConfig, with_values
from seer_sgl.engine.launch.process import api_key
from seer_sgl.engine.session import open_session
from seer_sgl.engine_types import EngineInfo
from seer_sgl.rollout.model import model_facts
from seer_sgl.sim.config import EngineConfig, SimConfig
from seer_sgl.sim.outcome import outcome
from seer_sgl.sim.simulate import simulate
from seer_sgl.traces.trace import Responses
from seer_sgl.what_if.constants import begin_s, measured_engine, measured_points

from .verification import Verification, measured_verification

CACHED = (500,)  # the contexts of chunks that continue
logger = logging.getLogger(f"seer_sgl.{__name__}")  # shown like the lines of the package


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """What servers cost. `engine`: plain ones; `pooled_chunk_ms`: `engine.chunk_ms` of servers with
    a pool; `verification`: of servers that draft. None: not measured."""

    engine: EngineConfig
    pooled_chunk_ms: float | None = None
    verification: Verification | None = None


async def measure_constants(runner: Runner) -> Constants | None:
    """Returns the costs of the plain servers, and what SEER's servers add to them if they start.
    If they do not, the arm fails later on its own. None if no plain arm runs or the measurement
    fails."""
    if ARMS[BASELINE] not in runner.arms:
        return None
    logger.info("measuring step times")
    if runner.own_servers and runner.config.bench.colocate_servers:
        for arm in runner.arms:  # servers that are idle cost the others time too
            with contextlib.suppress(*FAILURES):
                await runner.fleets.of(arm)
    key = api_key(runner.config.engines)
    try:
        plain = await runner.fleets.of(ARMS[BASELINE])
        kv_bytes = model_facts(runner.config.model.path).least_kv_bytes_per_token() or 1.0
        engine = await measured_engine([engine.info for engine in plain.engines], kv_bytes, key)
    except FAILURES as error:
        logger.info("skipping the simulation: %s", error)
        return None
    if ARMS[SEER] not in runner.arms:
        return Constants(engine=engine)
    try:
        drafting = (await runner.fleets.of(ARMS[SEER])).engines
        chunk_ms = await measured_chunk_ms([engine.info for engine in drafting], key)
        verification = await measured_verification(drafting, engine, key)
    except FAILURES as error:
        logger.info("simulating without the cost of verifications: %s", error)
        return Constants(engine=engine)
    return Constants(engine=engine, pooled_chunk_ms=chunk_ms, verification=verification)


async def measured_chunk_ms(infos: Sequence[EngineInfo], api_key: str | None = None) -> float:
    """Returns the time that a continuation takes from a server when it begins. Raises
    EngineUnavailable if a server does not answer."""
    async with open_session(api_key) as session:
        points = await measured_points(session, infos, CACHED)
    return begin_s(points.begins) * 1e3


def predict(
    sim: SimConfig,
    constants: Mapping[int, Sequence[Constants]],
    scheduling: SchedulingConfig,
    measurements: Sequence[Measurement],
) -> dict[str, Any]:
    """Returns the measured and the simulated figures of every arm that the simulator supports, on
    the measured lengths: means over the rounds with constants.

    `sim`: pool, acceptance and the engines' reserve. `constants`: by round, those from before and
    after it; each simulates the round, and the mean of them counts.
    """
    settings = with_values(sim, {"scheduling": scheduling})
    cases: dict[str, list[_Case]] = {name: [] for name in ARMS}
    for case in measurements:
        name = case.row.arm
        if name in cases and (around := constants.get(case.row.round)):
            cases[name].append(_Case(settings, ARMS[name], around, case))
    return {
        "constants": {number: msgspec.to_builtins(around) for number, around in constants.items()},
        "speculation": msgspec.to_builtins(sim.speculation),
        "arms": {name: _compared(found) for name, found in cases.items() if found},
    }


class _Case:
    """A measured rollout and its simulations, one for each of the costs around it."""

    def __init__(
        self, sim: SimConfig, arm: Arm, around: Sequence[Constants], measured: Measurement
    ) -> None:
        longest, responses = max(measured.lengths.values()), _responses(measured)
        runs = [simulate(responses, configured(sim, arm, one, longest)) for one in around]
        outcomes = [outcome(arm.name, arm.policy, run.record) for run in runs]
        self.row = measured.row
        self.wall_s = statistics.mean(one.wall_s for one in outcomes)
        self.tail_s = statistics.mean(one.tail_s for one in outcomes)
        self.preemptions = statistics.mean(one.preemptions for one in outcomes)
        self.forward_steps = statistics.mean(run.forward_steps for run in runs)


def configured(sim: SimConfig, arm: Arm, constants: Constants, longest: int) -> SimConfig:
    """Returns the settings of an arm: those of its policy and techniques, and the costs."""
    verification = constants.verification or Verification(0.0, 0.0, 0.0)
    chunk_ms = constants.pooled_chunk_ms if arm.pool else None
    return with_values(
        sim,
        {
            "engine": msgspec.structs.replace(
                constants.engine,
                reserve_tokens=sim.engine.reserve_tokens,
                chunk_ms=constants.engine.chunk_ms if chunk_ms is None else chunk_ms,
            ),
            "pool.enabled": arm.pool,
            "speculation.enabled": arm.drafts,
            "speculation.step_cpu_ms": verification.step_ms,
            "speculation.draft_cpu_us": verification.draft_us,
            "speculation.draft_kv_ns": verification.kv_ns,
            "scheduling.policy": arm.policy,
            "scheduling.lengths": None,
            "workload.lengths.max": longest,
        },
    )


def _compared(cases: Sequence[_Case]) -> dict[str, float | None]:
    def mean(values: Sequence[float]) -> float:
        return round(statistics.mean(values), 3)

    wall_s = mean([case.row.wall_s for case in cases])
    predicted_wall_s = mean([case.wall_s for case in cases])
    counted = [case.row.forward_steps for case in cases if case.row.forward_steps is not None]
    return {
        "wall_s": wall_s,
        "predicted_wall_s": predicted_wall_s,
        "error": round(predicted_wall_s / wall_s - 1, 4),
        "tail_s": mean([case.row.tail_s for case in cases]),
        "predicted_tail_s": mean([case.tail_s for case in cases]),
        "retractions": mean([case.row.retractions for case in cases]),
        "predicted_retractions": mean([case.preemptions for case in cases]),
        "forward_steps": mean(counted) if len(counted) == len(cases) else None,
        "predicted_forward_steps": mean([case.forward_steps for case in cases]),
    }


def _responses(case: Measurement) -> list[Responses]:
    lengths: dict[str, dict[int, int]] = {}
    for (group_id, index), length in case.lengths.items():
        lengths.setdefault(group_id, {})[index] = length
    return [
        Responses(
            prompt.prompt_id,
            prompt.prompt_ids,
            [lengths[prompt.prompt_id][i] for i in range(prompt.n)],
        )
        for prompt in case.prompts
    ]
