"""A batch of executors: whole groups go together, and each executor gets its own sample."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from seer_openrlhf import batch as batches
from seer_openrlhf.batch import Batch, SampleLost
from seer_openrlhf.client import ServerError
from seer_openrlhf.sample_engine import SampleEngine

Json = dict[str, Any]


class FakeServer:
    """Answers rollouts and requests with tokens that name the prompt and the sample."""

    def __init__(self, fail: str = "") -> None:
        self.rollouts: list[Json] = []
        self.generated: list[Json] = []
        self.fail = fail  # the group that is given up; "end": the stream ends early

    async def rollout(self, body: Mapping[str, Any]) -> AsyncGenerator[Json]:
        self.rollouts.append(dict(body))
        yield {"event": "start"}
        for group in reversed(body["groups"]):
            if group["id"] == self.fail:
                yield {"event": "group", "group_id": group["id"], "error": {"message": "gone"}}
                continue
            for index in reversed(range(group["n"])):
                await asyncio.sleep(0)
                yield sample(group["id"], index, group["prompt_ids"])
            yield {"event": "group", "group_id": group["id"]}
        if self.fail == "end":
            raise ServerError("the answer ended before its last line")
        yield {"event": "end", "error": None}

    async def get(self, path: str) -> Json:
        assert path == "/rollouts"
        return {"rollouts": [], "journals": False}

    async def generate(self, body: Mapping[str, Any]) -> Json:
        self.generated.append(dict(body))
        triples = [(-0.5, body["input_ids"][-1] + 1000, None)]
        return {"meta_info": {"output_token_logprobs": triples, "finish_reason": {"type": "stop"}}}


def sample(group_id: str, index: int, ids: list[int]) -> Json:
    return {
        "event": "sample",
        "group_id": group_id,
        "index": index,
        "response_ids": [ids[-1] + 100, index],
        "rollout_log_probs": [-0.25, -1.0],
        "finish_reason": "length",
        "matched": None,
        "accept_length": None,
        "engines": ["e0"],
        "weight_spans": [{"version": "1", "tokens": 2}],
    }


def params(**changes: Any) -> Any:
    given = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 8, "min_tokens": 1}
    return SimpleNamespace(**{**given, "skip_special_tokens": False, "logprobs": 1, **changes})


def engines(batch: Batch, group_id: str, size: int) -> list[SampleEngine]:
    batch.begin(group_id, size)
    return [SampleEngine(batch, group_id, i, lambda ids, _: str(ids)) for i in range(size)]


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_all_groups_are_one_rollout_and_each_executor_gets_its_own_sample() -> None:
    async def check() -> None:
        server = FakeServer()
        batch = Batch(server, "b", seed=7)
        batch.expect(3)
        asks = [
            engine.generate([5, number], params())
            for number in range(3)
            for engine in engines(batch, str(number), 2)
        ]
        outputs = [(await ask).outputs[0] for ask in asyncio.as_completed(asks)]
        (body,) = server.rollouts
        assert body["seed"] == 7 and body["stream"] == "samples"
        assert [(g["id"], g["n"], g["prompt_ids"]) for g in body["groups"]] == [
            (str(number), 2, [5, number]) for number in range(3)
        ]
        assert body["groups"][0]["sampling"]["min_new_tokens"] == 1
        assert sorted(each.token_ids for each in outputs) == [
            [100 + number, index] for number in range(3) for index in range(2)
        ]
        first = outputs[0]
        assert first.text == str(first.token_ids) and first.finish_reason == "length"
        assert first.logprobs is not None
        assert [d[t].logprob for d, t in zip(first.logprobs, first.token_ids, strict=True)] == [
            -0.25,
            -1.0,
        ]

    run(check())


def test_an_executor_that_asks_for_something_else_does_not_share_the_group() -> None:
    async def check() -> None:
        server = FakeServer()
        one, other = engines(Batch(server, "b", seed=7), "0", 2)
        replies = await asyncio.gather(
            one.generate([5], params()), other.generate([6], params(logprobs=None))
        )
        assert not server.rollouts
        assert [reply.outputs[0].token_ids for reply in replies] == [[1005], [1006]]
        assert replies[0].outputs[0].logprobs and replies[1].outputs[0].logprobs is None
        assert {body["group_id"] for body in server.generated} == {"b.0"}

    run(check())


def test_a_later_turn_names_its_conversation() -> None:
    async def check() -> None:
        server = FakeServer()
        (engine,) = engines(Batch(server, "b", seed=7), "0", 1)
        await engine.generate([5], params())
        await engine.generate([5, 105, 0, 9], params())
        (body,) = server.generated
        assert (body["input_ids"], body["session_id"]) == ([5, 105, 0, 9], "b.0.0")

    run(check())


def test_a_slow_executor_holds_the_others_up_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "IDLE_S", 0.05)

    async def check() -> None:
        server = FakeServer()
        batch = Batch(server, "b", seed=7)
        batch.expect(2)
        (quick,), (slow,) = engines(batch, "0", 1), engines(batch, "1", 1)
        await quick.generate([5], params())
        await slow.generate([6], params())
        assert [[g["id"] for g in body["groups"]] for body in server.rollouts] == [["0"], ["1"]]

    run(check())


def test_executors_wait_no_longer_for_one_that_ended_without_asking() -> None:
    async def check() -> None:
        server = FakeServer()
        one, other = engines(Batch(server, "b", seed=7), "0", 2)
        waiting = asyncio.create_task(one.generate([5], params()))
        await asyncio.sleep(0)
        other.ended()
        await waiting
        assert server.rollouts[0]["groups"][0]["n"] == 1

    run(check())


@pytest.mark.parametrize(("fail", "error"), [("0", SampleLost), ("end", ServerError)])
def test_a_lost_group_or_server_is_an_error_of_those_who_wait(
    fail: str, error: type[Exception]
) -> None:
    class Silent(FakeServer):
        async def rollout(self, body: Mapping[str, Any]) -> AsyncGenerator[Json]:
            async for event in super().rollout(body):
                if event["event"] != "sample" or event["group_id"] != "1":
                    yield event

    async def check() -> None:
        batch = Batch(Silent(fail), "b", seed=7)
        (lost,), (silent,) = engines(batch, "0", 1), engines(batch, "1", 1)
        first, second = await asyncio.gather(
            lost.generate([5], params()), silent.generate([6], params()), return_exceptions=True
        )
        if fail == "0":
            assert isinstance(first, SampleLost) and isinstance(second, SampleLost)
        else:
            assert isinstance(second, error)

    run(check())


def test_an_empty_prompt_and_an_image_are_refused() -> None:
    async def check() -> None:
        (engine,) = engines(Batch(FakeServer(), "b", seed=7), "0", 1)
        with pytest.raises(ValueError, match="has no tokens"):
            await engine.generate([], params())
        with pytest.raises(ValueError, match="images"):
            await engine.generate([5], params(), multi_modal_data={"image": [1]})

    run(check())
