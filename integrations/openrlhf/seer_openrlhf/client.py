"""HTTP client of a running `seer-sgl serve`.

Its errors are plain and have one line of text, because Ray sends them to other processes.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

Json = dict[str, Any]
LINE_BYTES = 1 << 30  # one sample is one line
CONNECT_S = 10.0


class ServerError(RuntimeError):
    """The server refused a call, failed, or did not answer."""


class Server:
    """The server at `url`. `token` and `admin_token`: its two bearer tokens, if it has them.

    `timeout_s`: the longest silence of the server that is no failure.
    """

    def __init__(
        self, url: str, *, token: str | None, admin_token: str | None, timeout_s: float
    ) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._admin_token = admin_token or token
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
        self._session = None

    async def get(self, path: str) -> Json:
        """Returns the JSON answer of a GET. Raises ServerError."""
        return await self._answer("GET", path, None, self._token)

    async def generate(self, body: Mapping[str, Any]) -> Json:
        """Returns SGLang's reply to one request of `/generate`. Raises ServerError."""
        return await self._answer("POST", "/generate", body, self._token)

    async def control(self, path: str, body: Mapping[str, Any]) -> Json:
        """Returns the answer of a call of the control plane. Raises ServerError."""
        return await self._answer("POST", path, body, self._admin_token)

    async def rollout(self, body: Mapping[str, Any]) -> AsyncIterator[Json]:
        """Yields the lines of one `POST /rollout`: start, samples, groups, end.

        Raises ServerError if the stream ends before its end line.
        """
        try:
            async with self._send("POST", "/rollout", body, self._token) as answer:
                await _require_ok(answer, "/rollout")
                async for line in _lines(answer.content):
                    event = _decoded(line, "/rollout")
                    yield event
                    if event.get("event") == "end":
                        return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._lost("/rollout", error) from None
        raise ServerError("/rollout: the answer ended before its last line")

    async def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, token: str | None
    ) -> Json:
        try:
            async with self._send(method, path, body, token) as answer:
                await _require_ok(answer, path)
                return _decoded(await answer.read(), path)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._lost(path, error) from None

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, token: str | None
    ) -> Any:
        if self._session is None:  # made here: it belongs to the event loop that runs
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_S, sock_read=self._timeout_s
            )
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=timeout, read_bufsize=1 << 20
            )
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self._session.request(method, self._url + path, json=body, headers=headers)

    def _lost(self, path: str, error: Exception) -> ServerError:
        if isinstance(error, TimeoutError):
            return ServerError(f"{path}: no word from {self._url} for {self._timeout_s:g} s")
        return ServerError(f"{path}: {self._url} does not answer: {error or type(error).__name__}")


async def _require_ok(answer: aiohttp.ClientResponse, path: str) -> None:
    if answer.status == 200:
        return
    text = (await answer.content.read(1 << 16)).decode(errors="replace")
    raise ServerError(f"{path}: HTTP {answer.status}: {_message(text)}")


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yields lines of any length up to LINE_BYTES."""
    begun = bytearray()
    async for piece in content.iter_any():
        *lines, rest = piece.split(b"\n")
        for line in lines:
            begun += line
            yield bytes(begun)
            begun.clear()
        begun += rest
        if len(begun) > LINE_BYTES:
            raise ServerError(f"a line of more than {LINE_BYTES} bytes")


def _decoded(text: bytes, path: str) -> Json:
    try:
        found = json.loads(text) if text.strip() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ServerError(f"{path}: the answer is not a JSON object")
    return found


def _message(text: str) -> str:
    """Returns what an error says, in one line."""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    if isinstance(found, dict):
        error = found.get("error")
        inner = error.get("message") if isinstance(error, dict) else None
        found = inner or found.get("message") or error or text
    return " ".join(str(found).split())[:500]
