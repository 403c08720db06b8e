"""Drafts from siblings on another engine, on two real servers. The hub dies and restarts, has an
unreliable connection, and is attacked: this costs drafts but never a token."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import msgspec
import psutil
import pytest
import yaml
from typing_extensions import override

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.draft.hub import MAX_GROUPS
from seer_sgl.engine import wire
from seer_sgl.engine.client import HttpEngine
from seer_sgl.processes import free_port
from seer_sgl.types import Chunk, ChunkReply, ChunkResult, Group
from tests.e2e.compare import Samples, assert_identical, by_key, roll
from tests.e2e.conftest import HELD_OUT, MODEL, servers, two_cores, two_urls
from tests.e2e.hub import attack, hub_process, relay
from tests.e2e.test_pool import SGLANG, local
from tests.helpers import Returns

pytestmark = pytest.mark.own_engines

TOKEN = "a secret of this test"
SAMPLING = {"max_response_len": 600}
SCHEDULING = {"chunk_tokens": 128}
PROMPTS = 8  # a run of about 200 chunks
LONELY_PROMPTS = 3
MEMORY = "2mb"
HUB_TOKENS = (2 << 20) // 4
HUB_BYTES = 256 << 20  # memory limit of the whole hub process
ABORTS, PAUSE_S, MANY = 200, 0.05, 20
STRIDE = 17  # most tokens per step: 16 drafts and one more
KILL_AFTER, RESTART_AFTER = 30, 70  # chunks
LINKS = 3  # two engines and the driver
POLL_S = 0.02


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Returns all samples of one engine without drafts, undivided."""
    plain = local(1, scheduling={"divide": False}, sampling=SAMPLING)
    samples, report = asyncio.run(roll(plain, PROMPTS, log_dir=tmp_path_factory.mktemp("plain")))
    assert report["drafting"] is None
    assert report["chunks"] == report["samples"] == 8 * PROMPTS
    return samples


