"""The live page: its headers, its assets, and the bounded data that it shows."""

import asyncio
import re
from typing import Any

import msgspec
import pytest

from seer_sgl.report import style
from seer_sgl.server.generate_body import GenerateReader
from seer_sgl.server.monitoring.live import MOST_CHARACTERS, MOST_GROUPS, MOST_TAIL
from seer_sgl.server.monitoring.routes import PAGE, PAGE_FILES
from tests.fake_sglang import FakeSGLang
from tests.support.metrics import body
from tests.support.waiting import until

from .helpers import Served, served


def source(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


async def live(it: Served, query: str = "") -> dict[str, Any]:
    async with it.session.get(f"{it.url}/live{query}") as reply:
        assert reply.status == 200
        assert reply.headers["Cache-Control"] == "no-store"
        data: dict[str, Any] = await reply.json()
        return data


async def test_the_page_needs_no_token_and_forbids_everything_but_its_own_files() -> None:
    async with served(FakeSGLang(), server={"api_key": "secret"}) as it:
        for path in PAGE_FILES:
            async with it.session.get(f"{it.url}{path}") as reply:
                assert reply.status == 200
                text = await reply.text()
                policy = reply.headers["Content-Security-Policy"]
                assert reply.headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert "secret" not in text


def test_every_element_that_the_script_looks_for_is_on_the_page() -> None:
    page, script = source("index.html"), source("page.js")
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    wanted = set(re.findall(r'(?:byId|text|rowsOf)\("([^"]+)"', script))
    assert wanted and wanted <= ids
    assert set(re.findall(r'aria-labelledby="([^"]+)"', page)) <= ids


def test_the_page_has_no_code_or_style_inside_its_markup() -> None:
    page = source("index.html")
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"\s(?:on\w+|style)=", page)
    assert "<style" not in page
    named = set(re.findall(r'(?:href|src)="([^"]+)"', page))
    imported = set(re.findall(r'from "\./([^"]+)"', source("page.js")))
    assert {f"/{name}" for name in named} | {f"/page/{name}" for name in imported} == (
        PAGE_FILES.keys() - {"/"}
    )


def test_texts_from_the_server_reach_the_page_as_text_only() -> None:
    for name in ("page.js", "lanes.js"):
        script = source(name)
        assert not re.search(
            r"innerHTML|outerHTML|insertAdj|document\.write|eval\(|Function\(", script
        )
        attributes = set(re.findall(r"setAttribute\(\s*[\"']([^\"']+)", script))
        assert attributes <= {"role", "aria-label"}


def test_its_light_colours_are_those_of_all_pictures() -> None:
    (light,) = re.findall(r":root \{(.*?)\}", source("page.css").split("@media")[0], flags=re.S)
    given = dict(re.findall(r"--([\w-]+): (#\w{6});", light))
    for name in ("ours", "ours-light", "ours-dark", "kv", "ink", "muted", "plain-light", "tail"):
        assert given[name] == getattr(style, name.upper().replace("-", "_")), name


async def test_a_rollout_whose_client_left_is_no_request_given_up() -> None:
    fake = FakeSGLang(longest=100_000, delay_s=0.01)
    groups = [{"prompt_ids": [5, 6], "n": 4}]
    async with served(fake) as it:
        body = {"groups": groups, "sampling": {"max_new_tokens": 5000}}
        async with it.session.post(f"{it.url}/rollout", json=body) as reply:
            assert await reply.content.readline()
            await until(lambda: fake.steps > 2)
        await until(lambda: it.service.generation.in_progress == 0)
        fake.rejects = lambda _: True
        assert (await it.post("/generate", input_ids=[5]))[0] == 400
        assert (await live(it))["requests"]["failed"] == 1


@pytest.mark.process
async def test_the_data_is_bounded_whatever_the_number_of_requests() -> None:
    fake = FakeSGLang(longest=1000, delay_s=30.0)
    async with served(fake) as it:
        reader = GenerateReader(it.service.texts(), None)
        calls = []
        for number in range(200):
            hostile = f"<script>\u202e\n{number}" + "x" * 1000
            fields = body(number, group_id=hostile)
            calls += reader.read(msgspec.json.encode(fields), None).calls
        with it.service.started(calls):
            await until(lambda: fake.running == 200)
            data = await live(it)
    assert len(data["tail"]) == MOST_TAIL
    assert len(data["groups"]) == MOST_GROUPS
    assert data["groups_in_progress"] == 200
    assert data["requests"]["running"] == 200
    for group in data["groups"]:
        assert len(group["group"]) <= MOST_CHARACTERS
        assert group["group"].isprintable()
    assert data["tail"][0]["engine"] == "e0"


async def test_tokens_that_a_request_was_given_are_not_its_own() -> None:
    fake, first = FakeSGLang(longest=1000), body(1 << 7, params={"max_new_tokens": 13})
    async with served(fake) as it:
        begun = (await it.generate(**first))["output_ids"]
        fake.faults.append("stall")
        more = {"input_ids": first["input_ids"] + begun}
        task = asyncio.create_task(it.generate(**first | more))
        await asyncio.wait_for(fake.stalled.wait(), 10)
        data = await live(it)
        fake.wake_stalled()
        await task
    (request,), (group,) = data["tail"], data["groups"]
    assert (request["tokens"], request["limit"]) == (0, 13)
    assert (group["requests"], group["tokens"]) == (2, 13)


async def test_a_reader_that_comes_back_gets_only_new_cells_and_a_new_server_all() -> None:
    async with served(FakeSGLang()) as it:
        await until(lambda: it.service.driver.engines != [])
        first = await live(it)
        again = await live(it, f"?boot={first['boot']}&since={first['lanes']['end'] - 1}")
        other = await live(it, f"?boot=another&since={10**9}")
        status, _ = await it.post("/live")
        assert status == 405
        assert (await it.ask("GET", f"/live?boot={first['boot']}&since=-1"))[0] == 400
    assert again["lanes"]["first"] == first["lanes"]["end"] - 1
    assert other["lanes"]["first"] == 0
    assert other["boot"] == first["boot"]


async def test_requests_that_wait_for_kv_are_apart_from_queued_ones() -> None:
    async with served(FakeSGLang(queued_requests=5, foreign_reads=3)) as it:
        await until(lambda: it.service.driver.engines != [])
        data = await live(it)
        while not data["engines"][0]["kv_waiting"]:
            await asyncio.sleep(0.05)
            data = await live(it)
    (engine,) = data["engines"]
    assert (engine["running"], engine["queued"], engine["kv_waiting"]) == (0, 2, 3)
    lane = data["lanes"]["engines"]["e0"]
    assert (lane["queued"][-1], lane["kv_waiting"][-1]) == (2, 3)
