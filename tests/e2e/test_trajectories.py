"""Trajectories of several turns on real engines: every turn equals a plain engine's own call."""

import asyncio
from typing import Any

import aiohttp
import pytest

from bench.elsewhere import AlwaysElsewhere
from examples.tool_use import STOPS, calculating
from seer_sgl import Client, Prompt, Rollout, Sample
from tests.e2e.compare import LOGPROB_TOLERANCE, has_accepted_draft
from tests.e2e.conftest import HELD_OUT
from tests.e2e.draws import draw
from tests.e2e.rig import Rig

pytestmark = pytest.mark.shared_engines

PROMPTS, N, CHUNK = 3, 4, 8
SAMPLING = {"temperature": 1.0}


class Recording:
    """A client that records the turns that it generates."""

    def __init__(self, client: Client, turns: list[Sample]) -> None:
        self.encode = client.encode
        self._client = client
        self._turns = turns

    async def generate(self, *ids: list[int], **sampling: Any) -> Sample:
        self._turns.append(await self._client.generate(*ids, **sampling))
        return self._turns[-1]


def body_of(turn: Sample) -> dict[str, Any]:
    """Returns the body of /generate of an undivided turn."""
    own = {"sampling_seed": turn.seed, "stop": STOPS, "max_new_tokens": 1500}
    ids = turn.prompt_ids.tolist()
    return {"input_ids": ids, "sampling_params": SAMPLING | own, "return_logprob": True}


async def test_turns_with_a_tool_equal_calls_of_a_plain_engine(rig: Rig) -> None:
    turns: list[Sample] = []
    config = rig.fleet(
        scheduling={"chunk_tokens": CHUNK},
        rollout={"n_samples_per_prompt": N, "seed": 5},
        sampling=SAMPLING,
    )

    async def recorded(prompt: Prompt, client: Client) -> tuple[float, int]:
        return await calculating(prompt, Recording(client, turns))  # type: ignore[arg-type]

    async with Rollout(config, placement=AlwaysElsewhere()) as rollout:
        prompts = rollout.read_prompts(HELD_OUT)[:PROMPTS]
        done = [each async for each in rollout.trajectories(recorded, prompts)]
        assert rollout.driver.check() == []
    assert sorted(each.prompt.prompt_id for each in done) == sorted(p.prompt_id for p in prompts)
    calls = sum(used for each in done for _, used in each.results)
    assert calls > PROMPTS * N, "the calculator was used"
    assert all(len(each.results) == N for each in done)
    assert sum(len(set(turn.engines)) > 1 for turn in turns) > calls / 2, "turns moved"
    assert any(map(has_accepted_draft, turns)), "drafts were accepted"
    async with aiohttp.ClientSession() as session:
        calls_of_plain = (draw(session, rig.plain, body_of(turn)) for turn in turns)
        plain = await asyncio.gather(*calls_of_plain)
    for turn, alone in zip(turns, plain, strict=True):
        count = turn.response_length
        assert turn.response_ids.tolist() == alone.tokens[:count]
        assert count == len(alone.tokens) or turn.finish_reason == "length"
        for ours, theirs in zip(turn.rollout_log_probs, alone.logprobs, strict=False):
            assert abs(ours - theirs) < LOGPROB_TOLERANCE
