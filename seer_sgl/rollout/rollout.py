"""`Rollout`: engines up, groups out, engines down.

async with Rollout(config) as rollout:
    async for group in rollout.run(prompts):
        train_on(group.samples)
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from seer_sgl.config import Config, load, parse
from seer_sgl.driver.build_scheduler import make_scheduler
from seer_sgl.driver.checks import Room, check_engines, check_pool, mismatches
from seer_sgl.driver.draft_groups import DraftKeeper
from seer_sgl.driver.engine import Engine
from seer_sgl.driver.loop import Observer, RolloutLoop, Run
from seer_sgl.driver.monitor import Monitor
from seer_sgl.driver.pool_pages import PageReleaser
from seer_sgl.driver.samples import SampleMaker
from seer_sgl.driver.stop_strings import StopRecheck
from seer_sgl.driver.tokenizer import Tokenizer, load_tokenizer
from seer_sgl.engine.fleet import Fleet, open_fleet
from seer_sgl.engine.launch.process import require_model
from seer_sgl.errors import ConfigError, PromptError, RolloutError
from seer_sgl.link.messages import Rates
from seer_sgl.report import draft_report
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.scheduling.costs import Costs
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.scheduling.placement import Placement
from seer_sgl.types import ChunkReply, EngineInfo, Group, Prompt, Request

from .history import History, read_history
from .lengths import expect_all, read_lengths
from .model import model_facts
from .prompts import PromptLike, PromptReader

logger = logging.getLogger(__name__)
clock = time.monotonic


class Rollout:
    """A fleet of engines and the loop that drives it; one `run` at a time.

    config: a Config, a mapping of the same shape, or a YAML file. `log_dir`: where local engines
    write their logs. `placement` replaces the choice of engines (experiments). `fleet`: engines
    that are up already (engine/fleet.py), one open Rollout at a time; they are not stopped.
    The steps of the start-up and warnings are logged under `seer_sgl`.
    Raises InputError for what cannot work, EngineStartError when an engine does not come up.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str | Path,
        *,
        log_dir: Path | str = "logs",
        placement: Placement | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        if isinstance(config, str | Path):
            config = load(Path(config))
        self.config = config if isinstance(config, Config) else parse(config)
        self._log_dir = Path(log_dir)
        self._placement = placement
        self._fleet = None if fleet is None else fleet.sampling(self.config.sampling)
        seed = self.config.rollout.seed
        self._seed = secrets.randbits(32) if seed is None else seed
        self._order = itertools.count()
        self._costs = Costs()
        self._runs = 0
        self.recorder: Recorder | None = None  # of the current or latest run

        lengths = self.config.scheduling.lengths
        self._known = None if lengths is None else read_lengths(Path(lengths))
        history = self.config.draft.history
        self._history = History() if history is None else read_history(Path(history))
        model = self.config.model
        if self.config.engines.launch == "local":
            require_model(model.path or "")
        self._facts = model_facts(model.path)
        check_pool(self.config, self._facts.least_kv_bytes_per_token())
        tokenizer_path = model.tokenizer_path or model.path
        self._tokenizer = (
            load_tokenizer(tokenizer_path, model.trust_remote_code) if tokenizer_path else None
        )
        self._recheck = _stop_recheck(self.config, self._tokenizer)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            fleet = self._fleet
            if fleet is None:
                opening = open_fleet(self.config, self._log_dir)
                fleet = await stack.enter_async_context(opening)
            for engine in fleet.engines:
                engine.vocab_size = self._facts.vocab_size
            self._infos = [engine.info for engine in fleet.engines]
            check_engines(self.config, self._infos)
            for mismatch in mismatches(self._infos):
                logger.warning("%s", mismatch)
            self._driver = await stack.enter_async_context(self._driving(fleet))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    @property
    def engines(self) -> list[EngineInfo]:
        """What the engines said of themselves."""
        return self._infos

    def report(self) -> dict[str, Any]:
        """The report of the current or latest run (README, "The report")."""
        if self.recorder is None:
            raise RolloutError("nothing was rolled out yet")
        return report(self.recorder)

    def read_prompts(self, path: Path | str) -> list[Prompt]:
        """The prompts of a JSONL file, checked; works before the engines are up.

        Raises PromptError with file and line.
        """
        return self._reader(self._max_prompt_len()).read(
            Path(path), self.config.rollout.max_prompts
        )

    async def run(
        self,
        prompts: Iterable[PromptLike],
        observers: Sequence[Observer] = (),
        limits: KnownLengths | None = None,
    ) -> AsyncGenerator[Group, None]:
        """Roll the prompts out and yield each group once all its samples are there.

        prompts: Prompt objects, mappings like a line of a prompts file, or texts. `limits`: the
        most tokens that single responses may have (to replay a trace). Leaving the loop early
        aborts what is in flight. Raises PromptError before anything is sent, and RolloutError
        after all other groups if some had to be given up.
        """
        room = Room(self.config.sampling.max_response_len, self._infos)
        prompts = self._reader(room.longest_prompt).convert(prompts)
        rollout_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(8)}"
        seed = self._seed if not self._runs else derived_seed(self._seed, "run", self._runs)
        self._runs += 1
        drafted = await self._drafted()
        started_at = clock()
        groups = [
            self._group(prompt, room.response_limit(prompt), rollout_id, seed, started_at)
            for prompt in prompts
        ]
        if limits is not None:
            for request in itertools.chain.from_iterable(group.requests for group in groups):
                longest = limits.true_length(request)
                request.max_response_len = min(longest, request.max_response_len)
        if self._known is not None and self.config.scheduling.policy == "oracle":
            expect_all(self._known, groups, str(self.config.scheduling.lengths))
        self._warn_of_short_responses(groups)
        recorder = Recorder(rollout_id, seed, self._infos, groups, started_at)
        maker = SampleMaker(rollout_id, started_at, self.config.sampling, self._tokenizer)
        try:
            ours: list[Observer] = [recorder, maker, PageReleaser(self._link, self._engines)]
            if self._drafts is not None:
                ours.append(DraftKeeper(self._drafts, self._history.of))
            run = self._loop.submit(groups, [*ours, *observers])
        except ValueError as error:
            raise PromptError(str(error)) from None
        self.recorder = recorder
        given_up: list[Group] = []
        try:
            for _ in groups:
                group = await self._next(run)
                if group.error is not None:
                    given_up.append(group)
                    continue
                group.samples.sort(key=lambda sample: sample.index)
                yield group
        finally:
            self._loop.close(run)
            recorder.drafting = draft_report.section(drafted, await self._drafted())
        if given_up:
            first = given_up[0]
            raise RolloutError(
                f"{len(given_up)} of {len(groups)} groups were given up; "
                f"the first, {first.group_id!r}: {first.error}"
            )

    async def _drafted(self) -> draft_report.Reading:
        drafters = [engine for engine in self._drafters if engine.info.draft_tokens > 0]
        return await draft_report.read(drafters, self._drafts)

    def _warn_of_short_responses(self, groups: Sequence[Group]) -> None:
        wanted = self.config.sampling.max_response_len
        short = [group for group in groups if group.requests[0].max_response_len < wanted]
        if short:
            logger.warning(
                "%d of %d prompts leave less than max_response_len = %d tokens in the context; "
                "their responses end there",
                len(short),
                len(groups),
                wanted,
            )

    async def _next(self, run: Run) -> Group:
        """The next complete group; raises what ended the driver if it ended."""
        waiter = asyncio.ensure_future(run.done.get())
        try:
            await asyncio.wait({waiter, self._driver}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not waiter.done():
                waiter.cancel()
        if waiter.done() and not waiter.cancelled():
            return waiter.result()
        self._driver.result()
        raise RolloutError("the rollout was closed")

    def _measured(self, rates: Rates) -> None:
        if rates.prefill_tokens:
            self._costs.observe_prefill(rates.prefill_tokens, rates.prefill_s)
        if rates.fetch_tokens:
            self._costs.observe_fetch(rates.fetch_tokens, rates.fetch_s)

    def _group(self, prompt: Prompt, limit: int, rollout_id: str, seed: int, now: float) -> Group:
        group = Group(
            group_id=prompt.prompt_id, uid=f"{rollout_id}/{prompt.prompt_id}", prompt=prompt
        )
        for index in range(prompt.n):
            order = next(self._order)
            group.requests.append(
                Request(
                    uid=f"{rollout_id}.{order}",
                    order=order,
                    group=group,
                    index=index,
                    seed=derived_seed(seed, index, group.group_id),
                    max_response_len=limit,
                    submitted_at=now,
                )
            )
        return group

    def _max_prompt_len(self) -> int | None:
        """What the model's context leaves for a prompt, as far as it is known without engines."""
        if self.config.engines.launch == "external":
            return None
        flags = self.config.engines.flags()
        length = flags.get("context-length", self._facts.max_position_embeddings)
        return length - 1 if isinstance(length, int) else None

    def _reader(self, max_prompt_len: int | None) -> PromptReader:
        vocab_size = self._facts.vocab_size
        if vocab_size is None and self._tokenizer is not None:
            vocab_size = self._tokenizer.vocab_size
        n = self.config.rollout.n_samples_per_prompt
        return PromptReader(n, self._tokenizer, vocab_size, max_prompt_len)

    @contextlib.asynccontextmanager
    async def _driving(self, fleet: Fleet) -> AsyncIterator["asyncio.Task[None]"]:
        """The loop and the monitor, running as one task until the block is left."""
        engines = fleet.engines
        scheduler = make_scheduler(
            self.config,
            self._infos,
            costs=self._costs,
            known=self._known,
            placement=self._placement,
        )
        by_id: dict[str, Engine] = {engine.info.engine_id: engine for engine in engines}
        self._engines = by_id
        self._loop = RolloutLoop(scheduler, by_id, clock, self._recheck)
        fleet.link.on_stored = self._loop.stored
        fleet.link.on_rates = self._measured
        self._link, self._drafts, self._drafters = fleet.link, fleet.drafts, engines
        monitor = Monitor(
            [(slot, by_id[slot.engine_id]) for slot in scheduler.engines],
            self._loop,
            stall_timeout_s=self.config.engines.stall_timeout_s,
            recovery_timeout_s=self.config.engines.recovery_timeout_s,
        )

        async def drive() -> None:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._loop.run())
                    tasks.create_task(monitor.run())
            except* RolloutError as failures:
                raise _first(failures) from None

        driver = asyncio.create_task(drive())
        try:
            yield driver
        finally:
            await self._loop.settle()
            driver.cancel()
            await asyncio.wait({driver})
            if not driver.cancelled():
                driver.exception()  # whoever was in `run` has it; nobody else is concerned


def derived_seed(seed: int, *of: int | str) -> int:
    """The seed, 63 bits, of a part of what `seed` stands for: a request of a run, a later run.

    SGLang derives a request's noise from its seed and the position.
    """
    name = "/".join(map(str, (seed, *of)))
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _stop_recheck(
    config: Config, tokenizer: Tokenizer | None
) -> Callable[[Request, ChunkReply], ChunkReply]:
    stops = config.sampling.stops()
    if not stops:
        return lambda _, reply: reply
    if tokenizer is None:
        raise ConfigError("sampling.stop: stop strings need a tokenizer: set model.path")
    recheck = StopRecheck(stops, tokenizer.stop_len, tokenizer.decode)
    return lambda request, reply: recheck(request.response_ids, reply)


def _first(failures: BaseExceptionGroup[RolloutError]) -> RolloutError:
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, RolloutError)
    return found
