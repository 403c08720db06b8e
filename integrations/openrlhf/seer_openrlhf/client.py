"""HTTP client of a running `seer-sgl serve`.

Its errors are plain and have one line of text, because Ray sends them to other processes.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp

from .failures import one_line

Json = dict[str, Any]
LINE_BYTES = 1 << 30  # one sample is one line
CONNECT_S = 10.0
HEALTH_S = 20.0
LOOK_S = 30.0  # for the answer about a rollout that is silent
LOOKS = 10  # at a silent rollout, during its timeout
RETRY_S = 1.0  # before a request is sent again that the server does not take now
# With `Retry-After`: too much is in progress, or the server is being stopped or has no engine.
BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
clock = time.monotonic


class ServerError(RuntimeError):
    """The server refused a call, failed, or did not answer."""


class ServerRefused(ServerError):
    """The server has answered with another status than 200."""


class ResponseFailed(ServerRefused):
    """The engines could not produce the response: the server gave the request up."""


class ServerLost(ServerError):
    """The server has ended, or the connection to it."""


class Server:
    """The server at `url`. `token` and `admin_token`: its two bearer tokens, if it has them.

    `timeout_s`: the longest silence of the server that is no failure. Between two samples of a
    rollout it may be longer, as long as the server reports progress.
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
        try:
            async with self._taken("/generate", body) as answer:
                return self._decoded(await answer.read(), "/generate")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._lost("/generate", error) from None

    async def delete(self, path: str) -> Json:
        """Returns the JSON answer of a DELETE. Raises ServerError."""
        return await self._answer("DELETE", path, None, self._token)

    async def up(self) -> bool:
        """Returns whether an engine of the server serves, by `/health`."""
        timeout = aiohttp.ClientTimeout(total=HEALTH_S, sock_connect=CONNECT_S)
        try:
            async with self._send("GET", "/health", None, None, timeout) as answer:
                return bool(answer.status == 200)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def control(self, path: str, body: Mapping[str, Any]) -> Json:
        """Returns the answer of a call of the control plane. Raises ServerError."""
        return await self._answer("POST", path, body, self._admin_token)

    async def outcome(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, Json]:
        """Returns status and answer of a call of the control plane, which may take any time.

        It is a GET without a body. Raises ServerError if the server does not answer with JSON.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        method = "GET" if body is None else "POST"
        try:
            async with self._send(method, path, body, self._admin_token, timeout) as answer:
                return answer.status, self._decoded(await answer.read(), path)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._lost(path, error) from None

    async def rollout(self, body: Mapping[str, Any]) -> AsyncGenerator[Json]:
        """Yields the lines of one `POST /rollout`: start, samples, groups, end.

        Raises ServerLost if the stream ends before its end line, and ServerError.
        """
        try:
            # Without `sock_read`: `_pieces` watches the silence.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
            async with self._taken("/rollout", body, timeout) as answer:
                async for line in _lines(self._pieces(answer.content, body["rollout_id"])):
                    event = self._decoded(line, "/rollout")
                    yield event
                    if event.get("event") == "end":
                        return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._lost("/rollout", error) from None
        raise ServerLost(f"/rollout: {self._url} has ended its answer before the last line")

    async def _pieces(self, content: aiohttp.StreamReader, rollout_id: str) -> AsyncIterator[bytes]:
        """Yields what arrives. Raises ServerError if a silent server reports no progress."""
        seen, equal = None, 0  # the figures of its last report, and how many reports had them since
        while True:
            try:
                async with asyncio.timeout(self._timeout_s / LOOKS):
                    piece = await content.readany()
            except TimeoutError:
                found = await self._progress(rollout_id)
                seen, equal = found, equal + 1 if found == seen else 0
                if equal == LOOKS:
                    raise ServerError(
                        f"/rollout: no progress at {self._url} for {self._timeout_s:g} s"
                    ) from None
                continue
            if not piece:
                return
            seen = None
            yield piece

    async def _progress(self, rollout_id: str) -> tuple[Any, ...]:
        """Returns figures of a rollout that grow while it is generated."""
        try:
            async with asyncio.timeout(min(LOOK_S, self._timeout_s)):
                found = await self.get(f"/rollout/{quote(rollout_id, safe='')}")
        except TimeoutError as error:
            raise self._lost("/rollout", error) from None
        tail = [(row.get("index"), row.get("tokens")) for row in found.get("tail") or ()]
        return found.get("samples"), found.get("generated_tokens"), tail

    @contextlib.asynccontextmanager
    async def _taken(
        self, path: str, body: Mapping[str, Any], limits: aiohttp.ClientTimeout | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request of a batch, and yields the answer. Raises ServerRefused.

        A server that is BUSY takes no requests, and asks for another try. It gets one until it has
        ended, which is the error then, or until it takes the request, but for no longer than
        `timeout_s`.
        """
        deadline = clock() + self._timeout_s
        while True:
            async with self._send("POST", path, body, self._token, limits) as answer:
                busy = answer.status in BUSY and "Retry-After" in answer.headers
                if not busy or clock() >= deadline:
                    await self._require_ok(answer, path)
                    yield answer
                    return
            await asyncio.sleep(RETRY_S)

    async def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, token: str | None
    ) -> Json:
        try:
            async with self._send(method, path, body, token) as answer:
                await self._require_ok(answer, path)
                return self._decoded(await answer.read(), path)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._lost(path, error) from None

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        token: str | None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> Any:
        if self._session is None:  # made here: it belongs to the event loop that runs
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, read_bufsize=1 << 20)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        silence = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_S, sock_read=self._timeout_s
        )
        return self._session.request(
            method, self._url + path, json=body, headers=headers, timeout=timeout or silence
        )

    def _lost(self, path: str, error: Exception) -> ServerError:
        reason = one_line(str(error)) or type(error).__name__
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return ServerLost(f"{path}: {self._url} does not answer: {reason}")
        if isinstance(error, TimeoutError):
            return ServerError(f"{path}: no word from {self._url} for {self._timeout_s:g} s")
        return ServerLost(f"{path}: the connection to {self._url} has ended: {reason}")

    async def _require_ok(self, answer: aiohttp.ClientResponse, path: str) -> None:
        if answer.status == 200:
            return
        text = (await answer.content.read(1 << 16)).decode(errors="replace")
        kind = ResponseFailed if answer.status == HTTPStatus.BAD_GATEWAY else ServerRefused
        raise kind(f"{path}: {self._url} answers {answer.status}: {_message(text)}")

    def _decoded(self, text: bytes, path: str) -> Json:
        try:
            found = json.loads(text) if text.strip() else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ServerError(f"{path}: the answer of {self._url} is not a JSON object")
        return found


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields lines of any length up to LINE_BYTES."""
    begun = bytearray()
    async for piece in pieces:
        *lines, rest = piece.split(b"\n")
        for line in lines:
            begun += line
            yield bytes(begun)
            begun.clear()
        begun += rest
        if len(begun) > LINE_BYTES:
            raise ServerError(f"a line of more than {LINE_BYTES} bytes")


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
    return one_line(str(found))
