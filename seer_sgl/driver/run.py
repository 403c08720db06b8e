"""The groups of one caller, while a driver rolls them out."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, Self

from seer_sgl.errors import RolloutError
from seer_sgl.types import Group, Request

from .observer import Observer
from .samples import SampleMaker


class RunControl(Protocol):
    """What a run asks of its driver's loop."""

    def grow(self, run: "Run", group: Group, requests: Sequence[Request]) -> None:
        """Add requests to a growing group."""

    def complete_group(self, run: "Run", group: Group) -> None:
        """No more requests of the group will come."""

    def abort(self, request: Request) -> None:
        """End a request with the tokens it has."""

    def close(self, run: "Run") -> None:
        """Give up what is unfinished."""


class Run:
    """An async iterator of groups, each once it is over: complete, or given up (`failure`).

    Raises RolloutError when the driver has ended.
    """

    def __init__(
        self, control: RunControl, make_sample: SampleMaker, observers: Sequence[Observer]
    ) -> None:
        self.observers = observers
        self.make_sample = make_sample
        self.unfinished: dict[str, Group] = {}  # by uid
        self._control = control
        self._over: asyncio.Queue[Group | RolloutError] = asyncio.Queue()
        self._error: RolloutError | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Group:
        if self._over.empty() and self._error is not None:
            raise self._error
        if self._over.empty() and not self.unfinished:
            raise StopAsyncIteration
        over = await self._over.get()
        if isinstance(over, RolloutError):
            raise over
        return over

    def grow(self, group: Group, requests: Sequence[Request]) -> None:
        """Add requests to a growing group. Raises ValueError if it does not grow any more."""
        self._control.grow(self, group, requests)

    def complete_group(self, group: Group) -> None:
        """No more requests of a growing group will come."""
        self._control.complete_group(self, group)

    def abort(self, request: Request) -> None:
        """End a request with the tokens it has, as soon as its engine has returned them: its
        sample has the finish reason `abort`."""
        self._control.abort(request)

    def close(self) -> None:
        """The caller is done: what is unfinished is given up, its chunks in flight aborted."""
        self._control.close(self)

    def over(self, group: Group) -> None:
        """A group is complete or given up (loop.py)."""
        self._over.put_nowait(group)

    def fail(self, error: RolloutError) -> None:
        """The driver has ended (driver.py)."""
        self._error = error
        self._over.put_nowait(error)
