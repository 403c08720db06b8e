"""A headless Chromium that shows one page: for pictures and tests of the server's live page."""

import asyncio
import base64
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--mute-audio")
START_S = 30.0
WAIT_S = 30.0
POLL_S = 0.05


def find_chromium() -> str | None:
    """Returns the path of Chromium; None if it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page, over the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Returns the result of one call. Raises RuntimeError if it fails."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message: dict[str, Any] = await self._socket.receive_json(timeout=WAIT_S)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    async def show(self, url: str, width: int, height: int, *, dark: bool = False) -> None:
        """Opens a URL in a window of this size; narrow windows are those of phones."""
        await self.resize(width, height)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.call("Emulation.setEmulatedMedia", features=scheme)
        await self.call("Page.navigate", url=url)

    async def resize(self, width: int, height: int) -> None:
        """Sets the size of the window in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if width < 600 else 1,
            mobile=width < 600,
        )

    async def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression. Raises RuntimeError if it throws."""
        reply = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    async def until(self, condition: str) -> None:
        """Waits until a JavaScript condition holds; an error counts as no. Raises TimeoutError."""
        script = f"(() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }})()"
        async with asyncio.timeout(WAIT_S):
            while True:
                if await self.value(script):
                    return
                await asyncio.sleep(POLL_S)

    async def picture(self) -> bytes:
        """Returns a PNG of the window."""
        shot = await self.call("Page.captureScreenshot")
        return base64.b64decode(shot["data"])


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Page]:
    """Starts Chromium with an empty page; on exit it is ended.

    Raises FileNotFoundError if it is not installed.
    """
    chromium = find_chromium()
    if chromium is None:
        raise FileNotFoundError("Chromium is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            chromium,
            *OPTIONS,
            f"--user-data-dir={profile}",
            "--remote-debugging-port=0",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(profile))
            async with aiohttp.ClientSession() as session:
                url = await _page_url(session, port)
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            process.terminate()
            await process.wait()


async def _port(profile: Path) -> int:
    file = profile / "DevToolsActivePort"
    async with asyncio.timeout(START_S):
        while True:
            with contextlib.suppress(FileNotFoundError, ValueError, IndexError):
                return int(file.read_text(encoding="utf-8").splitlines()[0])
            await asyncio.sleep(POLL_S)


async def _page_url(session: aiohttp.ClientSession, port: int) -> str:
    async with asyncio.timeout(START_S):
        while True:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
                pages = [each for each in await reply.json() if each["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
            await asyncio.sleep(POLL_S)
