"""The driver's side of the draft hub: starts the hub's process, and the client of a hub."""

import asyncio
import contextlib
import functools
import os
import secrets
import sys
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import aiohttp

from seer_sgl.config import DraftConfig
from seer_sgl.draft.messages import Done, ToHub, batched, by_hub, hub_of, pieces, wire_name
from seer_sgl.errors import HubError
from seer_sgl.processes.child import LOOPBACK, free_port
from seer_sgl.processes.restarts import Restarts
from seer_sgl.processes.supervisor import SupervisedProcess, has_logged, supervised, until_ready
from seer_sgl.timing import DEFAULT, Timing

from . import contract, messages
from .client import Link
from .drafthub import FACTS
from .hubserver import READY
from .server import link_url

FACTS_BYTES = 1 << 20  # of a hub's counters
START_TIMEOUT_S = 60.0
ENGINES_PER_HUB = 64  # python -m bench.hub


class HubClient:
    """The driver's connections to the draft hubs at `url`; they reconnect by themselves.

    After a reconnect it sends a hub the responses of its unfinished groups again: it may be new.
    `url`: of several hubs, separated by commas; each serves the groups that `hub_of` gives it.
    `links`: one per hub, in this order.
    """

    def __init__(self, url: str, token: str, timing: Timing = DEFAULT) -> None:
        self.url = url
        self._loaded: dict[str, list[tuple[int, array[int]]]] = {}  # by group
        self._timeout = aiohttp.ClientTimeout(total=timing.draft_read_s)
        self._headers = {"Authorization": f"Bearer {token}"}
        hello = messages.Hello(messages.PROTOCOL, f"driver-{secrets.token_hex(4)}", 0, 1)
        self.links = [Link(hub_url, token, hello, timing) for hub_url in url.split(",")]
        for hub, link in enumerate(self.links):
            link.on_connect(functools.partial(self._send_again, hub))

    def load(self, group: str, sequence: int, tokens: "array[int]") -> None:
        """Adds a response of an earlier epoch to the group."""
        self._loaded.setdefault(wire_name(group), []).append((sequence, tokens))
        self._send_loaded(wire_name(group), [(sequence, tokens)])

    def done(self, group: str) -> None:
        """Removes a group that is complete or given up."""
        self._loaded.pop(wire_name(group), None)
        self._send(Done([wire_name(group)]))

    async def facts(self) -> dict[str, Any] | None:
        """Returns the hub's counters (`DraftHub.counted`); None if it does not answer."""
        async with aiohttp.ClientSession(
            headers=self._headers, timeout=self._timeout, auto_decompress=False
        ) as session:
            counted = await asyncio.gather(*(_facts(session, url) for url in self.url.split(",")))
        if None in counted:
            return None
        together: dict[str, Any] | None = counted[0] if len(counted) == 1 else _added(counted)
        return together

    def close(self) -> None:
        """Disconnects for good."""
        for link in self.links:
            link.close()

    def _send_again(self, hub: int) -> None:
        """Runs in the link's thread."""
        for group, loaded in list(self._loaded.items()):
            if hub_of(group, len(self.links)) == hub:
                self._send_loaded(group, list(loaded))

    def _send_loaded(self, group: str, loaded: Iterable[tuple[int, "array[int]"]]) -> None:
        parts = (part for sequence, tokens in loaded for part in pieces(group, sequence, tokens, 0))
        for batch in batched(parts):
            self._send(batch)

    def _send(self, message: ToHub) -> None:
        for hub, part in by_hub(message, len(self.links)).items():
            self.links[hub].send(part)


async def _facts(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """Returns the counters of the hub at `url`; None if it does not answer."""
    try:
        async with session.get(urljoin(url, FACTS)) as reply:
            if reply.status != 200 or not 0 < (reply.content_length or 0) <= FACTS_BYTES:
                return None
            counted: Any = await reply.json()
            return counted if isinstance(counted, dict) else None
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, RecursionError):
        return None


def _added(counted: Sequence[Any], name: str = "") -> Any:
    """Returns the counters of several hubs together: sums, the longest wait, all instances."""
    first = counted[0]
    if all(isinstance(counters, dict) for counters in counted):
        return {key: _added([counters.get(key) for counters in counted], key) for key in first}
    if all(isinstance(count, int | float) for count in counted):
        return max(counted) if name == "max_s" else sum(counted)
    return "+".join(map(str, counted))


@contextlib.asynccontextmanager
async def start_hubs(
    config: DraftConfig,
    log_dir: Path,
    token: str,
    host: str = LOOPBACK,
    *,
    engines: int = 1,
    all_restarts: list[Restarts] | None = None,
    timing: Timing = DEFAULT,
) -> AsyncIterator[str]:
    """Starts the draft hubs of so many engines on `host` for the block, one per ENGINES_PER_HUB.

    Restarts those that die. Yields their URLs, separated by commas. `all_restarts`: as in
    `supervised`. Raises HubError if one does not become ready.
    """
    count = -(-engines // ENGINES_PER_HUB)
    processes: list[SupervisedProcess] = []
    urls: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        for number in range(count):
            port = free_port(host)
            arguments = ["drafthub", "--host", host, "--port", str(port), "--memory", config.memory]
            process = SupervisedProcess(
                "draft hub" if count == 1 else f"draft hub {number}",
                [sys.executable, "-m", "seer_sgl", *arguments],
                log_dir / ("drafthub.log" if count == 1 else f"drafthub-{number}.log"),
                {**os.environ, contract.LINK_TOKEN: token},
            )
            processes.append(process)
            stack.push_async_callback(process.stop)
            await process.start()
            urls.append(link_url(f"{host}:{port}"))
            await until_ready(
                process,
                functools.partial(has_logged, process, READY),
                START_TIMEOUT_S,
                HubError,
            )
        async with supervised(processes, all_restarts, timing):
            yield ",".join(urls)
