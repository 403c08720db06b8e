"""What is done before the server gets a request: it must be up, with the trainer's weights.

A server that was restarted has loaded its model from disk: its engines have the weights with
which the training began, under another version. No request may reach them before the trainer has
sent its weights again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Protocol

from .client import ServerError, ServerLost
from .weight_clock import WeightClock

logger = logging.getLogger(__name__)
Json = dict[str, Any]
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0  # between two looks at a server that is away
SENDS = 3  # of the weights, until the engines have them
clock = time.monotonic
sleep = asyncio.sleep


class Looked(Protocol):
    """The part of the server's client that shows its state."""

    async def up(self) -> bool:
        """Returns whether an engine of the server serves."""

    async def get(self, path: str) -> Json:
        """Returns the JSON answer of a GET. Raises ServerError."""

    async def outcome(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, Json]:
        """Returns status and answer of a call of the control plane. Raises ServerError."""


class Revival:
    """Waits for the server, and makes the trainer send its weights where they are missing.

    `weights`: what the trainer has sent. `wait_s`: how long a server that has ended may take to be
    back; with 0 its end is an error at once. `send`: makes the trainer send its weights to all
    engines; it raises ServerError if they cannot be sent.
    """

    def __init__(
        self,
        server: Looked,
        weights: WeightClock,
        wait_s: float,
        send: Callable[[], Awaitable[None]],
    ) -> None:
        self._server = server
        self._weights = weights
        self._wait_s = wait_s
        self._send = send
        self.ends = 0  # of the server, as far as they were noticed
        self._task: asyncio.Task[bool] | None = None

    async def ready(self, error: ServerLost | None = None) -> bool:
        """Returns once requests may be sent; the result is whether the server keeps journals.

        `error`: how the server's end was noticed, if it was. Calls at the same time share one look.
        Raises ServerError.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._made_ready(error))
        # A batch that is closed meanwhile must not end a weight update in its middle.
        return await asyncio.shield(self._task)

    async def until_up(self, error: ServerError) -> None:
        """Returns when the server is up. `error`: how its end was noticed. Raises ServerError."""
        self.ends += 1
        if not self._wait_s:
            raise ServerError(str(error))
        logger.warning("%s; waiting up to %g s for the server", error, self._wait_s)
        begun, pause_s = clock(), FIRST_PAUSE_S
        while not await self._server.up():
            if clock() - begun >= self._wait_s:
                raise ServerError(f"{error}; the server was not back after {self._wait_s:g} s")
            await sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        logger.warning("the server is up again after %.1f s", clock() - begun)

    def require(self, spans: list[Json], oldest: int | None) -> None:
        """Raises ServerLost for tokens by other weights than the trainer's.

        `oldest`: the version that was sent last when the request was sent; None for any. Then the
        server was restarted since, and nobody has noticed it.
        """
        wrong = next((s["version"] for s in spans if behind(s["version"], oldest)), None)
        if wrong is not None:
            raise ServerLost(f"a response has weights {wrong!r}, and the trainer sent {oldest}")

    async def _made_ready(self, lost: ServerLost | None) -> bool:
        for _ in range(SENDS):
            if lost is not None:
                await self.until_up(lost)
            try:
                journals = bool((await self._server.get("/rollouts")).get("journals"))
                wrong = await self._wrong()
            except ServerLost as error:
                lost = error
                continue
            if not wrong:
                return journals
            logger.warning("the weights are sent again, to %s", wrong)
            await self._send()
            lost = None
        why = lost or "it has other weights than the trainer"
        raise ServerError(f"the server is not ready after {SENDS} attempts: {why}")

    async def _wrong(self) -> str:
        """Returns which engines would serve other weights than the trainer's; "" if none does."""
        if self._weights.sent is None:
            return ""
        status, answer = await self._server.outcome("/workers", None)
        if status != HTTPStatus.OK:
            raise ServerError(f"/workers: the server answers {status}: {answer}")
        found = {each["id"]: each["metadata"] for each in answer["engines"]}
        return ", ".join(
            f"{name} (weights {meta['weight_version']!r})"
            for name, meta in found.items()
            # The server sends nothing to a stale engine.
            if "stale" not in meta and behind(meta["weight_version"], self._weights.sent)
        )


def behind(version: str, oldest: int | None) -> bool:
    """Returns whether weights are older than those of a step, or not the trainer's at all."""
    if oldest is None:
        return False
    return not (version.isascii() and version.isdigit()) or int(version) < oldest
