"""The requests that are ready for their next chunk, in order of becoming so."""

import itertools
from collections import OrderedDict

from seer_sgl.types import Request

Ticket = int  # of one stay among the ready; a request that comes back gets a new one


class ReadySet:
    """Every ready request once. Priority queues hold tickets beside their requests: an entry
    whose ticket is no longer valid is dropped when it surfaces."""

    def __init__(self) -> None:
        self._tickets = itertools.count()
        self._ready: OrderedDict[Request, Ticket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, request: Request) -> Ticket:
        """The request is ready."""
        ticket = next(self._tickets)
        self._ready[request] = ticket
        return ticket

    def discard(self, request: Request) -> None:
        """The request is ready no longer, if it was."""
        self._ready.pop(request, None)

    def valid(self, request: Request, ticket: Ticket) -> bool:
        """Whether the request has been ready ever since it got this ticket."""
        return self._ready.get(request) == ticket

    @property
    def longest_waiting(self) -> Request:
        """The request that has been ready longest. There must be one."""
        return next(iter(self._ready))
