"""Trajectories: a function of the caller generates as often as it likes, for example turn by turn.

Each trajectory has a `Client`. The trajectories of a prompt share a group of the driver, so all
their turns are drafted from one another, and a turn prefers the engine that has the KV of the last.
"""

import asyncio
import contextlib
import itertools
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec
from typing_extensions import override

from seer_sgl.driver.groups import GroupMaker, derived_seed
from seer_sgl.driver.observer import Observer
from seer_sgl.driver.response_text import ResponseText
from seer_sgl.errors import PromptError, RolloutError
from seer_sgl.types import ChunkReply, Group, Prompt, Request, Sample, WeightSpan

from .prompts import PromptLike

if TYPE_CHECKING:
    from .rollout import Rollout

T = TypeVar("T")
Trajectory = Callable[[Prompt, "Client"], Awaitable[T]]


class Trajectories(NamedTuple, Generic[T]):
    """A prompt, and what the function returned for each of its `n` trajectories."""

    prompt: Prompt
    results: list[T]


class Client:
    """Generates the turns of one trajectory. `index`: which of its prompt's it is, from 0."""

    def __init__(self, shared: "_Shared", index: int) -> None:
        self.index = index
        self._shared = shared
        self._turns = 0
        self._last: Request | None = None

    async def generate(self, input_ids: Sequence[int] | None = None, **sampling: Any) -> Sample:
        """Generates one response, divided and moved like any other.

        input_ids: the tokens to continue, which begin with those of the prompt; default: the
        prompt. `sampling`: parameters that differ from the prompt's, as in a prompts file. The
        sample's `prompt_ids` are the input, and its `response_ids` the new tokens.

        Raises PromptError for an unusable input, and RolloutError if the request fails for good.
        """
        shared = self._shared
        seed = derived_seed(shared.seed, self.index, self._turns, shared.group.group_id)
        request = shared.request(input_ids, seed, sampling)
        if self._last is not None and self._last.engines:
            request.home, request.stored = self._last.engines[-1], self._last.stored
        self._turns += 1
        self._last = request
        return shared.turn(await shared.finished(request), request)

    def encode(self, text: str) -> "array[int]":
        """Returns the ids of a text between two turns, without special tokens around it.

        Raises PromptError without a tokenizer.
        """
        tokenizer = self._shared.rollout.tokenizer
        if tokenizer is None:
            raise PromptError("a text needs a tokenizer: set model.path")
        return tokenizer.encode_part(text)


class _Waiting(Observer):
    """The requests whose trajectories wait for them."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[Sample]] = {}  # by uid
        self._error: RolloutError | None = None

    def future(self, request: Request) -> asyncio.Future[Sample]:
        """Returns the future of a new request. Raises RolloutError if the driver has ended."""
        if self._error is not None:
            raise self._error
        future = self._futures[request.uid] = asyncio.get_running_loop().create_future()
        return future

    def forget(self, request: Request) -> None:
        """Removes a request."""
        self._futures.pop(request.uid, None)

    def fail(self, error: RolloutError) -> None:
        """Ends all waits: the driver has ended."""
        self._error = error
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        future = self._futures.get(request.uid)
        if future is None or future.done():
            return
        if request.failure is None:
            future.set_result(sample)
        else:
            future.set_exception(RolloutError(request.failure.message))


class _Shared:
    """The group of a prompt's trajectories."""

    def __init__(self, session: "_Session", prompt: Prompt, seed: int) -> None:
        self.rollout = session.rollout
        self.seed = seed
        self._session = session
        self.group = Group(
            group_id=prompt.prompt_id,
            uid=f"{session.run_id}/{prompt.prompt_id}",
            prompt=prompt,
            sampling=prompt.sampling or self.rollout.config.sampling,
            growing=True,
        )

    def request(
        self, input_ids: Sequence[int] | None, seed: int, sampling: dict[str, Any]
    ) -> Request:
        """Returns a request of the group for a turn. Raises PromptError for an unusable one."""
        group, prompt_ids = self.group, self.group.prompt.prompt_ids
        where = f"prompt {group.group_id!r}, a turn"
        record = {"prompt_ids": list(prompt_ids if input_ids is None else input_ids), "n": 1}
        reader = self.rollout.prompt_reader(1, group.sampling)
        (turn,) = reader.each([record | {"sampling": sampling or None}], where, {})
        if turn.prompt_ids[: len(prompt_ids)] != prompt_ids:
            raise PromptError(f"{where}: it does not begin with the tokens of the prompt")
        maker = GroupMaker(self._session.run_id, seed)
        ((checked,),) = (
            group.requests for group in self.rollout.make_groups([turn], maker, group.sampling)
        )
        given = turn.prompt_ids[len(prompt_ids) :]
        order = next(self._session.orders)
        request = Request(
            uid=f"{self._session.run_id}.{order}",
            order=order,
            group=group,
            index=len(group.requests),
            seed=seed,
            max_response_len=len(given) + checked.max_response_len,
            own_sampling=None if checked.sampling == group.sampling else checked.sampling,
            given=len(given),
            kept=True,
            submitted_at=time.monotonic(),
        )
        if given:
            spans = [WeightSpan(self.rollout.engines[0].weight_version, len(given))]
            zeros = array("f", bytes(4 * len(given)))
            request.append(
                ChunkReply(ids=given, logprobs=zeros, weight_spans=spans, finish="abort")
            )
        return request

    async def finished(self, request: Request) -> Sample:
        """Sends a request and returns its sample. A trajectory that leaves aborts it."""
        run, waiting = self._session.run, self._session.waiting
        future = waiting.future(request)
        if self.group.requests:
            run.grow(self.group, [request])
        else:
            self.group.requests = [request]
            run.add([self.group])
        try:
            return await future
        finally:
            waiting.forget(request)
            if future.cancelled():
                run.abort(request)

    def turn(self, sample: Sample, request: Request) -> Sample:
        """Returns the sample of a request; the tokens that it was given are in its prompt."""
        given, response = request.given, request.response_ids[request.given :]
        ids = sample.prompt_ids + request.response_ids[:given]
        tokenizer, text = self.rollout.tokenizer, None
        if tokenizer is not None:
            text = ResponseText(tokenizer, ids, request.sampling).end(response, request.matched)
        return msgspec.structs.replace(
            sample,
            prompt_ids=ids,
            response_ids=response,
            response_length=len(response),
            rollout_log_probs=request.logprobs[given:],
            weight_spans=_after(request.weight_spans, given),
            text=text,
            accept_length=len(response) / request.verify_steps if request.verify_steps else None,
        )

    def close(self) -> None:
        """Ends the group: no more turns follow."""
        if self.group.requests:
            self._session.run.complete_group(self.group)


