"""Drafting over the link, on real sockets.

The tokens of one engine reach the others, even if a peer connects, stops reading or sends garbage.
"""

import itertools
import json
from array import array
from collections import Counter
from collections.abc import AsyncIterator
from socket import SO_RCVBUF, SOL_SOCKET

import aiohttp
import pytest

from seer_sgl.config import DraftConfig
from seer_sgl.draft.messages import FRAME_BYTES, Delta, Deltas, Done, Open, ToReplica
from seer_sgl.engine.launch import draft_flags as engine_flags
from seer_sgl.link import client as engine_side
from seer_sgl.link import contract, messages
from seer_sgl.link.client import Link
from seer_sgl.link.drafthub import DraftHub
from seer_sgl.link.hub import HubClient
from seer_sgl.link.messages import Hello
from seer_sgl.link.server import LinkServer, open_link
from seer_sgl.plugin import drafting
from tests.draft.fakes import FakeDrafter
from tests.draft.replicas import tokens_of
from tests.support.hubs import MEMORY, all_have, engine, hub_client, hub_of, while_stepping
from tests.support.links import closed, raw_socket
from tests.support.timing import SOON
from tests.support.waiting import DEADLINE_S, until


@pytest.fixture(autouse=True)
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_side, "_links", {})


NOWHERE = "http://127.0.0.1:9/link"


def hello(instance: str) -> Hello:
    return Hello(messages.PROTOCOL, instance, 0, 1)


@pytest.fixture
async def server() -> AsyncIterator[LinkServer]:
    async with open_link(drafts=DraftHub(MEMORY)) as opened:
        yield opened


@pytest.fixture
async def driver(server: LinkServer) -> AsyncIterator[HubClient]:
    async with hub_client(server.url, server.token) as client:
        yield client


async def test_what_one_engine_decodes_is_in_the_index_of_the_other(
    server: LinkServer, driver: HubClient
) -> None:
    async with (
        engine(server.url, server.token, "one") as one,
        engine(server.url, server.token, "two") as two,
    ):
        first = one.replica.begin("g", 0, [1], [])
        second = two.replica.begin("g", 1, [1], [])
        one.decode(first, 5, 6)
        two.decode(second, 7)
        await all_have([one, two], [5, 6], [7])
        driver.load("g", 2, array("i", [8]))
        await all_have([one, two], [5, 6], [7], [8])
        driver.done("g")
        await while_stepping([one, two], lambda: not one.drafter.groups and not two.drafter.groups)


