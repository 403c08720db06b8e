"""Trajectories of several turns on fake servers: their tokens, their engines, and their errors."""

import asyncio
import contextlib
import itertools
from typing import Any

import pytest

from seer_sgl import Rollout
from seer_sgl.config import with_values
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.errors import ConfigError, InputError, PromptError, RolloutError
from seer_sgl.rollout.trajectories import Client
from seer_sgl.types import Prompt, Sample
from tests.rollout.fakes import (
    LONGEST,
    PROMPTS,
    RESULT,
    SEED,
    TURNS,
    N,
    Refusing,
    fakes,
    turns,
    whole,
)
from tests.support.waiting import until


async def results_of(
    rollout: Rollout, function: Any = turns, prompts: Any = PROMPTS
) -> dict[str, list[Any]]:
    """Runs the trajectories of some prompts; returns the results by prompt."""
    return {
        done.prompt.prompt_id: done.results
        async for done in rollout.trajectories(function, prompts)
    }


async def rolled(config: Any, function: Any = turns) -> dict[str, list[Any]]:
    """Runs the trajectories of all prompts in a rollout of their own."""
    async with Rollout(config) as rollout:
        results = await results_of(rollout, function)
        await until(lambda: rollout.driver.check() == [])
    return results


def check(samples: list[Sample], prompt: list[int]) -> None:
    """Fails unless each turn has the tokens of an undivided call for its input."""
    ids = list(prompt)
    for sample in samples:
        assert sample.prompt_ids.tolist() == ids
        assert sample.response_ids.tolist() == whole(sample)
        assert len(sample.rollout_log_probs) == sample.response_length == len(sample.response_ids)
        assert sum(span.tokens for span in sample.weight_spans) == sample.response_length
        ids += [*sample.response_ids, *RESULT]


async def test_every_turn_has_the_tokens_of_an_undivided_call() -> None:
    async with fakes(delay_s=0.002) as it:
        results = await rolled(it.config)
        assert results.keys() == {prompt["id"] for prompt in PROMPTS}
        for prompt in PROMPTS:
            assert len(results[prompt["id"]]) == N
            for samples in results[prompt["id"]]:
                check(samples, prompt["prompt_ids"])
        every = [turn for each in results.values() for samples in each for turn in samples]
        assert len({turn.seed for turn in every}) == len(PROMPTS) * N * TURNS
        assert any(turn.chunks > 1 for turn in every), "some turns are divided"


async def test_seeds_do_not_depend_on_the_order_in_which_turns_end() -> None:
    async def seeds(**options: Any) -> dict[str, Any]:
        async with fakes(**options) as it:
            results = await rolled(it.config)
        return {name: [[t.seed for t in s] for s in each] for name, each in results.items()}

    assert await seeds(count=1) == await seeds(count=3, delay_s=0.003)


async def test_a_turn_runs_where_the_last_one_ended() -> None:
    async with fakes(delay_s=0.001) as it:
        config = it.config_with(scheduling={"chunk_tokens": LONGEST})
        results = await rolled(config)
        pairs = [
            (before.engines[-1], after.engines[0])
            for each in results.values()
            for samples in each
            for before, after in itertools.pairwise(samples)
        ]
        same = sum(before == after for before, after in pairs)
        assert same > 0.8 * len(pairs)


async def test_a_turn_has_its_own_sampling_parameters() -> None:
    async def short(prompt: Prompt, client: Client) -> int:
        return (await client.generate(max_new_tokens=1 + client.index)).response_length

    async with fakes() as it:
        results = await rolled(it.config, short)
        for lengths in results.values():
            assert all(length <= 1 + index for index, length in enumerate(lengths))
            assert max(lengths) > 1


