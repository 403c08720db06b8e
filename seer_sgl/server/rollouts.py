"""The rollouts that clients have started, and the newest ones that have ended."""

import asyncio
import contextlib
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from seer_sgl.config import plain
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.journal.folder import JournalFolder
from seer_sgl.rollout.journaled import RolloutJournal, Start
from seer_sgl.rollout.message_parts import has_images
from seer_sgl.rollout.prompts import PromptReader, PromptRecord, overridden
from seer_sgl.rollout.rollout import Rollout, new_rollout_id
from seer_sgl.types import Prompt, Sampling

from .errors import BadRequest, Conflict, NotFound
from .generation import Generation
from .json import dumps
from .prefixes import Prefixes
from .rollout_body import JournalName, RejectBody, RolloutBody
from .rollout_served import ServedRollout, clock

# An ended rollout is kept for the client that asks for its report; a report is a few kilobytes.
REMEMBERED = 64
PROMPTS_PER_STEP = 16  # between them, other clients are served
LONG_CHARACTERS = 1 << 12  # of a prompt as JSON; a tokenizer reads about a thousand per millisecond
Records = Sequence[PromptRecord | str]


class Rollouts:
    """Starts rollouts on a fleet. Each is a caller of the driver: all have equal shares.

    `generation` counts their responses together with the single requests.
    """

    def __init__(self, rollout: Rollout, generation: Generation) -> None:
        self._rollout = rollout
        self._generation = generation
        self._running: dict[str, ServedRollout] = {}
        self._ended: OrderedDict[str, ServedRollout] = OrderedDict()
        self._inputs: dict[ServedRollout, _Input] = {}

    def __iter__(self) -> Iterator[ServedRollout]:
        """Yields the rollouts in progress, then the remembered ones."""
        self._forget()
        yield from [*self._running.values(), *self._ended.values()]

    @property
    def journals(self) -> bool:
        """Whether rollouts can have a journal."""
        return self._rollout.config.rollout.journal is not None

    @property
    def in_progress(self) -> list[ServedRollout]:
        """The rollouts in progress."""
        return list(self._running.values())

    def find(self, rollout_id: str) -> ServedRollout:
        """Returns a rollout by its name. Raises NotFound."""
        self._forget()
        found = self._running.get(rollout_id) or self._ended.get(rollout_id)
        if found is None:
            raise NotFound(f"no rollout {rollout_id!r}")
        return found

    async def open(self, body: RolloutBody) -> ServedRollout:
        """Returns a new rollout, all of whose groups are valid; `fill` starts it.

        Raises BadRequest or InputError, which names the group; Conflict if the name is in use;
        TooMany if the server has no room for its responses.
        """
        if body.dynamic_filtering and body.target_groups is None:
            raise BadRequest("dynamic_filtering: set target_groups")
        sampling = self._rollout.config.sampling
        if body.sampling is not None:
            sampling = await asyncio.to_thread(overridden, sampling, body.sampling, "the rollout")
        places: dict[str, str] = {}
        reader = self._rollout.prompt_reader(body.n_samples_per_prompt, sampling)
        n = body.n_samples_per_prompt or self._rollout.config.rollout.n_samples_per_prompt
        self._require_room(_responses(body.groups, n))  # before images are read
        prompts = await self._prompts(body.groups, reader, places)
        if body.target_groups is not None and body.target_groups > len(prompts):
            raise BadRequest(f"target_groups: {body.target_groups} of {len(prompts)} groups")
        with contextlib.ExitStack() as stack:
            journal = None
            if body.journal is not None:
                journal = RolloutJournal.begin_or_resume(self._journal_path(body.journal))
                stack.callback(journal.close)
                await self._rollout.end_orphans(journal)
            start = self._start(body, journal)
            if start.rollout_id in self._running:
                raise Conflict(f"rollout {start.rollout_id!r} is in progress")
            requests = self._require_room(sum(prompt.n for prompt in prompts))
            session = self._rollout.open_session(prompts, start, sampling, journal)
            served = ServedRollout(
                msgspec.structs.replace(body, groups=[]),  # a long rollout need not keep them
                session,
                self._rollout.driver,
                max_inflight=self._rollout.config.scheduling.max_inflight_per_engine,
                released=self._generation.release,
                ended=self._keep,
            )
            stack.pop_all()  # the rollout closes its journal
        if body.seed is None and (journal is None or journal.stored is None):
            self._rollout.next_seed()  # not before: a refused rollout takes no seed
        self._generation.reserve(requests)
        self._running[start.rollout_id] = served
        self._inputs[served] = _Input(reader, n, session.maker, sampling, places)
        return served

    async def reject(self, rollout_id: str, body: RejectBody) -> tuple[ServedRollout, str | None]:
        """Takes a group of a rollout back, and adds groups to the rollout.

        Returns the rollout, and the group that goes ahead in its place. Raises HttpError or
        InputError; then nothing has changed.
        """
        served = self.find(rollout_id)
        given = self._inputs.get(served)
        if not body.groups or given is None:
            return served, served.reject(str(body.group_id), [])
        async with given.adding:
            places = dict(given.places)
            self._require_room(_responses(body.groups, given.n))
            prompts = await self._prompts(body.groups, given.reader, places)
            requests = self._require_room(sum(prompt.n for prompt in prompts))
            # A journal names requests by their order: groups that are refused must take none.
            maker = given.maker.fork()
            more = self._rollout.make_groups(prompts, maker, given.sampling)
            replaced_by = served.reject(str(body.group_id), more)
            self._generation.reserve(requests)
            given.places.update(places)
            given.maker = maker
            return served, replaced_by

    def abort(self, named: Prefixes) -> int:
        """Ends the rollouts whose name `named` matches. Returns their number."""
        aborted = [served for name, served in self._running.items() if named.match(name)]
        for served in aborted:
            served.finish("aborted")
        return len(aborted)

    def end_all(self, why: str) -> None:
        """Ends every rollout with an error."""
        for served in list(self._running.values()):
            served.finish("failed", why)

    def remove_journal(self, name: str) -> None:
        """Removes a journal that no rollout uses. Raises HttpError or JournalError."""
        try:
            path = self._journal_path(msgspec.convert(name, JournalName))
        except msgspec.ValidationError as error:
            raise BadRequest(f"journal: {plain(str(error))}") from error
        if not path.is_dir():
            raise NotFound(f"no journal {name!r}")
        JournalFolder(path, create=True).remove()  # it may have no file yet

    def _journal_path(self, name: str) -> Path:
        folder = self._rollout.config.rollout.journal
        if folder is None:
            raise BadRequest("journal: the server has no rollout.journal")
        return Path(folder) / name

    def _start(self, body: RolloutBody, journal: RolloutJournal | None) -> Start:
        """Returns how to begin or continue. Raises BadRequest if the journal has another name."""
        start = None if journal is None else journal.start(body.seed)
        if start is None:
            rollout_id = body.rollout_id or new_rollout_id()
            # Not the client's name alone: its chunks of before may still be in flight.
            run_id = f"{rollout_id}-{secrets.token_hex(4)}"
            seed = self._rollout.seed_of_next_run() if body.seed is None else body.seed
            return Start(rollout_id, run_id, seed, body.seed)
        if body.rollout_id not in (None, start.rollout_id):
            raise BadRequest(f"rollout_id: the journal has rollout {start.rollout_id!r}")
        return start

    async def _prompts(
        self, records: Records, reader: PromptReader, places: dict[str, str]
    ) -> list[Prompt]:
        prompts = list[Prompt]()
        reading = reader.of_body().each(records, "groups", places)
        while True:
            if any(map(_is_slow, records[len(prompts) : len(prompts) + 1])):
                prompt = await asyncio.to_thread(next, reading, None)
            else:
                prompt = next(reading, None)
            if prompt is None:
                return prompts
            prompts.append(prompt)
            if len(prompts) % PROMPTS_PER_STEP == 0:
                await asyncio.sleep(0)

    def _require_room(self, requests: int) -> int:
        """Returns the number of responses. Raises BadRequest or TooMany if they are too many."""
        most = self._rollout.config.server.max_requests
        if requests > most:
            raise BadRequest(f"{requests} responses; server.max_requests is {most}")
        self._generation.require_room(requests)
        return requests

    def _keep(self, served: ServedRollout) -> None:
        self._running.pop(served.rollout_id, None)
        self._inputs.pop(served, None)
        self._ended[served.rollout_id] = served
        self._ended.move_to_end(served.rollout_id)
        self._forget()

    def _forget(self) -> None:
        while self._ended:
            oldest = next(iter(self._ended.values()))
            age_s = clock() - (oldest.ended_at or 0)
            if len(self._ended) <= REMEMBERED and age_s < self._rollout.timing.ended_rollout_s:
                return
            self._ended.popitem(last=False)


class _Input(msgspec.Struct):
    """What further groups of a rollout are made with.

    `n`: samples of a group without its own. `places`: where each group id came from. `adding`: held
    while groups are read and added.
    """

    reader: PromptReader
    n: int
    maker: GroupMaker
    sampling: Sampling
    places: dict[str, str]
    adding: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


def _responses(records: Records, n: int) -> int:
    """Returns the number of responses of groups. `n`: of one without its own."""
    return sum((None if isinstance(record, str) else record.n) or n for record in records)


def _is_slow(record: PromptRecord | str) -> bool:
    """Returns whether a prompt is read in a thread: decoding an image takes up to a second, and a
    long text, or much of anything else, takes seconds to read or to check."""
    if isinstance(record, str):
        return len(record) >= LONG_CHARACTERS
    try:
        long = len(dumps(record)) >= LONG_CHARACTERS
    except (OverflowError, RecursionError):  # the reader says so
        return True
    return long or has_images(record)
