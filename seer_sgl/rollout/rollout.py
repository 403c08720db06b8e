"""`Rollout`: starts engines, rolls groups out, stops the engines.

async with Rollout(config) as rollout:
    async for group in rollout.run(prompts):
        train_on(group.samples)
"""

import contextlib
import functools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from seer_sgl.admission.sampling import unservable
from seer_sgl.backend.backend import Backend
from seer_sgl.config import Config, StartedEngines, load, parse, retyped, with_values
from seer_sgl.driver.checks import (
    check_engines,
    mismatches,
)
from seer_sgl.driver.driver import Driver
from seer_sgl.driver.groups import GroupMaker, derived_seed
from seer_sgl.driver.observer import Observer
from seer_sgl.driver.settings import Settings
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.fleet import Fleet, open_fleet
from seer_sgl.engine.orphans import end_orphans
from seer_sgl.engine.session import most_chunks
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import ConfigError, RolloutError
from seer_sgl.kvpool.backend import resolved
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.scheduling.costs import Costs
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.scheduling.placement import Placement
from seer_sgl.timing import DEFAULT, Timing
from seer_sgl.types import Group, Prompt, Sampling

from .checks import check_groups, check_sampling, warnings_of_fetches
from .fleet_figures import FleetFigures
from .images import ImageReader
from .inputs import RolloutInputs
from .journaled import RolloutJournal, Start
from .prompts import PromptLike, PromptReader
from .reading import check_reading, misreading
from .session import RolloutSession, in_order, raise_if_given_up
from .trajectories import T, Trajectories, Trajectory, trajectories

logger = logging.getLogger(__name__)
clock = time.monotonic


