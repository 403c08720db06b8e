"""The requests that are ready for their next chunk, in the order in which they became ready."""

import itertools
from collections import OrderedDict

from seer_sgl.types import Request

Ticket = int  # identifies one stay in the set; a request that returns gets a new one


class ReadySet:
    """The set of ready requests. Priority queues store a ticket with each request; an entry with an
    invalid ticket is dropped when it reaches the front."""

    def __init__(self) -> None:
        self._tickets = itertools.count()
        self._ready: OrderedDict[Request, Ticket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, request: Request) -> Ticket:
        """Adds a ready request. Returns its ticket."""
        ticket = next(self._tickets)
        self._ready[request] = ticket
        return ticket

    def discard(self, request: Request) -> None:
        """Removes the request if it is in the set."""
        self._ready.pop(request, None)

    def valid(self, request: Request, ticket: Ticket) -> bool:
        """Returns whether the request has been ready since it got this ticket."""
        return self._ready.get(request) == ticket

    @property
    def longest_waiting(self) -> Request:
        """The request that has been ready longest. The set must not be empty."""
        return next(iter(self._ready))
