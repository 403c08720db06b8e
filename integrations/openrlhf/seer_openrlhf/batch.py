"""A batch of prompts as one `/rollout` of the server.

OpenRLHF's executors stay as they are: each asks its engine for a response. The first request of
every executor waits here until all executors of the batch have asked. The groups whose members ask
for the same then go to the server together, as whole groups of one rollout, and each executor gets
its own sample as soon as it is finished. Whatever an executor asks for after that, or asks for in
another way than its siblings, goes to `/generate` by itself, with the same group and a session.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .outputs import Output, output, parameters

Json = dict[str, Any]
# Executors that make their first request so long after the others get a rollout of their own.
IDLE_S = 2.0


class SampleLost(RuntimeError):
    """The server gave a group up: its samples must be generated again."""


class Generator(Protocol):
    """The part of the server's client that a batch uses."""

    def rollout(self, body: Mapping[str, Any]) -> AsyncIterator[Json]:
        """Yields the lines of a rollout."""

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


class Batch:
    """The groups of one batch. `seed`: of its rollouts."""

    def __init__(self, server: Generator, name: str, seed: int) -> None:
        self._server = server
        self.name = name
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

    def silent(self, group_id: str) -> None:
        """Records that an executor ended without a request; its siblings wait no longer for it."""
        group = self._waiting.get(group_id)
        if group is not None:
            group.size -= 1
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
        whole = {n: list(g.asks.values()) for n, g in ready.items() if g.asks and g.equal}
        if whole:
            self._start(self._rolled_out(whole))
        for name in ready.keys() - whole.keys():
            for ask in ready[name].asks.values():
                self._start(self._alone(name, ask))

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
        try:
            async for event in self._server.rollout(body):
                _deliver(event, groups)
        except Exception as failure:
            error = failure
        for asks in groups.values():
            _fail(asks, error)

    async def _alone(self, group_id: str, ask: Ask) -> None:
        """Answers one ask that differs from its siblings'."""
        try:
            sample = await self.generate(group_id, None, ask.ids, ask.params)
        except Exception as failure:
            _fail([ask], failure)
        else:
            _answer(ask, sample)

    async def generate(
        self, group_id: str, index: int | None, ids: list[int], params: Json
    ) -> Json:
        """Returns one response by itself. `index`: of the executor whose conversation it is in."""
        name = f"{self.name}.{group_id}"
        body = {
            "input_ids": ids,
            "sampling_params": params,
            "return_logprob": True,
            "group_id": name,
        }
        if index is not None:
            body["session_id"] = f"{name}.{index}"
        return of_reply(await self._server.generate(body))


class SampleEngine:
    """What one executor takes for its engine: it knows the sample's place in the batch.

    `decode`: turns ids into text; its second argument leaves special tokens out.
    """

    def __init__(
        self, batch: Batch, group_id: str, index: int, decode: Callable[[list[int], bool], str]
    ) -> None:
        self._batch = batch
        self._group_id = group_id
        self._index = index
        self._decode = decode
        self._asked = False

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling_params: Any, multi_modal_data: Any = None
    ) -> Output:
        """Returns the response to a prompt. Raises SampleLost or ServerError."""
        if multi_modal_data:
            raise ValueError("prompts with images are not supported")
        ids, params = list(prompt_token_ids), parameters(sampling_params)
        if not ids:
            raise ValueError(f"prompt {self._group_id} of batch {self._batch.name} has no tokens")
        if self._asked:
            sample = await self._batch.generate(self._group_id, self._index, ids, params)
        else:
            self._asked = True
            sample = await self._batch.first(self._group_id, self._index, ids, params)
        finish, tokens = sample["finish_reason"], sample["response_ids"]
        if finish not in ("stop", "length") or not tokens:
            raise SampleLost(f"a response of {len(tokens)} tokens ended with {finish}")
        logprobs = None if sampling_params.logprobs is None else sample["rollout_log_probs"]
        text = self._decode(tokens, sampling_params.skip_special_tokens)
        return output(tokens, logprobs, text, finish)

    def ended(self) -> None:
        """Records that the executor has ended."""
        if not self._asked:
            self._batch.silent(self._group_id)


def of_reply(reply: Json) -> Json:
    """Returns the fields of a sample that `/generate` has answered."""
    meta = reply["meta_info"]
    triples = meta["output_token_logprobs"]
    return {
        "response_ids": [token for _, token, *_ in triples],
        "rollout_log_probs": [logprob for logprob, *_ in triples],
        "finish_reason": meta["finish_reason"]["type"],
    }


def _answer(ask: Ask, sample: Json) -> None:
    if not ask.answer.done():
        ask.answer.set_result(sample)


def _fail(asks: Sequence[Ask], error: Exception) -> None:
    for ask in asks:
        if not ask.answer.done():
            ask.answer.set_exception(error)


def _deliver(event: Json, groups: Mapping[str, Sequence[Ask]]) -> None:
    """Gives a sample to its executor. A failed group's executors get the reason.

    Raises SampleLost if the rollout failed.
    """
    if event.get("event") == "sample":
        _answer(groups[event["group_id"]][event["index"]], event)
    elif event.get("event") == "group" and "error" in event:
        _fail(groups[event["group_id"]], SampleLost(str(event["error"].get("message"))))
    elif event.get("event") == "end" and event.get("error"):
        raise SampleLost(str(event["error"]))
