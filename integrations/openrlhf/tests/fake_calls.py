"""A server with engines as rank 0 of the trainer sees it, without Ray."""

from collections import Counter
from typing import Any

from seer_openrlhf.calls import Calls, EngineGone

Json = dict[str, Any]


class FakeCalls(Calls):
    """Engines by name. `dies`: the path and the number of its call at which an engine dies."""

    def __init__(self, *engines: str) -> None:
        self.alive = list(engines)
        self.engines = list(engines)
        self.dies: dict[tuple[str, int], str] = {}
        self.calls: list[tuple[str, Json]] = []
        self.counts: Counter[str] = Counter()
        self.open = False
        self.ends = 0  # of the server
        self.taking_part: list[str] = []
        self.members: dict[str, list[str]] = {}  # of the process groups
        self.versions = dict.fromkeys(engines, "default")
        self.log_probs_of: dict[str, list[float]] = {}
        self.checksums: Json = {"success": False, "engines": {}}
        self.refused: dict[str, str] = {}  # by engine: its reply to an update from a disk

    def start(self, path: str, fields: Json, engine_s: float) -> Any:
        """Answers at once, as far as the test is concerned."""
        self.calls.append((path, fields))
        self.counts[path] += 1
        ended = self.dies.get((path, self.counts[path]))
        if ended in self.alive:
            self.alive.remove(ended)
        name = path.strip("/")
        return getattr(self, name, self._all)(fields)

    def answer(self, reference: Any, within_s: float) -> Json | None:
        """Returns the answer."""
        found: Json = reference
        return found

    def workers(self) -> list[Json]:
        """Returns two ranks per engine."""
        return [
            {"id": name, "metadata": {"ranks": "2", "weight_version": self.versions[name]}}
            for name in self.engines
        ]

    def log_probs(self, engine: str, ids: list[int]) -> list[float]:
        """Returns what the test has set."""
        if engine not in self.alive:
            raise EngineGone("HTTP 502: it does not answer")
        return self.log_probs_of[engine]

    def resume(self) -> None:
        """Does nothing."""

    def weights_checker(self, _: Json) -> Json:
        """Returns what the test has set."""
        return self.checksums

    def restart(self) -> None:
        """Ends the server with its engines; the next ones have the same names and no groups."""
        self.ends += 1
        self.open, self.members = False, {}

    def begin_weight_update(self, _: Json) -> Json:
        """Begins an update."""
        if self.open:
            return {"success": False, "message": "already open"}
        answer = self._replies(self.engines)
        self.taking_part = [name for name in self.engines if name in self.alive]
        self.open = bool(self.taking_part)
        return {**answer, "ends": self.ends}

    def end_weight_update(self, _: Json) -> Json:
        """Ends the update."""
        assert self.open, "an end without a begin"
        self.open = False
        return self._replies(self.taking_part)

    def init_weights_update_group(self, fields: Json) -> Json:
        """Makes a process group of the engines in the update."""
        assert fields["world_size"] == 1 + 2 * len(self.taking_part)
        answer = self._replies(self.taking_part)
        if answer["success"] and len(self.alive) == len(self.taking_part):
            self.members[fields["group_name"]] = self.taking_part
        return answer

    def destroy_weights_update_group(self, fields: Json) -> Json:
        """Forgets a process group."""
        self.members.pop(fields["group_name"], None)
        return self._replies(self.engines)

    def update_weights_from_distributed(self, fields: Json) -> Json:
        """Updates the members of a group."""
        members = self.members[fields["group_name"]]
        if set(members) - set(self.taking_part):
            return {"success": False, "message": "process group has lost e0"}
        answer = self._replies(members)
        for name in members:
            if name in self.alive:
                self.versions[name] = fields["weight_version"]
        self.taking_part = [name for name in self.taking_part if name in self.alive]
        return answer

    def update_weights_from_disk(self, fields: Json) -> Json:
        """Updates all engines."""
        return self._replies(self.engines, self.refused)

    def _all(self, _: Json) -> Json:
        return self._replies(self.engines)

    def _replies(self, names: list[str], refused: dict[str, str] | None = None) -> Json:
        engines: Json = {}
        for name in names:
            if name not in self.alive:
                engines[name] = {"status": None, "reply": "it does not answer"}
            elif name in (refused or {}):
                reply = {"success": False, "message": (refused or {})[name]}
                engines[name] = {"status": 400, "reply": reply}
            else:
                engines[name] = {"status": 200, "reply": {"success": True}}
        success = any(each["status"] == 200 for each in engines.values())
        return {"success": success, "message": "the server's", "engines": engines}


class FakeGroup:
    """A process group; `error`: of its broadcasts."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.left = 0
        self.failure: str | None = None

    def broadcast(self, tensors: Any) -> None:
        """Records the tensors."""
        self.sent += tensors

    def error(self) -> str | None:
        """Returns the failure."""
        return self.failure

    def wait(self) -> None:
        """Returns at once."""

    def leave(self) -> None:
        """Counts."""
        self.left += 1
