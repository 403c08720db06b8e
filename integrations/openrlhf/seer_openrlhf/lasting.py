"""Rollouts and requests that outlast the server.

A rollout that has a journal is sent again, unchanged, when the server is back: it continues from
its last chunks. Without one, or if the journal is refused (the trainer's weights are newer by now,
for example), SampleLost makes its unfinished groups anew: samples of a group are never by the
weights of before and after such an end.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from .batch import Generator, SampleLost, of_reply
from .client import ResponseFailed, Server, ServerError, ServerLost, ServerRefused
from .revival import Revival
from .weight_clock import WeightClock

Json = dict[str, Any]
REPEATS = 3  # of one rollout or request
REMOVALS, REMOVAL_PAUSE_S = 5, 1.0  # a journal is in use until the server has closed its rollout


class Lasting(Generator):
    """The server's client as batches use it. `weights`: what the trainer has sent."""

    def __init__(self, server: Server, revival: Revival, weights: WeightClock) -> None:
        self._server = server
        self._revival = revival
        self._weights = weights
        self._removals: set[asyncio.Task[None]] = set()

    async def rollout(self, body: Mapping[str, Any]) -> AsyncGenerator[Json]:
        """Yields the lines of a rollout; after a repeat, those of before once more.

        Raises SampleLost if it cannot continue, and ServerError.
        """
        journal = body["rollout_id"] if await self._revival.ready() else None
        named = {} if journal is None else {"journal": journal}
        oldest = self._weights.sent
        try:
            for repeats in range(REPEATS + 1):
                try:
                    async with aclosing(self._server.rollout({**body, **named})) as events:
                        async for event in events:
                            self._revival.require(event.get("weight_spans", []), oldest)
                            if journal is not None and event.get("event") == "end":
                                _require_end(event)
                            yield event
                    return
                except ServerLost as error:
                    lost = error
                except ServerRefused as error:
                    if not repeats:
                        raise
                    raise SampleLost(str(error)) from None
                await self._back(lost, repeats)
                if journal is None:
                    raise SampleLost(str(lost))
        finally:
            if journal is not None:
                self._remove(journal)

    async def generate(self, body: Mapping[str, Any]) -> Json:
        """Returns SGLang's reply to one request, which has no journal.

        Raises SampleLost if the server gave it up, or if the trainer has sent other weights
        meanwhile, and ServerError.
        """
        oldest = self._weights.sent
        for repeats in range(REPEATS + 1):
            try:
                reply = await self._server.generate(body)
                self._revival.require(of_reply(reply)["weight_spans"], oldest)
            except ResponseFailed as error:
                raise SampleLost(str(error)) from None
            except ServerLost as error:
                await self._back(error, repeats)
                if self._weights.sent != oldest:
                    raise SampleLost(str(error)) from None
            else:
                return reply
        raise AssertionError("unreachable")

    async def _back(self, error: ServerLost, repeats: int) -> None:
        """Returns when a repeat may be sent. Raises ServerError after REPEATS."""
        if repeats == REPEATS:
            raise ServerError(f"{error} (repeated {repeats} times)")
        await self._revival.ready(error)

    async def close(self) -> None:
        """Returns when the journals of ended rollouts are removed."""
        await asyncio.gather(*self._removals)

    def _remove(self, journal: str) -> None:
        """Removes the journal of a rollout whose client needs no more of it."""
        task = asyncio.create_task(self._removed(f"/journal/{quote(journal)}"))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    async def _removed(self, path: str) -> None:
        for _ in range(REMOVALS):
            with contextlib.suppress(ServerError):
                await self._server.delete(path)
                return
            await asyncio.sleep(REMOVAL_PAUSE_S)


def _require_end(event: Json) -> None:
    """Raises ServerLost if a rollout has failed as a whole: its server ends by SIGTERM."""
    if event.get("error"):
        raise ServerLost(f"/rollout: {event['error']}")
