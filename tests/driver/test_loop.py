"""The loop on fake servers with real sockets.

Every request ends exactly once, with the tokens of an undivided run, within its engines' limits.
"""

import asyncio
import json
from collections import deque
from pathlib import Path
from typing import Any, get_args

import pytest

from seer_sgl.config import UNDIVIDED
from seer_sgl.config.tree import PolicyName
from seer_sgl.errors import ConfigError, PromptError, RolloutError
from seer_sgl.rollout.samples import SampleWriter
from seer_sgl.types import Chunk, ChunkResult
from tests.fake_sglang import FakeSGLang, response_of
from tests.helpers import Returns
from tests.support.fleets import PROMPTS, all_groups, check, rolling
from tests.support.timing import QUICK
from tests.support.waiting import until


async def test_divided_over_two_engines_equals_undivided() -> None:
    fakes = FakeSGLang(), FakeSGLang()
    async with rolling(*fakes) as rollout:
        groups = await all_groups(rollout)
        check(groups)
        report = rollout.report()
    calls = [call for fake in fakes for call in fake.seen]
    assert len({call["rid"] for call in calls}) == len(calls) == report["chunks"]
    assert all(call["sampling_params"]["max_new_tokens"] <= 8 for call in calls)
    assert report["samples"] == 16
    assert report["groups"] == 4
    assert report["response_tokens"] == sum(s.response_length for g in groups for s in g.samples)
    assert sum(engine["chunks"] for engine in report["engines"]) == report["chunks"]
    assert all(fake.seen for fake in fakes)


@pytest.mark.parametrize("policy", get_args(PolicyName))
async def test_a_policy_changes_when_and_where_but_no_token(policy: str, tmp_path: Path) -> None:
    scheduling: dict[str, Any] = {"policy": policy}
    if policy in ("seer", "oracle"):
        lengths = tmp_path / "lengths.jsonl"
        lines = (json.dumps({"group_id": p["id"], "lengths": [9, 3, 7, 5]}) for p in PROMPTS)
        lengths.write_text("\n".join(lines))
        scheduling["lengths"] = str(lengths)
    whole, pinned = policy in UNDIVIDED, policy.startswith("group_")
    faults = ["stall"] * 16 if whole else []
    fakes = [
        FakeSGLang(max_running_requests=2, delay_s=0.03, faults=deque(faults)) for _ in range(2)
    ]
    async with rolling(*fakes, scheduling=scheduling) as rollout:
        rolled = asyncio.create_task(all_groups(rollout))
        if whole:  # all requests are sent before one is answered
            await until(lambda: [len(fake.seen) for fake in fakes] == [8, 8])
            for fake in fakes:
                fake.wake_stalled()
        check(await rolled)
    assert whole or max(fake.peak_running for fake in fakes) == 2
    prompts = [{tuple(call["input_ids"]) for call in fake.seen} for fake in fakes]
    assert not (pinned and prompts[0] & prompts[1]), "whole groups stay together"
    budgets = {call["sampling_params"]["max_new_tokens"] for fake in fakes for call in fake.seen}
    assert (60 in budgets) is whole


