"""The health of an engine: a pure state machine, which the monitor feeds with what it sees.

    STARTING ----> HEALTHY <----> SUSPECT
       ^  \\           ^ \\            |          DRAINING: from any state, for good
       |   \\          |  \\           |          QUARANTINED: from DEAD and STARTING, for good
       |    +-----> STALE |          |
      DEAD <---------+----+----------+

An engine that died is HEALTHY again only after a start, and one with other weights only with the
current ones.
"""

from collections.abc import Mapping, Set
from enum import Enum

from seer_sgl.engine_types import EngineProblem


class State(Enum):
    """What is known of an engine. Only a HEALTHY one receives chunks."""

    STARTING = "starting"  # its server is being restarted
    HEALTHY = "healthy"
    SUSPECT = "suspect"  # it failed, does not answer or is stuck; it is tried again
    DEAD = "dead"  # its server has died
    STALE = "stale"  # it answers, and does not have the current weights
    DRAINING = "draining"  # it leaves the fleet
    QUARANTINED = "quarantined"  # it failed too often, and is not restarted


TRANSITIONS: Mapping[State, Set[State]] = {
    State.STARTING: set(State) - {State.STARTING},
    State.HEALTHY: {State.SUSPECT, State.STALE, State.DEAD, State.DRAINING},
    State.SUSPECT: {State.HEALTHY, State.STALE, State.DEAD, State.DRAINING},
    State.DEAD: {State.STARTING, State.DRAINING, State.QUARANTINED},
    State.STALE: {State.HEALTHY, State.DEAD, State.DRAINING},
    State.DRAINING: set(),
    State.QUARANTINED: {State.DRAINING},
}


class Health:
    """The state of one engine, and why it is in it.

    `lacks`: why it does not have the current weights; None if it has them. It outlasts a death: the
    next server has them only if they are loaded.
    """

    def __init__(self) -> None:
        self.state = State.HEALTHY
        self.why = ""
        self.lacks: str | None = None
        self._changed = False  # since the last call of `change`

    @property
    def serves(self) -> bool:
        """Whether it receives chunks."""
        return self.state is State.HEALTHY

    def change(self) -> State | None:
        """Returns the state if it has changed since the last call; else None."""
        changed, self._changed = self._changed, False
        return self.state if changed else None

    def failed(self, why: str) -> None:
        """Records that a chunk or a poll failed, or that it is stuck."""
        if self.state in (State.HEALTHY, State.STARTING):
            self._to(State.SUSPECT, why)

    def died(self, why: str) -> None:
        if State.DEAD in TRANSITIONS[self.state]:
            self._to(State.DEAD, why)

    def started(self, why: str) -> None:
        """Records that its server was restarted, and is not ready yet."""
        if self.state is not State.STARTING:
            self.died(why)
        if self.state is State.DEAD:
            self._to(State.STARTING, why)

    def missed(self, why: str) -> None:
        """Records that it lacks the current weights; a dead one is STALE once it answers."""
        self.lacks = why
        if self.state in (State.HEALTHY, State.SUSPECT):
            self._to(State.STALE, why)

    def has_weights(self) -> None:
        """Records that it has the current weights, or may be checked for them."""
        self.lacks = None

    def answered(self, problem: EngineProblem | None) -> None:
        """Records the result of a check: None if it generates and has the current weights.

        Raises ValueError for a good result of an engine that is dead, leaves, is
        quarantined, or lacks the weights.
        """
        if problem is None:
            if self.lacks is not None:
                raise ValueError(f"it lacks the weights: {self.lacks}")
            self._to(State.HEALTHY, "")
        elif not problem.weights:
            self.failed(problem.why)
        elif State.STALE in TRANSITIONS[self.state]:
            self._to(State.STALE, problem.why)

    def drain(self) -> None:
        self._to(State.DRAINING, "it leaves the fleet")

    def quarantined(self, why: str) -> None:
        self.died(why)
        self._to(State.QUARANTINED, why)

    def _to(self, state: State, why: str) -> None:
        if state is self.state:
            return
        if state not in TRANSITIONS[self.state]:
            raise ValueError(f"{state.value} after {self.state.value}: {why}")
        self.state, self.why, self._changed = state, why, True
