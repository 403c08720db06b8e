"""Killed drivers on real SGLang servers: the resumed rollout has the samples of a calm one."""

import asyncio
import json
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.describe import describe
from seer_sgl.engine.orphans import end_orphans
from seer_sgl.engine.session import open_session
from seer_sgl.types import Chunk, ChunkReply, Move, Sampling
from tests.e2e.conftest import HELD_OUT, ROOT, external
from tests.e2e.drivers import (
    WAIT_S,
    Driver,
    Start,
    assert_nothing_left,
    assert_same_samples,
    finish,
    samples_in,
)
from tests.helpers import make_group
from tests.rollout.fakes import journal_now


def config_of(folder: Path, tree: dict[str, Any], prompts: int, n: int) -> Path:
    """Writes a config with a journal; returns the journal's folder."""
    tree["rollout"] |= {
        "prompts": str(HELD_OUT),
        "max_prompts": prompts,
        "n_samples_per_prompt": n,
        "journal": str(folder / "journal"),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    return folder / "journal"


def files(folder: Path) -> tuple[str, ...]:
    """Returns the options that name the config and OUT in a folder."""
    return "--config", str(folder / "config.yaml"), "--out", str(folder / "out")


def kill_at(driver: Driver, journal: Path, size: int) -> bool:
    """Kills a driver once its journal has grown by `size` bytes; False if it has ended before."""
    file, deadline = journal / "journal", time.monotonic() + WAIT_S
    before = file.stat().st_size if file.exists() else 0
    while not file.exists() or file.stat().st_size - before < size:
        if driver.poll() is not None:
            return False
        assert time.monotonic() < deadline
        time.sleep(0.002)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    return True


def calm_rollout(
    start: Start, folder: Path, tree: dict[str, Any], prompts: int, n: int
) -> list[dict[str, Any]]:
    """Rolls out without being disturbed, in a folder of its own."""
    calm = folder / "calm"
    calm.mkdir()
    config_of(calm, tree, prompts, n)
    finish(start(*files(calm)))
    return samples_in(calm / "out")


@pytest.mark.shared_engines
def test_a_driver_killed_twice_on_running_engines_goes_on_exactly(
    engine_urls: list[str], start: Start, tmp_path: Path
) -> None:
    tree = external(engine_urls, sampling={"max_response_len": 1200})
    calm = calm_rollout(start, tmp_path, tree, prompts=3, n=4)
    journal = config_of(tmp_path, tree, prompts=3, n=4)
    assert kill_at(start(*files(tmp_path)), journal, 12_000)
    once = journal_now(journal)
    assert kill_at(start(*files(tmp_path), "--resume", str(journal)), journal, 8_000)
    twice = journal_now(journal)
    assert once.tokens < twice.tokens < sum(sample["response_length"] for sample in calm)
    output = finish(start(*files(tmp_path), "--resume", str(journal)))
    assert "may still run" not in output, "the orphans were ended"
    assert_same_samples(calm, samples_in(tmp_path / "out"))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["resumed"]["runs"] == 2
    assert report["resumed"]["tokens"] == twice.tokens
    generated = sum(engine["response_tokens"] for engine in report["engines"])
    assert generated == report["response_tokens"] - twice.tokens, "nothing else is decoded again"
    assert journal_now(journal).tokens == report["response_tokens"]


@pytest.mark.shared_engines
async def test_orphans_end_and_other_requests_do_not(engine_urls: list[str]) -> None:
    async with open_session() as session:
        engine = HttpEngine(await describe(session, "e0", engine_urls[0]), session)

        def endless(uid: str) -> "asyncio.Task[ChunkReply]":
            group = make_group(uid, n=1, sampling=Sampling(ignore_eos=True))
            (request,) = group.requests
            request.uid = uid
            chunk = Chunk(
                request=request,
                engine_id="e0",
                rid=f"{uid}.c1/",
                max_new_tokens=2000,
                kv_tokens=2010,
                move=Move.STAY,
                migrated=False,
            )
            return asyncio.create_task(engine.generate(chunk))

        orphans = [endless(f"dead.{number}") for number in range(3)]
        other = endless("alive.0")
        async with asyncio.timeout(60):
            while (await engine.load()).running < 4:  # noqa: ASYNC110 (the engine has no event)
                await asyncio.sleep(0.01)
        await end_orphans(engine, "dead")
        replies = await asyncio.gather(*orphans)
        assert not other.done()
        assert {reply.finish for reply in replies} == {"abort"}
        assert all(0 < len(reply.ids) < 2000 for reply in replies)
        reply = await other
        assert reply.finish == "length"
        assert len(reply.ids) == 2000


def seer_tree() -> dict[str, Any]:
    """Returns the ready config with pool and drafts."""
    tree: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "cpu-seer.yaml").read_text())
    return tree | {"sampling": {"max_response_len": 1500}, "rollout": {"seed": 7}}


@pytest.mark.own_engines
@pytest.mark.long
def test_a_driver_killed_with_its_own_engines_pool_and_drafts_goes_on_exactly(
    start: Start, tmp_path: Path
) -> None:
    calm = calm_rollout(start, tmp_path, seer_tree(), prompts=4, n=4)
    journal = config_of(tmp_path, seer_tree(), prompts=4, n=4)
    for options, size in (((), 30_000), (("--resume", str(journal)), 20_000)):
        driver = start(*files(tmp_path), *options)
        assert kill_at(driver, journal, size)
        assert_nothing_left(driver.pid)
    driver = start(*files(tmp_path), "--resume", str(journal))
    finish(driver)
    assert_nothing_left(driver.pid)
    assert_same_samples(calm, samples_in(tmp_path / "out"))


@pytest.mark.shared_engines
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_drivers_killed_at_twenty_random_moments_lose_nothing(
    engine_urls: list[str], start: Start, tmp_path: Path
) -> None:
    tree = external(engine_urls, sampling={"max_response_len": 1200})
    calm = calm_rollout(start, tmp_path, tree, prompts=4, n=4)
    draw, kills, again = random.Random(20), 0, 0
    for number in range(15):
        folder = tmp_path / str(number)
        folder.mkdir()
        journal = config_of(folder, tree, prompts=4, n=4)
        kills += kill_at(start(*files(folder)), journal, draw.randint(1, 60_000))
        if number % 3 == 0:
            driver = start(*files(folder), "--resume", str(journal))
            again += kill_at(driver, journal, draw.randint(1, 20_000))
        finish(start(*files(folder), "--resume", str(journal)))
        assert_same_samples(calm, samples_in(folder / "out"))
    assert kills >= 12
    assert again >= 4
