"""The rollout API on fake engines: every group once, with the tokens of a fault-free run."""

import asyncio
import contextlib
import gc
import json
import socket
import threading
import weakref
from array import array
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from typing_extensions import override

from examples.rollout_client import main as example
from seer_sgl.errors import RolloutError
from seer_sgl.rollout.prompts import overridden
from seer_sgl.server import rollout_served, rollouts
from seer_sgl.server.prefixes import EVERY, Prefixes
from seer_sgl.server.rollout_served import ServedRollout
from seer_sgl.timing import Timing
from seer_sgl.types import Sampling, token_array
from tests.fake_sglang import FakeSGLang
from tests.fake_sglang import serving as serving_fake
from tests.support.waiting import until

from .helpers import Served, served
from .rollout_client import SEED, Stream, assert_exact, get, groups_of, lines_of, prompts, rollout

LIMIT = 40
SAMPLING = {"max_new_tokens": LIMIT}


@dataclass(eq=False)
class Gated(FakeSGLang):
    """A fake that answers while its gate is open."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    @override
    async def _answer(
        self, http: web.Request, call: dict[str, Any], fault: str
    ) -> web.StreamResponse:
        await self.gate.wait()
        return await super()._answer(http, call, fault)


def assert_all_exact(lines: list[dict[str, Any]], fake: FakeSGLang, count: int, n: int = 2) -> None:
    groups = groups_of(lines)
    assert sorted(groups) == sorted(prompt["id"] for prompt in prompts(count))
    for samples in groups.values():
        assert_exact(samples, fake, LIMIT, n)


async def assert_all_free(it: Served) -> None:
    """Asserts that no response is in progress any more; `empty_books` checks the scheduler."""
    await until(lambda: it.service.generation.in_progress == 0)
    assert not it.service.rollouts.in_progress


@contextlib.asynccontextmanager
async def rolling(fake: FakeSGLang, groups: Any, **options: Any) -> AsyncIterator[Stream]:
    """Serves a fake and starts a rollout, of which nothing is left after the block."""
    async with served(fake, sampling=SAMPLING) as it:
        async with rollout(it, groups, **options) as stream:
            yield stream
        await assert_all_free(it)


class ThreadsOfTexts:
    """A tokenizer. `of_loop`: for each text, by its length, whether the event loop read it."""

    vocab_size = 100

    def __init__(self) -> None:
        self.of_loop: dict[int, bool] = {}

    def encode(self, text: str) -> "array[int]":
        self.of_loop[len(text)] = threading.current_thread() is threading.main_thread()
        return token_array([5, 6, 7])

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> "array[int]":
        return self.encode(messages[0]["content"])


async def test_long_texts_do_not_keep_the_server_from_its_other_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = ThreadsOfTexts()
    reader: Any = tokenizer
    long = rollouts.LONG_CHARACTERS
    chats = [{"messages": [{"role": "user", "content": "x" * size}]} for size in (3, long + 2)]
    groups = ["x", "x" * long, {"prompt": "xx"}, {"prompt": "x" * (long + 1)}, *chats]
    groups.append({"prompt": "x" * 4, "metadata": ["x"] * long})
    of_loop: list[bool] = []

    def noted(*given: Any) -> Sampling:
        of_loop.append(threading.current_thread() is threading.main_thread())
        return overridden(*given)

    monkeypatch.setattr(rollouts, "overridden", noted)
    async with served(FakeSGLang(), sampling=SAMPLING) as it:
        it.service.rollout.tokenizer = reader
        *_, end = await lines_of(it, groups, n_samples_per_prompt=1, sampling={"top_p": 1.0})
        await assert_all_free(it)
    assert end["groups"] == len(groups)
    assert tokenizer.of_loop == {
        **{1: True, 2: True, 3: True},
        **{long: False, long + 1: False, long + 2: False, 4: False},
    }
    assert of_loop == [False]


async def test_each_group_comes_once_as_of_a_fault_free_run_between_start_and_end() -> None:
    fake = FakeSGLang(max_running_requests=4)
    async with served(fake, sampling=SAMPLING) as it:
        async with rollout(it, prompts(9), rollout_id="step-1") as stream:
            start, *lines, end = await stream.rest()
            report = (await stream.progress())["report"]
        await assert_all_free(it)
        listed = await get(it, "/rollouts")
    assert_all_exact(lines, fake, 9)
    assert (start["rollout_id"], start["seed"], start["samples"]) == ("step-1", SEED, 18)
    assert (end["state"], end["groups"], end["failed_groups"]) == ("complete", 9, 0)
    assert end["group_ids"] == [line["group_id"] for line in lines]
    assert end["generated_tokens"] == report["response_tokens"]
    assert (report["samples"], report["unfinished_groups"]) == (18, 0)
    assert [each["state"] for each in listed["rollouts"]] == ["complete"]


async def test_samples_come_as_they_finish_and_a_line_ends_their_group() -> None:
    fake = FakeSGLang()
    async with rolling(fake, prompts(4), stream="samples") as stream:
        _, *lines, end = await stream.rest()
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line["event"] == "sample":
            found.setdefault(line["group_id"], []).append(line)
        else:
            samples = sorted(found[line["group_id"]], key=lambda sample: sample["index"])
            assert_exact(samples, fake, LIMIT)
    assert [line["group_id"] for line in lines if line["event"] == "group"] == end["group_ids"]
    assert end["samples"] == 8


@pytest.mark.parametrize("kind", ["x-ndjson", "ndjson", "jsonl"])
async def test_ndjson_with_a_prompt_per_line_is_the_same_rollout(kind: str) -> None:
    fake = FakeSGLang()
    body = "\n".join(map(json.dumps, prompts(3))) + "\n"
    query = {"seed": str(SEED), "sampling": json.dumps(SAMPLING), "target_groups": "3"}
    async with served(fake) as it:
        headers = {"Content-Type": f"application/{kind}"}
        async with it.session.post(
            f"{it.url}/rollout", data=body, headers=headers, params=query
        ) as reply:
            lines = await Stream(it, reply).rest()
    assert_all_exact(lines, fake, 3)
    assert lines[-1]["state"] == "target"


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("sampling=", "sampling: not a JSON object"),
        ("sampling=[1]", "sampling: not a JSON object"),
        ("groups=1", "groups: in the query"),
        ("target_groups=1&target_groups=2", "target_groups: more than once"),
    ],
)
async def test_a_wrong_query_of_ndjson_is_named(query: str, named: str) -> None:
    async with served(FakeSGLang()) as it:
        headers = {"Content-Type": "application/x-ndjson"}
        url, body = f"{it.url}/rollout?{query}", json.dumps(prompts(1)[0])
        async with it.session.post(url, data=body, headers=headers) as reply:
            assert reply.status == 400
            assert (await reply.json())["error"]["message"].startswith(named)


async def test_without_a_seed_each_rollout_that_is_not_refused_takes_the_next_one() -> None:
    async with served(FakeSGLang(), rollout={"seed": 1}) as it:
        refused = prompts(1, sampling={"min_p": 0.1})
        assert (await it.post("/rollout", groups=refused))[0] == 400
        seeds = [(await lines_of(it, prompts(1), seed=None))[0]["seed"] for _ in range(2)]
    assert seeds[0] == 1
    assert seeds[1] != 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"groups": [*prompts(2), {"prompt_ids": [5], "n": 0}]}, "groups[2].n"),
        ({"groups": [*prompts(2), {"prompt_ids": [5], "tools": []}]}, "groups[2]"),
        ({"groups": [*prompts(1), {"prompt_ids": []}]}, "groups[1]: the prompt is empty"),
        ({"groups": ["text"]}, "groups[0]: text prompts need a tokenizer"),
        ({"groups": [*prompts(1), *prompts(1)]}, "groups[1]: id 'g0' is already used"),
        ({"groups": prompts(1, sampling={"top_p": 2})}, "groups[0]: sampling.top_p"),
        ({"groups": prompts(1, sampling={"min_p": 0.1})}, "sampling.min_p"),
        ({"groups": []}, "groups: no prompts"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature"),
        ({"sampling": {"min_p": 0.1}}, "sampling.min_p"),
        ({"sampling": {"n": 2}}, "sampling.n"),
        ({"target_groups": 3}, "target_groups: 3 of 2 groups"),
        ({"dynamic_filtering": True}, "set target_groups"),
        ({"stream": "tokens"}, "stream"),
        *(({"rollout_id": name}, "rollout_id") for name in ("a/b", "a\n", "", "x" * 129)),
        ({"groups": [{"prompt_ids": [5], "n": 101}]}, "server.max_requests is 100"),
    ],
)
async def test_a_bad_body_names_the_group_and_queues_nothing(
    change: dict[str, Any], named: str
) -> None:
    fake = FakeSGLang()
    limits = {"max_requests": 100}
    async with served(fake, server=limits) as it:
        status, reply = await it.post("/rollout", **{"groups": prompts(2), **change})
        assert status == 400
        assert named in reply["error"]["message"]
        assert it.service.generation.in_progress == 0
    assert not fake.seen


async def test_rollouts_and_single_requests_count_together() -> None:
    fake = Gated()
    async with served(fake, server={"max_requests": 10}, sampling=SAMPLING) as it:
        async with rollout(it, prompts(4)) as stream:
            await anext(stream.lines())
            status, _ = await it.post("/rollout", groups=prompts(2))
            assert status == 429
            single = {"input_ids": [[1]] * 3, "sampling_params": {"max_new_tokens": 2}}
            assert (await it.post("/generate", **single))[0] == 429
            fake.gate.set()
            await stream.rest()
        assert len(await it.generate(**single)) == 3
        await assert_all_free(it)


async def test_a_reader_that_stops_holds_back_new_groups_and_not_decoding_ones() -> None:
    fake = FakeSGLang(max_running_requests=4)  # a window of 8 requests: 4 groups
    groups = prompts(60, metadata="x" * 400_000)
    async with served(fake, sampling=SAMPLING, server={"max_requests": 120}) as it:
        host, port = it.url.removeprefix("http://").split(":")
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        slow.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=slow, limit=1 << 26)
        body = json.dumps({"groups": groups, "rollout_id": "slow", "seed": SEED}).encode()
        writer.write(
            b"POST /rollout HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        writer.write(b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: bool(it.service.rollouts.in_progress))
        (held,) = it.service.rollouts.in_progress
        await until(lambda: held.waiting and not held.running)
        submitted = held.tally.total - held.waiting
        assert submitted == len(held.tally.complete)
        assert submitted - held.delivered == 4
        calls = len(fake.seen)
        assert len({tuple(call["input_ids"][:3]) for call in fake.seen}) == submitted
        assert_all_exact(await lines_of(it, prompts(3)), fake, 3)  # others are not held back
        assert len(fake.seen) > calls
        assert held.tally.total - held.waiting == submitted
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        answer = await reader.read()
        assert answer.count(b'"event":"group"') == 60
        writer.close()
        await writer.wait_closed()
        await assert_all_free(it)


async def test_a_target_ends_the_rollout_and_aborts_the_surplus() -> None:
    fake = FakeSGLang(max_running_requests=4)
    async with rolling(fake, prompts(12), target_groups=5) as stream:
        lines = await stream.rest()
        progress = await stream.progress()
    groups, end = groups_of(lines), lines[-1]
    assert len(groups) == end["groups"] == 5
    assert (end["state"], end["unfinished_groups"]) == ("target", 7)
    for samples in groups.values():
        assert_exact(samples, fake, LIMIT)
    assert progress["report"]["unfinished_groups"] == 7
    assert progress["tail"] == []


async def test_no_group_completes_after_the_end_of_its_rollout() -> None:
    fake = Gated(max_running_requests=4)
    async with served(fake, sampling=SAMPLING) as it, rollout(it, prompts(3)) as stream:
        (held,) = it.service.rollouts.in_progress
        await until(lambda: len(fake.seen) == 4)
        held.finish("target")
        assert not held.run.unfinished  # though chunks of it may be back already
        assert held.report is not None
        assert held.report["unfinished_groups"] == held.tally.unfinished == 3
        fake.gate.set()
        assert (await stream.rest())[-1]["unfinished_groups"] == 3
    assert held.report["unfinished_groups"] == 3


async def test_a_rejected_group_does_not_count_towards_the_target() -> None:
    fake = Gated(max_running_requests=4)
    fake.gate.set()
    async with rolling(fake, prompts(12), target_groups=5) as stream:
        lines, rejected = [], ""
        async for line in stream.lines():
            lines.append(line)
            if line["event"] == "group" and not rejected:
                rejected = line["group_id"]
                status, verdict = await stream.verdict("reject", rejected)
                assert (status, verdict["state"]) == (200, "running")
                assert verdict["replaced_by"] not in (None, rejected)
        status, reply = await stream.verdict("reject", lines[-1]["group_ids"][0])
    assert (status, "has ended: target" in reply["error"]["message"]) == (409, True)
    assert len(groups_of(lines)) == 6
    assert lines[-1]["groups"] == 5
    assert rejected not in lines[-1]["group_ids"]


async def test_with_dynamic_filtering_the_stream_waits_for_the_verdict_on_the_last_group() -> None:
    fake = FakeSGLang()
    async with rolling(fake, prompts(6), target_groups=3, dynamic_filtering=True) as stream:
        lines = stream.lines()
        delivered = [(await anext(lines)).get("group_id") for _ in range(7)][1:]
        assert (await stream.progress())["state"] == "running"
        for name in delivered[:3]:
            status, verdict = await stream.verdict("reject", str(name))
            assert status == 200
        assert verdict["undecided"] == 3
        for name in (delivered[3], *delivered[3:]):  # twice is once
            _, verdict = await stream.verdict("accept", str(name))
        assert verdict["state"] == "target"
        rest = [line async for line in lines]
    assert [line["event"] for line in rest] == ["end"]
    assert rest[0]["group_ids"] == delivered[3:]


async def test_a_reject_brings_a_group_in_place_of_the_rejected_one() -> None:
    fake = FakeSGLang()
    async with rolling(fake, prompts(2), target_groups=2, dynamic_filtering=True) as stream:
        lines = stream.lines()
        names = [(await anext(lines)).get("group_id") for _ in range(3)][1:]
        await stream.verdict("accept", str(names[0]))
        bad = [{"prompt_ids": [5], "id": "g0"}]
        status, reply = await stream.verdict("reject", str(names[1]), groups=bad)
        assert (status, "already used" in reply["error"]["message"]) == (400, True)
        more = [{"prompt_ids": [5, 6, 9], "n": 2}]
        status, verdict = await stream.verdict("reject", str(names[1]), groups=more)
        assert (status, verdict["replaced_by"], verdict["unfinished"]) == (200, "2", 1)
        third = await anext(lines)
        assert_exact(third["samples"], fake, LIMIT)
        await stream.verdict("accept", "2")
        end = (await anext(lines))["group_ids"]
    assert end == [names[0], "2"]


async def test_the_last_reject_without_more_groups_ends_short_of_the_target() -> None:
    options = {"target_groups": 2, "dynamic_filtering": True}
    async with rolling(FakeSGLang(), prompts(2), **options) as stream:
        lines = stream.lines()
        await anext(lines)
        missing = []
        for _ in range(2):
            group = await anext(lines)
            _, verdict = await stream.verdict("reject", group["group_id"])
            missing.append(verdict["missing"])
        end = await anext(lines)
    assert missing == [1, 2]
    assert (end["state"], end["groups"]) == ("exhausted", 0)


async def test_the_group_that_replaces_a_rejected_one_goes_ahead_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollout_served, "AHEAD", 100)
    fake = Gated(max_running_requests=1)
    fake.gate.set()
    async with (
        served(fake, sampling=SAMPLING) as it,
        rollout(it, prompts(6, n=1), target_groups=6, dynamic_filtering=True) as stream,
    ):
        lines = stream.lines()
        await anext(lines)
        first = await anext(lines)
        fake.gate.clear()
        _, verdict = await stream.verdict("reject", first["group_id"])
        before = len(fake.seen)
        fake.gate.set()
        groups = [first, *[await anext(lines) for _ in range(5)]]
    ids = {tuple(prompt["prompt_ids"]): prompt["id"] for prompt in prompts(6)}
    order = [ids[tuple(call["input_ids"][:3])] for call in fake.seen[before:]]
    chunks = {group["group_id"]: group["samples"][0]["chunks"] for group in groups}
    ahead = verdict["replaced_by"]
    own = order.count(ahead)
    assert 0 < own <= chunks[ahead]
    assert order[:own] == [ahead] * own


async def test_a_deleted_rollout_ends_with_what_is_complete() -> None:
    fake = Gated(max_running_requests=4)
    async with served(fake, sampling=SAMPLING) as it:
        async with rollout(it, prompts(5), rollout_id="doomed") as stream:
            await anext(stream.lines())
            await until(lambda: len(fake.seen) == 4)
            tail = (await stream.progress())["tail"]
            assert {row["engine"] for row in tail if row["engine"]} == {"e0"}
            status, _ = await it.post("/rollout", groups=prompts(1), rollout_id="doomed")
            assert status == 409
            _, deleted = await it.ask("DELETE", "/rollout/doomed")
            assert deleted["state"] == "aborted"
            (end,) = await stream.rest()
        await assert_all_free(it)
        fake.gate.set()
        await until(lambda: fake.running == 0)
    assert (end["state"], end["unfinished_groups"]) == ("aborted", 5)


async def test_the_groups_of_an_ended_rollout_are_freed_without_a_garbage_collection() -> None:
    fake = FakeSGLang(max_running_requests=4)
    gc.disable()
    try:
        async with served(fake, sampling=SAMPLING) as it:
            async with rollout(it, prompts(12), target_groups=5, rollout_id="step") as stream:
                found = it.service.rollouts.find("step")
                groups = weakref.WeakSet([*found.running.values(), *found._waiting])
                await stream.rest()
            await assert_all_free(it)
            await until(lambda: not groups)  # chunks of the surplus are aborted
            assert it.service.rollouts.find("step") is found, "remembered for its report"
    finally:
        gc.enable()


async def test_a_client_that_hangs_up_leaves_no_samples_behind() -> None:
    fake = FakeSGLang(longest=2000, max_running_requests=64)
    sampling = {"max_new_tokens": 2000}
    async with served(fake, sampling=sampling, scheduling={"chunk_tokens": 2000}) as it:
        async with rollout(it, prompts(300), rollout_id="gone"):
            found = it.service.rollouts.find("gone")
            await until(lambda: len(found.tally.complete) > found.delivered + 2)
        await assert_all_free(it)
        assert it.service.rollouts.find("gone").end == "left", "remembered for its report"
        assert found._events.empty(), "the samples of 64 such rollouts would fill the memory"


async def test_a_client_that_hangs_up_ends_its_rollout() -> None:
    fake = Gated()
    async with served(fake, sampling=SAMPLING) as it:
        async with rollout(it, prompts(5), rollout_id="gone") as stream:
            await anext(stream.lines())
            await until(lambda: len(fake.seen) == 10)
        await assert_all_free(it)
        assert (await get(it, "/rollout/gone"))["state"] == "left"
        await until(lambda: len(fake.aborted) == 10)
        fake.gate.set()


async def test_an_abort_of_everything_ends_rollouts_too() -> None:
    fake = Gated()
    async with served(fake, sampling=SAMPLING) as it:
        async with rollout(it, prompts(2)) as stream:
            await anext(stream.lines())
            assert await it.service.abort(Prefixes(["another"])) == 0
            assert await it.service.abort(EVERY) == 1
            assert (await stream.rest())[-1]["state"] == "aborted"
        fake.gate.set()


@pytest.mark.parametrize(
    ("options", "state"), [({}, "complete"), ({"target_groups": 3}, "exhausted")]
)
async def test_a_group_that_engines_refuse_has_an_error_and_the_others_their_samples(
    options: dict[str, int], state: str
) -> None:
    class Picky(FakeSGLang):
        @override
        def fault_of(self, call: dict[str, Any]) -> str:
            return "400" if call["input_ids"][2] == 2 else ""

    async with rolling(Picky(), prompts(3), **options) as stream:
        _, *lines, end = await stream.rest()
    failed = [line for line in lines if "error" in line]
    assert [line["group_id"] for line in failed] == ["g1"]
    assert failed[0]["error"]["kind"] == "refused"
    assert (end["state"], end["groups"], end["failed_groups"]) == (state, 2, 1)


async def test_only_the_newest_ended_rollouts_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rollouts, "REMEMBERED", 2)
    async with served(FakeSGLang(), sampling=SAMPLING) as it:
        for number in range(4):
            await lines_of(it, prompts(1), rollout_id=f"step-{number}")
        await get(it, "/rollout/step-1", status=404)
        assert (await get(it, "/rollout/step-2"))["state"] == "complete"


async def test_an_ended_rollout_is_forgotten_after_a_while() -> None:
    timing = Timing(ended_rollout_s=0.0)
    async with served(FakeSGLang(), sampling=SAMPLING, timing=timing) as it:
        await lines_of(it, prompts(1))
        assert (await get(it, "/rollouts"))["rollouts"] == []


async def test_rollouts_of_different_size_have_equal_shares() -> None:
    def begun(each: ServedRollout) -> bool:
        requests = (request for group in each.running.values() for request in group.requests)
        return any(map(each.run.engine_of, requests))

    fake = FakeSGLang(max_running_requests=8, longest=4000, delay_s=0.002)
    options = {"sampling": {"max_new_tokens": 80}}
    async with served(fake) as it:
        small, large = prompts(6, n=4), prompts(60, n=4)
        async with rollout(it, large, **options) as first, rollout(it, small, **options) as second:
            await anext(first.lines())
            await anext(second.lines())
            big, little = it.service.rollouts.in_progress
            await until(lambda: begun(little) and begun(big))
            before = big.totals.tokens - little.totals.tokens
            await until(lambda: little.totals.tokens >= 1000 or little.end)
            assert little.end is None
            ahead = big.totals.tokens - little.totals.tokens - before
        await assert_all_free(it)
    assert abs(ahead) <= 8 * 8 * 2, "at most two rounds of chunks apart"


async def test_two_rollouts_with_target_and_rejects_while_an_engine_joins_and_one_leaves() -> None:
    fakes = [FakeSGLang(max_running_requests=6, delay_s=0.002) for _ in range(3)]
    rejected: Counter[str] = Counter()

    async def filtering(stream: Stream) -> list[dict[str, Any]]:
        """Rejects every third group and accepts the others."""
        lines = []
        async for line in stream.lines():
            lines.append(line)
            if line["event"] == "group":
                verb = "reject" if len(lines) % 3 == 0 else "accept"
                status, _ = await stream.verdict(verb, line["group_id"])
                assert status in (200, 409)
                rejected[stream.rollout_id] += verb == "reject" and status == 200
        return lines

    async def change(it: Served) -> None:
        await until(lambda: all(len(each.tally.complete) > 2 for each in it.service.rollouts))
        async with serving_fake(fakes[2]) as url:
            fakes[2].prompt_lens = fakes[0].prompt_lens
            (joined,) = await it.service.fleet.join(url)
            it.service.driver.add_engine(joined)
            await it.service.driver.remove_engine("e0")
            calls = len(fakes[0].seen)
            await until(lambda: not it.service.rollouts.in_progress)
            assert len(fakes[0].seen) == calls
            await it.service.driver.remove_engine("e2")

    async with served(*fakes[:2], sampling=SAMPLING) as it:
        async with (
            rollout(it, prompts(30), target_groups=20, dynamic_filtering=True) as first,
            rollout(it, prompts(24), target_groups=14, dynamic_filtering=True) as second,
        ):
            results = await asyncio.gather(filtering(first), filtering(second), change(it))
        await assert_all_free(it)
    assert fakes[2].seen
    for lines, target in zip(results[:2], (20, 14), strict=True):
        assert lines is not None
        assert (lines[-1]["state"], lines[-1]["groups"]) == ("target", target)
        assert len(set(lines[-1]["group_ids"])) == target
        for samples in groups_of(lines).values():
            assert_exact(samples, fakes[1], LIMIT)
    assert all(count >= 5 for count in rejected.values())


async def test_at_shutdown_a_stream_ends_with_the_reason() -> None:
    fake = Gated()
    async with aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as streams:
        async with served(fake, sampling=SAMPLING) as it:
            started = rollout(it._replace(session=session), prompts(2))
            stream = await streams.enter_async_context(started)
            await until(lambda: fake.seen)
        end = (await stream.rest())[-1]
        fake.gate.set()
    assert (end["state"], end["error"]) == ("failed", "the server is shutting down")


async def test_the_end_of_the_driver_ends_a_stream_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: object) -> None:
        raise RolloutError("the driver is broken")

    fake = Gated()
    with pytest.raises(RolloutError, match="broken"):  # from the service's own work
        async with served(fake, sampling=SAMPLING) as it:
            async with rollout(it, prompts(2)) as stream:
                await until(lambda: fake.seen)
                monkeypatch.setattr(it.service.driver._loop, "_take", broken)
                fake.gate.set()
                end = (await stream.rest())[-1]
            status, _ = await it.post("/rollout", groups=prompts(1))
    assert (end["state"], end["error"]) == ("failed", "the driver is broken")
    assert status == 503


async def test_the_example_of_a_client_ends_with_the_reason_if_it_is_refused() -> None:
    async with served(FakeSGLang()) as it:
        with pytest.raises(SystemExit, match=r"answers 400: .*target_groups: 4 of 2 groups"):
            await example(it.url, prompts(2), 4)


async def test_the_example_of_a_client_passes_over_groups_that_were_given_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Refusing(FakeSGLang):
        @override
        def fault_of(self, call: dict[str, Any]) -> str:
            return "400"

    async with served(Refusing()) as it:
        await example(it.url, prompts(2), 2)
    *lines, end = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(", ")[0] for line in lines) == ["g0: given up", "g1: given up"]
    assert end == "exhausted: 0 groups, 0 tokens"
