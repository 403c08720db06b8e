"""A server that can end and be restarted, with journals; and a trainer that sends weights."""

from collections.abc import AsyncGenerator, Mapping
from types import SimpleNamespace
from typing import Any

from fake_fleet import FakeClient, Json
from seer_openrlhf.client import ServerLost, ServerRefused
from seer_openrlhf.front import Front

START = "default"  # the version of the weights that the server loads at its start


class MortalFleet(FakeClient):
    """The client's methods, with a server that ends after some samples.

    `ends_after`: for each post of a rollout, how many samples it generates before the server ends;
    after them rollouts are whole. `by_sigterm`: it ends its streams before. `away`: how often it is
    looked at in vain after an end.
    `generated_by`: (group, index, version) of every sample that was generated, not restored.
    """

    def __init__(
        self, *ends_after: int, journals: bool = True, away: int = 2, by_sigterm: bool = False
    ) -> None:
        super().__init__()
        self.ends_after = list(ends_after)
        self.keeps_journals = journals
        self.away = away
        self.by_sigterm = by_sigterm
        self.looks = 0  # until it is up
        self.ends = 0
        self.journals: dict[str, dict[tuple[str, int], Json]] = {}
        self.removed: list[str] = []
        self.generated_by: list[tuple[str, int, str]] = []

    def end(self) -> None:
        """Ends the server; the next one has the weights of its start."""
        self.ends += 1
        self.version, self.looks = START, self.away

    async def up(self) -> bool:
        """Returns whether it is up again."""
        self.looks = max(0, self.looks - 1)
        return not self.looks

    async def get(self, path: str) -> Json:
        """Returns whether it keeps journals."""
        self._require_up()
        return {"rollouts": [], "journals": self.keeps_journals}

    async def outcome(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, Json]:
        """Answers a call of the control plane."""
        self._require_up()
        return await super().outcome(path, body)

    async def delete(self, path: str) -> Json:
        """Removes a journal."""
        self._require_up()
        name = path.rpartition("/")[2]
        del self.journals[name]
        self.removed.append(name)
        return {"removed": name}

    async def rollout(self, body: Mapping[str, Any]) -> AsyncGenerator[Json]:
        """Yields the lines of a rollout: those of its journal first."""
        self._require_up()
        name = body.get("journal")
        kept: dict[tuple[str, int], Json]
        kept = {} if name is None else self.journals.setdefault(name, {})
        resumed = {"tokens": sum(len(each["response_ids"]) for each in kept.values())}
        if {_version(each) for each in kept.values()} - {self.version}:
            self.rollouts.append(dict(body))
            raise ServerRefused("/rollout: 400: weight version: another one in the journal")
        left = self.ends_after.pop(0) if self.ends_after else -1
        async for event in super().rollout(body):
            if event["event"] == "start":
                yield {**event, "resumed": resumed if kept else None}
                for each in list(kept.values()):
                    yield each
            elif event["event"] != "sample":
                yield event
            elif (place := (event["group_id"], event["index"])) not in kept:
                if left == 0:
                    self.end()
                    if self.by_sigterm:
                        yield {"event": "end", "error": "the server is shutting down"}
                        return
                    raise ServerLost("/rollout: the connection has ended")
                left -= 1
                kept[place] = event
                self.generated_by.append((*place, _version(event)))
                yield event

    async def generate(self, body: Mapping[str, Any]) -> Json:
        """Returns the reply to one request."""
        self._require_up()
        return await super().generate(body)

    def _require_up(self) -> None:
        if self.looks:
            raise ServerLost("the server does not answer")


class FakeTrainer:
    """An actor of the policy, which sends the weights of a version through the front."""

    def __init__(self, front: Front, version: str) -> None:
        self.version = version
        self.sends = 0
        self.broadcast_to_vllm = SimpleNamespace(remote=self.send)
        self._front = front
        front.join(0, 1, self, asynchronous=False)

    async def send(self) -> None:
        """Sends the weights."""
        self.sends += 1
        fields = {"weight_version": self.version}
        for path in ("/begin_weight_update", "/update_weights_from", "/end_weight_update"):
            await self._front.update(path, fields if path.startswith("/update") else {})


def _version(sample: Json) -> str:
    (span,) = sample["weight_spans"]
    return str(span["version"])
