"""Trajectories: a function of the caller generates as often as it likes, for example turn by turn.

Each trajectory has a `Client`. The trajectories of a prompt share a group of the driver, so all
their turns are drafted from one another, and a turn prefers the engine that has the KV of the last.
"""

import asyncio
import itertools
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec
from typing_extensions import override

from seer_sgl.admission.sampling import unservable
from seer_sgl.driver.groups import GroupMaker, derived_seed
from seer_sgl.driver.observer import Observer
from seer_sgl.driver.response_text import ResponseText
from seer_sgl.errors import ConfigError, PromptError, RolloutError
from seer_sgl.types import (
    Failure,
    Group,
    Prompt,
    Request,
    Sample,
    logprob_array,
    spans_after,
)

from .prompts import PromptLike
from .writable import unwritable

if TYPE_CHECKING:
    from .rollout import Rollout

T = TypeVar("T")
Trajectory = Callable[[Prompt, "Client"], Awaitable[T]]
ENDED = "the trajectories have ended"


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
        await asyncio.sleep(0)  # a function that tries again for ever leaves others their turn
        shared = self._shared
        seed = derived_seed(shared.seed, self.index, self._turns, shared.group.group_id)
        request = shared.request(input_ids, seed, sampling)
        if self._last is not None:
            request.preferred_engine, request.follows = self._last.engines[-1], self._last.uid
        self._turns += 1
        try:
            sample = shared.turn(await shared.finished(request), request)
        finally:
            if request.engines:
                self._last = request
        return msgspec.structs.replace(sample, index=self.index)

    def encode(self, text: str) -> "array[int]":
        """Returns the ids of a text between two turns, without special tokens around it.

        Raises PromptError without a tokenizer, and for what is no text.
        """
        tokenizer = self._shared.rollout.tokenizer
        if tokenizer is None:
            raise PromptError("a text needs a tokenizer: set model.path")
        problem = unwritable(text) if isinstance(text, str) else "expected str"
        if problem is not None:
            raise PromptError(f"a text between two turns: {problem}")
        return tokenizer.encode_part(text)


class _Session(Observer):
    """The trajectories of one call: one run of the driver, and the waits for its requests."""

    def __init__(self, rollout: "Rollout", run_id: str, observers: Sequence[Observer]) -> None:
        self.rollout = rollout
        self.run_id = run_id
        self.orders = itertools.count()
        self._futures: dict[str, asyncio.Future[Sample]] = {}  # by uid
        self._why: str | None = None  # no more requests are taken
        self.run = rollout.driver.open_run(
            [self, *observers],
            rollout_id=run_id,
            started_at=time.monotonic(),
            on_failure="sample",
            texts=False,
        )

    def future(self, request: Request) -> asyncio.Future[Sample]:
        """Returns the future of a new request. Raises RolloutError if no more are taken."""
        if self._why is not None:
            raise RolloutError(self._why)
        future = self._futures[request.uid] = asyncio.get_running_loop().create_future()
        return future

    def forget(self, request: Request) -> None:
        """Removes a request."""
        self._futures.pop(request.uid, None)

    async def follow(self) -> None:
        """Ends all waits when the run ends, or the driver, and takes no more requests."""
        why = ENDED
        try:
            async for group in self.run:
                # Without this cycle of references no turn waits for a garbage collection.
                group.requests = []
        except RolloutError as error:
            why = str(error)
        finally:
            self._why = why
            for uid in list(self._futures):
                self._fail(uid, why)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        future = self._futures.get(request.uid)
        if request.failure is not None:
            self._fail(request.uid, request.failure.message)
        elif future is not None and not future.done():
            future.set_result(sample)

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        if failure is not None:
            for request in group.requests:
                self._fail(request.uid, failure.message)

    def _fail(self, uid: str, why: str) -> None:
        future = self._futures.get(uid)
        if future is not None and not future.done():
            future.set_exception(RolloutError(why))


