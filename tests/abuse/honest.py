"""Honest clients: seeded requests whose answers are those of a plain, undivided engine."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
import msgspec

from seer_sgl import Rollout
from tests.e2e.compare import collected
from tests.e2e.conftest import external
from tests.e2e.held_out import texts
from tests.support.bodies import events_in

from .rig import CLIENT, SEED

Json = dict[str, Any]
LONGEST = 200
LATE_S = 400.0  # a request without an answer by then is lost
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
DRAWS: tuple[Json, ...] = (
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.2, "top_k": 8},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.8, "logit_bias": {"46": -3.0, "12": 1.0}},
    {"temperature": 0.7, "presence_penalty": 0.5},  # not divided
    {"temperature": 1.0, "min_tokens": 40},
)


class Job(NamedTuple):
    """A request. `body` of a rollout: groups and sampling."""

    name: str
    path: str
    body: Json


class Answer(NamedTuple):
    """What is compared, and the number of tokens in it."""

    content: Any
    tokens: int


class Tally(msgspec.Struct):
    """The results of the honest requests. `lost`, `different`: a line for each."""

    answered: int = 0
    tokens: int = 0
    by_path: dict[str, int] = msgspec.field(default_factory=dict)
    lost: list[str] = msgspec.field(default_factory=list)
    different: list[str] = msgspec.field(default_factory=list)
    seconds: list[float] = msgspec.field(default_factory=list)


def jobs() -> list[Job]:
    """Returns requests to every endpoint that generates, with all kinds of sampling."""
    prompts, found = texts(16), []
    for number, (text, draw) in enumerate(zip(prompts, itertools.cycle(DRAWS), strict=False)):
        seed, stream = 1000 + number, number % 2 == 1
        renamed = {"min_tokens": "min_new_tokens"}
        params = {renamed.get(key, key): value for key, value in draw.items()}
        params |= {"max_new_tokens": LONGEST, "sampling_seed": seed}
        found += [
            Job(f"generate {number}", "/generate", {"text": text, "sampling_params": params}),
            Job(
                f"completions {number}",
                COMPLETIONS,
                {"prompt": text, "n": 1 + number % 3, "max_tokens": LONGEST, "seed": seed, **draw},
            ),
            Job(
                f"chat {number}",
                CHAT,
                {
                    "messages": [{"role": "user", "content": text}],
                    **{"max_tokens": LONGEST, "seed": seed, "stream": stream, **draw},
                },
            ),
        ]
        if stream:
            found[-1].body["stream_options"] = {"include_usage": True}
        if stream and "presence_penalty" not in draw:
            found[-3].body["stream"] = True
    for number in range(4):
        chosen = prompts[number * 4 : number * 4 + 3]
        groups = [{"id": f"g{i}", "prompt": text, "n": 4} for i, text in enumerate(chosen)]
        sampling = {"max_new_tokens": LONGEST, **DRAWS[number]}
        body = {"groups": groups, "sampling": sampling, "seed": SEED + number, "stream": "samples"}
        found.append(Job(f"rollout {number}", "/rollout", body))
    return found


async def reference(url: str, wanted: Sequence[Job]) -> dict[str, Answer]:
    """Returns a plain engine's own answers by name; rollouts are undivided."""
    found = {}
    async with session() as clients:
        for job in wanted:
            if job.path == "/rollout":
                found[job.name] = await _rolled(url, job)
            else:
                found[job.name] = await ask(clients, url, job)
    return found


async def _rolled(url: str, job: Job) -> Answer:
    config = external([url], scheduling={"divide": False})
    config["rollout"] = {"seed": job.body["seed"]}
    async with Rollout(config) as rollout:
        given = [{**group, "sampling": job.body["sampling"]} for group in job.body["groups"]]
        samples = await collected(rollout.run(given))
    found = {
        f"{name} {index}": [list(sample.response_ids), sample.text]
        for (name, index), sample in samples.items()
    }
    return Answer(found, sum(sample.response_length for sample in samples.values()))


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {CLIENT}"},
        timeout=aiohttp.ClientTimeout(total=LATE_S),
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),
    )


async def ask(clients: aiohttp.ClientSession, url: str, job: Job) -> Answer:
    """Returns the answer to a request. Raises AssertionError if it has another status than 200."""
    async with clients.post(url + job.path, json=job.body) as reply:
        text = await reply.text()
    assert reply.status == 200, f"{reply.status} {text[:300]}"
    if job.path == "/rollout":
        return _samples(text)
    events = events_in(text) if job.body.get("stream") else [json.loads(text)]
    if job.path == "/generate":
        meta = events[-1]["meta_info"]
        content = [events[-1]["output_ids"], events[-1]["text"], meta["finish_reason"]]
        return Answer(content, meta["completion_tokens"])
    return _choices(events)


def _samples(text: str) -> Answer:
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[-1]["event"] == "end" and lines[-1]["state"] == "complete", lines[-1]
    samples = [line for line in lines if line["event"] == "sample"]
    found = {
        f"{each['group_id']} {each['index']}": [each["response_ids"], each["text"]]
        for each in samples
    }
    assert len(found) == len(samples), "a sample came twice"
    return Answer(found, sum(len(ids) for ids, _ in found.values()))


def _choices(events: Sequence[Mapping[str, Any]]) -> Answer:
    """Returns text and end of each choice, of a whole answer or of a stream's events."""
    content: dict[str, list[Any]] = {}
    tokens = 0
    for event in events:
        tokens += (event.get("usage") or {}).get("completion_tokens", 0)
        for choice in event["choices"]:
            said = choice.get("message") or choice.get("delta") or choice
            entry = content.setdefault(str(choice["index"]), ["", None, None])
            entry[0] += said.get("text") or said.get("content") or ""
            entry[1] = choice.get("finish_reason") or entry[1]
            entry[2] = choice.get("matched_stop") or entry[2]
    return Answer(content, tokens)


class Clients:
    """Honest clients of a server; each sends one request after another, drawn at random."""

    def __init__(self, url: str, wanted: Sequence[Job], expected: Mapping[str, Answer]) -> None:
        self._url = url
        self._wanted = wanted
        self._expected = expected
        self.tally = Tally()

    async def run(self, ended: asyncio.Event, seed: int) -> None:
        draw = random.Random(seed)
        async with session() as clients:
            while not ended.is_set():
                await self.one(clients, draw.choice(self._wanted))

    async def all_once(self) -> None:
        """Sends every request once, eight at a time."""
        waiting = list(self._wanted)

        async def work(clients: aiohttp.ClientSession) -> None:
            while waiting:
                await self.one(clients, waiting.pop())

        async with session() as clients:
            await asyncio.gather(*(work(clients) for _ in range(8)))

    async def one(self, clients: aiohttp.ClientSession, job: Job) -> None:
        began, tally = time.monotonic(), self.tally
        try:
            answer = await ask(clients, self._url, job)
        except (AssertionError, TimeoutError, aiohttp.ClientError) as error:
            tally.lost.append(f"{job.name}: {error!r} after {time.monotonic() - began:.0f} s")
            return
        tally.seconds.append(time.monotonic() - began)
        tally.answered += 1
        tally.by_path[job.path] = tally.by_path.get(job.path, 0) + 1
        if answer.content == self._expected[job.name].content:
            tally.tokens += self._expected[job.name].tokens
        else:
            tally.different.append(job.name)
