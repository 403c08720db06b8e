"""Rollouts with a journal on a server that ends: the next one continues with them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from yarl import URL

from seer_sgl.errors import JournalInUse
from seer_sgl.rollout.rollout import Rollout
from tests.fake_sglang import FakeSGLang
from tests.rollout.fakes import Fakes, JournalNow, fakes, journal_now, rolled

from .helpers import Served, served_config, whole
from .rollout_client import SEED, assert_exact, get, groups_of, lines_of, prompts, rollout
from .scrape import scraped

LIMIT = 40
N = 2
GROUPS = prompts(6, N)


@contextlib.asynccontextmanager
async def server(it: Fakes, folder: Path, **options: Any) -> AsyncIterator[Served]:
    """Serves the fakes; `folder` is the one of its journals."""
    config = it.config_with(
        rollout={"journal": str(folder)}, sampling={"max_new_tokens": LIMIT}, server={"port": 0}
    )
    async with served_config(Rollout(config, gives_up=False, **options)) as served:
        yield served


async def some(served: Served, groups: int, **options: Any) -> set[str]:
    """Reads a rollout until so many groups are there. Returns their names."""
    found = set()
    async with rollout(served, GROUPS, journal="step-1", **options) as stream:
        async for line in stream.lines():
            if line["event"] == "group":
                found.add(line["group_id"])
            if len(found) == groups:
                break
    return found


async def unlocked(path: Path) -> JournalNow:
    """Waits until the journal of an ended rollout is on disk; returns what it has."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(JournalInUse):
                return journal_now(path)
            await asyncio.sleep(0.01)


def assert_whole(lines: list[dict[str, Any]], fake: FakeSGLang) -> None:
    groups = groups_of(lines)
    assert sorted(groups) == sorted(prompt["id"] for prompt in GROUPS)
    for samples in groups.values():
        assert_exact(samples, fake, LIMIT, N)
    assert lines[-1]["event"] == "end"
    assert lines[-1]["state"] == "complete"
    assert lines[-1]["samples"] == len(GROUPS) * N


async def test_a_server_restarted_continues_with_a_rollout(tmp_path: Path) -> None:
    async with fakes(delay_s=0.01) as it:
        path = tmp_path / "step-1"
        async with server(it, tmp_path) as first:
            before = await some(first, 2)
            assert len(before) == 2
        kept, calls = await unlocked(path), len(it.seeds())
        assert kept.finished
        async with server(it, tmp_path) as second:
            lines = await lines_of(second, GROUPS, journal="step-1")
        assert not kept.finished & set(it.seeds()[calls:])
        assert_whole(lines, it.servers[0])
        again = await unlocked(path)
        resumed, end = lines[0]["resumed"], lines[-1]
        assert again.tokens == resumed["tokens"] + end["generated_tokens"]
        assert len(again.finished) == len(GROUPS) * N


async def test_a_complete_rollout_is_delivered_again_without_a_chunk_and_counted_once(
    tmp_path: Path,
) -> None:
    async with fakes() as it, server(it, tmp_path) as served:
        first = groups_of(await lines_of(served, GROUPS, journal="step-1"))
        await unlocked(tmp_path / "step-1")
        calls = len(it.seeds())
        lines = await lines_of(served, GROUPS, journal="step-1")
        assert_whole(lines, it.servers[0])
        assert groups_of(lines) == first
        assert len(it.seeds()) == calls
        await unlocked(tmp_path / "step-1")
        now = await scraped(served)
    samples = len(GROUPS) * N
    assert now.sum("seer_requests_ended_total") == samples
    assert now("seer_request_seconds_count", kind="rollout") == samples
    assert now("seer_rollout_tail_seconds_count") == 2
    assert now.sum("seer_requests") == now("seer_groups_in_progress") == 0


async def test_with_a_target_restored_groups_count_first(tmp_path: Path) -> None:
    async with fakes(delay_s=0.01) as it, server(it, tmp_path) as served:
        before = await some(served, 2, target_groups=3)
        await unlocked(tmp_path / "step-1")
        lines = await lines_of(served, GROUPS, journal="step-1", target_groups=3)
        assert lines[-1]["state"] == "target"
        assert before <= set(lines[-1]["group_ids"])
        assert len(lines[-1]["group_ids"]) == 3


async def test_a_rollout_continues_although_the_first_engine_is_stale(tmp_path: Path) -> None:
    async with fakes(delay_s=0.01) as it, server(it, tmp_path) as served:
        update = "/update_weights_from_disk"
        it.servers[0].refused[update] = 400
        assert (await served.post(update, model_path="new", weight_version="v2"))[0] == 200
        assert list(served.service.driver.stale) == ["e0"]
        await some(served, 2)
        await unlocked(tmp_path / "step-1")
        lines = await lines_of(served, GROUPS, journal="step-1")
        assert lines[0]["resumed"]["tokens"]
        assert_whole(lines, it.servers[1])


async def test_bad_journals_are_refused(tmp_path: Path) -> None:
    async with fakes(delay_s=0.01) as it, server(it, tmp_path) as served:
        for name in ("..", ".", "a/b", "", "x\n"):
            status, _ = await served.post("/rollout", groups=GROUPS, journal=name)
            assert status == 400
        async with rollout(served, GROUPS, journal="step-1"):
            status, reply = await served.post("/rollout", groups=GROUPS, journal="step-1", seed=7)
            assert status == 409
            assert "is using it" in str(reply)
        await unlocked(tmp_path / "step-1")
        for changed, message in (
            ({"seed": 8}, "rollout.seed: 7 in the journal, 8 now"),
            ({"seed": 7, "rollout_id": "other"}, "rollout_id: the journal has rollout"),
        ):
            fields = {"groups": GROUPS, "journal": "step-1", **changed}
            status, reply = await served.post("/rollout", **fields)
            assert status == 400
            assert message in str(reply)


