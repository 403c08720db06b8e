"""Killed drivers on real SGLang servers: resumed, they have the samples of undisturbed ones."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine.describe import describe
from seer_sgl.engine.orphans import end_orphans
from seer_sgl.engine.session import open_session
from seer_sgl.types import Chunk, ChunkReply, Move, Sampling
from tests.e2e.calls import post
from tests.e2e.conftest import HELD_OUT, external
from tests.e2e.drivers import (
    WAIT_S,
    Start,
    assert_same_samples,
    finish,
    lines_of,
    samples_in,
)
from tests.e2e.rig import Rig
from tests.helpers import make_group
from tests.rollout.fakes import journal_now

pytestmark = pytest.mark.shared_engines

PROMPTS, N = 3, 4
LIMIT = {"max_response_len": 1200}


def config_of(folder: Path, tree: dict[str, Any]) -> Path:
    """Writes a config with a journal; returns the journal's folder."""
    tree["rollout"] |= {
        "prompts": str(HELD_OUT),
        "max_prompts": PROMPTS,
        "n_samples_per_prompt": N,
        "journal": str(folder / "journal"),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    return folder / "journal"


def files(folder: Path) -> tuple[str, ...]:
    """Returns the options that name the config and OUT in a folder."""
    return "--config", str(folder / "config.yaml"), "--out", str(folder / "out")


def killed(start: Start, journal: Path, size: int, *options: str) -> None:
    """Runs a driver that kills itself once its journal has grown by `size` bytes."""
    file = journal / "journal"
    before = file.stat().st_size if file.exists() else 0
    program = [sys.executable, "-m", "tests.e2e.killed_driver", f"{before + size}"]
    driver = start(*options, command=program)
    _, output = driver.communicate(timeout=WAIT_S)
    assert driver.returncode == -signal.SIGKILL, output


async def undisturbed(rig: Rig, seed: int) -> list[dict[str, Any]]:
    """Returns the lines of an undisturbed rollout's samples."""
    rollout = {"seed": seed, "n_samples_per_prompt": N}
    return lines_of(await rig.undivided(PROMPTS, sampling=LIMIT, rollout=rollout))


async def test_a_driver_killed_twice_on_running_engines_continues_exactly(
    rig: Rig, start: Start, tmp_path: Path
) -> None:
    expected = await undisturbed(rig, 11)
    journal = config_of(tmp_path, external(rig.pair, sampling=LIMIT))
    killed(start, journal, 12_000, *files(tmp_path))
    once = journal_now(journal)
    killed(start, journal, 8_000, *files(tmp_path), "--resume", str(journal))
    twice = journal_now(journal)
    assert once.tokens < twice.tokens < sum(sample["response_length"] for sample in expected)
    output = finish(start(*files(tmp_path), "--resume", str(journal)))
    assert "may still run" not in output, "the orphans were ended"
    assert_same_samples(expected, samples_in(tmp_path / "out"))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["resumed"]["runs"] == 2
    assert report["resumed"]["tokens"] == twice.tokens
    generated = sum(engine["response_tokens"] for engine in report["engines"])
    assert generated == report["response_tokens"] - twice.tokens, "nothing else is decoded again"
    assert journal_now(journal).tokens == report["response_tokens"]


@pytest.mark.long
async def test_a_resume_takes_the_kv_of_the_dead_drivers_requests_from_the_pool(
    rig: Rig, start: Start, tmp_path: Path
) -> None:
    expected = await undisturbed(rig, 23)
    journal = config_of(tmp_path, rig.fleet(sampling=LIMIT, rollout={"seed": 23}))
    killed(start, journal, 16_000, *files(tmp_path))
    before = journal_now(journal)
    for url in rig.urls:
        post(f"{url}/flush_cache?timeout=240")  # once the dead driver's requests have ended
    finish(start(*files(tmp_path), "--resume", str(journal)))
    assert_same_samples(expected, samples_in(tmp_path / "out"))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    resumed = report["resumed"]
    assert resumed["tokens"] == before.tokens
    finished = sum(s["response_length"] for s in expected if s["seed"] in before.finished)
    assert resumed["requests"] >= 4
    begun = before.tokens - finished  # of unfinished requests
    assert report["cached_tokens"]["storage"] > begun / 2
    assert report["recomputed_tokens"] < begun / 2


async def test_orphans_end_and_other_requests_do_not(engine_urls: list[str]) -> None:
    async with open_session() as session:
        (info,) = await describe(session, "e0", engine_urls[0])
        engine = HttpEngine(info, session)

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
        await end_orphans([engine], "dead")
        replies = await asyncio.gather(*orphans)
        assert not other.done()
        assert {reply.finish for reply in replies} == {"abort"}
        assert all(0 < len(reply.ids) < 2000 for reply in replies)
        reply = await other
        assert reply.finish == "length"
        assert len(reply.ids) == 2000
