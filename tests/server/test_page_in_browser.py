"""The live page in a real browser: hostile names, the token, a server that restarts."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bench.browser import Page, find_chromium, opened
from seer_sgl.processes.child import free_port
from tests.fake_sglang import FakeSGLang
from tests.support.metrics import body
from tests.support.waiting import until

from .helpers import served

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed"),
]
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
PHONE, LAPTOP = (390, 800), (1280, 900)


@pytest_asyncio.fixture
async def page() -> AsyncIterator[Page]:
    async with opened() as shown:
        yield shown


def shown(text: str) -> str:
    return f"document.body.innerText.includes({json.dumps(text)})"


async def test_a_name_that_a_client_chose_is_shown_as_text(page: Page) -> None:
    fake = FakeSGLang(longest=1000, delay_s=30.0)
    async with served(fake) as it:
        call = asyncio.create_task(it.generate(**body(1, group_id=HOSTILE)))
        await until(lambda: fake.running == 1)
        await page.show(it.url, *LAPTOP)
        await page.until(shown("<img src=x onerror="))
        assert await page.value("document.querySelectorAll('main img, main script').length") == 0
        assert await page.value("document.title") != "owned"
        call.cancel()


async def test_nothing_is_wider_than_a_phone(page: Page) -> None:
    for engines, canvases in ((2, 2), (20, 1)):
        fakes = [FakeSGLang(longest=1000, delay_s=30.0) for _ in range(engines)]
        async with served(*fakes) as it:
            call = asyncio.create_task(it.generate(**body(1, group_id="g" * 300)))
            await until(lambda: any(fake.running for fake in fakes))  # noqa: B023
            await page.show(it.url, *PHONE)
            await page.until(shown("ggg"))
            assert await page.value("document.documentElement.scrollWidth") <= PHONE[0]
            drawn = await page.value("document.querySelectorAll('#lanes canvas').length")
            assert drawn == canvases
            call.cancel()


async def test_the_token_is_asked_for_and_sent_in_a_header_only(page: Page) -> None:
    async with served(FakeSGLang(), server={"api_key": "secret"}) as it:
        await page.show(it.url, *LAPTOP)
        await page.until("!document.getElementById('token-form').hidden")
        for token in ("wrong", "secret"):
            await page.value(f"document.getElementById('token').value = '{token}'")
            await page.value("document.querySelector('#token-form button').click()")
            if token == "wrong":
                await page.until("!document.getElementById('token-wrong').hidden")
        await page.until("!document.getElementById('main').hidden")
        assert await page.value("location.href") == f"{it.url}/"
        urls = await page.value("performance.getEntriesByType('resource').map(e => e.name).join()")
        assert "secret" not in urls
        await page.call("Page.reload")
        await page.until("!document.getElementById('main').hidden")


async def test_the_page_continues_with_a_server_that_was_restarted(page: Page) -> None:
    server = {"port": free_port()}
    async with served(FakeSGLang(longest=1000), server=server) as it:
        await it.generate(**body(1))
        await page.show(it.url, *LAPTOP)
        await page.until(shown("40 tokens so far"))
    await page.until(shown("no answer, trying again"))
    async with served(FakeSGLang(), FakeSGLang(), server=server):
        await page.until(shown("2 engines ready"))
        await page.until(shown("0 tokens so far"))
        assert not await page.value(shown("no answer, trying again"))