async def test_a_server_without_a_folder_for_journals_refuses_them() -> None:
    async with fakes() as it:
        config = it.config_with(server={"port": 0})
        async with served_config(Rollout(config, gives_up=False)) as served:
            status, reply = await served.post("/rollout", groups=GROUPS, journal="step-1")
            assert status == 400
            assert "the server has no rollout.journal" in str(reply)
            assert (await get(served, "/rollouts"))["journals"] is False
            assert await removed(served, "step-1") == 400


async def test_a_refused_reject_does_not_shift_the_journal(tmp_path: Path) -> None:
    async with fakes(delay_s=0.01) as it:
        more = prompts(9, N)[6:]
        async with (
            server(it, tmp_path) as served,
            rollout(
                served, GROUPS, journal="step-1", target_groups=6, dynamic_filtering=True
            ) as stream,
        ):
            async for line in stream.lines():
                if line["event"] == "group":
                    for name, groups, wanted in (
                        ("unknown", more[:2], 404),
                        (line["group_id"], more[2:], 200),
                    ):
                        status, _ = await stream.verdict("reject", name, groups=groups)
                        assert status == wanted
                    break
            async for line in stream.lines():
                if line["event"] == "group" and line["group_id"] == "g8":
                    break
        kept, calls = await unlocked(tmp_path / "step-1"), len(it.seeds())
        async with server(it, tmp_path) as served:
            again = await lines_of(served, [*GROUPS, more[2]], journal="step-1")
            groups_again = groups_of(again)
        assert sorted(groups_again) == ["g0", "g1", "g2", "g3", "g4", "g5", "g8"]
        assert kept.finished
        assert not kept.finished & set(it.seeds()[calls:])


async def test_groups_whose_reject_the_journal_has_lost_are_new_ones(tmp_path: Path) -> None:
    async with fakes(delay_s=0.01) as it, server(it, tmp_path) as served:
        before = await some(served, 2)
        await unlocked(tmp_path / "step-1")
        # The server was killed before the record of the added group was on disk.
        lines = await lines_of(served, [*GROUPS, prompts(7, N)[6]], journal="step-1")
        assert sorted(groups_of(lines)) == [f"g{i}" for i in range(7)]
        assert lines[-1]["state"] == "complete"
        assert lines[0]["resumed"]["samples"] >= len(before) * N


async def test_a_client_that_left_gets_the_samples_of_unfinished_groups_again(
    tmp_path: Path,
) -> None:
    async with fakes(delay_s=0.01) as it, server(it, tmp_path) as served:
        options = {"journal": "step-1", "stream": "samples"}
        async with rollout(served, GROUPS, **options) as stream:
            early = stream.lines()
            assert (await anext(early))["resumed"] is None
            first = []
            async for line in early:
                if line["event"] == "sample":
                    first.append(line)
                if len(first) == 3:
                    break
        await unlocked(tmp_path / "step-1")
        lines = await lines_of(served, GROUPS, **options)
    samples = [line for line in lines if line["event"] == "sample"]
    assert len({(line["group_id"], line["index"]) for line in samples}) == len(samples)
    assert len(samples) == len(GROUPS) * N
    for line in samples:
        assert line["response_ids"] == whole(line["seed"], 3, it.servers[0], LIMIT)
    resumed = lines[0]["resumed"]
    assert resumed["samples"] >= 3
    assert resumed["tokens"] >= sum(len(line["response_ids"]) for line in first)


async def test_a_journal_is_removed_unless_a_rollout_uses_it(tmp_path: Path) -> None:
    async with fakes(delay_s=0.01) as it, server(it, tmp_path) as served:
        assert (await get(served, "/rollouts"))["journals"] is True
        assert await removed(served, "step-1") == 404
        assert await removed(served, "..%2F..") == 400
        async with rollout(served, GROUPS, journal="step-1"):
            assert await removed(served, "step-1") == 409
        await unlocked(tmp_path / "step-1")
        assert await removed(served, "step-1") == 200
        lines = await lines_of(served, GROUPS, journal="step-1")
        assert lines[0]["resumed"] is None
        assert_whole(lines, it.servers[0])


async def removed(served: Served, name: str) -> int:
    """Asks for the end of a journal; returns the status."""
    path = URL(f"{served.url}/journal/{name}", encoded=True)
    async with served.session.delete(path) as reply:
        return reply.status


async def test_a_rollout_that_reached_its_target_is_not_complete(tmp_path: Path) -> None:
    async with fakes(delay_s=0.01, max_running_requests=2) as it:
        async with server(it, tmp_path) as served:
            end = (await lines_of(served, GROUPS, journal="step-1", target_groups=2))[-1]
            assert end["state"] == "target"
            assert end["unfinished_groups"] > 0
        await unlocked(tmp_path / "step-1")
        config = it.config_with(sampling={"max_new_tokens": LIMIT}, rollout={"seed": SEED})
        done, _ = await rolled(config, GROUPS, resume=tmp_path / "step-1")
        assert len(done) == len(GROUPS)
        assert all(len(group.samples) == N for group in done)