@pytest.fixture(scope="module")
def fleet(whole: Samples, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Yields the config of two running engines that connect to a hub, which does not run yet.

    It takes `whole` as an argument, so that at most two servers run at once.
    """
    urls, folder = two_urls(), tmp_path_factory.mktemp("fleet")
    config = {
        "model": {"path": str(MODEL)},
        "engines": {"launch": "external", "urls": urls, "sglang": SGLANG},
        "draft": {"scope": "fleet", "hub": f"127.0.0.1:{free_port()}", "memory": "64mb"},
        "scheduling": SCHEDULING,
        "sampling": SAMPLING,
        "rollout": {"seed": 11},
    }
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SEER_SGL_LINK_TOKEN", TOKEN)
        with servers(urls, [["--fleet", str(path)]] * len(urls), folder, cores=two_cores()):
            yield config


async def test_without_their_hub_engines_draft_from_what_they_have(
    whole: Samples, fleet: dict[str, Any]
) -> None:
    samples, report = await roll(fleet, LONELY_PROMPTS, placement=AlwaysElsewhere())
    groups = {group for group, _ in samples}
    assert len(samples) == 8 * LONELY_PROMPTS == 8 * len(groups)
    assert_identical({key: one for key, one in whole.items() if key[0] in groups}, samples)
    drafting = report["drafting"]
    assert drafting["accept_length"] > 1
    assert drafting["hub"] is None
    assert not drafting["sources"]["elsewhere"]
    assert [engine["received_tokens"] for engine in drafting["engines"]] == [0, 0]


class Aborts(Returns):
    """Aborts chunks from outside at random times, and counts their kept and redrawn tokens."""

    def __init__(self, urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept = 0  # kept tokens of aborted chunks of an engine with drafts
        self.redrawn: list[int] = []  # tokens of each aborted chunk that were not kept
        self._urls = urls
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

    async def abort(self, times: int, seed: int) -> None:
        """Aborts up to `times` random chunks in flight, drawn with `seed`."""
        draw = random.Random(seed)
        async with aiohttp.ClientSession() as session:
            for _ in range(times):
                await asyncio.sleep(draw.uniform(0.0, PAUSE_S))
                if not self._inflight:
                    continue
                rid = draw.choice(sorted(self._inflight))
                url = self._urls[int(self._inflight[rid].engine_id.removeprefix("e"))]
                async with session.post(f"{url}/abort_request", json={"rid": rid}) as reply:
                    assert reply.status == 200


async def test_aborts_from_outside_cost_a_step_each_and_change_no_token(
    whole: Samples, fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = fleet["engines"]["urls"]
    aborts = Aborts(urls, monkeypatch)
    undivided = {**fleet, "scheduling": {"divide": False}, "rollout": dict(fleet["rollout"])}
    async with asyncio.TaskGroup() as tasks:
        aborting = tasks.create_task(aborts.abort(ABORTS, seed=3))
        samples, report = await roll(undivided, LONELY_PROMPTS, [aborts])
        aborting.cancel()
    groups = {group for group, _ in samples}
    assert_identical({key: one for key, one in whole.items() if key[0] in groups}, samples)
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
        """Whether the gate is shut."""
        return not self._open.is_set()

    def open(self) -> None:
        """Opens the gate."""
        self._open.set()


def children() -> set[int]:
    """Returns the pids of all child processes of this process."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


async def all_groups(run: AsyncIterator[Group]) -> list[Group]:
    """Returns all groups of a run, after its end."""
    return [group async for group in run]


async def received(rollout: Rollout) -> int:
    """Returns the tokens that the engines have received from the hub since their start."""
    facts = [await engine.drafting() for engine in rollout._opened.fleet.engines]
    return sum(one["replica"]["received_tokens"] for one in facts if one is not None)


async def test_whatever_becomes_of_the_hub_no_token_changes(
    whole: Samples, fleet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    port = int(fleet["draft"]["hub"].rpartition(":")[2])
    fleet["rollout"]["max_prompts"] = PROMPTS
    gate = Gate(monkeypatch, shut_after=RESTART_AFTER)
    async with hub_process(free_port(), MEMORY, TOKEN) as hub:
        async with (
            relay(port, hub.address, seed=5) as line,
            Rollout(fleet, placement=AlwaysElsewhere()) as rollout,
        ):
            prompts = rollout.read_prompts(HELD_OUT)
            run = asyncio.ensure_future(all_groups(rollout.run(prompts, [gate])))

            async def until(condition: Callable[[], object]) -> None:
                while not condition():
                    assert not run.done(), run.result()
                    await asyncio.sleep(POLL_S)

            await until(lambda: gate.returns >= KILL_AFTER)
            first = await hub.facts()
            await hub.end()
            await until(lambda: gate.shut)
            await until(lambda: not line.open)
            await hub.start()
            await until(lambda: line.open == LINKS)
            had = await received(rollout)
            gate.open()
            await attack(hub.address, TOKEN, list(gate.groups)[:2])
            flooded = await hub.facts()
            groups = await run
            has = await received(rollout)
            second, report = await hub.facts(), rollout.report()
        assert await hub.end(signal.SIGTERM) == 0
    assert_identical(whole, by_key([sample for group in groups for sample in group.samples]))
    assert report["lost_chunks"] == 0
    assert report["migrations"] == report["chunks"] - report["samples"] > 100
    drafting = report["drafting"]
    assert drafting["accept_length"] > 1
    assert drafting["sources"]["elsewhere"] > 0
    assert all(line.faults.values()), line.faults
    assert first["tokens_out"] > 0
    assert has > had > 0, "tokens flow again"
    assert second["tokens_out"] >= has - had
    assert flooded["refused"] > 0
    assert flooded["groups_begun"] > MAX_GROUPS >= flooded["groups"]
    assert max(flooded["tokens"], second["tokens"]) <= HUB_TOKENS
    assert max(flooded["rss"], second["rss"]) < HUB_BYTES
    assert drafting["hub"]["tokens_in"] >= flooded["tokens_in"], "the restarted hub"
    assert children() == before
