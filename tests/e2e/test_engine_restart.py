"""Real local engines are killed and stopped at bad moments: no sample is lost, no token changes."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from typing_extensions import override

from seer_sgl import Rollout
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.health import State
from seer_sgl.driver.observer import Observer
from seer_sgl.engine.client import HttpEngine
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.types import Chunk, Prompt, ServerPhase
from tests.e2e.compare import Samples, assert_identical, by_key
from tests.e2e.conftest import HELD_OUT
from tests.e2e.test_pool import local
from tests.e2e.test_pool_faults import until
from tests.e2e.test_server_weights import other_model as other_model  # noqa: PLC0414 (a fixture)
from tests.processes import command_of

pytestmark = [pytest.mark.own_engines, pytest.mark.long, pytest.mark.timeout(1800)]

STALL_S = 8.0
runs = itertools.count()


def pids_of(engine: HttpEngine) -> list[int]:
    """Returns the processes of an engine's server, the main one first."""
    port = engine.info.url.rpartition(":")[2]
    for process in psutil.Process().children():
        line = command_of(process)
        if "--port" in line and line[line.index("--port") + 1] == port:
            return [process.pid, *(child.pid for child in process.children(recursive=True))]
    raise AssertionError(f"no process of {engine.info.engine_id}")


def signalled(engine: HttpEngine, number: int) -> None:
    for pid in reversed(pids_of(engine)):
        os.kill(pid, number)


def renamed(before: Path, after: Path) -> None:
    before.rename(after)


class Struck(Observer):
    """Calls `deed` once, a while after the `after`-th chunk went to an engine."""

    def __init__(
        self, engine_id: str, deed: Callable[[], None], *, after: int = 4, delay_s: float = 0.0
    ) -> None:
        self._engine_id = engine_id
        self._deed = deed
        self._left = after
        self._delay_s = delay_s
        self.struck = False

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        if chunk.engine_id == self._engine_id:
            self._left -= 1
            if self._left == 0:
                self.struck = True
                asyncio.get_running_loop().call_later(self._delay_s, self._deed)


async def roll(
    rollout: Rollout, prompts: list[Prompt], *observers: Observer, limit: int = 600
) -> tuple[Samples, dict[str, Any]]:
    """Returns the samples, which have the same seeds in every run, and the report."""
    name, began = f"run{next(runs)}", time.monotonic()
    maker = GroupMaker(name, 7)
    groups = [maker.group(prompt, rollout.config.sampling, limit, began) for prompt in prompts]
    record = Recorder(name, 7, rollout.engines, groups, began)
    run = rollout.driver.submit(groups, [record, *observers], rollout_id=name, started_at=began)
    ended = [group async for group in run]
    assert all(group.failure is None for group in ended)
    return by_key([sample for group in ended for sample in group.samples]), report(record)


def states(found: dict[str, Any]) -> list[str]:
    return [entry["state"] for entry in found["engines"][1]["states"]]


async def until_back(rollout: Rollout) -> None:
    await until(lambda: rollout.driver.available("e1"))