class _Session:
    """The trajectories of one call: one run of the driver."""

    def __init__(self, rollout: "Rollout", run_id: str, observers: Sequence[Observer]) -> None:
        self.rollout = rollout
        self.run_id = run_id
        self.orders = itertools.count()
        self.waiting = _Waiting()
        self.run = rollout.driver.open_run(
            [self.waiting, *observers],
            rollout_id=run_id,
            started_at=time.monotonic(),
            on_failure="sample",
            texts=False,
        )

    async def follow(self) -> None:
        """Ends all waits when the driver ends."""
        try:
            async for _ in self.run:
                pass
        except RolloutError as error:
            self.waiting.fail(error)


async def trajectories(
    rollout: "Rollout",
    run_id: str,
    function: Trajectory[T],
    prompts: Iterable[PromptLike],
    observers: Sequence[Observer],
) -> AsyncGenerator[Trajectories[T], None]:
    """Runs the function for all trajectories at once; see `Rollout.trajectories`."""
    checked = rollout.prompt_reader().convert(prompts)
    seed, session = rollout.next_seed(), _Session(rollout, run_id, observers)
    ended: asyncio.Queue[asyncio.Task[Trajectories[T]]] = asyncio.Queue()

    async def one(prompt: Prompt) -> Trajectories[T]:
        shared = _Shared(session, prompt, seed)
        runs = (function(prompt, Client(shared, index)) for index in range(prompt.n))
        try:
            results = await asyncio.gather(*runs, return_exceptions=True)
        finally:
            shared.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return Trajectories(prompt, [r for r in results if not isinstance(r, BaseException)])

    tasks = [asyncio.create_task(one(prompt)) for prompt in checked]
    for task in tasks:
        task.add_done_callback(ended.put_nowait)
    following = asyncio.create_task(session.follow())
    failed: list[RolloutError] = []
    try:
        for _ in tasks:
            task = await ended.get()
            try:
                result = task.result()
            except RolloutError as error:
                failed.append(error)
                continue
            yield result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        session.run.close()
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    if failed:
        raise RolloutError(f"{len(failed)} of {len(tasks)} prompts failed; the first: {failed[0]}")


def _after(spans: Sequence[WeightSpan], given: int) -> list[WeightSpan]:
    """Returns the weight spans behind the first `given` tokens."""
    left = []
    for span in spans:
        skipped = min(given, span.tokens)
        given -= skipped
        if span.tokens > skipped:
            left.append(WeightSpan(span.version, span.tokens - skipped))
    return left