@pytest.mark.parametrize(
    ("ids", "sampling", "expected"),
    [
        ([6, 5], {}, "prompt 'p0', a turn: it does not begin with the tokens of the prompt"),
        ([5, 5, 5, -1], {}, "prompt_ids"),
        ([5, 5, 5, "a"], {}, "prompt_ids"),
        ([5, 5, 5, 1 << 40], {}, "prompt_ids"),
        ([5] * 200_000, {}, "200000 prompt tokens"),
        (5, {}, "its ids are no row of numbers"),
        ((5, 5, 5, 1 << 70), {}, "its ids are no row of numbers"),
        (None, {"max_new_tokens": 0}, "max_new_tokens"),
        (None, {"top_p": 7}, "top_p"),
        (None, {"colour": 1}, "colour"),
    ],
)
async def test_an_unusable_turn_is_refused_in_its_function(
    ids: Any, sampling: dict[str, Any], expected: str
) -> None:
    seen: list[str] = []

    async def wrong(prompt: Prompt, client: Client) -> Sample:
        if prompt.prompt_id == "p0":
            with pytest.raises(PromptError) as caught:
                await client.generate(ids, **sampling)
            seen.append(str(caught.value))
        return await client.generate()

    async with fakes() as it:
        results = await rolled(it.config, wrong)
    assert len(seen) == N
    assert all(expected in line and "\n" not in line for line in seen), seen
    assert all(len(each) == N for each in results.values())


@pytest.mark.parametrize(
    ("text", "why"), [(None, "expected str"), ("\udcff", "text with half a surrogate pair")]
)
async def test_what_is_no_text_between_two_turns_is_refused(text: Any, why: str) -> None:
    async def wrong(prompt: Prompt, client: Client) -> None:
        client.encode(text)

    async with fakes() as it, Rollout(it.config) as rollout:
        rollout.tokenizer = Tokenizer([0] * 1000)
        with pytest.raises(PromptError, match=f"a text between two turns: {why}"):
            await results_of(rollout, wrong)


async def test_an_error_of_the_function_comes_at_once_and_hides_behind_no_other() -> None:
    async def failing(prompt: Prompt, client: Client) -> None:
        while prompt.prompt_id != "p0":
            await client.generate()
        match client.index:
            case 0:
                raise RolloutError("a request that failed")
            case 1:
                await client.generate()
                raise KeyError("a defect of the function")
            case _:
                await asyncio.Event().wait()

    async with fakes(delay_s=0.001) as it, Rollout(it.config) as rollout:
        with pytest.raises(KeyError, match="a defect"):
            await results_of(rollout, failing)
        await until(lambda: rollout.driver.check() == [])
        assert all(fake.running == 0 for fake in it.servers)


async def test_errors_may_be_results() -> None:
    async def returning(prompt: Prompt, client: Client) -> Exception:
        return RolloutError("a result") if client.index else ValueError("another")

    async with fakes() as it:
        results = await rolled(it.config, returning)
    assert all(len(each) == N for each in results.values())


async def test_a_function_that_is_cancelled_from_within_is_an_error() -> None:
    async def cancelled(prompt: Prompt, client: Client) -> None:
        raise asyncio.CancelledError

    async with fakes() as it:
        with pytest.raises(RuntimeError, match="a trajectory was cancelled"):
            await rolled(it.config, cancelled)


async def test_a_rollout_that_is_closed_ends_its_trajectories() -> None:
    async def endless(prompt: Prompt, client: Client) -> None:
        while True:
            await client.generate()

    async with fakes(delay_s=0.002) as it:
        async with Rollout(it.config) as rollout:
            consuming = asyncio.create_task(results_of(rollout, endless))
            await until(lambda: it.servers[0].running > 0)
        with pytest.raises(RolloutError, match="6 of 6 prompts failed"):
            await consuming


async def test_a_turn_that_outlives_its_trajectory_ends_with_an_error() -> None:
    late: list[asyncio.Task[Sample]] = []

    async def leaving(prompt: Prompt, client: Client) -> None:
        late.append(asyncio.create_task(client.generate()))

    async with fakes(delay_s=0.002) as it:
        await rolled(it.config, leaving)
        ended = await asyncio.gather(*late, return_exceptions=True)
    assert len(ended) == N * len(PROMPTS)
    assert all(isinstance(each, RolloutError) for each in ended)


