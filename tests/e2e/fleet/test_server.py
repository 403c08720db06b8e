"""The rollout server on real engines with a pool and drafts, beside a plain SGLang server.

Seeded requests through the server must return what the plain server returns by itself.
"""

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from typing import Any

import aiohttp
import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.scheduling.placement import Placement
from tests.e2e.compare import LOGPROB_TOLERANCE, saved_steps
from tests.e2e.draws import steps
from tests.e2e.fleet.conftest import LONGEST, kinds
from tests.e2e.held_out import texts
from tests.e2e.rig import Rig
from tests.server.helpers import Served, served_config
from tests.server.scrape import scraped
from tests.support.bodies import events_in
from tests.support.waiting import until

pytestmark = pytest.mark.shared_engines

COMPARED = ("text", "output_ids")
COMPARED_META = ("finish_reason", "prompt_tokens", "completion_tokens", "weight_version")


@contextlib.asynccontextmanager
async def through_us(
    config: dict[str, Any], placement: Placement | None = None, **server: Any
) -> AsyncIterator[Served]:
    """Yields a server of the fleet, and checks that nothing is left behind."""
    config = config | {"server": {"port": 0, **server}}
    async with served_config(Rollout(config, placement=placement, gives_up=False)) as it:
        yield it
        await until(lambda: not it.service.generation.open_groups)
        assert it.service.driver.check() == [], "an idle driver has no leftovers"


def bodies() -> list[dict[str, Any]]:
    """Returns requests with different sampling parameters, each with its own seed."""
    chosen = texts(16)
    return [
        {
            "text": chosen[i % 16],
            "sampling_params": {**params, "sampling_seed": 1000 + i},
            "return_logprob": True,
        }
        for i, params in enumerate(kinds())
    ]


def dividable(body: Mapping[str, Any]) -> bool:
    """Returns whether the server divides a request. One engine streams only the new tokens, and the
    answer to an undivided request is the engine's own."""
    return not {"presence_penalty", "stop_regex"} & set(body["sampling_params"])


