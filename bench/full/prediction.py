"""The simulation of the same benchmark, with step times measured on the servers."""

import logging
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from seer_sgl.benchmark.arms import ARMS, BASELINE, SEER, Arm
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.benchmark.runner import FAILURES, Runner
from seer_sgl.config import SchedulingConfig, with_values
from seer_sgl.engine.fleet import Fleet
from seer_sgl.engine.launch.process import api_key
from seer_sgl.rollout.model import model_facts
from seer_sgl.sim.config import EngineConfig, SimConfig
from seer_sgl.sim.outcome import Outcome, outcome
from seer_sgl.sim.simulate import simulate
from seer_sgl.sim.workload import Responses

from .constants import draft_overhead_us, measured_engine

logger = logging.getLogger(f"seer_sgl.{__name__}")  # shown like the lines of the package


async def measure_constants(runner: Runner) -> EngineConfig | None:
    """Returns the step times of the plain servers, and the verification time of drafts if SEER's
    servers start. If they do not, the arm fails later on its own. None if no plain arm runs or the
    measurement fails."""
    if ARMS[BASELINE] not in runner.arms:
        return None
    logger.info("measuring step times")
    try:
        plain = await runner.fleets.of(ARMS[BASELINE])
        infos = [engine.info for engine in plain.engines]
        kv_bytes = model_facts(runner.config.model.path).least_kv_bytes_per_token() or 1.0
        engine = await measured_engine(infos, kv_bytes, api_key(runner.config.engines))
    except FAILURES as error:
        logger.info("skipping the simulation: %s", error)
        return None
    if ARMS[SEER] not in runner.arms:
        return engine
    try:
        forward = await _forward_ms(await runner.fleets.of(ARMS[SEER]))
    except FAILURES as error:
        logger.info("simulating without the verification time of drafts: %s", error)
        return engine
    return msgspec.structs.replace(engine, draft_overhead_us=draft_overhead_us(forward))


async def _forward_ms(fleet: Fleet) -> list[list[float]]:
    counters = [await engine.drafting() for engine in fleet.engines]
    return [row for one in counters if one is not None for row in one["forward_ms"]]


def predict(
    sim: SimConfig,
    engine: EngineConfig,
    scheduling: SchedulingConfig,
    measurements: Sequence[Measurement],
) -> dict[str, Any]:
    """Returns the measured and the simulated figures of every arm that the simulator supports, on
    the measured lengths: means over the latest round of each seed.

    `sim`: pool, acceptance and the engines' reserve; `engine`: the measured step times.
    """
    engine = msgspec.structs.replace(engine, reserve_tokens=sim.engine.reserve_tokens)
    settings = with_values(sim, {"engine": engine, "scheduling": scheduling})
    latest = {(case.row.arm, case.row.seed): case for case in measurements}
    cases = {
        arm: [case for (name, _), case in latest.items() if name == arm.name]
        for arm in ARMS.values()
    }
    return {
        "engine": msgspec.to_builtins(engine),
        "speculation": msgspec.to_builtins(sim.speculation),
        "arms": {
            arm.name: _compared(settings, arm, found) for arm, found in cases.items() if found
        },
    }


def _compared(settings: SimConfig, arm: Arm, cases: Sequence[Measurement]) -> dict[str, float]:
    predicted = [_simulated(settings, arm, case) for case in cases]
    wall_s = statistics.mean(case.row.wall_s for case in cases)
    predicted_wall_s = statistics.mean(one.wall_s for one in predicted)
    return {
        "wall_s": round(wall_s, 3),
        "predicted_wall_s": round(predicted_wall_s, 3),
        "error": round(predicted_wall_s / wall_s - 1, 4),
        "tail_s": round(statistics.mean(case.row.tail_s for case in cases), 3),
        "predicted_tail_s": round(statistics.mean(one.tail_s for one in predicted), 3),
        "retractions": statistics.mean(case.row.retractions for case in cases),
        "predicted_retractions": statistics.mean(one.preemptions for one in predicted),
    }


def _simulated(settings: SimConfig, arm: Arm, case: Measurement) -> Outcome:
    own = {
        "pool.enabled": arm.pool,
        "speculation.enabled": arm.drafts,
        "scheduling.policy": arm.policy,
        "scheduling.lengths": None,
        "workload.lengths.max": max(case.lengths.values()),
    }
    settings = with_values(settings, own)
    return outcome(arm.name, arm.policy, simulate(_responses(case), settings).record)


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