class _Shared:
    """The group of a prompt's trajectories."""

    def __init__(self, session: _Session, prompt: Prompt, seed: int) -> None:
        self.rollout = session.rollout
        self.seed = seed
        self._session = session
        self._closed = False
        self.group = Group(
            group_id=prompt.prompt_id,
            uid=f"{session.run_id}/{prompt.prompt_id}",
            prompt=prompt,
            sampling=prompt.sampling or self.rollout.config.sampling,
            growing=True,
        )
        self.rollout.driver.limits.allow_images(self.group)

    def request(
        self, input_ids: Sequence[int] | None, seed: int, sampling: dict[str, Any]
    ) -> Request:
        """Returns a request of the group for a turn. Raises PromptError for an unusable one."""
        turn, limit = self._read(input_ids, sampling)
        given = turn.prompt_ids[len(self.group.prompt.prompt_ids) :]
        order = next(self._session.orders)
        request = Request(
            uid=f"{self._session.run_id}.{order}",
            order=order,
            group=self.group,
            index=len(self.group.requests),
            seed=seed,
            max_response_len=len(given) + limit,
            own_sampling=turn.sampling,
            resumed_tokens=len(given),
            retain_kv=True,
            submitted_at=time.monotonic(),
        )
        if given:
            request.prefill(given, self.rollout.engines[0].weight_version)
        return request

    def _read(
        self, input_ids: Sequence[int] | None, sampling: dict[str, Any]
    ) -> tuple[Prompt, int]:
        """Returns a turn, checked, with its own sampling if it has one, and its most tokens."""
        group, prompt_ids = self.group, self.group.prompt.prompt_ids
        where = f"prompt {group.group_id!r}, a turn"
        record: dict[str, Any] = {"id": group.group_id, "n": 1, "prompt_ids": input_ids}
        if input_ids is None:
            record["prompt_ids"] = prompt_ids.tolist()
        elif not isinstance(input_ids, list):
            try:
                record["prompt_ids"] = array("q", input_ids).tolist()
            except (TypeError, ValueError, OverflowError) as error:
                raise PromptError(f"{where}: its ids are no row of numbers: {error}") from error
        if sampling:
            record["sampling"] = sampling
        (turn,) = self.rollout.prompt_reader(1, group.sampling).each([record], where, {})
        if turn.prompt_ids[: len(prompt_ids)] != prompt_ids:
            raise PromptError(f"{where}: it does not begin with the tokens of the prompt")
        images = len(group.prompt.image_data)
        if group.undivided and self.rollout.images.missing(turn.prompt_ids, images) > 0:
            why = "takes an image token behind the prompt for an image, and never answers"
            raise PromptError(f"{where}: without the plugin SGLang {why}")
        wanted = turn.sampling or group.sampling
        has_tokenizer = self.rollout.tokenizer is not None
        for key, why in unservable(wanted, self.rollout.engines, tokenizer=has_tokenizer):
            raise PromptError(f"{where}: sampling.{key}: {why}")
        try:
            limits = self.rollout.driver.limits
            return turn, limits.response_limit(turn, wanted.max_new_tokens, group.prompt)
        except ConfigError as error:
            raise PromptError(f"{where}: {error}") from error

    async def finished(self, request: Request) -> Sample:
        """Sends a request and returns its sample. A trajectory that leaves aborts it."""
        if self._closed:
            raise RolloutError("a turn of a trajectory that has returned")
        session = self._session
        future = session.future(request)
        try:
            if self.group.requests:
                session.run.grow(self.group, [request])
            else:
                self.group.requests = [request]
                session.run.add([self.group])
            return await future
        finally:
            session.forget(request)
            if not future.done() or future.cancelled():
                session.run.abort(request)

    def turn(self, sample: Sample, request: Request) -> Sample:
        """Returns the sample of a request; the tokens that it was given are in its prompt.

        The group keeps the tokens of all turns for drafts and the pool, but not their other data.
        """
        given, response = request.resumed_tokens, request.response_ids[request.resumed_tokens :]
        log_probs, request.logprobs = request.logprobs[given:], logprob_array()
        request.routed_experts = None
        kept = self.group.samples
        at = next(i for i in reversed(range(len(kept))) if kept[i] is sample)
        kept[at] = msgspec.structs.replace(
            sample, rollout_log_probs=request.logprobs, routed_experts=None
        )
        ids = sample.prompt_ids + request.response_ids[:given]
        tokenizer, text = self.rollout.tokenizer, None
        if tokenizer is not None:
            text = ResponseText(tokenizer, ids, request.sampling).end(response, request.matched)
        return msgspec.structs.replace(
            sample,
            prompt_ids=ids,
            response_ids=response,
            response_length=len(response),
            rollout_log_probs=log_probs,
            weight_spans=spans_after(request.weight_spans, given),
            text=text,
        )

    def close(self) -> None:
        """Ends the group: no more turns follow."""
        self._closed = True
        if self.group.requests:
            self._session.run.complete_group(self.group)


async def trajectories(
    rollout: "Rollout",
    run_id: str,
    function: Trajectory[T],
    prompts: Iterable[PromptLike],
    observers: Sequence[Observer],
) -> AsyncGenerator[Trajectories[T], None]:
    """Runs the function for all trajectories at once; see `Rollout.trajectories`."""
    if rollout.config.scheduling.policy == "oracle":
        raise ConfigError("scheduling.policy: oracle has no lengths of trajectories")
    checked = rollout.prompt_reader().convert(prompts)
    maker = GroupMaker(run_id, rollout.seed_of_next_run())
    rollout.make_groups(checked, maker, rollout.config.sampling)  # raises
    seed = rollout.next_seed()  # a refused run takes no seed
    session = _Session(rollout, run_id, observers)
    following = asyncio.create_task(session.follow())
    ended: asyncio.Queue[asyncio.Task[Trajectories[T]]] = asyncio.Queue()
    tasks = {asyncio.create_task(_run_all(function, _Shared(session, p, seed))) for p in checked}
    for task in tasks:
        task.add_done_callback(ended.put_nowait)
    failed: list[str] = []
    try:
        while tasks:
            task = await ended.get()
            tasks.discard(task)
            try:
                result = task.result()
            except RolloutError as error:
                failed.append(str(error))
                continue
            yield result
            del task, result  # what the caller drops is free
    finally:
        for task in tasks:
            task.cancel()
        session.run.close()  # which ends `following` too
        if tasks:
            await asyncio.wait({*tasks, following})
    if failed:
        raise RolloutError(
            f"{len(failed)} of {len(checked)} prompts failed; the first: {failed[0]}"
        )


async def _run_all(function: Trajectory[T], shared: _Shared) -> Trajectories[T]:
    """Runs the trajectories of a prompt. Raises the first error that is no RolloutError at once,
    and the first RolloutError after all."""
    prompt, tasks = shared.group.prompt, list[asyncio.Future[T]]()
    try:
        for index in range(prompt.n):
            # Ids of its own: a function may extend them in place, turn by turn.
            own = msgspec.structs.replace(prompt, prompt_ids=prompt.prompt_ids[:])
            tasks.append(asyncio.ensure_future(function(own, Client(shared, index))))
        pending: set[asyncio.Future[T]] = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                if task.cancelled():
                    raise RuntimeError(f"prompt {prompt.prompt_id!r}: a trajectory was cancelled")
                error = task.exception()
                if error is not None and not isinstance(error, RolloutError):
                    raise error
        return Trajectories(prompt, [task.result() for task in tasks])
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            shared.close()