async def answer(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> Any:
    """Returns the reply of `/generate`; of a stream, the last event."""
    async with session.post(f"{url}/generate", json=body) as reply:
        text = await reply.text()
        assert reply.status == 200, text
    if not body.get("stream"):
        return json.loads(text)
    events = events_in(text)
    for event, later in pairwise(events):
        had = event["output_ids"]
        assert later["output_ids"][: len(had)] == had, "an event takes no token back"
    return events[-1]


def assert_same(ours: Any, theirs: Any) -> None:
    """Asserts that a reply through the server is the plain server's."""
    for key in COMPARED:
        assert ours[key] == theirs[key]
    mine, other = ours["meta_info"], theirs["meta_info"]
    for key in COMPARED_META:
        assert mine[key] == other[key], key
    for (logprob, token, _), (expected, same, _) in zip(
        mine["output_token_logprobs"], other["output_token_logprobs"], strict=True
    ):
        assert token == same
        assert logprob == pytest.approx(expected, abs=LOGPROB_TOLERANCE)


async def test_each_reply_to_requests_of_different_sampling_is_sglangs(rig: Rig) -> None:
    """test_driver.py runs all kinds; here each draw and each end comes twice."""
    requests = [body for i, body in enumerate(bodies()) if (i // 8 - i) % 8 in (0, 3)]
    async with aiohttp.ClientSession() as session:
        theirs = await asyncio.gather(*(answer(session, rig.plain, body) for body in requests))
        async with through_us(rig.fleet(), AlwaysElsewhere(fetch=True)) as it:
            ours = await asyncio.gather(
                *(
                    answer(session, it.url, {**body, "stream": i % 2 == 1 and dividable(body)})
                    for i, body in enumerate(requests)
                )
            )
            undivided, now = it.service.passthrough.counts, await scraped(it)
    for mine, other in zip(ours, theirs, strict=True):
        assert_same(mine, other)
    assert undivided == {"presence_penalty": 2, "stop_regex": 1}
    metas = [reply["meta_info"] for reply in ours if "seer" in reply["meta_info"]]
    divided = [meta["seer"] for meta in metas]
    assert len(divided) == len(requests) - 3
    moved = [seer for seer in divided if len(set(seer["engines"])) > 1]
    assert len(moved) > 4
    assert sum(map(saved_steps, metas)) > 0, "drafts were accepted"
    # The server's figures are what its clients received.
    assert now("seer_generated_tokens_total") == sum(meta["completion_tokens"] for meta in metas)
    chunks = sum(seer["chunks"] for seer in divided)
    assert now("seer_chunks_total") == chunks + undivided.total()
    assert now("seer_recomputed_tokens_total") == sum(s["recomputed_tokens"] for s in divided)
    for engine in ("e0", "e1"):
        assert now("seer_engine_kv_capacity_tokens", engine=engine) > 0
        assert now("seer_engine_available", engine=engine) == 1
    assert now.sum("seer_chunk_errors_total") == 0


async def test_a_batch_with_n_is_sglangs(rig: Rig) -> None:
    params = {"max_new_tokens": LONGEST, "sampling_seed": 5, "temperature": 0.8, "n": 8}
    prompts = [body["text"] for body in bodies()[:2]]
    body = {"text": prompts, "sampling_params": params, "return_logprob": True}
    async with aiohttp.ClientSession() as session, through_us(rig.fleet()) as it:
        theirs, ours = [await answer(session, url, body) for url in (rig.plain, it.url)]
    assert len(ours) == len(theirs) == 2 * 8
    for mine, other in zip(ours, theirs, strict=True):
        assert_same(mine, other)


async def test_siblings_that_come_one_by_one_are_drafted_from_one_another(rig: Rig) -> None:
    siblings, chosen = 8, bodies()[:4]
    few_at_once = rig.fleet(scheduling={"max_inflight_per_engine": 2})
    prompts = [
        [
            {
                "text": body["text"],
                "sampling_params": {
                    "max_new_tokens": LONGEST,
                    "temperature": 0.0,
                    "sampling_seed": 50 * i + k,
                },
            }
            for k in range(siblings)
        ]
        for i, body in enumerate(chosen)
    ]

    async def answers(it: Served, first: Mapping[str, Any], *others: Mapping[str, Any]) -> Any:
        """Returns the replies to the requests of a prompt. The others begin once the first one has
        all of their tokens, which are equal: so each of them can be drafted to its end."""
        begun = [await answer(it.session, it.url, first)]
        return begun + await asyncio.gather(*(answer(it.session, it.url, b) for b in others))

    async def forward_passes(it: Served) -> int:
        return sum([await steps(it.session, url) for url in rig.urls])

    passes, from_siblings, replies = [], [], []
    for window_s in (0.0, 5.0):
        async with through_us(few_at_once, group_window_s=window_s) as it:
            before, drafted = await forward_passes(it), await sibling_drafts(it)
            found = await asyncio.gather(*(answers(it, *requests) for requests in prompts))
            replies.append([reply for each in found for reply in each])
            passes.append(await forward_passes(it) - before)
            from_siblings.append(await sibling_drafts(it) - drafted)
    alone, together = replies
    assert [r["output_ids"] for r in alone] == [r["output_ids"] for r in together]
    groups = {reply["meta_info"]["seer"]["group"] for reply in together}
    assert len(groups) == len(chosen)
    assert len({reply["meta_info"]["seer"]["group"] for reply in alone}) == len(alone)
    assert from_siblings[0] == 0
    assert from_siblings[1] > 10  # of one of 16 verifications, which has up to 32 drafts
    assert passes[1] < passes[0], "many tokens of a sibling are one step"


async def sibling_drafts(it: Served) -> int:
    """Returns accepted draft tokens that came from siblings; the engines count a part of all."""
    total = 0
    for engine in it.service.fleet.engines:
        drafting = await engine.drafting()
        assert drafting is not None
        total += sum(drafting["sources"].get(source, 0) for source in ("here", "elsewhere"))
    return total


async def test_turns_of_a_session_prefer_the_engine_with_their_kv(rig: Rig) -> None:
    """The first turns of two sessions run at once, on an engine each. Every later turn runs alone:
    without a preference, all of them would run on the first engine."""
    asked = {"one": [1] + [7] * 200, "other": [1] + [8] * 200}
    engines: defaultdict[str, set[str]] = defaultdict(set)
    cached: defaultdict[str, list[int]] = defaultdict(list)
    async with through_us(rig.fleet()) as it:

        async def take_turn(session: str, turn: int) -> None:
            reply = await it.generate(
                input_ids=asked[session],
                session_id=session,
                sampling_params={"max_new_tokens": 40, "ignore_eos": True, "sampling_seed": turn},
            )
            meta = reply["meta_info"]
            engines[session] |= set(meta["seer"]["engines"])
            cached[session].append(meta["cached_tokens"])
            asked[session] += [*reply["output_ids"], 9, 8]
            assert it.service.generation.open_groups >= 1

        await asyncio.gather(*(take_turn(session, 0) for session in asked))
        for turn in range(1, 4):
            for session in asked:
                await take_turn(session, turn)
        for session in asked:
            assert await it.post("/close_session", session_id=session) == (200, None)
    assert sorted(sorted(each) for each in engines.values()) == [["e0"], ["e1"]]
    for found in cached.values():
        assert all(more > least for more, least in zip(found[1:], (190, 230, 270), strict=True))