async def test_the_oracle_without_a_length_of_every_sample_is_refused(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.jsonl"
    lengths.write_text(json.dumps({"group_id": "p3", "lengths": [1, 2, 3, 4]}))
    scheduling = {"policy": "oracle", "lengths": str(lengths)}
    async with rolling(FakeSGLang(), scheduling=scheduling) as rollout:
        with pytest.raises(PromptError, match="has no length of sample 0 of prompt 'p7'"):
            await all_groups(rollout)


class FirstWave(Returns):
    """Counts the chunks that are sent before the first one comes back."""

    def __init__(self) -> None:
        self.chunks = 0
        self._over = False

    def sent(self, chunk: Chunk, now: float) -> None:
        self.chunks += not self._over

    def returned(self, result: ChunkResult) -> None:
        self._over = True


@pytest.mark.process
async def test_what_others_use_on_an_engine_is_not_promised_and_their_leaving_is_noticed() -> None:
    fake = FakeSGLang(max_total_num_tokens=200, foreign_tokens=180, delay_s=0.03)
    crowded, alone = FirstWave(), FirstWave()
    async with rolling(fake, timing=QUICK) as rollout:
        (slot,) = rollout.driver._scheduler.engines
        assert slot.ledger is not None
        feedback = slot.ledger.feedback
        await until(lambda: feedback.usable == 20)
        check(await all_groups(rollout, crowded))
        fake.foreign_tokens = 0
        await until(lambda: feedback.usable == 200)
        check(await all_groups(rollout, alone))
    # Later admissions depend on how many of our requests a load report includes.
    assert 2 * crowded.chunks < alone.chunks


async def test_the_weight_version_of_every_token_is_kept() -> None:
    fake = FakeSGLang(longest=50)
    async with rolling(fake) as rollout:
        fake.updates = {20: "v2"}
        groups = await all_groups(rollout)
    check(groups)
    spans = [sample.weight_spans for group in groups for sample in group.samples]
    assert {tuple(span.version for span in part) for part in spans} >= {("v1",), ("v1", "v2")}
    for group in groups:
        for sample in group.samples:
            assert sum(span.tokens for span in sample.weight_spans) == sample.response_length
            assert sample.weight_version == sample.weight_spans[-1].version
            if len(sample.weight_spans) == 2:
                assert sample.weight_spans[0].tokens % 8 == 0, "between two chunks of 8"


async def test_engines_with_different_models_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with rolling(FakeSGLang(), FakeSGLang(model_path="x")):
        pass
    assert "the engines have different model paths: fake, x" in caplog.messages


async def test_the_ledger_bounds_what_an_engine_gets() -> None:
    fake = FakeSGLang(max_total_num_tokens=90, delay_s=0.001)
    async with rolling(fake) as rollout:
        check(await all_groups(rollout))
    # The smallest chunk needs 3 + 8 tokens, siblings 8 each: never more than 10 at once.
    assert 1 < fake.peak_running <= 10


async def test_inflight_is_bounded_by_config() -> None:
    fake = FakeSGLang(delay_s=0.01)
    async with rolling(fake, scheduling={"max_inflight_per_engine": 2}) as rollout:
        await all_groups(rollout)
    assert fake.peak_running == 2


async def test_requests_larger_than_the_kv_cache_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"KV cache of engine e0 \(60 tokens\)"):
        async with rolling(FakeSGLang(max_total_num_tokens=60)) as rollout:
            await all_groups(rollout)


@pytest.mark.parametrize(
    ("sampling", "fake", "complaint"),
    [
        ({"min_p": 0.1}, FakeSGLang(), "sampling.min_p: engine e0"),
        ({"min_new_tokens": 3}, FakeSGLang(has_tokenizer=False), "sampling.min_new_tokens: e"),
    ],
)
async def test_what_the_engines_would_refuse_is_refused_first(
    sampling: dict[str, Any], fake: FakeSGLang, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        async with rolling(fake, sampling=sampling):
            pass


REPORT = {"version": "1", "missing": []}


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        (FakeSGLang(), "it runs without the seer-sgl plugin"),
        (
            FakeSGLang(plugin={**REPORT, "inexact": None}, deterministic=False),
            "it runs without deterministic inference",
        ),
        (
            FakeSGLang(plugin={**REPORT, "inexact": "its model has\na sliding window"}),
            "its model has a sliding window",
        ),
        (FakeSGLang(plugin=REPORT), "the plugin does not report whether its steps round alike"),
    ],
)
async def test_an_engine_that_is_not_exact_is_refused_where_that_is_asked_for(
    fake: FakeSGLang, reason: str
) -> None:
    async with rolling(fake):
        pass
    with pytest.raises(ConfigError) as error:
        async with rolling(fake, engines={"exact": True}):
            pass
    url = error.value.args[0].partition("(")[2].partition(")")[0]
    assert str(error.value) == f"engines.exact: engine e0 ({url}): {reason}"


async def test_an_exact_engine_serves_a_rollout_that_asks_for_one_and_is_sent_min_p() -> None:
    fake = FakeSGLang(plugin={**REPORT, "inexact": None})
    async with rolling(fake, engines={"exact": True}, sampling={"min_p": 0.1}) as rollout:
        check(await all_groups(rollout))
    assert {call["sampling_params"]["min_p"] for call in fake.seen} == {0.1}


