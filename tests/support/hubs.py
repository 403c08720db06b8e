"""Engines on a draft hub."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from seer_sgl.link import messages
from seer_sgl.link.client import Link
from seer_sgl.link.drafthub import DraftHub
from seer_sgl.link.hub import HubClient
from seer_sgl.link.messages import Hello
from seer_sgl.link.server import LinkServer
from seer_sgl.plugin import drafting
from tests.draft.replicas import Engine
from tests.support.timing import SOON
from tests.support.waiting import until

MEMORY = 1 << 26


class LinkedEngine(Engine):
    """An engine's scheduler process: a replica on a link. The test runs its steps."""

    def __init__(self, link: Link) -> None:
        super().__init__(send=link.offer)
        self.link = link
        for kind in drafting.FROM_HUB:
            link.on(kind, self.replica.received)
        link.on_connect(self.replica.connected)


async def while_stepping(engines: list[LinkedEngine], condition: Callable[[], object]) -> None:
    """Runs the engines' steps until a condition is true."""

    def step() -> object:
        for engine in engines:
            engine.pass_time()
        return condition()

    await until(step)


async def all_have(engines: list[LinkedEngine], *sequences: list[int]) -> None:
    """Runs the engines' steps until each has these sequences of group g."""
    await while_stepping(
        engines, lambda: all(engine.index("g") == sorted(sequences) for engine in engines)
    )


@asynccontextmanager
async def engine(url: str, token: str, instance: str, rank: int = 0) -> AsyncIterator[LinkedEngine]:
    link = Link(url, token, Hello(messages.PROTOCOL, instance, rank, 1 + rank), SOON)
    try:
        yield LinkedEngine(link)
    finally:
        link.close()
        await until(lambda: not link.thread.is_alive())


@asynccontextmanager
async def hub_client(urls: str, token: str) -> AsyncIterator[HubClient]:
    """Opens a driver's connection to hubs; its threads have ended after the block."""
    client = HubClient(urls, token, SOON)
    try:
        yield client
    finally:
        client.close()
        await until(lambda: not any(link.thread.is_alive() for link in client.links))


def hub_of(server: LinkServer) -> DraftHub:
    assert server.drafts is not None
    return server.drafts
