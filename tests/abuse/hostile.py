"""Hostile clients: everything that a server on a network may receive, each with its own manner."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import pickle
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from tests.server.broken_requests import broken, send_badly
from tests.server.field_values import TEXT, completions, fields, others, parameters
from tests.server.hostile import REFUSED, UNREADABLE
from tests.server.raw import connected, post

from .rig import ADMIN, CLIENT, MAX_BODY

Json = dict[str, Any]
ENOUGH_S = 90.0
TRAINER = {"Authorization": f"Bearer {ADMIN}"}
ANYONE = {"Authorization": f"Bearer {CLIENT}"}
# Calls of the control plane that the server must refuse, or that change nothing.
CONTROL: tuple[tuple[str, Json], ...] = (
    ("/release_memory_occupation", {"tags": ["nope"]}),
    ("/release_memory_occupation", {"tags": ["weight"]}),
    ("/release_memory_occupation", {"tags": [5]}),
    ("/release_memory_occupation", {"tags": "weights "}),
    ("/resume_memory_occupation", {"tags": ["kv"]}),
    ("/pause_generation", {"mode": "for ever"}),
    ("/update_weights_from_disk", {"model_path": 5}),
    ("/update_weights_from_disk", {}),
    ("/update_weights_from_distributed", {"names": [5], "dtypes": [], "shapes": []}),
    ("/update_weights_from_tensor", {"serialized_named_tensors": ["no pickle"]}),
    ("/update_weights_from_tensor", {"serialized_named_tensors": 5}),
    ("/update_weights_from_ipc", {"zmq_handles": 5}),
    ("/destroy_weights_update_group", {"group_name": "nobody's"}),
    ("/get_weights_by_name", {"name": ["a"]}),
    ("/abort_request", {"rid": "nobody's"}),
    ("/abort_request", {"rid": 5}),
    ("/workers", {"url": "http://127.0.0.1:9"}),
)
GUARDED = (
    *("/generate", "/rollout", "/v1/chat/completions", "/tokenize", "/metrics", "/v1/loads"),
    *("/workers", "/flush_cache", "/pause_generation", "/release_memory_occupation"),
    *("/update_weights_from_tensor", "/update_weight_version", "/abort_request", "/rollouts"),
)
ENGINE_CALLS = (
    "/generate",
    "/update_weight_version",
    "/release_memory_occupation",
    "/abort_request",
)
BOMBS = (
    *(".*" * 24 + "z", "(a+)+z", "(.|.)*z", "(x*)*y", ".*.*z", "(a|aa)+$", "a{1000000}", "(" * 500),
    *("[", "(?P<a>.)(?P=a)*z", "(?=.*z)", "x" * 100_000, "\\d+\\d+\\d+!", "(.*),(.*),(.*)#"),
)


class Evil:
    """Makes the file PLACE where it is unpickled."""

    PLACE = Path(tempfile.gettempdir()) / f"unpickled-{os.getpid()}"

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.PLACE}",)


class Seen(msgspec.Struct):
    """What hostile clients got. `failed`: answers of 500 and more; `let_in`: calls without the
    right token that were not refused."""

    answers: Counter[str] = msgspec.field(default_factory=Counter)
    failed: list[str] = msgspec.field(default_factory=list)
    let_in: list[str] = msgspec.field(default_factory=list)


class Kind(NamedTuple):
    """A kind of hostile client: how many there are, and their pause between two actions."""

    act: Callable[[], Awaitable[None]]
    clients: int
    pause_s: float


class Hostile:
    """Hostile clients of a server. engines: the URLs of its engines' own ports."""

    def __init__(self, url: str, engines: list[str], seed: int) -> None:
        self.seen = Seen()
        self._url = url
        self._engines = engines
        self._draw = random.Random(seed)
        self._session: aiohttp.ClientSession
        self._values = self._all_values()
        self._fixed = itertools.cycle([*REFUSED.items(), *UNREADABLE.items()])
        self._guarded = itertools.cycle(itertools.product(GUARDED, ("", "Bearer wrong", "Basic a")))
        self._bombs = itertools.cycle(BOMBS)

    def kinds(self) -> dict[str, Kind]:
        return {
            "a value of any type in any field": Kind(self.any_value, 4, 0.1),
            "bytes that are no request": Kind(self.broken_bytes, 2, 0.1),
            "a body that nobody can read": Kind(self.unreadable, 1, 0.5),
            "a large body": Kind(self.large, 1, 5.0),
            "a request that never ends": Kind(self.half_open, 12, 0.0),
            "an idle connection": Kind(self.idle, 40, 0.0),
            "a stream that nobody reads": Kind(self.unread, 2, 0.0),
            "a stream that is cut": Kind(self.cut, 2, 0.2),
            "a rollout that is cut": Kind(self.cut_rollout, 1, 1.0),
            "a costly stop_regex": Kind(self.bomb, 1, 1.0),
            "a wrong call of the control plane": Kind(self.wrong_control, 1, 1.0),
            "a forbidden pickle": Kind(self.pickled, 1, 5.0),
            "a wrong token": Kind(self.wrong_token, 1, 0.2),
            "an engine's own port": Kind(self.engine_port, 1, 2.0),
        }

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[None]:
        """Opens the connections of the clients that speak HTTP."""
        limits = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
        timeout = aiohttp.ClientTimeout(total=ENOUGH_S)
        async with aiohttp.ClientSession(connector=limits, timeout=timeout) as self._session:
            yield

    async def run(self, ended: asyncio.Event) -> None:
        async with self.session(), asyncio.TaskGroup() as tasks:
            for name, kind in self.kinds().items():
                for _ in range(kind.clients):
                    tasks.create_task(self._acting(name, kind, ended))

    async def _acting(self, name: str, kind: Kind, ended: asyncio.Event) -> None:
        while not ended.is_set():
            action = asyncio.ensure_future(kind.act())
            over = asyncio.ensure_future(ended.wait())
            await asyncio.wait({action, over}, return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            action.cancel()  # if it still runs, the abuse is over
            try:
                await action
            except asyncio.CancelledError:
                continue
            except (OSError, TimeoutError, aiohttp.ClientError, asyncio.IncompleteReadError) as why:
                self.seen.answers[f"{name}: {type(why).__name__}"] += 1
            await asyncio.sleep(kind.pause_s)

    def _got(self, name: str, status: int, what: object, answer: str = "") -> None:
        self.seen.answers[f"{name}: {status}"] += 1
        if status >= 500:
            self.seen.failed.append(f"{name}: {status} {what!r:.300} {answer:.300}")

    async def _post(self, name: str, path: str, body: Any, headers: Mapping[str, str]) -> int:
        async with self._session.post(self._url + path, json=body, headers=headers) as reply:
            self._got(name, reply.status, (path, body), await reply.text(errors="replace"))
            return reply.status

    def _all_values(self) -> Iterator[tuple[str, Json]]:
        pairs = [*fields(), *parameters(), *completions(), *others()]
        while True:
            self._draw.shuffle(pairs)
            yield from pairs

    async def any_value(self) -> None:
        path, body = next(self._values)
        await self._post("field", path, body, ANYONE)

    async def broken_bytes(self) -> None:
        """Sends changed bytes, cut short or of another length than they say."""
        async with connected(self._url) as connection:
            body = broken(self._draw)
            status = await send_badly(connection, body, self._draw, **ANYONE)
        self._got("bytes", status or 0, body)

    async def unreadable(self) -> None:
        """Sends a body that must be refused before it is understood."""
        name, given = next(self._fixed)
        headers, body, _ = given if isinstance(given, tuple) else ({}, given, 400)
        async with connected(self._url) as connection:
            await connection.send(post(body, **{**ANYONE, **headers}))
            status, answer = await connection.answer()
        self._got("unreadable", status, name, answer.decode(errors="replace"))

    async def large(self) -> None:
        size = self._draw.choice([1 << 20, MAX_BODY - 100, MAX_BODY + 100, 3 * MAX_BODY])
        stops = ["x" * 1000] * (size // 1003)
        body = self._draw.choice(
            [
                b'{"input_ids": [' + b"5," * (size // 2) + b"5]}",
                b'{"text": "' + b"a " * (size // 2) + b'"}',
                json.dumps({"text": TEXT, "sampling_params": {"stop": stops}}).encode(),
                b'{"text": "a", "nobody": "' + b"\\u00e9" * (size // 6) + b'"}',
            ]
        )
        async with self._session.post(
            f"{self._url}/generate",
            data=body,
            headers={"Content-Type": "application/json", **ANYONE},
        ) as reply:
            self._got("large", reply.status, body[:40], await reply.text(errors="replace"))

    async def half_open(self) -> None:
        """Sends the beginning of a request, and leaves after a while without a word."""
        sent = post(b"x" * 1000, **ANYONE)
        async with connected(self._url) as connection:
            await connection.send(sent[: self._draw.randrange(len(sent))])
            await asyncio.sleep(self._draw.uniform(1, 60))
            if self._draw.random() < 0.5:
                connection.writer.transport.abort()
        self.seen.answers["half-open"] += 1

    async def idle(self) -> None:
        async with connected(self._url):
            await asyncio.sleep(self._draw.uniform(1, 30))
        self.seen.answers["idle"] += 1

    async def unread(self) -> None:
        params = {"max_new_tokens": 400, "ignore_eos": True}
        body = {"text": TEXT, "stream": True, "return_logprob": True, "sampling_params": params}
        async with connected(self._url) as connection:
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await connection.send(post(json.dumps(body).encode(), **ANYONE))
            await asyncio.sleep(self._draw.uniform(5, 40))
        self.seen.answers["unread"] += 1

    async def cut(self) -> None:
        params = {"max_new_tokens": 300, "ignore_eos": True}
        path, body = self._draw.choice(
            [
                ("/generate", {"text": TEXT, "stream": True, "sampling_params": params}),
                ("/generate", {"text": TEXT, "stream": True, "top_logprobs_num": 1}),
                ("/v1/completions", {"prompt": TEXT, "stream": True, "max_tokens": 300}),
            ]
        )
        await self._hang_up("cut", path, body, self._draw.uniform(0, 4))

    async def cut_rollout(self) -> None:
        groups = [{"prompt": TEXT, "n": 4} for _ in range(3)]
        body = {"groups": groups, "sampling": {"max_new_tokens": 200}, "stream": "samples"}
        await self._hang_up("cut rollout", "/rollout", body, self._draw.uniform(0, 5))

    async def _hang_up(self, name: str, path: str, body: Json, after_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await self._post(name, path, body, ANYONE)
                return
        self.seen.answers[f"{name}: hung up"] += 1

    async def bomb(self) -> None:
        params = {"max_new_tokens": 100, "ignore_eos": True, "stop_regex": next(self._bombs)}
        await self._post("regex", "/generate", {"text": TEXT, "sampling_params": params}, ANYONE)

    async def wrong_control(self) -> None:
        path, body = self._draw.choice(CONTROL)
        await self._post("control", path, body, TRAINER)

    async def pickled(self) -> None:
        entry = base64.b64encode(pickle.dumps([("a", Evil())])).decode()
        body = {"serialized_named_tensors": [entry] * 2}
        await self._post("pickle", "/update_weights_from_tensor", body, TRAINER)

    async def wrong_token(self) -> None:
        """Calls without the right token; the trainer's opens no route of clients, nor the other
        way round."""
        path, token = next(self._guarded)
        await self._refused(f"{self._url}{path}", {"Authorization": token} if token else {})
        await self._refused(f"{self._url}/pause_generation", ANYONE)
        await self._refused(f"{self._url}/generate", TRAINER)

    async def engine_port(self) -> None:
        for headers in ({}, ANYONE, TRAINER):
            url = self._draw.choice(self._engines) + self._draw.choice(ENGINE_CALLS)
            await self._refused(url, headers)

    async def _refused(self, url: str, headers: Mapping[str, str]) -> None:
        body = {"text": TEXT, "sampling_params": {"max_new_tokens": 3}}
        async with self._session.post(url, json=body, headers=headers) as reply:
            self._got("token", reply.status, url)
            if reply.status not in (401, 403, 405):
                self.seen.let_in.append(f"{url} {dict(headers)}: {reply.status}")
