"""A batch of prompts as one `/rollout` of the server.

OpenRLHF's executors stay unmodified: each asks its engine for a response. The first request of
every executor waits here until all executors of the batch have asked. The groups whose members ask
for the same then go to the server together, as whole groups of one rollout, and each executor gets
its own sample as soon as it is finished. Whatever an executor asks for after that, or asks for in
another way than its siblings, goes to `/generate` by itself, with the same group and a session.

Seeds depend on the batch's seed, the group, the executor's index and its turn only. The server
derives them from the seed and the names of a rollout; requests to `/generate` contain theirs.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from .figures import BatchFigures
from .seeds import derived_seed

Json = dict[str, Any]
# Executors that make their first request so long after the others get a rollout of their own.
IDLE_S = 2.0
clock = time.monotonic


class SampleLost(RuntimeError):
    """The server gave a group up: its samples must be generated again."""


class Generator(Protocol):
    """The part of the server's client that a batch uses."""

    def rollout(self, body: Mapping[str, Any]) -> AsyncGenerator[Json]:
        """Yields the lines of a rollout. Lines may come twice, if it was sent again."""

    async def generate(self, body: Mapping[str, Any]) -> Json:
        """Returns SGLang's reply to one request."""


@dataclass
class Ask:
    """The first request of an executor, and its answer."""

    ids: list[int]
    params: Json
    answer: "asyncio.Future[Json]"


@dataclass
class Group:
    """The executors of one prompt. `size`: how many have not ended without asking."""

    size: int
    asks: dict[int, Ask] = field(default_factory=dict)  # by the executor's index

    @property
    def complete(self) -> bool:
        """Whether every executor has asked or ended."""
        return len(self.asks) == self.size

    @property
    def equal(self) -> bool:
        """Whether all ask for the same, as the samples of one prompt."""
        first, *others = self.asks.values()
        return all(ask.ids == first.ids and ask.params == first.params for ask in others)

    @property
    def in_order(self) -> list[Ask]:
        """The requests in the order of their executors, whichever asked first."""
        return [self.asks[index] for index in sorted(self.asks)]


