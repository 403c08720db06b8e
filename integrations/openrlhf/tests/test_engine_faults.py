"""Real engines that are killed while they generate for the front."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from reasoner import grpo, prompts
from seer_openrlhf.client import Server, ServerError
from seer_openrlhf.flags import SeerFlags
from seer_openrlhf.front import Front
from seer_openrlhf.rewards import RewardExecutor
from seer_openrlhf.served import served
from test_batch import params
from transformers import AutoTokenizer

pytestmark = [pytest.mark.engines, pytest.mark.long]
PROMPTS, SAMPLES = 8, 4
Json = dict[str, Any]


@pytest.fixture
def server_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SeerFlags]:
    """A server with two engines, in float32: in bf16, results on a CPU depend on the batch."""
    monkeypatch.chdir(grpo.ROOT)
    for name, value in grpo.environment().items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "engines.yaml"
    config.write_text(grpo.ENGINES.read_text().replace("bfloat16", "float32"))
    flags = SeerFlags(config=str(config), command=grpo.OWN_SERVER[3], timeout_s=600, wait_s=0)
    with served(flags) as url:
        yield replace(flags, url=url)


def rows() -> list[Json]:
    lines = (grpo.PROMPTS / "train.jsonl").read_text().splitlines()
    return list(prompts.rows(lines))[:PROMPTS]


async def samples_of(server: Server, name: str) -> list[list[Json]]:
    """Returns the groups of one batch, as OpenRLHF's generator asks for them."""
    tokenizer = AutoTokenizer.from_pretrained(str(grpo.MODEL))
    front = Front(server, RewardExecutor(str(grpo.REWARD)))
    await front.open_batch(name, 7)
    front.expect(PROMPTS)
    asked = [
        front.generate_responses(
            row["input"],
            row["label"],
            params(max_tokens=None),
            2048,
            tokenizer,
            SAMPLES,
            place=place,
        )
        for place, row in enumerate(rows())
    ]
    try:
        return list(await asyncio.gather(*asked))
    finally:
        front.close_batch()


def processes_of(url: str) -> list[psutil.Process]:
    """Returns the processes of the engine that listens at `url`."""
    port = str(urlsplit(url).port)
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if port in each.cmdline() and "--page-size" in each.cmdline():
                return [*each.children(recursive=True), each]
    raise AssertionError(f"no process at {url}")


async def kill_an_engine_in(server: Server, rollout_id: str) -> Json:
    """Kills an engine once it has requests of the rollout; returns the rollout's progress then."""
    while True:
        with contextlib.suppress(RuntimeError):  # the rollout has not begun
            found = await server.get(f"/rollout/{rollout_id}")
            busy = [row["engine"] for row in found["tail"] if row["engine"] and row["tokens"]]
            if busy:
                break
        await asyncio.sleep(0.05)
    workers = (await server.get("/workers"))["workers"]
    (url,) = {worker["url"] for worker in workers if worker["id"] == busy[0]}
    for each in processes_of(url):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    return found


async def test_an_engine_that_is_killed_in_a_rollout_changes_no_sample(
    server_flags: SeerFlags,
) -> None:
    server = Server(server_flags.url, token=None, admin_token=None, timeout_s=600)
    try:
        undisturbed = await samples_of(server, "undisturbed")
        killed, at_kill = await asyncio.gather(
            samples_of(server, "killed"), kill_an_engine_in(server, "killed.1")
        )
        report = (await server.get("/rollout/killed.1"))["report"]
    finally:
        await server.close()
    assert at_kill["samples"]["finished"] < PROMPTS * SAMPLES
    assert sum(engine["lost_chunks"] for engine in report["engines"]) > 0
    assert [len(group) for group in killed] == [SAMPLES] * PROMPTS
    assert [[each["observation_tokens"] for each in group] for group in killed] == [
        [each["observation_tokens"] for each in group] for group in undisturbed
    ]
    assert all(each["reward"] is not None for group in killed for each in group)


async def test_a_server_that_is_killed_leaves_no_engine(server_flags: SeerFlags) -> None:
    engines = psutil.Process().children(recursive=True)
    server = Server(server_flags.url, token=None, admin_token=None, timeout_s=600)

    async def kill() -> None:
        while not (await server.get("/rollouts"))["rollouts"]:  # noqa: ASYNC110 - of a process
            await asyncio.sleep(0.05)
        (serve,) = [each for each in psutil.Process().children() if "serve" in each.cmdline()]
        serve.kill()

    try:
        samples, _ = await asyncio.gather(
            samples_of(server, "killed"), kill(), return_exceptions=True
        )
    finally:
        await server.close()
    assert isinstance(samples, ServerError)
    assert str(samples).startswith(f"/rollout: the connection to {server_flags.url} has ended: ")
    psutil.wait_procs(engines)  # they end by themselves
