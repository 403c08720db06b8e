"""A server that is stopped lets its requests finish, and takes no new ones."""

import asyncio
import contextlib
import json
import signal
import sys

import aiohttp
import pytest

from seer_sgl.processes.child import free_port
from tests.fake_sglang import FakeSGLang, serving
from tests.server.generating import PROMPT, generating
from tests.server.helpers import Served, served, whole
from tests.support.waiting import until

LONG = 5000
FIRST, SECOND = 90_000 << 7, 90_001 << 7  # seeds of responses that are longer


async def test_requests_finish_or_end_with_their_tokens_and_new_ones_are_refused() -> None:
    fake = FakeSGLang(longest=100_000, delay_s=0.01)
    async with served(fake) as it:
        short = generating(it, FIRST, 40)
        long = generating(it, SECOND, LONG)
        await until(lambda: len(fake.seen) > 3)
        draining = asyncio.create_task(it.service.drain(60.0))
        await asyncio.sleep(0)
        status, reply = await it.post("/generate", input_ids=PROMPT)
        assert (status, reply["error"]["message"]) == (503, "the server is shutting down")
        status, reply = await it.ask("GET", "/ready")
        assert (status, "shutting down" in str(reply)) == (503, True)
        first = await short
        assert not long.done() and not draining.done()
        draining.cancel()
        await it.service.drain(0.0)  # as after the time
        second = await long
    assert first["meta_info"]["finish_reason"]["type"] == "length"
    assert first["output_ids"] == whole(FIRST, len(PROMPT), fake, 40)
    assert second["meta_info"]["finish_reason"]["type"] == "abort"
    ids = second["output_ids"]
    assert 8 <= len(ids) < LONG
    assert ids == whole(SECOND, len(PROMPT), fake, LONG)[: len(ids)]


async def test_a_request_that_waits_for_a_pause_ends_too(it: Served) -> None:
    await it.post("/pause_generation", mode="retract")
    waiting = generating(it, FIRST, LONG)
    sent_on = generating(it, SECOND, LONG, top_logprobs_num=1)
    await until(lambda: it.service.generation.requests == 2)
    await it.service.drain(0.0)
    for each in (waiting, sent_on):
        assert (await each)["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.process
async def test_sigterm_costs_no_token_of_a_running_request() -> None:
    fake = FakeSGLang(longest=100_000, delay_s=0.02)
    port = free_port()
    async with serving(fake) as engine, aiohttp.ClientSession() as session:
        overrides = (
            f"engines={{launch: external, urls: ['{engine}']}}",
            "scheduling.chunk_tokens=16",
            "server.drain_s=1",
        )
        options = [part for each in overrides for part in ("--set", each)]
        arguments = [sys.executable, "-m", "seer_sgl", "serve", "--port", str(port), *options]
        process = await asyncio.create_subprocess_exec(*arguments, stderr=asyncio.subprocess.PIPE)
        try:
            assert process.stderr is not None
            while b"serving 1 engines" not in await process.stderr.readline():
                assert process.returncode is None
            params = {"max_new_tokens": LONG, "sampling_seed": FIRST}
            body = {"input_ids": PROMPT, "sampling_params": params}
            call = asyncio.create_task(session.post(f"http://127.0.0.1:{port}/generate", json=body))
            await until(lambda: len(fake.seen) > 3)
            process.send_signal(signal.SIGTERM)
            reply = json.loads(await (await call).read())
            await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    assert reply["meta_info"]["finish_reason"]["type"] == "abort"
    ids = reply["output_ids"]
    assert len(ids) >= 3 * 16
    assert ids == whole(FIRST, len(PROMPT), fake, LONG)[: len(ids)]
