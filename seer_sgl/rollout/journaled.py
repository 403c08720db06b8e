"""The journal of one rollout: created by its first process, resumed by later ones."""

import itertools
import json
import logging
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.journal.blocks import Damaged
from seer_sgl.driver.journal.facts import differences, digest, make_header
from seer_sgl.driver.journal.folder import JournalFolder
from seer_sgl.driver.journal.journal import Journal
from seer_sgl.driver.journal.records import Header, Resumed, encode
from seer_sgl.driver.journal.restore import Restored, restore
from seer_sgl.driver.journal.stored import StoredRollout, read, records
from seer_sgl.driver.journal.writer import BlockWriter
from seer_sgl.driver.observer import Observer
from seer_sgl.driver.samples import SampleMaker
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import JournalError
from seer_sgl.report.recorder import Recorder
from seer_sgl.types import Group, Prompt, Sampling

logger = logging.getLogger(__name__)


class Start(NamedTuple):
    """The names, the seed and the time with which a process begins or continues with a rollout.

    `seed_setting`: the seed that the user has set now.
    """

    rollout_id: str
    run_id: str  # the prefix of its request ids
    seed: int
    seed_setting: int | None
    elapsed_s: float = 0.0


class RolloutJournal:
    """A journal's folder, locked, for one rollout. Use it as a context manager.

    `stored`: what it has of that rollout; None for a new one. `extend`: prompts may be added.
    The constructor raises JournalError, and closes the folder, if its file is damaged.
    """

    def __init__(self, folder: JournalFolder, *, extend: bool = False) -> None:
        try:
            self.stored = read(folder) if folder.file.exists() else None
        except BaseException:
            folder.close()
            raise
        self.restored = Restored()
        self._folder = folder
        self._extend = extend
        self._journal: Journal | None = None  # while the rollout continues

    @classmethod
    def begin(cls, path: Path | str) -> Self:
        """Returns the journal of a new rollout. It replaces the one of a complete rollout.

        Raises JournalError if the folder has an unfinished rollout or cannot be used.
        """
        journal = cls.begin_or_resume(path)
        if journal.stored is not None and journal.stored.complete is None:
            journal.close()
            raise JournalError(
                f"{journal.name}: it has an unfinished rollout; continue it by --resume, or "
                "remove it"
            )
        journal.stored = None
        return journal

    @classmethod
    def resume(cls, path: Path | str, *, extend: bool = False) -> Self:
        """Returns the journal of a rollout that is to continue.

        Raises JournalError if there is none, if it is damaged, or if a living process uses it.
        """
        journal = cls(JournalFolder(Path(path), create=False), extend=extend)
        if journal.stored is None:
            journal.close()
            raise JournalError(f"{journal.name}: it is empty; nothing is there to resume")
        return journal

    @classmethod
    def begin_or_resume(cls, path: Path | str) -> Self:
        """Returns the journal of the rollout in a folder, or of a new one. Raises JournalError.

        Prompts may be added: a journal lacks the last ones if its process died as it added them.
        """
        return cls(JournalFolder(Path(path), create=True), extend=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes what waits, and releases the folder. Blocks until it is on disk.

        If the disk hangs, the folder stays locked until this process ends: what is under way may
        still be written.
        """
        if self._journal is None or self._journal.close():
            self._folder.close()

    @property
    def observer(self) -> Journal:
        """The observer that continues it, once it is open."""
        assert self._journal is not None
        return self._journal

    @property
    def error(self) -> str | None:
        """The reason why it lacks the end of the rollout; None if it has all of it so far."""
        return None if self._journal is None else self._journal.error

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._folder.name

    def start(self, seed_setting: int | None) -> Start | None:
        """Returns how to continue; None for a new rollout."""
        if self.stored is None:
            return None
        header, runs = self.stored.header, self.stored.runs
        # Orphans of earlier runs have other ids, also of a run whose journal could not be written.
        run_id = f"{header.run_id}-{runs}-{secrets.token_hex(4)}"
        elapsed_s = self.stored.elapsed_s
        return Start(header.rollout_id, run_id, header.seed, seed_setting, elapsed_s)

    def is_complete(self, groups: int) -> bool:
        """Returns whether nothing is left to do of a rollout of so many groups."""
        if self.stored is None or self.stored.complete is None:
            return False
        return not (self._extend and groups > len(self.stored.header.groups))

    def open(
        self,
        start: Start,
        sampling: Sampling,
        engines: Sequence[EngineInfo],
        groups: Sequence[Group],
        started_at: float,
    ) -> None:
        """Restores the groups to where the journal left them; then `observer` continues.

        `started_at`: the zero of the rollout's times. Raises JournalError.
        """
        now = make_header(
            rollout_id=start.rollout_id,
            run_id=start.run_id,
            seed=start.seed,
            seed_setting=start.seed_setting,
            sampling=sampling,
            engines=engines,
            groups=groups,
        )
        if self.stored is None:
            file, tail = self._folder.begin(now)
            self._journal = Journal(BlockWriter(file, tail, self.name), started_at)
            return
        self._restore(self.stored, now, groups, started_at)
        logger.info("%s", self._summary(groups))
        if self.stored.header.pool not in (None, now.pool):
            logger.info("%s: the KV pool is another one, so KV is computed again", self.name)
        file = self._folder.resume(self.stored.tail)
        writer = BlockWriter(file, self.stored.tail, self.name)
        writer.append(encode(Resumed(run=self.stored.runs, at=start.elapsed_s)))
        self._journal = Journal(writer, started_at)
        more = groups[len(self.stored.header.groups) :]
        if more:
            self._journal.extend(more)
        self._journal.restored(groups)

    def finish(self, report: dict[str, Any]) -> None:
        """Appends that every group is complete or given up, and waits until it is on disk."""
        if self._journal is not None:
            self._journal.complete(json.dumps(report).encode())
            self._journal.close()

    def mark(self, recorder: Recorder) -> None:
        """Gives the record of a rollout that continues its time so far and what was restored."""
        if self.stored is None:
            return
        recorder.begun_s = self.stored.elapsed_s
        recorder.resumed = {
            "runs": self.stored.runs,
            "samples": len(self.restored.finished),
            "requests": self.restored.continued,
            "tokens": self.restored.tokens,
            "at_s": round(self.stored.elapsed_s, 3),
        }

    def _summary(self, groups: Sequence[Group]) -> str:
        """Returns one line on what was restored."""
        finished, requests = len(self.restored.finished), sum(len(g.requests) for g in groups)
        return (
            f"{self.name}: {finished} of {requests} samples are restored, "
            f"{self.restored.continued} requests continue, {self.restored.tokens} tokens in all"
        )

    def replay(
        self,
        prompts: Iterable[Prompt],
        sampling: Sampling,
        seed_setting: int | None,
        tokenizer: Tokenizer | None,
        observers: Sequence[Observer],
    ) -> list[Group]:
        """Returns the groups of a complete rollout with their samples; no engine is needed.

        The observers receive each sample, in the order of the rollout. Raises JournalError.
        """
        assert self.stored is not None
        header = self.stored.header
        maker = GroupMaker(header.run_id, header.seed)
        groups = [maker.group(prompt, prompt.sampling or sampling, 1, 0.0) for prompt in prompts]
        requests = itertools.chain.from_iterable(group.requests for group in groups)
        for request, limit in zip(requests, header.limits, strict=False):
            request.max_response_len = limit
        now = msgspec.structs.replace(
            header,
            seed_setting=seed_setting,
            sampling=msgspec.to_builtins(sampling),
            weight_version=self.stored.weight_version,
            groups=[digest(group) for group in groups],
        )
        self._restore(self.stored, now, groups, 0.0)
        make_sample = SampleMaker(header.rollout_id, 0.0, tokenizer)
        for request in self.restored.finished:
            sample = make_sample(request)
            request.group.samples.append(sample)
            for observer in observers:
                observer.finished(request, sample)
        return groups

    def report(self) -> dict[str, Any]:
        """Returns the report of a complete rollout."""
        assert self.stored is not None
        assert self.stored.complete is not None
        report: dict[str, Any] = json.loads(self.stored.complete.report)
        return report

    def _restore(
        self, stored: StoredRollout, now: Header, groups: Sequence[Group], started_at: float
    ) -> None:
        kept = msgspec.structs.replace(stored.header, weight_version=stored.weight_version)
        if stored.weight_version != stored.header.weight_version:
            # The digest and the folder are of older weights; the newer ones have a version only.
            kept = msgspec.structs.replace(kept, weights=None, model=now.model)
        for problem in differences(kept, now, groups, self._extend):
            raise JournalError(f"{self.name}: {problem}")
        try:
            self.restored = restore(groups, records(self._folder, stored), started_at)
        except Damaged as error:
            raise JournalError(f"{self.name}: {error}") from error
