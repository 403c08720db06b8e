"""A rollout with a journal on fake servers: interrupted, resumed, extended, refused."""

import asyncio
import contextlib
import errno
import functools
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from seer_sgl import Rollout
from seer_sgl.driver.journal import writer
from seer_sgl.errors import JournalError, JournalInUse, RolloutError
from seer_sgl.rollout import journaled
from seer_sgl.timing import Timing
from seer_sgl.types import Group
from tests.rollout.fakes import (
    PROMPTS,
    Fakes,
    Logging,
    N,
    Refusing,
    check,
    collect,
    fakes,
    journal_now,
    rolled,
    samples_of,
)
from tests.support.disks import BusyDisk
from tests.support.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The folder of the journal."""
    return tmp_path / "journal"


def kept(path: Path) -> dict[str, Any]:
    return {"rollout": {"journal": str(path)}}


async def interrupted(it: Fakes, path: Path, groups: int = 2) -> None:
    """Leaves a rollout with a journal early."""
    await rolled(it.config_with(**kept(path)), groups=groups)


async def test_an_interrupted_rollout_continues_where_it_was(path: Path) -> None:
    async with fakes(delay_s=0.005) as it:
        undisturbed, _ = await rolled(it.config)
        await interrupted(it, path)
        before, calls = journal_now(path), len(it.seeds())
        assert before.finished
        assert before.begun - before.finished, "some requests are in their middle"
        groups, report = await rolled(it.config, resume=path)
        later = it.seeds()[calls:]
        assert not before.finished & set(later), "a finished request was sent again"
        check(samples_of(groups))
        for key, sample in samples_of(undisturbed).items():
            again = samples_of(groups)[key]
            assert again.response_ids == sample.response_ids
            assert again.rollout_log_probs == sample.rollout_log_probs
            assert (again.finish_reason, again.matched) == (sample.finish_reason, sample.matched)
            assert again.weight_spans == sample.weight_spans
        assert report["resumed"] == {
            "runs": 1,
            "samples": len(before.finished),
            "requests": len(before.begun - before.finished),
            "tokens": before.tokens,
            "at_s": report["resumed"]["at_s"],
        }
        assert report["samples"] == len(PROMPTS) * N
        assert report["unfinished_groups"] == 0


async def test_a_rollout_is_resumed_any_number_of_times(path: Path) -> None:
    async with fakes(delay_s=0.005) as it:
        await interrupted(it, path, groups=1)
        for groups in (2, 3, 4):
            before = journal_now(path)
            _, report = await rolled(it.config, resume=path, groups=groups)
            assert report["resumed"]["runs"] == groups - 1
            assert journal_now(path).tokens >= before.tokens
        groups_now, report = await rolled(it.config, resume=path)
        assert report["resumed"]["runs"] == 4
        check(samples_of(groups_now))
        rids = [call["rid"] for call in it.calls if "." in call["rid"]]  # those of requests
        assert len(rids) == len(set(rids))


async def test_a_complete_rollout_comes_again_without_a_chunk_and_the_next_run_has_other_seeds(
    path: Path, log_lines: list[str]
) -> None:
    async with fakes() as it:
        config = it.config_with(**kept(path))
        groups, report = await rolled(config)
        calls = len(it.seeds())
        async with Rollout(config) as rollout:
            again, later = list[Group](), list[Group]()
            await collect(rollout.resume(path, PROMPTS), again)
            assert len(it.seeds()) == calls
            assert rollout.report() == report
            await collect(rollout.run(PROMPTS), later)
    assert samples_of(again) == samples_of(groups)
    assert f"journal {path}: the rollout is complete" in log_lines
    before, after = ({s.seed for s in samples_of(each).values()} for each in (again, later))
    assert not before & after


async def test_a_new_rollout_replaces_a_complete_journal_but_no_unfinished_one(path: Path) -> None:
    async with fakes() as it:
        config = it.config_with(**kept(path))
        await rolled(config)
        await rolled(config, groups=1)
        with pytest.raises(JournalError, match="it has an unfinished rollout; continue it by"):
            await rolled(config)
        groups, _ = await rolled(it.config, resume=path)
        check(samples_of(groups))


async def test_added_prompts_are_rolled_out_beside_the_others(path: Path) -> None:
    async with fakes(delay_s=0.005) as it:
        first, more = PROMPTS[:4], PROMPTS[4:]
        await rolled(it.config_with(**kept(path)), first, groups=1)
        with pytest.raises(JournalError, match="2 prompts are not in it; --extend adds them"):
            await rolled(it.config, [*first, *more], resume=path)
        await rolled(it.config, [*first, *more], resume=path, extend=True, groups=2)
        with pytest.raises(JournalError, match="2 of its 6 prompts are missing"):
            await rolled(it.config, first, resume=path)
        groups, _ = await rolled(it.config, [*first, *more], resume=path)
        check(samples_of(groups))


async def test_prompts_are_added_to_a_complete_rollout(path: Path) -> None:
    async with fakes() as it:
        done, _ = await rolled(it.config_with(**kept(path)), PROMPTS[:4])
        calls = len(it.seeds())
        groups, report = await rolled(it.config, PROMPTS, resume=path, extend=True)
        assert len(set(it.seeds()[calls:])) == 2 * N
        check(samples_of(groups))
        assert samples_of(groups).items() >= samples_of(done).items()
        assert report["resumed"]["samples"] == 4 * N


# By what a resume says: the config, the engines or the prompts of another rollout.
DIFFERENCES: dict[str, dict[str, Any]] = {
    "sampling.temperature: 1.0 in the journal, 0.5 now": {"sampling": {"temperature": 0.5}},
    "sampling.max_new_tokens: 50 in the journal, 40 now": {"sampling": {"max_new_tokens": 40}},
    "rollout.seed: 3 in the journal, 4 now": {"rollout": {"seed": 4}},
    "prompt 'p0' is not the one in the journal": {"rollout": {"n_samples_per_prompt": 5}},
    "weight version: 'v1' in the journal, 'v2' now": {"fakes": {"weight_version": "v2"}},
    "model: 'fake' in the journal, 'other' now": {"fakes": {"model_path": "other"}},
    "deterministic inference: True in the journal, False now": {"fakes": {"deterministic": False}},
    "prompt 'p2' is not the one in the": {
        "prompts": [*PROMPTS[:2], {"id": "p2", "prompt_ids": [6]}, *PROMPTS[3:]]
    },
    "prompt 'p1' is not the one in the": {"prompts": [PROMPTS[1], PROMPTS[0], *PROMPTS[2:]]},
}


@pytest.mark.parametrize("message", DIFFERENCES)
async def test_what_differs_from_the_journal_is_refused_by_name(path: Path, message: str) -> None:
    changes = dict(DIFFERENCES[message])
    async with fakes() as it:
        await interrupted(it, path)
        before = (path / "journal").read_bytes()
        for fake in it.servers:
            vars(fake).update(changes.get("fakes", {}))
        changes.pop("fakes", None)
        prompts = changes.pop("prompts", PROMPTS)
        with pytest.raises(JournalError, match=message):
            await rolled(it.config_with(**changes), prompts, resume=path, extend=True)
        assert (path / "journal").read_bytes() == before, "a refused resume writes nothing"


async def test_a_group_that_was_given_up_is_not_sent_again(path: Path) -> None:
    async with fakes(kind=Refusing, refused_length=3, delay_s=0.005) as it:
        await interrupted(it, path, groups=1)
        calls = len(it.calls)
        for _ in range(2):
            done: list[Group] = []
            async with Rollout(it.config) as rollout:
                with pytest.raises(RolloutError, match="1 of 6 groups were given up; the first,"):
                    await collect(rollout.resume(path, PROMPTS), done)
                assert rollout.report()["unfinished_groups"] == 1
            check(samples_of(done), PROMPTS[1:])
        assert len(it.calls) > calls
        assert all(len(call["input_ids"]) != 3 for call in it.calls[calls:])


async def test_a_journal_in_use_is_refused_with_the_process(path: Path) -> None:
    async with fakes(delay_s=0.005) as it, Rollout(it.config_with(**kept(path))) as rollout:
        async for _ in rollout.run(PROMPTS):
            with pytest.raises(JournalError, match=f"process {os.getpid()} is using it"):
                await rolled(it.config, resume=path)


async def test_what_is_no_journal_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"")
    file, none = tmp_path / "journal", tmp_path / "none"
    async with fakes() as it:
        for config, resumed, why in (
            (it.config, tmp_path, f"journal {tmp_path}: it is empty; nothing is there to resume"),
            (it.config, none, f"journal {none}: no journal is there"),
            (it.config_with(**kept(file)), None, f"journal {file}: File exists"),
        ):
            with pytest.raises(JournalError) as refused:
                await rolled(config, resume=resumed)
            assert str(refused.value) == why
        assert not it.calls
    assert not (tmp_path / "none").exists()
    assert (JournalError.exit_status, (tmp_path / "journal").read_bytes()) == (2, b"")


class FullDisk:
    """A disk that takes some syncs and then no more."""

    def __init__(self, syncs: int) -> None:
        self.left = syncs

    def sync(self, file: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.process
@pytest.mark.parametrize("syncs", [0, 1])
async def test_without_room_for_the_journal_the_rollout_ends_in_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch, syncs: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with fakes(delay_s=0.1) as it:
        done: list[Group] = []
        monkeypatch.setattr(writer.BlockWriter, "sync", staticmethod(FullDisk(syncs).sync))
        async with Rollout(it.config_with(**kept(path))) as rollout:
            with pytest.raises(RolloutError, match="No space left on device: it lacks the end"):
                await collect(rollout.run(PROMPTS), done)
        check(samples_of(done))
        errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        assert errors == [
            f"journal {path}: No space left on device; the rollout continues without its journal"
        ]
        monkeypatch.undo()
        before = journal_now(path)
        assert bool(before.tokens) == bool(syncs)
        groups, report = await rolled(it.config, resume=path)
        check(samples_of(groups))
        assert report["resumed"]["tokens"] == before.tokens


async def test_a_rollout_ends_although_the_disk_of_its_journal_hangs_and_keeps_it_locked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, done = BusyDisk(monkeypatch), list[Group]()
    impatient = functools.partial(writer.BlockWriter, timing=Timing(journal_close_s=0.0))
    monkeypatch.setattr(journaled, "BlockWriter", impatient)
    journal = journaled.RolloutJournal.begin(path)

    def released() -> bool:
        journal.close()
        try:
            journaled.RolloutJournal.resume(path).close()
        except JournalInUse:
            return False
        return True

    async with fakes() as it, Rollout(it.config) as rollout:
        with pytest.raises(RolloutError, match="the disk does not answer: it lacks the end"):
            async for group in rollout.resume(journal, PROMPTS):
                done.append(group)
                await asyncio.to_thread(disk.syncing.wait)
    check(samples_of(done))
    assert not released(), "what is under way may still be written"
    disk.proceed.set()
    await until(released)


@dataclass(eq=False)
class Holds(Logging):
    """Answers a few chunks; later ones, and markers, run until they are aborted."""

    answers: int = 6

    @override
    def fault_of(self, call: dict[str, Any]) -> str:
        marker = "." not in call["rid"] and not call["rid"].endswith("/settled")
        self.delay_s = 3600.0 if marker or len(self.seen) > self.answers else 0.0
        return super().fault_of(call)


async def test_orphans_of_a_dead_driver_end_before_the_first_chunk(path: Path) -> None:
    async with fakes(kind=Holds) as it:
        config = it.config_with(**kept(path))
        async with Rollout(config) as rollout:
            run = asyncio.create_task(collect(rollout.run(PROMPTS), []))
            await until(lambda: all(fake.delay_s and fake.running for fake in it.servers))
            for engine in rollout.fleet.engines:  # the driver dies: nothing is aborted
                engine.abort = _nothing  # type: ignore[method-assign, assignment]
            run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await run
        calls = [len(fake.seen) for fake in it.servers]
        assert all(fake.running for fake in it.servers), "they run for nobody"
        for fake in it.servers:
            assert isinstance(fake, Holds)
            fake.answers = 1000
        groups, _ = await rolled(it.config, resume=path)
        check(samples_of(groups))
        for fake, count in zip(it.servers, calls, strict=True):
            first, second = fake.seen[count : count + 2]
            assert first["rid"] in fake.aborted
            assert fake.seen[0]["rid"].startswith(first["rid"])
            assert second["rid"] == f"{first['rid']}/settled"


async def _nothing(_: object) -> None:
    pass


async def test_a_rollout_that_is_closed_while_it_runs_continues(path: Path) -> None:
    async with fakes(kind=Holds) as it:
        async with Rollout(it.config_with(**kept(path))) as rollout:
            running = asyncio.create_task(collect(rollout.run(PROMPTS), []))
            await until(lambda: all(fake.delay_s and fake.running for fake in it.servers))
        with pytest.raises(RolloutError, match="its caller left"):
            await running
        for fake in it.servers:
            assert isinstance(fake, Holds)
            fake.answers = 1000
        groups, _ = await rolled(it.config, resume=path)
        check(samples_of(groups))


async def test_a_request_that_failed_for_good_is_not_sent_again(path: Path) -> None:
    refused: set[int] = set()
    async with fakes(kind=Refusing, refused_seeds=refused, delay_s=0.005) as it:
        undisturbed, _ = await rolled(it.config)
        refused.add(it.seeds()[0])
        journaled = it.config_with(rollout={"journal": str(path), "on_failure": "sample"})
        await rolled(journaled, groups=2)
        sent = len(it.seeds())
        groups, report = await rolled(it.config_with(rollout={"on_failure": "sample"}), resume=path)
        assert not refused & set(it.seeds()[sent:])
    samples = samples_of(groups)
    [failed] = [sample for sample in samples.values() if sample.failure is not None]
    assert failed.failure is not None
    assert "refused" in failed.failure
    assert failed.finish_reason == "abort"
    assert report["failed_requests"] == 1
    whole = samples_of(undisturbed)
    for key, sample in samples.items():
        assert sample is failed or sample.response_ids == whole[key].response_ids
    assert samples.keys() == whole.keys()


async def test_after_a_weight_update_the_engines_must_have_the_newest_weights(path: Path) -> None:
    report = {"version": "1", "missing": [], "instance": "one", "weights": "first"}
    async with fakes(count=1, delay_s=0.005, plugin=report) as it:
        fake = it.servers[0]
        async with Rollout(it.config_with(**kept(path))) as rollout:
            async for group in rollout.run(PROMPTS):
                if group.samples[-1].weight_version == "v2":
                    break
                fake.weight_version, fake.model_path = "v2", "folder/v2"
                report["weights"] = "second"
        fake.weight_version, fake.model_path, report["weights"] = "v1", "fake", "first"
        with pytest.raises(JournalError, match="weight version: 'v2' in the journal, 'v1' now"):
            await rolled(it.config, resume=path)
        fake.weight_version, fake.model_path, report["weights"] = "v2", "folder/v2", "second"
        groups, _ = await rolled(it.config, resume=path)
        check(samples_of(groups))


async def test_two_resumes_without_room_send_no_request_under_one_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fakes(delay_s=0.005) as it:
        await interrupted(it, path, groups=1)
        calls = len(it.calls)
        monkeypatch.setattr(writer.BlockWriter, "sync", staticmethod(FullDisk(0).sync))
        for _ in range(2):
            await rolled(it.config, resume=path, groups=1)
        rids = [call["rid"] for call in it.calls[calls:] if "." in call["rid"]]
        assert len(rids) == len(set(rids)) > 0
