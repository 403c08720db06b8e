"""`seer-sgl rollout`: reads prompts from a file and writes samples, report and timeline."""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console

from seer_sgl.config import Config, ExternalEngines
from seer_sgl.driver.observer import Observer
from seer_sgl.errors import ConfigError, RolloutError
from seer_sgl.files import (
    SAMPLES,
    FileReserve,
    explained,
    make_out_folder,
    out_has,
    using_out,
    write_json,
)
from seer_sgl.report.progress import ShownProgress
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.style import can_draw
from seer_sgl.report.timeline import draw_timeline
from seer_sgl.types import Prompt

from .journaled import RolloutJournal
from .rollout import Rollout
from .samples import SampleWriter

logger = logging.getLogger(__name__)
# Twice the size of a report with a thousand engines and the largest timeline.
RESERVE_BYTES = 4 << 20
RESERVE_FILES = 8  # drawing the timeline reads fonts while it writes
COMPARISON = "comparison.json"  # of `rollout --compare`
BESIDE = ("report.json", COMPARISON, "timeline.png", "timeline.svg")  # of the samples' rollout


class _OfRollout(msgspec.Struct):
    rollout_id: str


class Resume(NamedTuple):
    """The journal of a rollout that continues. `extend`: there may be more prompts."""

    folder: Path
    extend: bool = False


class RolledOut(NamedTuple):
    """A complete rollout: its prompts and its report."""

    prompts: list[Prompt]
    report: dict[str, Any]


async def roll_out(
    config: Config,
    out: Path,
    overwrite: bool,
    console: Console,
    *,
    observers: Sequence[Observer] = (),
    resume: Resume | None = None,
) -> RolledOut:
    """Rolls `config.rollout.prompts` out into the folder `out`, or continues with a rollout.

    It writes the finished samples, their report and their timeline, also after an error or
    interrupt. Raises SeerError, or CancelledError when interrupted.
    """
    if config.rollout.prompts is None:
        raise ConfigError("rollout.prompts: no prompts; give --prompts or set the key")
    if isinstance(config.engines, ExternalEngines) and not config.engines.urls:
        raise ConfigError("engines.urls: launch: external needs at least one URL")

    rollout = Rollout(config, log_dir=out / "engines")
    prompts = rollout.read_prompts(Path(config.rollout.prompts))
    requests = sum(prompt.n for prompt in prompts)
    with _journal(config, resume) as journal, _claimed(out):
        samples = _new_samples_file(out, overwrite or _has_samples_of(out, journal))
        logger.info("%d groups, %d requests", len(prompts), requests)
        if journal is not None and journal.is_complete(len(prompts)):
            return _write_again(rollout, journal, prompts, samples)
        return await _roll_out(
            rollout, prompts, samples, console, observers=observers, journal=journal
        )


async def _roll_out(
    rollout: Rollout,
    prompts: list[Prompt],
    samples: Path,
    console: Console,
    *,
    observers: Sequence[Observer],
    journal: RolloutJournal | None,
) -> RolledOut:
    """Rolls out. `journal`: of a rollout that begins or continues; None: it has none."""
    out, requests = samples.parent, sum(prompt.n for prompt in prompts)
    with _reserve(out) as release:
        async with rollout:
            progress = ShownProgress(rollout.engines, len(prompts), requests)
            writer = SampleWriter(samples)
            (out / COMPARISON).unlink(missing_ok=True)  # of the samples before
            ended: BaseException | None = None
            unwritten: list[str] = []
            try:
                async with progress.shown(console):
                    all_observers = [writer, progress, *observers]
                    if journal is None:
                        groups = rollout.run(prompts, all_observers)
                    else:  # a new journal begins
                        groups = rollout.resume(journal, prompts, all_observers)
                    async for _ in groups:
                        pass
            except BaseException as error:
                ended = error
                raise
            finally:
                if rollout.recorder is not None:
                    release()
                    report = {**rollout.report(), "error": _reason(ended)}
                    unwritten = _write_results(writer, report, rollout.recorder, out)
                    logger.info("%s", _summary(report))
                    for problem in unwritten:
                        logger.warning("%s", problem)
                    if not unwritten:
                        logger.info("wrote %s and the report beside it", samples)
            if unwritten:
                raise RolloutError(unwritten[0])
            return RolledOut(prompts, rollout.report())


def _journal(
    config: Config, resume: Resume | None
) -> contextlib.AbstractContextManager[RolloutJournal | None]:
    """Opens the journal before engines start, which takes minutes; None without one.

    Raises JournalError.
    """
    if resume is not None:
        return RolloutJournal.resume(resume.folder, extend=resume.extend)
    folder = config.rollout.journal
    return contextlib.nullcontext() if folder is None else RolloutJournal.begin(folder)


