"""Three real engines with pool and drafts: each fault alone, and all of them in one rollout.

The faults, the proxies and the verdict are those of `make chaos` (tests/chaos/).
"""

from pathlib import Path

import pytest

from tests.chaos.plan import KINDS, Fault, Kind, draw
from tests.chaos.rolling import ENGINES, Chaotic, Rolled, Stage, proxied_fleet, stage
from tests.chaos.verdict import Verdict, by_kind, judge

pytestmark = [pytest.mark.own_engines, pytest.mark.long, pytest.mark.timeout(3600)]

SEED = 1
FEW, MANY = 12, 80  # prompts: for one fault, and for all of them
STOP = Kind("stop", "engine", (30.0, 30.0))
PATIENT_S, HASTY_S = 60.0, 10.0  # limits above and below
# Faults after which chunks in flight are certainly lost.
LOSSES = {"kill in a chunk", "kill in a prefill", "kill in a write", "kill at its start"} | {
    "reset",
    "half-close",
}


async def struck(
    scene: Stage, calm: Rolled, prompts: int, plan: list[Fault], seed: int
) -> tuple[Chaotic, Verdict]:
    """Returns a rollout with the faults of a plan, and its comparison with the calm one."""
    tokens = calm.report["response_tokens"]
    chaotic = await scene.chaotic(scene.prompts(prompts), plan, tokens, print, seed)
    verdict = judge(calm, await scene.calm(chaotic.long_prompts), chaotic)
    print([str(fault) for fault in plan] if len(plan) == 1 else len(plan), verdict.costs)
    assert verdict.problems == []
    return chaotic, verdict


async def test_each_fault_alone_costs_no_sample_and_no_token(tmp_path: Path) -> None:
    async with proxied_fleet(tmp_path) as (fleet, wires), stage(fleet, wires) as scene:
        calm = await scene.calm(scene.prompts(FEW))
        for number, fault in enumerate(draw(SEED, ENGINES)):
            _, verdict = await struck(scene, calm, FEW, [fault], number)
            at_engine = fault.kind.place in ("engine", "http")
            if at_engine and fault.kind.deed in LOSSES:
                assert verdict.costs["lost_chunks"] > 0, fault
            elif not at_engine or fault.kind.deed in ("stop", "slow", "throttle"):
                assert verdict.costs["lost_chunks"] == 0, fault


async def test_a_stop_costs_chunks_only_beyond_the_stall_timeout(tmp_path: Path) -> None:
    async with proxied_fleet(tmp_path) as (fleet, wires):
        for limit_s, lost in ((PATIENT_S, False), (HASTY_S, True)):
            async with stage(fleet, wires, stall_timeout_s=limit_s) as scene:
                calm = await scene.calm(scene.prompts(FEW))
                stop = Fault(0.3, STOP, "e1", STOP.seconds[0])
                _, verdict = await struck(scene, calm, FEW, [stop], SEED)
                assert (verdict.costs["lost_chunks"] > 0) is lost


async def test_all_faults_in_one_rollout_cost_no_sample_and_no_token(tmp_path: Path) -> None:
    async with proxied_fleet(tmp_path) as (fleet, wires), stage(fleet, wires) as scene:
        calm = await scene.calm(scene.prompts(MANY))
        chaotic, verdict = await struck(scene, calm, MANY, draw(SEED, ENGINES), SEED)
    assert by_kind([chaotic]) == sorted(f"{kind.name}: 1 of 1" for kind in KINDS)
    assert verdict.costs["lost_chunks"] > 0
    assert verdict.costs["respawns"] > 0
    report = chaotic.rolled.report
    respawns = sum(each.count for each in fleet.restarts)
    assert respawns == 3, "a store node, the master and the draft hub were killed"
    assert report["accept_length"] > 1, "engines draft"
    assert report["cached_tokens"]["storage"] > 0, "KV moves"
    assert len(calm.samples) == 8 * MANY