async def test_responses_cut_by_the_context_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeSGLang(max_request_len=50)
    async with rolling(fake) as rollout:
        groups = await all_groups(rollout)
    lengths = [len(s.prompt_ids) + s.response_length for group in groups for s in group.samples]
    assert len(lengths) == 16
    assert max(lengths) == 50, "exactly as much as the context holds"
    (warning,) = caplog.messages
    assert "4 of 4 prompts leave less than max_new_tokens = 60" in warning


async def test_the_ids_of_rollouts_are_random_enough_for_a_whole_cluster() -> None:
    """Drivers that start in the same second may share engines and a pool: 64 random bits."""
    random_parts = []
    async with rolling(FakeSGLang()) as rollout:
        for _ in range(2):
            async for group in rollout.run([{"prompt_ids": [1], "n": 1}]):
                [sample] = group.samples
            *_, random_part = sample.rollout_id.split("-")
            random_parts.append(bytes.fromhex(random_part))
    assert [len(part) for part in random_parts] == [8, 8]
    assert len(set(random_parts)) == 2


async def test_metadata_that_no_file_can_hold_comes_back_unless_it_is_to_be_written(
    tmp_path: Path,
) -> None:
    opaque = object()
    prompts = [{"prompt_ids": [1], "n": 1, "metadata": {"image": opaque}}]
    async with rolling(FakeSGLang()) as rollout:
        groups = [group async for group in rollout.run(prompts)]
        assert groups[0].samples[0].metadata["image"] is opaque
        with pytest.raises(RolloutError, match="metadata of prompt '0': cannot write a object"):
            _ = [g async for g in rollout.run(prompts, [SampleWriter(tmp_path / "s.jsonl")])]


async def test_every_group_is_sampled_in_its_own_way(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeSGLang()
    own: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0, "max_new_tokens": 11},
        {"top_p": 0.5, "top_k": 9, "max_response_len": 30},
        {
            "regex": "[0-9]+",
            "presence_penalty": 0.5,
            "max_new_tokens": 40,
            "custom_params": {"theirs": 1},
        },
    ]
    prompts = [{**p, "sampling": s} for p, s in zip(PROMPTS, own, strict=True)]
    async with rolling(fake, sampling={"temperature": 0.8}) as rollout:
        groups = {group.group_id: group async for group in rollout.run(prompts)}
    assert caplog.messages == [
        "requests run undivided: sampling.presence_penalty, sampling.regex cannot cross a chunk "
        "boundary"
    ]
    for prompt, limit in zip(prompts, (60, 11, 30, 40), strict=True):
        for sample in groups[prompt["id"]].samples:
            whole = response_of(sample.seed, len(sample.prompt_ids), 50)
            assert list(sample.response_ids) == whole[:limit]
            assert sample.chunks == (1 if limit == 40 else -(-min(limit, len(whole)) // 8))
    by_prompt = {len(body["input_ids"]): body["sampling_params"] for body in reversed(fake.seen)}
    params = [by_prompt[len(prompt["prompt_ids"])] for prompt in prompts]
    assert [one["temperature"] for one in params] == [0.8, 0.0, 0.8, 0.8]
    assert [one["top_k"] for one in params] == [-1, -1, 9, -1]
    assert [one["max_new_tokens"] for one in params] == [8, 8, 8, 40]
    assert [one.get("regex") for one in params] == [None, None, None, "[0-9]+"]
    assert [one.get("custom_params") for one in params] == [None, None, None, {"theirs": 1}]


async def test_what_cannot_be_served_is_named_before_anything_is_sent() -> None:
    fake = FakeSGLang()
    async with rolling(fake) as rollout:
        with pytest.raises(PromptError, match=r"prompts\[0\]: 99999 prompt tokens"):
            await anext(rollout.run([{"prompt_ids": [1] * 99_999}]))
        with pytest.raises(PromptError, match=r"prompt 'p7': sampling\.stop: stop strings need a"):
            prompts = [PROMPTS[0], {**PROMPTS[1], "sampling": {"stop": "x"}}]
            await anext(rollout.run(prompts))
    assert not fake.seen
