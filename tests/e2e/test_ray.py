"""Real engines and store nodes on a Ray cluster of three nodes: in a rollout, one node is lost with
its engine and its part of the KV pool, and another node joins."""

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.types import Prompt
from tests.e2e.compare import Samples, assert_identical, collected
from tests.e2e.conftest import HELD_OUT
from tests.e2e.pools import SGLANG, local, pooled
from tests.engine.ray_cluster import cluster_of
from tests.support.waiting import until

pytestmark = [pytest.mark.own_engines, pytest.mark.long, pytest.mark.timeout(1800)]

WAIT_S = 300.0  # a start on a busy machine takes minutes
MOST_TOKENS = 600  # of a response
runs = itertools.count()


async def roll(rollout: Rollout, prompts: list[Prompt]) -> tuple[Samples, dict[str, Any]]:
    """Returns the samples, which have the same seeds in every run, and the report."""
    name, began = f"run{next(runs)}", time.monotonic()
    maker, sampling = GroupMaker(name, 7), rollout.config.sampling
    groups = [maker.group(prompt, sampling, MOST_TOKENS, began) for prompt in prompts]
    record = Recorder(name, 7, rollout.engines, groups, began)
    run = rollout.driver.submit(groups, [record], rollout_id=name, started_at=began)
    samples = await collected(run)
    assert all(group.failure is None for group in groups)
    return samples, report(record)


async def test_a_node_that_is_lost_in_a_rollout_and_one_that_joins_change_no_sample(
    tmp_path: Path, log_lines: list[str]
) -> None:
    settings = local(
        3,
        scheduling={"chunk_tokens": 64},
        kv_pool=pooled("mooncake", memory="128mb", stores=3),
        draft={"scope": "fleet"},
    )
    settings["rollout"]["n_samples_per_prompt"] = 4
    with cluster_of(3) as nodes:
        settings["engines"] = {
            "launch": "ray",
            "ray_address": nodes.address,
            "count": 3,
            "sglang": SGLANG,
        }
        async with Rollout(
            settings, log_dir=tmp_path / "logs", placement=AlwaysElsewhere(fetch=True)
        ) as rollout:
            driver, engines = rollout.driver, rollout.fleet.engines
            before = [engine.info.url for engine in engines]
            prompts = rollout.read_prompts(HELD_OUT)[:4]
            undisturbed, found = await roll(rollout, prompts)
            assert all(engine["chunks"] > 0 for engine in found["engines"])
            assert found["cached_tokens"]["storage"] > 0, "KV moves between the nodes"

            running = asyncio.create_task(roll(rollout, prompts))
            await until(
                lambda: all(driver.in_flight(e.info.engine_id) > 1 for e in engines), WAIT_S
            )
            await asyncio.to_thread(nodes.kill, 1)
            samples, found = await running
            assert_identical(undisturbed, samples)
            assert sum(engine["lost_chunks"] > 0 for engine in found["engines"]) == 1
            (lost,) = (i for i, each in enumerate(found["engines"]) if each["lost_chunks"])
            name = engines[lost].info.engine_id
            await until(lambda: engines[lost].server.starts == 1, WAIT_S)
            assert not driver.available(name)

            joining = asyncio.create_task(asyncio.to_thread(nodes.add))
            served = 0
            while not served:  # rollouts continue while the engine starts on the new node
                samples, found = await roll(rollout, prompts)
                assert_identical(undisturbed, samples)
                assert found["failed_requests"] == 0
                served = found["engines"][lost]["chunks"]
            await joining
            assert engines[lost].server.starts == 1
            names = ["KV pool: master", *(f"KV pool: store{i}" for i in range(3)), "draft hub"]
            starts = {each.name: each.count for each in rollout.fleet.restarts}
            assert sorted(starts) == sorted(names)
            assert sum(starts.values()) > 0, "the store node of the lost node was started elsewhere"
            await asyncio.gather(*(engine.flush() for engine in engines))
            samples, found = await roll(rollout, prompts)
            assert_identical(undisturbed, samples)
            assert found["cached_tokens"]["storage"] > 0, "KV moves again"
            after = [engine.info.url for engine in engines]
            assert [url for i, url in enumerate(after) if i != lost] == [
                url for i, url in enumerate(before) if i != lost
            ]
            assert after[lost] != before[lost]
    again = f"engine {name} is being restarted: its node 127.0.0.1 left the cluster"
    assert any(line.startswith(again) for line in log_lines)