async def test_each_of_two_hubs_serves_its_own_groups(
    server: LinkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ["0", "1", "2", "3"]
    async with open_link(token=server.token, drafts=DraftHub(MEMORY)) as other:
        urls = f"{server.url},{other.url}"
        monkeypatch.setenv(contract.HUB_URL, urls)
        monkeypatch.setenv(contract.LINK_TOKEN, server.token)
        monkeypatch.setenv(contract.INSTANCE, "one")
        drafter = FakeDrafter()
        settings = contract.DraftSettings("fleet", 8, 2, 1 << 20)
        replica = drafting.join(drafter, settings, 0, 1, vocab_size=100)
        assert replica is not None
        driver = HubClient(urls, server.token, SOON)
        hubs = [hub_of(each).hub for each in (server, other)]
        for group in groups:
            slot = replica.begin(group, 0, [1], [])
            drafter.step(slot, [5])
            replica.grown(slot, [5])
            driver.load(group, 1, array("i", [8]))

        times = itertools.count(0.1, 0.1)

        def known() -> list[list[int]]:
            replica.drain(next(times))
            return [
                [n for n, group in enumerate(groups) if set(tokens_of(hub, group)) == {0, 1}]
                for hub in hubs
            ]

        await until(lambda: sum(map(len, known())) == len(groups))
        assert sorted(n for part in known() for n in part) == [0, 1, 2, 3], "each by one hub"
        assert all(known()), "both serve some"
        facts = await driver.facts()
        assert facts is not None
        assert facts["groups_begun"] == len(groups)
        assert facts["tokens_in"] == 2 * len(groups)
        assert facts["lag"]["max_s"] == max(
            hub_of(each).counted()["lag"]["max_s"] for each in (server, other)
        )
        for group in groups:
            driver.done(group)
        await until(lambda: not any(group in hub.groups for group in groups for hub in hubs))
        links = [*driver.links, *engine_side.hub_links(0, 1)]
        for link in links:
            link.close()
        await until(lambda: not any(link.thread.is_alive() for link in links))


async def test_the_counters_of_two_hubs_need_an_answer_of_both(server: LinkServer) -> None:
    async with hub_client(f"{server.url},{NOWHERE}", server.token) as client:
        assert await client.facts() is None


async def test_a_hub_tells_those_with_the_token_what_it_has_counted(
    server: LinkServer, driver: HubClient
) -> None:
    async with (
        engine(server.url, server.token, "one") as one,
        engine(server.url, server.token, "two") as two,
    ):
        one.decode(one.replica.begin("g", 0, [1], []), 5, 6)
        two.decode(two.replica.begin("g", 1, [1], []), 7)
        await all_have([one, two], [5, 6], [7])
        facts = await driver.facts()
    assert facts is not None
    assert facts == hub_of(server).counted()
    counted = {key: facts[key] for key in ("groups", "groups_begun", "tokens_in", "tokens_out")}
    assert counted == {"groups": 1, "groups_begun": 1, "tokens_in": 3, "tokens_out": 3}
    assert facts["lag"]["count"] >= 2
    assert 0 < facts["lag"]["max_s"] <= facts["lag"]["sum_s"]
    for url in (server.url, NOWHERE):
        async with hub_client(url, "wrong") as stranger:
            assert await stranger.facts() is None


async def test_only_the_first_rank_of_a_server_speaks_of_drafts(server: LinkServer) -> None:
    async with engine(server.url, server.token, "one", rank=1) as second:
        second.link.send(Deltas([Delta("g", 0, 0, b"abcd")]))
        heard: list[messages.Rates] = []
        server.on_rates = heard.append
        second.link.send(messages.Rates(1, 1.0, 0, 0.0))
        await until(lambda: heard)
        assert "g" not in hub_of(server).hub.groups


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 1000,
        messages.encode(Deltas([Delta("g", -1, 0, b"abcd")])),
        messages.encode(Deltas([Delta("g", 0, 0, bytes(messages.MAX_FRAME_BYTES))])),
    ],
    ids=["zeros", "an impossible value", "huge"],
)
async def test_a_hostile_frame_closes_its_socket_only(
    server: LinkServer, driver: HubClient, garbage: bytes
) -> None:
    async with (
        engine(server.url, server.token, "one") as one,
        raw_socket(server, hello("evil")) as socket,
    ):
        one.decode(one.replica.begin("g", 0, [1], []), 5)
        await while_stepping([one], lambda: 0 in tokens_of(hub_of(server).hub, "g"))
        await socket.send_bytes(garbage)
        assert await closed(socket)
        driver.load("g", 1, array("i", [6]))
        await all_have([one], [5], [6])
    assert list(tokens_of(hub_of(server).hub, "g")) == [0, 1]


