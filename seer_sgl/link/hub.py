"""The driver's side of the draft hub: starts the hub's process, and the client of a hub."""

import asyncio
import contextlib
import os
import secrets
import sys
from array import array
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urljoin

import aiohttp
from typing_extensions import override

from seer_sgl.config import DraftConfig
from seer_sgl.draft.messages import Deltas, Done, batched, pieces, wire_name
from seer_sgl.errors import HubError
from seer_sgl.kept_processes import KeptProcess, kept_alive
from seer_sgl.processes import LOOPBACK, free_port
from seer_sgl.restarts import Restarts
from seer_sgl.timing import DEFAULT, Timing

from . import contract, messages
from .client import Link
from .drafthub import FACTS
from .hubserver import READY
from .server import link_url

FACTS_TIMEOUT_S = 2.0
START_TIMEOUT_S = 60.0
POLL_S = 0.05


class DraftSink(Protocol):
    """The driver's interface to the draft hub."""

    def load(self, group: str, sequence: int, tokens: "array[int]") -> None:
        """Adds a response of an earlier epoch to the group."""

    def done(self, group: str) -> None:
        """Removes a group that is complete or given up."""

    async def facts(self) -> dict[str, Any] | None:
        """Returns the hub's counters (`DraftHub.counted`); None if it does not answer."""


class HubClient(DraftSink):
    """The driver's connection to the draft hub at `url`; reconnects by itself.

    After a reconnect it sends the responses of unfinished groups again: the hub may be a new one.
    """

    def __init__(self, url: str, token: str, timing: Timing = DEFAULT) -> None:
        self.url = url
        self._loaded: dict[str, list[tuple[int, array[int]]]] = {}  # by group
        self._facts_url = urljoin(url, FACTS)
        self._headers = {"Authorization": f"Bearer {token}"}
        hello = messages.Hello(messages.PROTOCOL, f"driver-{secrets.token_hex(4)}", 0, 1)
        self._link = Link(url, token, hello, timing)
        self._link.on_connect(self._send_again)

    @override
    def load(self, group: str, sequence: int, tokens: "array[int]") -> None:
        self._loaded.setdefault(wire_name(group), []).append((sequence, tokens))
        self._send(wire_name(group), [(sequence, tokens)])

    @override
    def done(self, group: str) -> None:
        self._loaded.pop(wire_name(group), None)
        self._link.send(Done([wire_name(group)]))

    @override
    async def facts(self) -> dict[str, Any] | None:
        timeout = aiohttp.ClientTimeout(total=FACTS_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
                session.get(self._facts_url) as reply,
            ):
                counted: Any = await reply.json()
                return counted if reply.status == 200 and isinstance(counted, dict) else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    def close(self) -> None:
        """Disconnects for good."""
        self._link.close()

    def _send_again(self) -> None:
        """Runs in the link's thread."""
        for group, loaded in list(self._loaded.items()):
            self._send(group, list(loaded))

    def _send(self, group: str, loaded: Iterable[tuple[int, "array[int]"]]) -> None:
        parts = (part for sequence, tokens in loaded for part in pieces(group, sequence, tokens, 0))
        for batch in batched(parts):
            self._link.send(Deltas(batch.deltas))


@contextlib.asynccontextmanager
async def start_hub(
    config: DraftConfig,
    log_dir: Path,
    token: str,
    host: str = LOOPBACK,
    *,
    all_restarts: list[Restarts] | None = None,
    timing: Timing = DEFAULT,
) -> AsyncIterator[str]:
    """Starts a draft hub on `host` for the block, restarts it if it dies, and yields its URL.

    `all_restarts`: as in `kept_alive`. Raises HubError if it does not become ready.
    """
    port = free_port(host)
    arguments = ["drafthub", "--host", host, "--port", str(port), "--memory", config.memory]
    process = KeptProcess(
        "draft hub",
        [sys.executable, "-m", "seer_sgl", *arguments],
        log_dir / "drafthub.log",
        {**os.environ, contract.LINK_TOKEN: token},
    )
    try:
        await process.start()
        await _ready(process)
        async with kept_alive([process], all_restarts, timing):
            yield link_url(f"{host}:{port}")
    finally:
        await process.stop()


async def _ready(process: KeptProcess) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_TIMEOUT_S):
            while not process.ended:
                if READY in process.log.read_text(errors="replace"):
                    return
                await asyncio.sleep(POLL_S)
    reason = process.exit_reason() or f"not ready after {START_TIMEOUT_S:g} s"
    raise HubError(f"draft hub: {reason}; the end of its log:\n{process.log_tail()}")