class Batch:
    """The groups of one batch. `seed`: of its rollouts."""

    def __init__(self, server: Generator, name: str, seed: int) -> None:
        self._server = server
        self.name = name
        self.figures = BatchFigures()
        self._seed = seed
        self._expected = 0  # groups that have not begun
        self._waiting: dict[str, Group] = {}
        self._calls: set[asyncio.Future[None]] = set()
        self._rollouts = 0
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, groups: int) -> None:
        """Announces so many groups, which go together."""
        self._expected += groups

    def begin(self, group_id: str, size: int) -> None:
        """Begins a group of so many executors."""
        self._expected = max(0, self._expected - 1)
        self._waiting[group_id] = Group(size)

    async def first(self, group_id: str, index: int, ids: list[int], params: Json) -> Json:
        """Returns the sample that answers the first request of an executor. Raises SampleLost."""
        ask = Ask(ids, params, asyncio.get_running_loop().create_future())
        self._waiting[group_id].asks[index] = ask
        self._send_soon()
        return await ask.answer

    async def next(
        self, group_id: str, index: int, turn: int, ids: list[int], params: Json
    ) -> Json:
        """Returns the response to one request by itself, in the executor's conversation."""
        name = f"{self.name}.{group_id}"
        seed = derived_seed(self._seed, group_id, index, turn)
        body = {
            "input_ids": ids,
            "sampling_params": {**params, "sampling_seed": seed},
            "return_logprob": True,
            "group_id": name,
            "session_id": f"{name}.{index}",
        }
        self.figures.sent(clock())
        sample = of_reply(await self._server.generate(body))
        self.figures.finished(len(sample["response_ids"]), clock())
        return sample

    def silent(self, group_id: str) -> None:
        """Records that an executor ended without a request; its siblings wait no longer for it."""
        group = self._waiting.get(group_id)
        if group is not None:
            group.size -= 1
            self._send_soon()

    def forget(self, group_id: str) -> None:
        """Drops a group that was not sent; the other groups wait no longer for it."""
        if self._waiting.pop(group_id, None) is not None:
            self._send_soon()

    def close(self) -> None:
        """Aborts what is in progress."""
        if self._timer is not None:
            self._timer.cancel()
        for call in self._calls:
            call.cancel()

    def _send_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        complete = not self._expected and all(g.complete for g in self._waiting.values())
        delay_s = 0.0 if complete else IDLE_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._send)

    def _send(self) -> None:
        """Sends the groups that are complete."""
        ready = {name: group for name, group in self._waiting.items() if group.complete}
        for name in ready:
            del self._waiting[name]
        whole = {n: group.in_order for n, group in ready.items() if group.asks and group.equal}
        if whole:
            self._start(self._rolled_out(whole))
        for name in ready.keys() - whole.keys():
            for index, ask in ready[name].asks.items():
                self._start(self._alone(name, index, ask))

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _rolled_out(self, groups: dict[str, list[Ask]]) -> None:
        """Answers the asks of whole groups from one rollout."""
        self._rollouts += 1
        body = {
            "rollout_id": f"{self.name}.{self._rollouts}",
            "seed": self._seed,
            "stream": "samples",
            "groups": [
                {"id": name, "prompt_ids": a[0].ids, "n": len(a), "sampling": a[0].params}
                for name, a in groups.items()
            ],
        }
        error: Exception = SampleLost("the rollout ended without the sample")
        self.figures.sent(clock())
        try:
            async with aclosing(self._server.rollout(body)) as events:
                async for event in events:
                    self._deliver(event, groups)
        except Exception as failure:
            error = failure
        for asks in groups.values():
            _fail(asks, error)

    def _deliver(self, event: Json, groups: Mapping[str, Sequence[Ask]]) -> None:
        """Gives a sample to its executor. A failed group's executors get the reason.

        Raises SampleLost if the rollout failed.
        """
        if event.get("event") == "sample":
            ask = groups[event["group_id"]][event["index"]]
            if not ask.answer.done():
                self.figures.finished(len(event["response_ids"]), clock())
            _answer(ask, event)
        elif event.get("event") == "start" and event.get("resumed"):
            self.figures.restored_tokens += event["resumed"]["tokens"]
        elif event.get("event") == "group" and "error" in event:
            _fail(groups[event["group_id"]], SampleLost(str(event["error"].get("message"))))
        elif event.get("event") == "end" and event.get("error"):
            raise SampleLost(str(event["error"]))

    async def _alone(self, group_id: str, index: int, ask: Ask) -> None:
        """Answers one ask that differs from its siblings'."""
        try:
            sample = await self.next(group_id, index, 0, ask.ids, ask.params)
        except Exception as failure:
            _fail([ask], failure)
        else:
            _answer(ask, sample)


def of_reply(reply: Json) -> Json:
    """Returns the fields of a sample that `/generate` has answered.

    An undivided response has SGLang's own reply, without the fields that seer-sgl adds.
    """
    meta = reply["meta_info"]
    triples, finish = meta["output_token_logprobs"], meta["finish_reason"]
    spans = meta.get("weight_versions") or [
        {"version": meta.get("weight_version", ""), "start": 0, "end": len(triples)}
    ]
    return {
        "response_ids": [token for _, token, *_ in triples],
        "rollout_log_probs": [logprob for logprob, *_ in triples],
        "finish_reason": finish["type"],
        "matched": finish.get("matched"),
        "accept_length": meta.get("spec_accept_length"),
        "engines": meta.get("seer", {}).get("engines", []),
        "weight_spans": [
            {"version": span["version"], "tokens": span["end"] - span["start"]} for span in spans
        ],
    }


def _answer(ask: Ask, sample: Json) -> None:
    if not ask.answer.done():
        ask.answer.set_result(sample)


def _fail(asks: Sequence[Ask], error: Exception) -> None:
    for ask in asks:
        if not ask.answer.done():
            ask.answer.set_exception(error)