async def test_turns_of_one_trajectory_may_run_together_and_have_its_index() -> None:
    async def together(prompt: Prompt, client: Client) -> list[Sample]:
        samples = await asyncio.gather(*(client.generate() for _ in range(3)))
        assert {sample.index for sample in samples} == {client.index}
        return samples

    async with fakes(delay_s=0.001) as it:
        results = await rolled(it.config, together)
    for prompt in PROMPTS:
        samples = [turn for each in results[prompt["id"]] for turn in each]
        assert len({sample.seed for sample in samples}) == 3 * N
        for sample in samples:
            check([sample], prompt["prompt_ids"])


async def test_the_oracle_is_refused() -> None:
    async with fakes() as it, Rollout(it.config) as rollout:
        rollout.config = with_values(rollout.config, {"scheduling.policy": "oracle"})
        with pytest.raises(ConfigError, match="oracle has no lengths of trajectories"):
            await results_of(rollout)


async def test_refused_trajectories_take_no_seed() -> None:
    refused = {**PROMPTS[0], "sampling": {"min_p": 0.1}}
    async with fakes() as it, Rollout(it.config) as rollout:
        with pytest.raises(InputError, match="min_p"):
            await results_of(rollout, prompts=[refused])
        assert rollout.seed_of_next_run() == SEED


async def test_leaving_early_aborts_the_other_trajectories() -> None:
    async with fakes(delay_s=0.002) as it, Rollout(it.config) as rollout:
        async with contextlib.aclosing(rollout.trajectories(turns, PROMPTS)) as running:
            assert len((await anext(running)).results) == N
        await until(lambda: all(fake.running == 0 for fake in it.servers))
        await until(lambda: rollout.driver.check() == [])


REFUSED = len(PROMPTS[2]["prompt_ids"])


async def test_a_request_that_engines_refuse_fails_its_prompt_after_all_others() -> None:
    results: list[str] = []
    async with fakes(kind=Refusing, refused_length=REFUSED) as it, Rollout(it.config) as rollout:
        with pytest.raises(RolloutError, match="1 of 6 prompts failed"):
            async for done in rollout.trajectories(turns, PROMPTS):
                results.append(done.prompt.prompt_id)  # noqa: PERF401 (kept after the error)
        assert sorted(results) == ["p0", "p1", "p3", "p4", "p5"]


async def test_a_function_may_catch_the_failure_of_a_request() -> None:
    async def careful(prompt: Prompt, client: Client) -> str:
        try:
            return (await client.generate()).finish_reason
        except RolloutError as error:
            return str(error)

    async with fakes(kind=Refusing, refused_length=REFUSED) as it:
        results = await rolled(it.config, careful)
    assert all("400" in text or "refuse" in text for text in results["p2"]), results["p2"]
    assert all(text in ("stop", "length") for text in results["p0"])


async def test_a_cancelled_turn_is_aborted_and_the_trajectory_continues() -> None:
    every = N * len(PROMPTS)

    async def impatient(prompt: Prompt, client: Client) -> Sample:
        turn = asyncio.create_task(client.generate())
        await until(lambda: len(it.calls) >= every)
        for fake in it.servers:
            fake.delay_s = 0.0
        turn.cancel()
        await asyncio.wait([turn])
        return await client.generate()

    async with fakes(delay_s=60.0) as it:
        results = await rolled(it.config, impatient)
    aborted = {rid for fake in it.servers for rid in fake.aborted}
    assert aborted == {call["rid"] for call in it.calls[:every]}
    for prompt in PROMPTS:
        for sample in results[prompt["id"]]:
            check([sample], prompt["prompt_ids"])
