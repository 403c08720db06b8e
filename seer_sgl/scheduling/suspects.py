"""Requests that an engine had when it died: one of them may be the cause.

Each of them is tested with a short chunk, and no two of them on one engine at the same time. So the
next engine that dies names the request that it died of. Tested ones go on when all are tested.
Tests cost little: an engine prefills one request after the other anyway.
"""

import itertools

from seer_sgl.types import Chunk, Failure, FailureKind, Request

from .engine_index import EngineSlot

# The tokens of a test: a prefill and some decode steps, where requests kill.
TEST_TOKENS = 8


class Suspects:
    """Decides which requests run apart, and which are not sent again.

    A request that had a chunk on `max_kills` engines when they died is given up, if it ran apart
    from other suspects on the last one. Else it runs apart from then on, and is given up if one
    more engine dies.

    A request is no longer a suspect once its response is longer than the chunks that died could
    have made it. Until then `Request.kills` counts the engines, and `alone` is set while it must
    not share an engine with another suspect.
    """

    def __init__(self, max_kills: int) -> None:
        self._max_kills = max_kills
        self._waiting: dict[Request, None] = {}  # ready for a chunk apart, in order
        self._alone: dict[str, Request] = {}  # by engine id, in flight
        self._tested: dict[Request, None] = {}  # ready, until all tests are over

    def __contains__(self, request: Request) -> bool:
        return request in self._waiting or request in self._tested

    @property
    def first(self) -> Request | None:
        """The suspect that has waited longest for a chunk apart; None if none waits."""
        return next(iter(self._waiting), None)

    @property
    def running(self) -> bool:
        """Whether an engine runs a suspect apart from the others."""
        return bool(self._alone)

    def take(self, request: Request) -> bool:
        """Takes a request that is ready for its next chunk. Returns whether it has to wait here."""
        if request.alone:
            self._waiting[request] = None
        elif request.kills and self._tests():
            self._tested[request] = None
        else:
            return False
        return True

    def leave(self, request: Request) -> None:
        """Removes a request that waits no longer."""
        self._waiting.pop(request, None)
        self._tested.pop(request, None)

    def released(self) -> list[Request]:
        """Removes and returns the tested requests if no test is left."""
        if not self._tested or self._tests():
            return []
        released, self._tested = list(self._tested), {}
        return released

    def may_join(self, slot: EngineSlot) -> bool:
        """Returns whether the engine runs no other suspect apart."""
        return slot.engine_id not in self._alone

    def budget(self, request: Request, tokens: int) -> int:
        """Returns the token budget of the request's next chunk, which is short for a test."""
        return min(tokens, TEST_TOKENS) if self._is_test(request) and request.continues else tokens

    def started(self, request: Request, engine_id: str) -> None:
        """Records that a chunk of the request went to an engine."""
        if request.alone:
            self._alone[engine_id] = request

    def ended(self, request: Request, engine_id: str) -> None:
        """Records that the chunk came back."""
        if self._alone.get(engine_id) is request:
            del self._alone[engine_id]

    def killed(self, chunk: Chunk, why: str) -> Failure | None:
        """Makes the chunk's request a suspect: its engine died.

        Returns the reason to give it up; None if it is sent again.
        """
        request = chunk.request
        apart, request.alone = request.alone, True
        request.kills += 1
        longest = request.generated + chunk.max_new_tokens
        request.suspect_until = max(request.suspect_until, longest)
        if request.kills < self._max_kills or not apart:
            return None
        message = f"{request.kills} engines died while they ran it; the last one: {why}"
        return Failure(FailureKind.KILLED, message)

    def proceeded(self, request: Request) -> None:
        """Records that the request has grown."""
        if not request.kills:
            return
        if request.generated >= request.suspect_until:
            request.kills, request.suspect_until, request.alone = 0, 0, False
        elif request.kills < self._max_kills:
            request.alone = False

    def breaches(self) -> list[str]:
        """Returns what is left over in an idle scheduler."""
        inside = itertools.chain(self._waiting, self._tested, self._alone.values())
        left = [request.uid for request in inside]
        return [f"suspects are left, such as {left[0]}"] if left else []

    def _tests(self) -> bool:
        """Returns whether a test is left or runs."""
        return any(map(self._is_test, itertools.chain(self._waiting, self._alone.values())))

    def _is_test(self, request: Request) -> bool:
        return request.alone and request.kills < self._max_kills