def _has_samples_of(out: Path, journal: RolloutJournal | None) -> bool:
    """Returns whether the folder has samples of the journal's rollout, which may be replaced.

    A process that ended early may have left no line, or the beginning of one.
    """
    if journal is None or journal.stored is None:
        return False
    own = _OfRollout(journal.stored.header.rollout_id)
    with contextlib.suppress(OSError, msgspec.DecodeError), (out / SAMPLES).open("rb") as lines:
        first = lines.readline()
        begin = msgspec.json.encode(own)[:-1]
        if first.startswith(begin) or begin.startswith(first):
            return True
        return msgspec.json.decode(first, type=_OfRollout) == own
    return False


def _write_again(
    rollout: Rollout, journal: RolloutJournal, prompts: list[Prompt], samples: Path
) -> RolledOut:
    """Writes the samples and the report of a rollout that was complete. No engine starts."""
    own = _has_samples_of(samples.parent, journal)
    writer = SampleWriter(samples)
    given_up: RolloutError | None = None
    try:
        for _ in rollout.replay(journal, prompts, [writer]):
            pass
    except RolloutError as error:
        given_up = error
    writer.close()
    if not own:
        for name in BESIDE:
            with explained(samples.with_name(name)):
                samples.with_name(name).unlink(missing_ok=True)
    write_json(samples.parent / "report.json", {**journal.report(), "error": _reason(given_up)})
    if given_up is not None:
        raise given_up
    logger.info("%s", _summary(rollout.report()))
    logger.info("wrote %s and the report beside it", samples)
    return RolledOut(prompts, rollout.report())


def _reason(ended: BaseException | None) -> str | None:
    """Returns the reason why a rollout ended early, in one line; None if it is complete."""
    if ended is None:
        return None
    interrupted = isinstance(ended, asyncio.CancelledError | KeyboardInterrupt)
    return "interrupted" if interrupted else str(ended) or type(ended).__name__


@contextlib.contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Makes the folder of `--out`, and keeps other rollouts from writing there during the block.

    The system ends the lock with the process. Raises ConfigError.
    """
    make_out_folder(out)
    with using_out(out):
        folder = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(folder)
        raise ConfigError(f"--out {out}: another rollout is writing there") from error
    except OSError:  # a file system without locks of folders, such as NFS
        pass
    try:
        yield
    finally:
        os.close(folder)


@contextlib.contextmanager
def _reserve(out: Path) -> Iterator[Callable[[], None]]:
    """Reserves disk space and file descriptors for report and timeline until the yielded function
    is called.

    The samples may fill the disk, and the sockets may take all descriptors. The space has no name,
    so that a killed process leaves nothing. Raises ConfigError if the disk is already full.
    """
    with contextlib.ExitStack() as held:
        with explained(out):
            held.callback(FileReserve(RESERVE_FILES).release)
        try:
            space = held.enter_context(tempfile.TemporaryFile(dir=out))
            os.posix_fallocate(space.fileno(), 0, RESERVE_BYTES)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ConfigError(f"--out {out}: {error.strerror}") from error
        yield held.close


def _new_samples_file(out: Path, overwrite: bool) -> Path:
    """Returns the path of the samples file. Raises ConfigError if it is not writable."""
    samples = out / SAMPLES
    if out_has(out, SAMPLES) and not overwrite:
        raise ConfigError(f"--out {out}: {samples} exists; use another folder or --overwrite")
    with using_out(out):
        if samples.exists():
            samples.open("ab").close()
    return samples


def _write_results(
    writer: SampleWriter, report: dict[str, Any], record: Recorder, out: Path
) -> list[str]:
    """Writes all results, and returns one error per file that cannot be written.

    Incomplete files are removed.
    """

    files: dict[Path, Callable[[Path], object]] = {
        out / "report.json": lambda path: write_json(path, report)
    }
    if can_draw():
        files[out / "timeline"] = lambda path: draw_timeline(record, path)  # a PNG and an SVG
    unwritten = []
    try:
        writer.close()
    except RolloutError as error:
        unwritten.append(str(error))
    for path, write in files.items():
        try:
            with explained(path):
                write(path)
        except RolloutError as error:
            unwritten.append(str(error))
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return unwritten


def _summary(report: dict[str, Any]) -> str:
    left = f" ({report['unfinished_groups']} unfinished)" if report["unfinished_groups"] else ""
    failed = f" ({report['failed_requests']} failed)" if report["failed_requests"] else ""
    return (
        f"{report['groups']} groups{left}, {report['samples']} samples{failed}, "
        f"{report['response_tokens']} tokens in {report['wall_s']:.1f} s: "
        f"{report['throughput_tok_s']:.0f} tok/s, tail {report['tail_s']:.1f} s, "
        f"{report['chunks']} chunks, {report['migrations']} migrations, "
        f"{report['recomputed_tokens']} tokens recomputed, {report['retractions']} retractions"
    )
