"""Requests that an engine had when it died or stalled: one of them may be the cause.

Each of them is tested with a short chunk, and no two of them on one engine at the same time. So the
next engine that dies usually names the request that it died of. Tested ones continue when all are
tested. Tests cost little: an engine prefills one request after the other anyway.

Evidence counts against a request only if it was alone on the engine. If another request ran beside
it, for example a new one that kills too, it gets a trial: a chunk on an engine without any other.
"""

import itertools

from seer_sgl.admission.sampling import divisible
from seer_sgl.types import Chunk, Failure, FailureKind, Request

from .attempts import Attempts
from .engine_index import EngineSlot

# The tokens of a test: a prefill and some decode steps, where requests kill.
TEST_TOKENS = 8
# The tokens of a first trial; of the next ones TRIAL_GROWTH times as many, for late killers.
TRIAL_TOKENS = 512
TRIAL_GROWTH = 8
# A stall may have many causes, such as a network, so that much more evidence is needed than for an
# engine that dies: in simulated storms innocent requests meet three in a row.
MORE_STALLS = 4


class Suspects:
    """Decides which requests run apart, and which are not sent again.

    A request that had a chunk on `max_engine_kills` engines when they died is given up, if the last
    one had only this chunk, of a test or trial. Else it gets a trial, and then continues like
    others.

    A request is no longer a suspect once its response is longer than the chunks that died could
    have made it. Until then `Attempts.engine_deaths` counts the engines, and `isolated` is set
    while it must not share an engine with another suspect.
    """

    def __init__(self, max_engine_kills: int) -> None:
        self._max_engine_kills = max_engine_kills
        self._waiting: dict[Request, Attempts] = {}  # ready for a chunk apart, in order
        self._isolated: dict[str, Attempts] = {}  # by engine id, in flight
        self._tested: dict[Request, None] = {}  # ready, until all tests are over

    def __contains__(self, request: Request) -> bool:
        return request in self._waiting or request in self._tested

    @property
    def first(self) -> Attempts | None:
        """The suspect that has waited longest for a chunk apart; None if none waits."""
        return next(iter(self._waiting.values()), None)

    @property
    def running(self) -> bool:
        """Whether an engine runs a suspect apart from the others."""
        return bool(self._isolated)

    def take(self, attempts: Attempts) -> bool:
        """Takes a request that is ready for its next chunk. Returns whether it has to wait here."""
        if attempts.isolated:
            self._waiting[attempts.request] = attempts
        elif attempts.engine_deaths and self._tests():
            self._tested[attempts.request] = None
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
        """Returns whether the engine runs no isolated suspect."""
        return slot.engine_id not in self._isolated

    def budget(self, attempts: Attempts, tokens: int) -> int:
        """Returns the token budget of the request's next chunk, which is short for a test."""
        if not attempts.isolated or not divisible(attempts.request):
            return tokens
        if self.is_trial(attempts):
            growth = pow(TRIAL_GROWTH, attempts.engine_deaths - self._max_engine_kills)
            return min(tokens, TRIAL_TOKENS * int(growth))
        return min(tokens, TEST_TOKENS)

    def is_trial(self, attempts: Attempts) -> bool:
        """Returns whether the request's next chunk needs an engine without any other."""
        return attempts.isolated and attempts.engine_deaths >= self._max_engine_kills

    def keeps_others_away(self, attempts: Attempts) -> bool:
        """Returns whether no chunk may join the request's engine, at least while a test takes."""
        return self.is_trial(attempts) or (attempts.isolated and divisible(attempts.request))

    def started(self, attempts: Attempts, engine_id: str) -> None:
        """Records that a chunk of the request went to an engine."""
        if attempts.isolated:
            self._isolated[engine_id] = attempts

    def ended(self, request: Request, engine_id: str) -> None:
        """Records that the chunk came back."""
        isolated = self._isolated.get(engine_id)
        if isolated is not None and isolated.request is request:
            del self._isolated[engine_id]

    def killed(
        self,
        attempts: Attempts,
        chunk: Chunk,
        why: str,
        *,
        beside_others: bool,
        stalled: bool = False,
    ) -> Failure | None:
        """Makes the chunk's request a suspect: its engine died, or made no progress (`stalled`).

        beside_others: whether the engine had another request, which may be the cause. Returns the
        reason to give the request up; None if it is sent again. Stalled engines take
        MORE_STALLS of evidence more.
        """
        tested, attempts.isolated = attempts.isolated, True
        attempts.engine_deaths += 1
        needed = self._max_engine_kills + MORE_STALLS * stalled
        longest = chunk.request.generated + chunk.max_new_tokens
        attempts.suspect_until = max(attempts.suspect_until, longest)
        if attempts.engine_deaths < needed or not tested or beside_others:
            return None
        deaths = "died or stalled" if stalled else "died"
        message = (
            f"{attempts.engine_deaths} engines {deaths} while they ran it; the last one: {why}"
        )
        return Failure(FailureKind.KILLED, message)

    def proceeded(self, attempts: Attempts) -> None:
        """Records that the request has grown."""
        attempts.isolated = False
        if attempts.engine_deaths and attempts.request.generated >= attempts.suspect_until:
            attempts.engine_deaths, attempts.suspect_until = 0, 0

    def breaches(self) -> list[str]:
        """Returns what is left over in an idle scheduler."""
        apart = (attempts.request for attempts in self._isolated.values())
        left = [request.uid for request in (*self._waiting, *self._tested, *apart)]
        return [f"suspects are left, such as {left[0]}"] if left else []

    def _tests(self) -> bool:
        """Returns whether a test is left or runs."""
        apart = itertools.chain(self._waiting.values(), self._isolated.values())
        return any(
            attempts.isolated and attempts.engine_deaths < self._max_engine_kills
            for attempts in apart
        )