async def test_engines_that_are_killed_or_stopped_change_no_sample(tmp_path: Path) -> None:
    settings = local(2, scheduling={"chunk_tokens": 64})
    settings["engines"]["stall_timeout_s"] = STALL_S
    settings["rollout"]["n_samples_per_prompt"] = 4
    async with Rollout(settings, log_dir=tmp_path / "logs") as rollout:
        prompts = rollout.read_prompts(HELD_OUT)[:4]
        engine = rollout.fleet.engines[1]
        calm, _ = await roll(rollout, prompts)

        def kill() -> None:
            signalled(engine, signal.SIGKILL)

        async def disturbed(
            deed: Callable[[], None], *, lost: bool = True, **when: Any
        ) -> dict[str, Any]:
            strike = Struck("e1", deed, **when)
            samples, found = await roll(rollout, prompts, strike)
            assert strike.struck
            assert_identical(calm, samples)
            assert (found["lost_chunks"] > 0) is lost
            assert found["lost_chunks"] == found["engines"][1]["lost_chunks"]
            await until_back(rollout)
            return found

        # In the middle of a chunk.
        found = await disturbed(kill, delay_s=0.3)
        assert engine.server.starts == 1

        # Its scheduler only: the server ends with it.
        found = await disturbed(lambda: os.kill(pids_of(engine)[-1], signal.SIGKILL), delay_s=0.3)

        # While it starts again.
        signalled(engine, signal.SIGKILL)
        await until(lambda: engine.server.phase is ServerPhase.STARTING)
        await asyncio.sleep(3.0)
        signalled(engine, signal.SIGKILL)
        samples, found = await roll(rollout, prompts)
        assert_identical(calm, samples)
        await until_back(rollout)

        # Stopped for less than `stall_timeout_s`, and for longer.
        timers: list[asyncio.TimerHandle] = []

        def stop(seconds: float) -> Callable[[], None]:
            def deed() -> None:
                signalled(engine, signal.SIGSTOP)
                loop = asyncio.get_running_loop()
                timers.append(loop.call_later(seconds, signalled, engine, signal.SIGCONT))

            return deed

        found = await disturbed(stop(STALL_S / 3), lost=False)
        found = await disturbed(stop(3 * STALL_S))
        assert "suspect" in states(found)
        assert engine.server.starts == 4, "it was not started again for that"

        samples, found = await roll(rollout, prompts)
        assert_identical(calm, samples)
        assert found["engines"][1]["chunks"] > 0
        assert found["lost_chunks"] == 0


async def test_an_engine_killed_during_a_prefill_changes_no_sample(tmp_path: Path) -> None:
    settings = local(2, scheduling={"chunk_tokens": 32})
    settings["rollout"]["n_samples_per_prompt"] = 1
    async with Rollout(settings, log_dir=tmp_path / "logs") as rollout:
        ready = rollout.read_prompts(HELD_OUT)[0]
        long = type(ready.prompt_ids)("i", list(ready.prompt_ids) * 200)[:6000]
        prompts = [
            Prompt(prompt_id=f"long{i}", prompt_ids=long[i : 5900 + i], n=1) for i in range(4)
        ]
        engine = rollout.fleet.engines[1]
        calm, _ = await roll(rollout, prompts, limit=64)
        await asyncio.gather(*(each.flush() for each in rollout.fleet.engines))
        strike = Struck("e1", lambda: signalled(engine, signal.SIGKILL), after=1, delay_s=0.2)
        samples, found = await roll(rollout, prompts, strike, limit=64)
        assert strike.struck
        assert_identical(calm, samples)
        assert found["lost_chunks"] > 0
        await until_back(rollout)


async def test_a_restarted_engine_serves_the_updated_weights_only(
    tmp_path: Path, other_model: Path, log_lines: list[str]
) -> None:
    settings = local(2, scheduling={"chunk_tokens": 64})
    settings["rollout"]["n_samples_per_prompt"] = 4
    async with Rollout(settings, log_dir=tmp_path / "logs") as rollout:
        prompts = rollout.read_prompts(HELD_OUT)[:2]
        first, second = rollout.fleet.engines
        for engine in (first, second):
            await engine._load_weights(str(other_model), "v2")
        await rollout.driver.reweigh("v2")
        calm, _ = await roll(rollout, prompts, limit=300)

        strike = Struck("e1", lambda: signalled(second, signal.SIGKILL), delay_s=0.3)
        samples, found = await roll(rollout, prompts, strike, limit=300)
        assert strike.struck
        assert_identical(calm, samples)
        assert found["lost_chunks"] > 0
        await until_back(rollout)
        assert "engine e1 has loaded weights v2" in log_lines
        samples, found = await roll(rollout, prompts, limit=300)
        assert_identical(calm, samples)
        assert found["engines"][1]["chunks"] > 0
        assert {s.weight_version for s in samples.values()} == {"v2"}

        gone = other_model.with_name("gone")
        # Weights of no folder: the restarted engine has none of their digest.
        renamed(other_model, gone)
        signalled(second, signal.SIGKILL)
        await until(lambda: rollout.driver.states()[1].state is State.STALE)
        samples, found = await roll(rollout, prompts, limit=300)
        assert_identical(calm, samples)
        assert found["engines"][1]["chunks"] == 0
        renamed(gone, other_model)
