"""The fake as a program, which benchmarks start on uvloop."""

import asyncio
import json
import sys

import pytest


@pytest.mark.process
async def test_the_fake_serves_as_a_program() -> None:
    command = [sys.executable, "-m", "tests.fake_sglang", '{"count": 2}']
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        urls = json.loads(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()
    assert len(urls) == 2
