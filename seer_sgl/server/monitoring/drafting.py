"""The drafting counters of engines and hub, read at most every few seconds."""

import asyncio

import msgspec

from seer_sgl.engine.fleet import Fleet
from seer_sgl.report import draft_report
from seer_sgl.report.draft_report import FleetDraftCounters

MAX_AGE_S = 5.0
WAIT_S = 2.0  # of a reader; an engine that answers later is in the next answer


class DraftReader:
    """Reads the counters of the engines that draft and serve. All its users share one reading."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._newest = FleetDraftCounters()
        self._read_at: float | None = None  # the event loop's time
        self._task: asyncio.Task[None] | None = None

    async def counters(self, serving: set[str]) -> FleetDraftCounters:
        """Returns counters that are a few seconds old, at most. `serving`: ids of engines."""
        now = asyncio.get_running_loop().time()
        if self._read_at is None or now - self._read_at >= MAX_AGE_S:
            if self._task is None:
                self._task = asyncio.create_task(self._read(serving))
                self._task.add_done_callback(self._ended)
            await asyncio.wait({self._task}, timeout=WAIT_S)
        return self._newest

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _read(self, serving: set[str]) -> None:
        drafters = [
            engine
            for engine in self._fleet.engines
            if engine.info.draft_tokens > 0 and engine.info.engine_id in serving
        ]
        newest = await draft_report.read(drafters, self._fleet.drafts)
        if newest.hub is None:  # a counter that falls to 0 and comes back counts twice in a rate
            newest = msgspec.structs.replace(newest, hub=self._newest.hub)
        self._newest = newest

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        self._read_at = task.get_loop().time()
        if not task.cancelled():
            task.exception()  # retrieved: the next reading is a new try
