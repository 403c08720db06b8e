"""Drafts from siblings on another engine, on two real servers. The hub dies, restarts and is
attacked: this costs drafts but never a token.

tests/draft/test_replica_healing.py has messages that are lost, doubled and swapped.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec
import psutil
import pytest
from typing_extensions import override

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.draft.hub import MAX_GROUPS
from seer_sgl.engine import wire
from seer_sgl.engine.client import HttpEngine
from seer_sgl.types import Chunk, ChunkReply, ChunkResult
from tests.e2e.compare import Samples, assert_identical, collected, roll, rolled
from tests.e2e.conftest import HELD_OUT, draft_hubs
from tests.e2e.draws import control, steps
from tests.e2e.hub import attack, facts
from tests.e2e.rig import TOKEN, WHOLE, Rig
from tests.helpers import Returns

pytestmark = pytest.mark.shared_engines

PROMPTS = 8  # a run of about 200 chunks
LONELY_PROMPTS = 3
MEMORY = "2mb"
HUB_TOKENS = (2 << 20) // 4
HUB_BYTES = 256 << 20  # memory limit of the whole hub process
STEPS, MANY = 8, 20
STRIDE = 17  # most tokens per step: 16 drafts and one more
KILL_AFTER, RESTART_AFTER = 30, 70  # chunks
POLL_S = 0.01


def fleet(rig: Rig) -> dict[str, Any]:
    """Returns the config of the drafting engines with chunks of 128 tokens."""
    return rig.fleet(sampling=WHOLE, scheduling={"chunk_tokens": 128})


def of_groups(whole: Samples, samples: Samples) -> Samples:
    """Returns the undivided samples of the groups of `samples`."""
    groups = {group for group, _ in samples}
    return {key: sample for key, sample in whole.items() if key[0] in groups}


async def test_without_their_hub_engines_draft_from_what_they_have(rig: Rig) -> None:
    whole = await rig.undivided(sampling=WHOLE)
    with rig.without_hub():
        async with Rollout(fleet(rig)) as rollout:
            await rolled(rollout, 1)  # engines read in steps what the hub still sent them
        async with Rollout(fleet(rig), placement=AlwaysElsewhere()) as rollout:
            before = await received(rollout)
            samples, report = await rolled(rollout, LONELY_PROMPTS)
            assert await received(rollout) == before, "no token of another engine"
    assert len(samples) == 8 * LONELY_PROMPTS
    assert_identical(of_groups(whole, samples), samples)
    drafting = report["drafting"]
    assert drafting["accept_length"] > 1
    assert drafting["hub"] is None


class Aborts(Returns):
    """Aborts random chunks from outside, and counts their kept and redrawn tokens."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept = 0  # kept tokens of aborted chunks of an engine with drafts
        self.redrawn: list[int] = []  # tokens of each aborted chunk that were not kept
        self.over = False  # nothing more is aborted
        self._random = random.Random(seed)
        self._inflight: dict[str, Chunk] = {}  # by rid
        decode_generate = wire.decode_generate

        def counted(body: bytes, chunk: Chunk, vocab_size: int | None) -> ChunkReply:
            reply = decode_generate(body, chunk, vocab_size)
            if reply.finish == "abort":
                had = len(msgspec.json.decode(body)["meta_info"]["output_token_logprobs"])
                self.redrawn.append(had - len(reply.ids))
                self.kept += len(reply.ids) if reply.verify_steps else 0
            return reply

        monkeypatch.setattr(wire, "decode_generate", counted)

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self._inflight[chunk.rid] = chunk

    @override
    def returned(self, result: ChunkResult) -> None:
        del self._inflight[result.chunk.rid]

    async def abort(self, engine_id: str, url: str) -> None:
        """Aborts half of an engine's chunks whenever it has made some steps with them. It is paused
        meanwhile, so that they do not end before."""
        async with aiohttp.ClientSession() as session:
            while not self.over:
                await asyncio.sleep(POLL_S)
                chunks = [rid for rid, c in self._inflight.items() if c.engine_id == engine_id]
                if not chunks:
                    continue
                due = await steps(session, url) + STEPS
                while await steps(session, url) < due and not self.over:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)  # each look interrupts the engine
                try:
                    await control(session, url, "/pause_generation", mode="in_place")
                    left = [rid for rid in chunks if rid in self._inflight]
                    for rid in self._random.sample(left, (len(left) + 1) // 2):
                        await control(session, url, "/abort_request", rid=rid)
                finally:
                    await control(session, url, "/continue_generation")


async def test_aborts_from_outside_cost_a_step_each_and_change_no_token(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await rig.undivided(sampling=WHOLE)
    aborts = Aborts(3, monkeypatch)
    undivided = rig.fleet(sampling=WHOLE, scheduling={"divide": False})
    async with asyncio.TaskGroup() as tasks:
        for number, url in enumerate(rig.urls):
            tasks.create_task(aborts.abort(f"e{number}", url))
        samples, report = await roll(undivided, LONELY_PROMPTS, [aborts])
        aborts.over = True
    assert_identical(of_groups(whole, samples), samples)
    # Siblings stay on two engines here. Where every chunk moves, hardly a token is only elsewhere.
    assert report["drafting"]["sources"]["elsewhere"] > 0
    assert len([redrawn for redrawn in aborts.redrawn if redrawn]) > MANY
    assert max(aborts.redrawn) <= STRIDE, "at most the tokens of one step"
    assert aborts.kept > MANY
    assert report["lost_chunks"] == 0
    drawn = sum(engine["response_tokens"] for engine in report["engines"])
    assert drawn == report["response_tokens"], "kept tokens are not drawn again"


class Gate(Returns):
    """Counts chunks, stores their groups, and blocks new chunks while it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shut_after: int) -> None:
        self.returns = 0
        self.groups: dict[str, None] = {}  # by uid
        self._shut_after = shut_after
        self._open = asyncio.Event()
        self._open.set()
        generate = HttpEngine.generate

        async def gated(engine: HttpEngine, chunk: Chunk, *rest: Any) -> ChunkReply:
            await self._open.wait()
            return await generate(engine, chunk, *rest)

        monkeypatch.setattr(HttpEngine, "generate", gated)

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self.groups[chunk.request.group.uid] = None

    @override
    def returned(self, result: ChunkResult) -> None:
        self.returns += 1
        if self.returns == self._shut_after:
            self._open.clear()

    @property
    def shut(self) -> bool:
        return not self._open.is_set()

    def open(self) -> None:
        self._open.set()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


async def received(rollout: Rollout) -> int:
    """Returns the tokens that the engines have received from the hub since their start."""
    facts = [await engine.drafting() for engine in rollout.fleet.engines]
    return sum(one["replica"]["received_tokens"] for one in facts if one is not None)


async def test_a_hub_that_is_killed_restarted_and_attacked_changes_no_token(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await rig.undivided(PROMPTS, sampling=WHOLE)
    gate = Gate(monkeypatch, shut_after=RESTART_AFTER)
    with rig.without_hub(), contextlib.ExitStack() as hubs:
        before = children()

        def start_hub() -> int:
            """Returns the process id of a hub that serves. It takes seconds to start."""
            (hub,) = hubs.enter_context(draft_hubs(rig.hub, "--memory", MEMORY))
            return hub.pid

        pid = start_hub()
        async with Rollout(fleet(rig), placement=AlwaysElsewhere()) as rollout:
            prompts = rollout.read_prompts(HELD_OUT)[:PROMPTS]
            run = asyncio.ensure_future(collected(rollout.run(prompts, [gate])))

            async def until(condition: Callable[[], object]) -> None:
                while not condition():
                    assert not run.done(), run.result()
                    await asyncio.sleep(POLL_S)

            await until(lambda: gate.returns >= KILL_AFTER)
            while not (await facts(rig.hub, TOKEN, pid))["tokens_out"]:
                assert not run.done(), run.result()
                await asyncio.sleep(POLL_S)
            hubs.close()  # kills it
            await until(lambda: gate.shut)
            pid = await asyncio.to_thread(start_hub)
            had = await received(rollout)
            gate.open()
            await attack(rig.hub, TOKEN, list(gate.groups)[:2])
            flooded = await facts(rig.hub, TOKEN, pid)
            samples = await run
            has = await received(rollout)
            second, report = await facts(rig.hub, TOKEN, pid), rollout.report()
        hubs.close()
        assert children() == before
    assert_identical(whole, samples)
    assert report["lost_chunks"] == 0
    assert report["migrations"] == report["chunks"] - report["samples"] > 100
    drafting = report["drafting"]
    assert drafting["accept_length"] > 1
    assert has > had > 0, "tokens flow again"
    assert second["tokens_out"] >= has - had
    assert flooded["refused"] > 0
    assert flooded["groups_begun"] > MAX_GROUPS >= flooded["groups"]
    assert max(flooded["tokens"], second["tokens"]) <= HUB_TOKENS
    assert max(flooded["rss"], second["rss"]) < HUB_BYTES
    assert drafting["hub"]["tokens_in"] >= flooded["tokens_in"], "the restarted hub"