class Rollout:
    """A fleet of engines and its driver.

    The constructor reads the files that the config names: lengths, history, the model's own config
    and its tokenizer. The start-up steps and warnings are logged under `seer_sgl`.

    config: a Config, a mapping of the same shape, or a YAML file. `log_dir`: the folder for the
    logs of local engines. `placement` replaces the policy's choice of engines (experiments).
    `fleet`: running engines (engine/fleet.py) for one open Rollout at a time; they keep running.
    `gives_up` False: requests wait for an engine as long as it takes (a server). `timing`: other
    constants of time (tests).
    Raises InputError for an unusable input, EngineStartError if an engine does not become ready.
    """

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str | Path,
        *,
        log_dir: Path | str = "logs",
        placement: Placement | None = None,
        fleet: Fleet | None = None,
        gives_up: bool = True,
        timing: Timing = DEFAULT,
    ) -> None:
        if isinstance(config, str | Path):
            config = load(Path(config))
        config = retyped(config) if isinstance(config, Config) else parse(config)
        if fleet is None:
            config = with_values(config, {"kv_pool": resolved(config.kv_pool)})
        self.config = config
        self._log_dir = Path(log_dir)
        self._placement = placement
        self._given = fleet
        self._gives_up = gives_up
        self.timing = timing
        self._backend: Backend | None = None  # while it is open
        self._resources = contextlib.AsyncExitStack()
        self._most_chunks = 0  # in flight at once, by the limit of open files
        seed = self.config.rollout.seed
        self._seed = secrets.randbits(32) if seed is None else seed
        self._costs = Costs()
        self._runs = 0
        self._chats_differ: str | None = None  # which engine renders chats otherwise
        self._replayed: dict[str, Any] | None = None  # the report of a rollout that was complete
        self.recorder: Recorder | None = None  # of the current or latest run

        self._inputs = RolloutInputs.read(self.config)
        self.tokenizer = self._inputs.tokenizer
        self.images = ImageReader(config.images, self._inputs.facts.image_token, timing)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            fleet = self._given
            if fleet is None:
                opening = open_fleet(self.config.fleet, self._log_dir, self.timing)
                fleet = await stack.enter_async_context(opening)
            for engine in fleet.engines:
                self._prepare(engine)
            infos = [engine.info for engine in fleet.engines]
            check_engines(self.config.fleet, infos)
            self._check_own(self.config.sampling, infos)
            self._chats_differ = await check_reading(fleet.engines, self.tokenizer)
            for warning in [*mismatches(infos), *warnings_of_fetches(self.config, infos)]:
                logger.warning("%s", warning)
            # A server has a connection to a client for each of them.
            self._most_chunks = most_chunks(len(infos)) // (1 if self._gives_up else 2)
            driver = await stack.enter_async_context(Driver.over(fleet, self._settings()))
            backend = Backend(fleet, driver, self._admit, self.timing)
            stack.push_async_callback(backend.close)
            self._backend, self._resources = backend, stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._backend = None
        await self._resources.aclose()

    @property
    def backend(self) -> Backend:
        """The engines, and what changes in them. Raises RolloutError before the rollout is open."""
        if self._backend is None:
            raise RolloutError("the rollout is not open: use it in `async with`")
        return self._backend

    @property
    def driver(self) -> Driver:
        """The driver of the fleet. Raises RolloutError before the rollout is open."""
        return self.backend.driver

    @property
    def fleet(self) -> Fleet:
        """The running engines. Raises RolloutError before the rollout is open."""
        return self.backend.fleet

    @property
    def engines(self) -> list[EngineInfo]:
        """The descriptions of the engines. Raises RolloutError before the rollout is open."""
        return self.driver.engines

    async def _admit(self, engine: HttpEngine) -> Callable[[], None]:
        """Checks an engine that joins like those at the start. Raises ConfigError."""
        self._prepare(engine)
        check_engines(self.config.fleet, [engine.info])
        self._check_own(self.config.sampling, [engine.info])
        others = [] if self.tokenizer is not None else self.fleet.engines[:1]
        differs = await check_reading([*others, engine], self.tokenizer)

        def accepted() -> None:
            self._chats_differ = self._chats_differ or differs
            for mismatch in mismatches(self.engines):
                logger.warning("%s", mismatch)

        return accepted

    def _prepare(self, engine: HttpEngine) -> None:
        """Gives an engine what this rollout knows of its model."""
        engine.vocab_size = self._inputs.facts.vocab_size
        engine.misfit = functools.partial(misreading, tokenizer=self.tokenizer)

    def report(self) -> dict[str, Any]:
        """Returns the report of the current or latest run (docs/report.md).

        Raises RolloutError before the first run.
        """
        if self._replayed is not None:
            return self._replayed
        if self.recorder is None:
            raise RolloutError("no run was started yet")
        return report(self.recorder)

    def read_prompts(self, path: Path | str) -> list[Prompt]:
        """Returns the prompts of a JSONL file, checked. The engines need not be up.

        Raises PromptError with file and line.
        """
        return self._reader(self._max_prompt_len()).read(
            Path(path), self.config.rollout.max_prompts
        )

    def run(
        self,
        prompts: Iterable[PromptLike],
        observers: Sequence[Observer] = (),
        limits: KnownLengths | None = None,
    ) -> AsyncGenerator[Group, None]:
        """Rolls the prompts out and yields each group once it has all its samples.

        prompts: Prompt objects, mappings like a line of a prompts file, or texts. `limits`: the
        maximum tokens of single responses (to replay a trace). Leaving the loop early aborts the
        chunks in flight. Raises PromptError before the first chunk is sent. Raises RolloutError
        after all other groups if some groups were given up, or if the journal is incomplete.
        """
        return self._roll(self._begin_journal, prompts, observers, limits)

    def resume(
        self,
        journal: RolloutJournal | Path | str | None = None,
        prompts: Iterable[PromptLike] | None = None,
        observers: Sequence[Observer] = (),
        limits: KnownLengths | None = None,
        *,
        extend: bool = False,
    ) -> AsyncGenerator[Group, None]:
        """Continues with the rollout of a journal, and yields all of its groups like `run`.

        journal: its folder; default `rollout.journal`. prompts: those of the rollout; default
        `rollout.prompts`. `observers` receive every sample once, restored ones too. `extend`: there
        may be more prompts, behind the others. Raises JournalError if the rollout cannot continue.
        """
        opening = functools.partial(self._resumed_journal, journal, extend)
        return self._roll(opening, prompts, observers, limits)

    def trajectories(
        self,
        function: Trajectory[T],
        prompts: Iterable[PromptLike],
        observers: Sequence[Observer] = (),
    ) -> AsyncGenerator[Trajectories[T], None]:
        """Runs `function(prompt, client)` for each of a prompt's n trajectories, all at once.

        `await client.generate(ids)` generates a turn (trajectories.py). Yields the results of each
        prompt once all of its trajectories are done. Leaving the loop early aborts the rest. An
        error of the function ends all; a request that fails for good raises RolloutError in its
        function, and if that lets it pass, here, after all other prompts.
        """
        return trajectories(self, new_rollout_id(), function, prompts, observers)

    def replay(
        self,
        journal: RolloutJournal,
        prompts: Sequence[Prompt],
        observers: Sequence[Observer] = (),
    ) -> Iterator[Group]:
        """Yields the groups of a rollout whose journal is complete. No engine is needed.

        Raises JournalError if the prompts or the sampling parameters are others, and RolloutError
        like `run`.
        """
        logger.info("%s: the rollout is complete", journal.name)
        groups = journal.replay(
            prompts,
            self.config.sampling,
            self.config.rollout.seed,
            self.tokenizer,
            observers,
        )
        self._replayed = journal.report()
        self._runs += 1  # the next run draws other seeds
        for group in groups:
            if group.failure is None:
                yield in_order(group)
        raise_if_given_up([group for group in groups if group.failure is not None], len(groups))

    async def _roll(
        self,
        opening: Callable[[], contextlib.AbstractContextManager[RolloutJournal | None]],
        prompts: Iterable[PromptLike] | None,
        observers: Sequence[Observer],
        limits: KnownLengths | None,
    ) -> AsyncGenerator[Group, None]:
        with opening() as journal:
            if prompts is None:
                if self.config.rollout.prompts is None:
                    raise ConfigError("rollout.prompts: no prompts")
                prompts = self.read_prompts(self.config.rollout.prompts)
            prompts = self.prompt_reader().convert(prompts)
            if journal is not None and journal.is_complete(len(prompts)):
                for group in self.replay(journal, prompts, observers):
                    yield group
                return
            fleet = self.fleet  # the rollout may be closed before a run that is left ends
            before = await FleetFigures.of(fleet)
            start, sampling = self._start(journal), self.config.sampling
            session = self.open_session(
                prompts, start, sampling, journal, limits=limits, observers=observers
            )
            self._runs += 1  # a refused run takes no seed
            self.recorder, self._replayed = session.recorder, None
            self._warn_of_file_limit(session.recorder.requests)
            try:
                if journal is not None:
                    await self.end_orphans(journal)
                async with contextlib.aclosing(session.roll()) as groups:
                    async for group in groups:
                        yield group
            finally:
                session.run.close()
                await before.record(fleet, session.recorder)
            session.finish()

    def _begin_journal(self) -> contextlib.AbstractContextManager[RolloutJournal | None]:
        folder = self.config.rollout.journal
        return contextlib.nullcontext() if folder is None else RolloutJournal.begin(folder)

    def _resumed_journal(
        self, journal: RolloutJournal | Path | str | None, extend: bool
    ) -> contextlib.AbstractContextManager[RolloutJournal]:
        if isinstance(journal, RolloutJournal):
            return contextlib.nullcontext(journal)
        folder = journal or self.config.rollout.journal
        if folder is None:
            raise ConfigError("rollout.journal: no journal to resume")
        return RolloutJournal.resume(folder, extend=extend)

    def open_session(
        self,
        prompts: Sequence[Prompt],
        start: Start,
        sampling: Sampling,
        journal: RolloutJournal | None,
        *,
        limits: KnownLengths | None = None,
        observers: Sequence[Observer] = (),
    ) -> RolloutSession:
        """Returns a rollout that is checked and restored, and of which no chunk is sent.

        sampling: of the prompts without their own. Raises InputError if the engines cannot serve
        one of them, JournalError if the journal is of another rollout.
        """
        started_at = clock() - start.elapsed_s
        maker = GroupMaker(start.run_id, start.seed)
        groups = self.make_groups(prompts, maker, sampling, limits, started_at)
        if journal is not None:
            stale = self.driver.stale  # their weights are none of the rollout's
            engines = [info for info in self.engines if info.engine_id not in stale]
            journal.open(start, sampling, engines or self.engines, groups, started_at)
        return RolloutSession(
            self.driver,
            groups,
            maker,
            start=start,
            started_at=started_at,
            journal=journal,
            on_failure=self.config.rollout.on_failure,
            observers=observers,
        )

    def _start(self, journal: RolloutJournal | None) -> Start:
        """Returns how to begin or to continue with a rollout."""
        setting, seed = self.config.rollout.seed, self.seed_of_next_run()
        start = None if journal is None else journal.start(setting)
        if start is not None:
            return start
        rollout_id = new_rollout_id()
        return Start(rollout_id, rollout_id, seed, setting)

    async def end_orphans(self, journal: RolloutJournal) -> None:
        """Ends the requests of a journal's earlier processes, on engines that outlived them."""
        started = isinstance(self.config.engines, StartedEngines) and self._given is None
        if journal.stored is not None and not started:
            prefix = journal.stored.header.run_id
            await end_orphans(self.fleet.engines, prefix)

    def prompt_reader(self, n: int | None = None, sampling: Sampling | None = None) -> PromptReader:
        """Returns a reader of prompts for the open fleet.

        `n` and `sampling` replace the config's defaults. Raises RolloutError without engines.
        """
        return self._reader(self.driver.limits.longest_prompt, n, sampling)

    def next_seed(self) -> int:
        """Takes the seed of the next run: the config's for the first, then derived ones."""
        seed = self.seed_of_next_run()
        self._runs += 1
        return seed

    def seed_of_next_run(self) -> int:
        """Returns the seed that `next_seed` would take."""
        return self._seed if not self._runs else derived_seed(self._seed, "run", self._runs)

    def make_groups(
        self,
        prompts: Sequence[Prompt],
        maker: GroupMaker,
        sampling: Sampling,
        limits: KnownLengths | None = None,
        submitted_at: float | None = None,
    ) -> list[Group]:
        """Returns the groups of checked prompts. `sampling`: of the prompts without their own.

        Raises InputError if the engines cannot serve one of them, RolloutError without engines.
        """
        self._check_own(sampling, self.engines)
        check_sampling(prompts, self.engines, tokenizer=self.tokenizer is not None)
        now = clock() if submitted_at is None else submitted_at
        accepted, groups = self.driver.limits, list[Group]()
        for prompt in prompts:
            own = prompt.sampling or sampling
            longest = accepted.response_limit(prompt, own.max_new_tokens)
            group = maker.group(prompt, own, longest, now)
            accepted.allow_images(group)
            if limits is not None:
                for request in group.requests:
                    request.max_response_len = min(limits.true_length(request), longest)
            groups.append(group)
        check_groups(groups, self._inputs.known, self.config.scheduling)
        return groups

    def _settings(self) -> Settings:
        return Settings(
            scheduling=self.config.scheduling,
            engines=self.config.engines,
            rollout=self.config.rollout,
            gives_up=self._gives_up,
            tokenizer=self.tokenizer,
            known=self._inputs.known,
            history=self._inputs.history,
            costs=self._costs,
            placement=self._placement,
            max_inflight=self._most_chunks,
            timing=self.timing,
        )

    def _warn_of_file_limit(self, requests: int) -> None:
        runnable = sum(info.max_running_requests for info in self.engines)
        wanted = min(requests, runnable)
        if self._most_chunks < wanted:
            logger.warning(
                "the limit of open files allows %d requests at once, of %d that the engines would "
                "run; raise it with `ulimit -n`",
                self._most_chunks,
                wanted,
            )

    def _check_own(self, sampling: Sampling, infos: Sequence[EngineInfo]) -> None:
        for key, why in unservable(sampling, infos, tokenizer=self.tokenizer is not None):
            raise ConfigError(f"sampling.{key}: {why}")

    def _max_prompt_len(self) -> int | None:
        """Returns the longest prompt in tokens, from config and model; None if unknown."""
        if not isinstance(self.config.engines, StartedEngines):
            return None
        flags = self.config.engines.flags()
        length = flags.get("context-length", self._inputs.facts.max_position_embeddings)
        return length - 1 if isinstance(length, int) else None

    def _reader(
        self, max_prompt_len: int | None, n: int | None = None, sampling: Sampling | None = None
    ) -> PromptReader:
        vocab_size = self._inputs.facts.vocab_size
        if vocab_size is None and self.tokenizer is not None:
            vocab_size = self.tokenizer.vocab_size
        n = n or self.config.rollout.n_samples_per_prompt
        sampling = sampling or self.config.sampling
        return PromptReader(
            n,
            self.tokenizer,
            vocab_size,
            max_prompt_len,
            sampling,
            no_chats=self._chats_differ,
            images=self.images,
        )


def new_rollout_id() -> str:
    """Returns a name that no other rollout has."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(8)}"
