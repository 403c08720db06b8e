"""What the handlers of the data plane share: the fleet, the tokenizer and the responses."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from aiohttp import web

from seer_sgl.admission.sampling import unservable
from seer_sgl.backend.backend import Backend
from seer_sgl.config import Config, ServerConfig
from seer_sgl.driver.driver import Driver
from seer_sgl.driver.response_text import ResponseText
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.engine.answers import ask_object
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.fleet import Fleet
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import EngineError, EngineUnavailable
from seer_sgl.rollout.rollout import Rollout

from .calls import Answer, Call
from .errors import Aborted, BadRequest, Failed, Unavailable
from .generation import Generation
from .passthrough.reasons import PassthroughReasons
from .passthrough.send import Passthrough
from .pinned import Pinned
from .prefixes import EVERY, Prefixes
from .progress import SignsOfWork
from .prompt_texts import PromptTexts
from .rollouts import Rollouts
from .streams import abandon

P = ParamSpec("P")
T = TypeVar("T")
THREAD_BYTES = 1 << 15  # a tokenizer reads about a megabyte per second
THREADS = 4
ABORT_S = 10.0  # an engine returns the tokens of an aborted request in milliseconds
DRAIN_POLL_S = 0.05
logger = logging.getLogger(__name__)


class Service:
    """One open fleet, its driver and the responses in progress."""

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        self.config: Config = rollout.config
        self.settings: ServerConfig = rollout.config.server  # the config section `server`
        self.timing = rollout.timing
        self.backend: Backend = rollout.backend
        self.driver: Driver = rollout.driver
        self.fleet: Fleet = rollout.fleet
        self.generation = Generation(self.driver, self.settings)
        self.rollouts = Rollouts(rollout, self.generation)
        self.passthrough = PassthroughReasons()
        self.pinned = Pinned()
        self.progress = SignsOfWork()
        self.driver.observe(self.progress)
        self._passthroughs: set[Passthrough] = set()  # queued or in flight
        self._token_texts: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(THREADS, "read-body")

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the model; None without one."""
        return self.rollout.tokenizer

    def engine(self, engine_id: str) -> HttpEngine | None:
        """Returns an engine by its id; None if it has left."""
        return next((e for e in self.fleet.engines if e.info.engine_id == engine_id), None)

    def serving(self) -> list[HttpEngine]:
        """Returns the engines that serve. Raises Unavailable if there is none."""
        serving = [e for e in self.fleet.engines if self.serves(e.info.engine_id)]
        if not serving:
            raise Unavailable("no engine serves")
        return serving

    def any_engine(self) -> HttpEngine:
        """Returns an engine that serves. Raises Unavailable if there is none."""
        return self.serving()[0]

    def serves(self, engine_id: str) -> bool:
        """Returns whether the driver sends chunks to an engine."""
        with contextlib.suppress(KeyError):
            return self.driver.available(engine_id)
        return False

    async def description(self, engine: HttpEngine, path: str) -> dict[str, Any]:
        """Returns the JSON object at a path of an engine. Raises Unavailable."""
        try:
            return await ask_object(engine, path, self.timing.control_timeout_s)
        except EngineError as error:
            raise Unavailable(str(error)) from error

    def infos(self) -> list[EngineInfo]:
        """Returns the descriptions of the engines. Raises Unavailable without engines."""
        infos = self.driver.engines
        if not infos:
            raise Unavailable("the fleet has no engine")
        return infos

    def longest(self) -> int:
        """Returns the most tokens of prompt and response together. Raises RolloutError without
        engines."""
        return self.driver.limits.longest_prompt + 1

    def texts(self) -> PromptTexts:
        """Returns the reader of the texts of prompts. Raises RolloutError without engines."""
        encode = None if self.tokenizer is None else self.tokenizer.encode
        return PromptTexts(encode, self.longest())

    def version(self) -> str:
        """Returns the weight version of the first engine."""
        return self.infos()[0].weight_version

    def text_of(self, call: Call) -> ResponseText | None:
        """Returns the empty text of a response; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        return ResponseText(self.tokenizer, call.prompt_ids, call.sampling)

    def token_text(self, token: int) -> str | None:
        """Returns the text of one token; None without a tokenizer."""
        if self.tokenizer is None:
            return None
        text = self._token_texts.get(token)
        if text is None:
            text = self._token_texts[token] = self.tokenizer.decode([token])
        return text

    async def in_thread_if_long(
        self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Returns the function's result; for an input of THREAD_BYTES or more from a thread.

        Tokenising a long text takes seconds, in which the event loop serves everyone else. Raises
        TooMany if a long input would have no room.
        """
        if size < THREAD_BYTES:
            return function(*args, **kwargs)
        self.generation.require_room(1)
        work = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something that nobody waits for, until the server ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Ends the threads that read long bodies; one that is at work ends when it is done."""
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextlib.contextmanager
    def started(self, calls: Sequence[Call]) -> Iterator[list[Answer]]:
        """Starts responses; aborts at the end of the block those that have not ended.

        Raises BadRequest if an engine would fail because of a sampling parameter.
        """
        infos, has_tokenizer = self.infos(), self.tokenizer is not None
        for sampling in {id(call.sampling): call.sampling for call in calls}.values():
            for key, why in unservable(sampling, infos, tokenizer=has_tokenizer):
                raise BadRequest(f"{key}: {why}")
        answers = self.generation.start(calls)
        try:
            yield answers
        finally:
            for answer in answers:
                self.generation.abort_answer(answer)

    async def pass_through(
        self,
        http: web.Request,
        body: bytes,
        reason: str,
        *,
        tokens: tuple[int, int],
        rids: tuple[str, ...] = (),
        session: Any = None,
        media: bool = False,
    ) -> web.StreamResponse:
        """Sends a request to an engine unmodified, and returns the engine's answer.

        tokens: of the prompt and of the response, for the KV ledger. `rids`: the names that abort
        it. `session`: SGLang's `session_params`; the ledger does not count the turn of a session
        that an engine has. `media`: it has images or the like. Raises HttpError if no engine
        answers, and Aborted if `abort` ends it before an engine has it.
        """
        self.passthrough.count(reason)
        passthrough = Passthrough(
            http,
            body,
            rids,
            self.engine,
            reason=reason,
            abort_again_s=self.timing.abort_again_s,
        )
        self._passthroughs.add(passthrough)
        try:
            async with passthrough.wait:
                pinned = self.pinned.of(session)
                if pinned is None:
                    await self.generation.pass_through(passthrough, *tokens)
                else:
                    self.generation.reserve(1)
                    try:
                        await self.backend.holds.over()
                        self.pinned.take_turn(pinned, session, rids)
                        with self.pinned.on_engine(pinned, rids, media=media):
                            await passthrough(pinned.engine_id)
                    finally:
                        self.generation.release(1)
        except EngineUnavailable as error:
            raise Failed(str(error)) from error
        except TimeoutError:
            if passthrough.response is None:
                raise Aborted("the request was aborted before an engine had it") from None
            passthrough.broken = True  # an engine began to answer meanwhile
        finally:
            passthrough.ended = True
            self._passthroughs.remove(passthrough)
        if passthrough.broken:
            abandon(http, Failed.status)
        if passthrough.response is None:
            raise Failed("the engine's answer could not be passed on")
        return passthrough.response

    async def abort(self, named: Prefixes) -> int:
        """Ends every request whose rid `named` matches; returns when all have ended.

        Their clients get the tokens so far. It also ends the rollouts of such a name, whose clients
        get the complete groups. Returns the number of both.
        """
        rollouts = self.rollouts.abort(named)
        aborted = self.generation.abort(named)
        sent_on = [passthrough for passthrough in self._passthroughs if passthrough.named(named)]
        await asyncio.gather(
            *(passthrough.abort(named) for passthrough in sent_on),
            *(self._until_ended(answer) for answer in aborted),
        )
        return len(aborted) + len(sent_on) + rollouts

    async def drain(self, seconds: float) -> None:
        """Takes no more requests, and returns when those in progress have ended.

        After so many seconds the rest ends with the tokens so far. Rollouts are left alone: a
        journal continues from their last chunks.
        """
        self.generation.stop()
        logger.info("stopping: %d requests are in progress", self.generation.requests)
        try:
            async with asyncio.timeout(seconds):
                await self._until_idle()
        except TimeoutError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ABORT_S):
                    self.generation.abort(EVERY)
                    await asyncio.gather(
                        *(passthrough.abort(EVERY) for passthrough in self._passthroughs)
                    )
                    await self._until_idle()

    async def _until_idle(self) -> None:
        while self.generation.requests or self._passthroughs:  # noqa: ASYNC110 (once, at the end)
            await asyncio.sleep(DRAIN_POLL_S)

    async def _until_ended(self, answer: Answer) -> None:
        while not answer.ended:
            await answer.wait_update()
