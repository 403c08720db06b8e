"""`FleetState`: what the calls that change the engines share."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from seer_sgl.driver.driver import Driver
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.fleet import Fleet
from seer_sgl.errors import RolloutError
from seer_sgl.timing import Timing

from .holds import Holds
from .replies import Replies

SESSION = "begin_weight_update"  # the hold until end_weight_update
RELEASED = "release_memory_occupation"  # the hold until all memory is back
# What a caller does to its own requests before the engines change.
Before = Callable[[], Awaitable[object]]
Start = tuple[str, str | None]  # engine id, and the instance of its server


Starts = Mapping[str, str | None]  # by engine id: the instance of its server; None: unknown


class Session(msgspec.Struct):
    """An update between begin and end. `engines`: have applied all of it so far.

    `starts`: of the engines at its begin. `begun`: a part was applied. `failed`: the last part was
    not. `broken`: the engines that failed in the middle of a part that every engine failed.
    """

    engines: dict[str, HttpEngine]
    starts: Starts
    version: str | None = None
    begun: bool = False
    failed: bool = False
    broken: set[str] = msgspec.field(default_factory=set)


class Parts:
    """The updates while something holds generation: they may be parts of one.

    An engine that missed a part, or was restarted after one, lacks some of the weights.
    """

    def __init__(self) -> None:
        self._hold = 0  # Holds.number
        self._starts: Starts | None = None  # of the engines with all parts so far; None: no part

    def all_applied(
        self, hold: int, updated: Mapping[str, HttpEngine], starts: Starts
    ) -> dict[str, HttpEngine]:
        """Returns the engines that have applied a part now and every part before it.

        `updated`: those that have applied the new part. If it is empty, none has missed it.
        """
        if hold != self._hold:
            self._hold, self._starts = hold, None
        before = self._starts
        whole = {
            name: engine
            for name, engine in updated.items()
            if before is None or (name in before and same_start(before[name], starts.get(name)))
        }
        if updated:
            self._starts = {name: starts.get(name) for name in whole}
        return whole

    def forget(self) -> None:
        """Forgets the parts: the engines got all weights at once."""
        self._starts = None


class FleetState:
    """The engines between two calls. `mode`: of the pause; None: not paused."""

    def __init__(self, fleet: Fleet, driver: Driver, timing: Timing) -> None:
        self.fleet = fleet
        self.driver = driver
        self.timing = timing
        self.holds = Holds(driver, time.monotonic)
        self.mode: str | None = None
        # Tags of memory, by engine and its start: a server restarted has all its memory.
        self.released: dict[Start, set[str]] = {}
        # The body of `continue_generation`, by the server that gets it once its memory is back.
        self.to_continue: dict[str, bytes] = {}
        # Engines that have not answered an update from disk, and may still load it.
        self.loading: set[Start] = set()
        self.groups: dict[str, frozenset[Start]] = {}  # the trainer's process groups, by name
        self.session: Session | None = None
        self.parts = Parts()

    @property
    def changing(self) -> bool:
        """Whether an update or a release of memory is open, so that no engine may join."""
        return SESSION in self.holds or self.lacks_memory

    @property
    def lacks_memory(self) -> bool:
        """Whether an engine of the fleet has released memory."""
        present = {start_of(engine) for engine in self.fleet.engines}
        for start in [start for start in self.released if start not in present]:
            del self.released[start]
        return any(self.released.values())

    def released_by(self, engine: HttpEngine) -> set[str]:
        """Returns the tags that an engine has released; to be changed in place."""
        return self.released.setdefault(start_of(engine), set())

    def lacking(self, tag: str | None = None) -> set[str]:
        """Returns the servers that have released some memory; `tag`: this one."""
        lacking = set[str]()
        for engine in self.fleet.engines:
            released = self.released.get(start_of(engine), ())
            if released and (tag is None or tag in released):
                lacking.add(engine.info.server_id)
        return lacking

    def note_loading(self, engines: Iterable[HttpEngine], replies: Replies) -> None:
        """Records which of the engines have not answered an update from disk."""
        for engine in engines:
            if replies[engine.info.engine_id].unanswered:
                self.loading.add(start_of(engine))
            else:
                self.loading.discard(start_of(engine))

    def end_release_if_all_back(self) -> None:
        """Ends the hold of `release_memory_occupation` once no engine lacks memory."""
        if not self.lacks_memory:
            self.holds.end(RELEASED)

    def engines(self) -> list[HttpEngine]:
        """Returns the engines of the fleet. Raises RolloutError if there is none."""
        engines = list(self.fleet.engines)
        if not engines:
            raise RolloutError("the fleet has no engine")
        return engines

    def taking_part(self) -> list[HttpEngine]:
        """Returns the engines of the update between begin and end; all engines without one.

        Raises RolloutError if there is none.
        """
        engines = self.engines()
        if self.session is not None:
            engines = [
                engine for engine in engines if engine.info.engine_id in self.session.engines
            ]
        if not engines:
            raise RolloutError("no engine is left in the weight update")
        return engines


def same_start(one: str | None, other: str | None) -> bool:
    """Returns whether two instances are of one start of a server, as far as is known."""
    return one is None or other is None or one == other


def start_of(engine: HttpEngine) -> Start:
    """Returns the name of an engine and of the newest start of its server."""
    return engine.info.engine_id, engine.info.instance


def ranks_of(engines: Iterable[HttpEngine]) -> dict[str, int]:
    """Returns the number of ranks by engine id, in the order of the engines."""
    return {engine.info.engine_id: engine.info.ranks for engine in engines}