async def test_a_reader_that_stops_holds_up_nobody_and_no_memory(
    server: LinkServer, driver: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames_long = 40
    response = array("i", range(FRAME_BYTES // 5))
    hub = hub_of(server).hub
    take, taken = hub.take, Counter[str]()

    def counted(peer: str) -> ToReplica | None:
        message = take(peer)
        taken[peer.partition("#")[0]] += message is not None
        return message

    monkeypatch.setattr(hub, "take", counted)

    async def read(socket: aiohttp.ClientWebSocketResponse) -> None:
        lacking = frames_long
        while lacking:
            message = messages.decode((await socket.receive(DEADLINE_S)).data, messages.to_engine)
            assert isinstance(message, Deltas)
            lacking -= sum(delta.position == 0 for delta in message.deltas)

    wants = Open({"g": {}})
    async with (
        raw_socket(server, hello("slow"), wants) as slow,
        raw_socket(server, hello("fast"), wants) as fast,
    ):
        # A small buffer, so that the kernel does not accept frames for a peer that does not read.
        slow.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, 1 << 16)
        await until(lambda: "g" in hub.groups and len(hub.groups["g"].peers) == 2)
        for sequence in range(frames_long):
            driver.load("g", sequence, response)
        await read(fast)
        assert taken["slow"] < frames_long / 2, "the other frames are in no queue"
        await read(slow)


def test_an_offer_to_nobody_is_declined() -> None:
    link = Link("http://127.0.0.1:9/link", "secret", Hello(messages.PROTOCOL, "one", 0, 1))
    link.offer(Done(["g"]))
    assert not link._waiting
    link.close()


async def test_the_links_of_a_process_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.LINK_TOKEN, "secret")
    for name in (contract.LINK_URL, contract.HUB_URL):
        monkeypatch.delenv(name, raising=False)
    assert engine_side.driver_link(0, 1) is None
    assert engine_side.hub_links(0, 1) == []
    monkeypatch.setenv(contract.LINK_URL, "http://127.0.0.1:9/link")
    driver = engine_side.driver_link(0, 1)
    assert driver is not None
    assert engine_side.driver_link(0, 1) is driver
    assert engine_side.hub_links(0, 1) == []
    urls = ["http://127.0.0.1:10/link", "http://127.0.0.1:11/link"]
    monkeypatch.setenv(contract.HUB_URL, ",".join(urls))
    links = engine_side.hub_links(0, 1)
    assert [link._url for link in links] == urls, "in the order that every process is given"
    assert engine_side.hub_links(0, 1) == links
    assert driver not in links
    for link in (driver, *links):
        link.close()


@pytest.mark.parametrize("rank", [0, 1])
async def test_the_worker_joins_with_what_the_environment_says(
    server: LinkServer, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DraftConfig(scope="fleet", max_draft_tokens=8, paths=2, memory="1mb")
    assert engine_flags.flags(config) == {
        "speculative-algorithm": "SEER_GROUP",
        "speculative-num-draft-tokens": 9,
    }
    for name, value in engine_flags.environment(config, exact=True).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(contract.LINK_URL, server.url)
    monkeypatch.setenv(contract.HUB_URL, server.url)
    monkeypatch.setenv(contract.LINK_TOKEN, server.token)
    monkeypatch.setenv(contract.INSTANCE, "one")
    wanted = drafting.settings()
    assert wanted == contract.DraftSettings("fleet", 8, 2, 1 << 20, exact=True)
    assert wanted.max_tokens == (1 << 20) // contract.INDEX_BYTES
    drafter = FakeDrafter()
    replica = drafting.join(drafter, wanted, rank, 2, vocab_size=100)
    if rank:
        assert replica is None
        await until(lambda: server._sockets.get("one"))
    else:
        assert replica is not None
        drafter.step(slot := replica.begin("g", 0, [1], []), [5])
        replica.grown(slot, [5])
        receiver, times = replica, itertools.count(0.1, 0.1)

        def flushed() -> object:
            receiver.drain(next(times))
            return tokens_of(hub_of(server).hub, "g")

        await until(flushed)
    for link in engine_side.hub_links(rank, 2):
        link.close()


def test_without_drafting_an_engine_is_started_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(contract.DRAFT, raising=False)
    assert engine_flags.flags(DraftConfig()) == engine_flags.environment(DraftConfig(), False) == {}
    assert drafting.settings() is None
    assert drafting.DraftStatus().report() is None
    hub = DraftConfig(scope="fleet", hub="h:1")
    assert engine_flags.environment(hub, False)[contract.HUB_URL] == "http://h:1/link"
    assert json.loads(engine_flags.environment(hub, False)[contract.DRAFT])["scope"] == "fleet"
