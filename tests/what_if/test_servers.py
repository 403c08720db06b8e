"""The servers of `--engine`: which are refused, and what a timed call takes for an answer."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import msgspec
import pytest

from seer_sgl.errors import BadReply, ConfigError, EngineUnavailable
from seer_sgl.what_if import constants, timed_calls
from seer_sgl.what_if.command import WhatIf, WhatIfRequest
from seer_sgl.what_if.timed_calls import body, seconds
from tests.fake_sglang import FakeSGLang, serving
from tests.support.infos import info
from tests.what_if.endless import EndlessSGLang, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "t.csv")


async def test_two_names_of_one_server_are_refused(trace: Path) -> None:
    async with serving(EndlessSGLang()) as url:
        other = url.replace("127.0.0.1", "localhost")
        asked = WhatIf(WhatIfRequest(traces=[trace], engine=[url, other]))
        with pytest.raises(ConfigError, match=f"--engine {other}: the same server as {url}"):
            await asked.measure()


@pytest.mark.parametrize("tokens", [50, 160, 590])
async def test_a_server_that_is_too_small_is_refused_before_any_call(
    trace: Path, tokens: int
) -> None:
    fake = EndlessSGLang(max_total_num_tokens=tokens)
    async with serving(fake) as url:
        with pytest.raises(ConfigError, match=f"too small to measure: {tokens} KV tokens"):
            await WhatIf(WhatIfRequest(traces=[trace], engine=[url])).measure()
    assert fake.seen == []


async def test_different_servers_are_simulated_with_the_least_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def second(*_: object) -> float:
        return 1.0

    monkeypatch.setattr(constants, "seconds", second)
    servers = [
        msgspec.structs.replace(
            info(f"e{requests}"),
            max_total_num_tokens=1000 * requests,
            max_running_requests=requests,
            max_request_len=4000,
        )
        for requests in (64, 8)
    ]
    found = await constants.measured_engine(servers, 1e5)
    assert (found.count, found.max_running_requests, found.kv_tokens) == (2, 8, 8000)


async def timed(url: str, limit_s: float = 9.0) -> float:
    async with aiohttp.ClientSession() as session:
        call = body([7, 8, 9], 60) | {"rid": "r"}
        return await seconds(session, [url], [[call]], limit_s)


async def test_the_time_of_two_servers_is_the_mean_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=itertools.count(100.0).__next__)
    monkeypatch.setattr(timed_calls, "time", clock)
    calls = [[body([7, 8, 9], 60) | {"rid": "r"}]] * 2
    fakes = serving(EndlessSGLang()), serving(EndlessSGLang())
    async with aiohttp.ClientSession() as session, fakes[0] as one, fakes[1] as other:
        assert await seconds(session, [one, other], calls) == 1.5  # 1 and 2, not the greater


async def test_a_server_that_never_answers_ends_the_measurement() -> None:
    fake = FakeSGLang()
    fake.faults.append("stall")
    async with serving(fake) as url:
        with pytest.raises(EngineUnavailable, match=r"no answer on /generate within 0\.05 s"):
            await timed(url, 0.05)


async def test_a_reply_with_another_number_of_tokens_is_not_timed() -> None:
    async with serving(FakeSGLang(longest=50)) as url:
        with pytest.raises(BadReply, match=r"\d+ tokens, not 60"):
            await timed(url)
    async with serving(EndlessSGLang()) as url:
        assert await timed(url) > 0


async def test_a_reply_that_is_no_object_is_named() -> None:
    fake = FakeSGLang()
    fake.faults.append("garbage a list")
    async with serving(fake) as url:
        with pytest.raises(BadReply, match="Expected `object`"):
            await timed(url)
