"""A batch of executors: whole groups go together, and each executor gets its own sample."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest
from fake_fleet import FakeClient
from sampling import params
from seer_openrlhf import batch as batches
from seer_openrlhf.batch import Batch
from seer_openrlhf.sample_engine import SampleEngine


def batch_of(fleet: FakeClient) -> Batch:
    server: Any = fleet
    return Batch(server, "b", seed=7)


def engines(batch: Batch, group_id: str, size: int) -> list[SampleEngine]:
    batch.begin(group_id, size)
    return [SampleEngine(batch, group_id, i, lambda ids, _: str(ids), 64) for i in range(size)]


async def test_an_executor_that_asks_for_something_else_does_not_share_the_group() -> None:
    fleet = FakeClient()
    one, other = engines(batch_of(fleet), "0", 2)
    replies = await asyncio.gather(
        one.generate([5], params()), other.generate([6], params(logprobs=None))
    )
    assert not fleet.rollouts
    assert [body["input_ids"] for body in fleet.generated] == [[5], [6]]
    assert {body["group_id"] for body in fleet.generated} == {"b.0"}
    assert replies[0].outputs[0].logprobs and replies[1].outputs[0].logprobs is None


async def test_a_slow_executor_holds_the_others_up_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "IDLE_S", 0.05)
    fleet = FakeClient()
    batch = batch_of(fleet)
    batch.expect(2)
    (quick,), (slow,) = engines(batch, "0", 1), engines(batch, "1", 1)
    await quick.generate([5], params())
    await slow.generate([6], params())
    assert [[g["id"] for g in body["groups"]] for body in fleet.rollouts] == [["0"], ["1"]]


async def test_executors_wait_no_longer_for_one_that_ended_without_asking() -> None:
    fleet = FakeClient()
    one, other = engines(batch_of(fleet), "0", 2)
    waiting = asyncio.create_task(one.generate([5], params()))
    await asyncio.sleep(0)
    other.ended()
    await waiting
    assert fleet.rollouts[0]["groups"][0]["n"] == 1


async def test_an_image_is_refused() -> None:
    (engine,) = engines(batch_of(FakeClient()), "0", 1)
    with pytest.raises(ValueError, match="images"):
        await engine.generate([5], params(), multi_modal_data={"image": [1]})


async def test_an_executor_may_ask_from_the_event_loop_of_another_thread() -> None:
    class OnOneLoop(FakeClient):
        """Records the event loops of its rollouts: a client's connections belong to one."""

        async def rollout(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
            loops.append(asyncio.get_running_loop())
            async for event in super().rollout(body):
                yield event

    loops: list[asyncio.AbstractEventLoop] = []
    (engine,) = engines(batch_of(OnOneLoop()), "0", 1)
    found = await asyncio.to_thread(asyncio.run, engine.generate([5], params()))
    assert found.outputs[0].token_ids
    assert loops == [asyncio.get_running_loop()]
