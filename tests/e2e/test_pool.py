"""KV moves between real SGLang servers through a real Mooncake: same tokens, almost no prefill."""

import asyncio
from array import array

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.plugin.pool import RATE_TOKENS
from seer_sgl.sampling import Sampling
from seer_sgl.scheduling.costs import Costs
from seer_sgl.types import Prompt
from tests.e2e.compare import Migrations, assert_identical, roll_singly, rolled
from tests.e2e.conftest import HELD_OUT
from tests.e2e.pools import WARM_UP_OBJECTS, assert_on_loopback, objects_in_mooncake
from tests.e2e.rig import PAGE, WHOLE, Rig
from tests.support.timing import PATIENT

pytestmark = pytest.mark.shared_engines

GROUPS = 8
SINGLE = 32  # most requests that run alone
ENOUGH = 40  # moves of these, with the time to read all of their KV


async def assert_empties(least: int) -> None:
    """Waits until the pool has no KV of the complete groups (their prompts are below a page)."""
    for _ in range(240):
        if (left := objects_in_mooncake()) <= least:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"{left} objects are left in the pool")


def observed_prefills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list of the tokens of each prefill from which the driver learns the rate."""
    found: list[int] = []
    original = Costs.observe_prefill

    def observe(self: Costs, tokens: int, seconds: float) -> None:
        found.append(tokens)
        original(self, tokens, seconds)

    monkeypatch.setattr(Costs, "observe_prefill", observe)
    return found


async def assert_measures_a_long_prefill(
    rollout: Rollout, prompt: Prompt, prefills: list[int]
) -> None:
    """Asserts that the driver learns the rate of a prefill that is long enough for one."""
    ids = array("i", [*prompt.prompt_ids[::-1]] * RATE_TOKENS)[: 2 * RATE_TOKENS]
    few = Sampling(max_new_tokens=4)
    long = Prompt(prompt_id="long", prompt_ids=ids, n=1, sampling=few)
    assert [group.samples[0].group_id async for group in rollout.run([long])] == ["long"]
    for _ in range(600):  # the report of an engine may be late
        if prefills:
            break
        await asyncio.sleep(0.1)
    assert prefills and min(prefills) >= RATE_TOKENS


async def test_every_chunk_moves_with_the_kv_that_the_pool_has_and_no_token_changes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, prefills = await rig.undivided(GROUPS, sampling=WHOLE), observed_prefills(monkeypatch)
    seen, alone = Migrations(), Migrations()
    before = objects_in_mooncake()
    config = rig.fleet(sampling=WHOLE)
    async with Rollout(config, placement=AlwaysElsewhere(fetch=True), timing=PATIENT) as rollout:
        assert_on_loopback(at_least=14)
        parts, report = await rolled(rollout, GROUPS, [seen])
        await assert_empties(max(before, WARM_UP_OBJECTS))
        prompts = rollout.read_prompts(HELD_OUT)
        await assert_measures_a_long_prefill(rollout, prompts[0], prefills)
        assert_identical(whole, parts)
        print(f"{report['fetches']} of {report['migrations']} moves fetched")
        assert len(seen.recomputed) == report["migrations"] >= 200
        # An engine that is blocked for seconds reports KV as missing that arrives later, and ends
        # reads early. How often is for the machine to say, so moves are compared that had the
        # time, and there are enough of them. A move leaves no KV behind that was not reported
        # missing.
        assert not seen.left_kv_behind
        single = prompts[GROUPS : GROUPS + SINGLE]
        await roll_singly(rollout, single, [alone], lambda: len(alone.in_time) >= ENOUGH)
    assert not alone.left_kv_behind
    within_a_page = [fetch.recomputed <= PAGE + 1 for fetch in seen.in_time + alone.in_time]
    assert sum(within_a_page) >= 0.95 * len(within_a_page), (seen.in_time, alone.in_time)
    assert report["cached_tokens"]["storage"] > 0
    assert report["retractions"] == 0
