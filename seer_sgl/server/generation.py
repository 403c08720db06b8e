"""The responses in progress: each call becomes a request of the driver, in a group of siblings."""

import asyncio
import itertools
import logging
import secrets
import time
from array import array
from collections.abc import Sequence

from typing_extensions import override

from seer_sgl.config import ServerConfig
from seer_sgl.driver.driver import Driver
from seer_sgl.driver.observer import Observer
from seer_sgl.driver.run import Run
from seer_sgl.errors import RolloutError, first_error
from seer_sgl.types import (
    ChunkResult,
    Failure,
    FailureKind,
    Group,
    Prompt,
    Request,
    Sample,
    SendUnread,
    token_array,
)

from .calls import Answer, Call
from .errors import BadRequest, Failed, HttpError, TooMany, Unavailable
from .prefixes import Prefixes
from .sessions import Sessions
from .siblings import OpenGroup, Siblings, continued

logger = logging.getLogger(__name__)
CALLER = "server"  # the share of all single requests, beside one share per rollout
STOPPING = "the server is shutting down"
TICK_S = 0.25  # between two checks for groups to close
clock = time.monotonic


class Generation(Observer):
    """Generates responses on the driver's engines, and keeps siblings together.

    Use `run` in a task while calls are started. `sessions`: the conversations whose last turn is
    kept.
    """

    def __init__(self, driver: Driver, config: ServerConfig) -> None:
        self._driver = driver
        self._config = config
        self._siblings = Siblings(config.group_window_s, config.session_timeout_s)
        self.sessions = Sessions(config.session_timeout_s)
        self._answers: dict[str, Answer] = {}  # by rid
        # By the uid of the driver's request; also passthroughs, whose answers have no tokens.
        self._by_request: dict[str, Answer] = {}
        self._orders = itertools.count()
        # Engines refuse an id that another server's request has, or one of a server that died.
        self._prefix = secrets.token_hex(4)
        self._in_rollouts = 0  # responses of rollouts in progress
        self._ended: RolloutError | None = None
        self._stopping = False  # no new response begins
        # Siblings are requests of different clients: none ends because of another.
        self._run: Run = driver.open_run([self], caller=CALLER, on_failure="sample", texts=False)

    @property
    def in_progress(self) -> int:
        """The number of responses in progress, those of rollouts included."""
        return self.requests + self._in_rollouts

    @property
    def requests(self) -> int:
        """The number of responses in progress that belong to no rollout."""
        return len(self._by_request)

    @property
    def open_groups(self) -> int:
        return len(self._siblings)

    async def run(self) -> None:
        """Closes idle groups until cancelled. Raises RolloutError when the driver has ended."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._close_idle())
                async for group in self._run:
                    # Without this cycle of references no request waits for a garbage collection.
                    group.requests = []
        except* RolloutError as failures:
            error = first_error(failures)
            assert isinstance(error, RolloutError)
            self._ended = error
        finally:
            why = Unavailable(STOPPING)
            for answer in list(self._by_request.values()):
                self._forget(answer)
                answer.failed(why, clock())
        if self._ended is not None:
            raise self._ended

    def start(self, calls: Sequence[Call]) -> list[Answer]:
        """Starts responses, all or none.

        Raises TooMany if the server has no room for them, BadRequest if a name is in use, and
        Unavailable if the driver has ended.
        """
        self.require_room(len(calls))
        names = set[str]()
        for call in calls:
            if call.rid in self._answers or call.rid in names:
                raise BadRequest(f"Duplicate request ID detected: {call.rid}")
            names.add(call.rid)
        answers = [Answer(call, clock()) for call in calls]
        for answer in answers:
            self._answers[answer.call.rid] = answer
            self._place(answer)
        return answers

    def stop(self) -> None:
        """Takes no more responses; those in progress continue."""
        self._stopping = True

    def require_running(self) -> None:
        """Raises Unavailable if no more responses are taken."""
        if self._ended is not None:
            raise Unavailable(str(self._ended))
        if self._stopping:
            raise Unavailable(STOPPING)

    def require_room(self, count: int) -> None:
        """Raises TooMany if the server cannot take so many more responses, and Unavailable if it
        takes none any more."""
        self.require_running()
        if self.in_progress + count > self._config.max_requests:
            raise TooMany(
                f"{self.in_progress} responses are in progress, and server.max_requests is "
                f"{self._config.max_requests}"
            )

    def reserve(self, count: int) -> None:
        """Counts so many responses of a rollout as in progress. Raises like `require_room`."""
        self.require_room(count)
        self._in_rollouts += count

    def release(self, count: int) -> None:
        """Ends the reservation of so many responses."""
        self._in_rollouts -= count

    def abort(self, named: Prefixes) -> list[Answer]:
        """Ends the responses whose rid `named` matches, with the tokens they have.

        Returns them. They end when their engines have returned the tokens. Their groups stay open
        for their continuations: a partial rollout sends those after a training step.
        """
        aborted = [answer for rid, answer in self._answers.items() if named.match(rid)]
        for answer in aborted:
            if answer.request is not None:
                opened = self._siblings.of(answer.request.group)
                if opened is not None:
                    opened.interrupted = True
            self.abort_answer(answer)
        return aborted

    def abort_answer(self, answer: Answer) -> None:
        """Aborts one response, because its client wants no more of it."""
        if answer.request is not None and not answer.ended:
            self._run.abort(answer.request)

    async def pass_through(self, send: SendUnread, prompt_len: int, budget: int) -> None:
        """Has a passthrough sent, once an engine has room for it; returns when it has ended.

        prompt_len, budget: tokens that the KV ledger reserves. Raises HttpError if no engine could
        answer.
        """
        self.require_room(1)
        longest = self._driver.limits.longest_prompt
        prompt_len = min(max(1, prompt_len), longest)
        order = next(self._orders)
        uid = f"{self._prefix}-passthrough/{order}"
        prompt_ids = token_array([0]) * prompt_len
        prompt = Prompt(prompt_id=uid, prompt_ids=prompt_ids, n=1)
        group = Group(group_id=uid, uid=uid, prompt=prompt)
        limit = min(max(1, budget), longest + 1 - prompt_len)
        call = Call(rid=uid, prompt_ids=prompt_ids, sampling=group.sampling, seed=0)
        answer = Answer(call, clock())
        answer.request = Request(
            uid=f"{self._prefix}-f{order}",
            order=order,
            group=group,
            index=0,
            seed=0,
            max_response_len=limit,
            passthrough=send,
            submitted_at=answer.arrived_at,
        )
        group.requests = [answer.request]
        self._by_request[answer.request.uid] = answer
        try:
            self._run.add([group])
            await answer.end()
        finally:
            self._forget(answer)
            self.abort_answer(answer)

    @override
    def streamed(self, request: Request, ids: "array[int]", logprobs: "array[float]") -> None:
        answer = self._by_request.get(request.uid)
        if answer is not None:
            answer.streamed(ids, logprobs)

    @override
    def grown(self, result: ChunkResult) -> None:
        answer = self._by_request.get(result.chunk.request.uid)
        if answer is not None and result.figures is not None:
            answer.add(result.figures, result.chunk.engine_id)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        if request.failure is not None:
            self._failed(request, request.failure)
            return
        answer = self._by_request.get(request.uid)
        if answer is not None:
            self._forget(answer)
            answer.finished(clock())

    @override
    def closed(self, group: Group, failure: Failure | None) -> None:
        opened = self._siblings.of(group)
        if opened is not None:
            self._siblings.close(opened)
        if failure is not None:
            for request in group.requests:
                self._failed(request, failure)

    def _failed(self, request: Request, failure: Failure) -> None:
        answer = self._by_request.get(request.uid)
        if answer is not None:
            self._forget(answer)
            answer.failed(_error_of(failure), clock())

    def _place(self, answer: Answer) -> None:
        """Makes the driver's request for a call, in the group of its siblings."""
        call, now = answer.call, clock()
        opened = self._siblings.find(call)
        if opened is None:
            group = self._new_group(call)
            answer.request = self._request(answer, group)
            group.requests = [answer.request]
            if group.growing:
                opened = self._siblings.opened(group, call, now)
        else:
            answer.request = self._request(answer, opened.group)
        self._by_request[answer.request.uid] = answer
        if call.session_id is not None and opened is not None:
            self.sessions.took_turn(call.session_id, answer.request, opened, now)
        if answer.request.group.requests == [answer.request]:
            self._run.add([answer.request.group])
        else:
            self._run.grow(answer.request.group, [answer.request])
        if opened is not None and opened.full:
            self._close(opened)

    def _new_group(self, call: Call) -> Group:
        uid = f"{self._prefix}-s{next(self._orders)}"
        group_id = call.group_id or uid
        named = call.group_id is not None or call.session_id is not None
        prompt = Prompt(
            prompt_id=group_id,
            prompt_ids=call.prompt_ids,
            n=1,
            image_data=call.images.urls,
            image_tokens=call.images.tokens,
        )
        group = Group(
            group_id=group_id,
            uid=uid,
            prompt=prompt,
            sampling=call.sampling,
            growing=named or self._config.group_window_s > 0,
        )
        self._driver.limits.allow_images(group)
        return group

    def _request(self, answer: Answer, group: Group) -> Request:
        """Returns the request of a call in a group whose prompt the call begins with."""
        call, order = answer.call, next(self._orders)
        given = call.prompt_ids[len(group.prompt.prompt_ids) :]
        answer.resumed = len(given)
        request = Request(
            uid=f"{self._prefix}-r{order}",
            order=order,
            group=group,
            index=len(group.requests),
            seed=call.seed,
            max_response_len=answer.resumed + call.sampling.max_new_tokens,
            own_sampling=None if call.sampling == group.sampling else call.sampling,
            resumed_tokens=answer.resumed,
            streaming=call.stream,
            retain_kv=call.session_id is not None,
            submitted_at=clock(),
        )
        if given:
            request.prefill(given, self._version())
        before = continued(group, given) if given else None
        if before is None and call.session_id is not None:
            before = self.sessions.last_turn(call.session_id)
        if before is not None and before.engines:
            request.preferred_engine, request.follows = before.engines[-1], before.uid
        return request

    def _close(self, opened: OpenGroup) -> None:
        self._siblings.close(opened)
        self._run.complete_group(opened.group)

    def _forget(self, answer: Answer) -> None:
        self._answers.pop(answer.call.rid, None)
        if answer.request is not None:
            self._by_request.pop(answer.request.uid, None)

    def _version(self) -> str:
        engines = self._driver.engines
        return engines[0].weight_version if engines else ""

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = clock()
            self.sessions.expire(now)
            for opened in self._siblings.expired(now):
                self._close(opened)


def _error_of(failure: Failure) -> HttpError:
    if failure.kind is FailureKind.REFUSED:
        return BadRequest(failure.message)
    return Failed(failure.message)
