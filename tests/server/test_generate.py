"""`/generate` on fake engines: batches, streams, siblings, continuations, aborts, hang-ups."""

import asyncio
import contextlib
import gc
import itertools
import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seer_sgl.admission.sampling import Reason
from seer_sgl.config import parse
from seer_sgl.rollout.rollout import Rollout
from seer_sgl.server import generate_body
from seer_sgl.server.generate_body import GenerateReader
from seer_sgl.server.passthrough.reasons import NotDivisible
from seer_sgl.server.prompt_texts import PromptTexts
from seer_sgl.types import Request, Sampling
from tests.fake_sglang import FakeSGLang, serving
from tests.server.chat_fake import model_folder
from tests.server.helpers import CHUNK, BreakingOff, Fakes, Served, served, served_config, whole
from tests.server.scrape import scraped
from tests.support.bodies import LIMIT, PROMPT, body, events
from tests.support.waiting import until


@pytest.fixture
def fake() -> FakeSGLang:
    return FakeSGLang(longest=1000)


@pytest.fixture
def fakes(fake: FakeSGLang) -> Fakes:
    """The engines of the server `it`."""
    return [fake]


async def test_a_response_of_many_chunks_on_two_engines_is_the_undivided_one() -> None:
    fakes = [FakeSGLang(longest=1000), FakeSGLang(longest=1000)]
    seeds = [(i << 7) * 31 for i in range(1, 30)]
    async with served(*fakes) as it:
        replies = await asyncio.gather(*(it.generate(**body(s)) for s in seeds))
    for seed, reply in zip(seeds, replies, strict=True):
        assert reply["output_ids"] == whole(seed, len(PROMPT), fakes[0], LIMIT)
        meta = reply["meta_info"]
        assert meta["completion_tokens"] == len(reply["output_ids"])
        assert meta["seer"]["chunks"] == -(-len(reply["output_ids"]) // CHUNK)
        assert len(meta["seer"]["engines"]) == meta["seer"]["chunks"]
        assert [span["end"] for span in meta["weight_versions"]] == [meta["completion_tokens"]]
    assert all(fake.seen for fake in fakes)


async def test_a_batch_with_n_is_a_list_in_order_and_each_prompt_one_group(it: Served) -> None:
    reply = await it.generate(
        input_ids=[[1, 2], [3, 4, 5]],
        sampling_params={"max_new_tokens": 5, "n": 3},
        return_logprob=True,
    )
    assert [each["meta_info"]["prompt_tokens"] for each in reply] == [2, 2, 2, 3, 3, 3]
    groups = [each["meta_info"]["seer"]["group"] for each in reply]
    assert len(set(groups)) == 2 and len(set(groups[:3])) == 1
    for each in reply:
        logprobs = each["meta_info"]["output_token_logprobs"]
        assert [token for _, token, _ in logprobs] == each["output_ids"]


@pytest.mark.parametrize("all_incremental", [False, True])
async def test_a_stream_grows_or_has_only_what_is_new_if_all_engines_stream_so(
    all_incremental: bool, tmp_path: Path
) -> None:
    fakes = [FakeSGLang(longest=1000, incremental=one) for one in (True, all_incremental)]
    async with served(*fakes, model={"path": model_folder(tmp_path)}) as it:
        parts = await events(it, **body(77 << 7, return_logprob=True))
        expected = await it.generate(**body(77 << 7))
    assert len(parts) > LIMIT / CHUNK
    joined = parts if all_incremental else parts[-1:]
    if not all_incremental:
        for shorter, longer in itertools.pairwise(part["output_ids"] for part in parts):
            assert longer[: len(shorter)] == shorter
    assert [token for part in joined for token in part["output_ids"]] == expected["output_ids"]
    assert "".join(part["text"] for part in joined) == expected["text"]
    for part in parts:
        logprobs = part["meta_info"]["output_token_logprobs"]
        assert [token for _, token, _ in logprobs] == part["output_ids"]
    metas = [part["meta_info"] for part in parts]
    assert metas[-1]["completion_tokens"] == LIMIT
    assert all(meta["finish_reason"] is None for meta in metas[:-1])
    assert metas[-1]["finish_reason"]["type"] == "length"
    sent = ["response_sent_to_client_ts" in meta for meta in metas]
    assert sent == [True] + [False] * (len(parts) - 1)


async def test_a_streamed_batch_names_the_position_of_each_event(it: Served) -> None:
    parts = await events(it, input_ids=[[1, 2], [3, 4]], sampling_params={"max_new_tokens": 20})
    last = {part["index"]: part for part in parts}
    assert sorted(last) == [0, 1]
    assert all(part["meta_info"]["finish_reason"] for part in last.values())


async def test_equal_prompts_and_equal_group_ids_are_siblings(it: Served) -> None:
    same = [await it.generate(**body(i << 7)) for i in range(1, 4)]
    other = await it.generate(**body(9 << 7) | {"input_ids": [1]})
    named = [await it.generate(**body(i << 7, group_id="g")) for i in range(1, 4)]
    numbered = [await it.generate(**body(i << 7, group_id=7, session_id=7)) for i in range(1, 3)]
    groups = [reply["meta_info"]["seer"]["group"] for reply in (*same, other, *named)]
    assert len(set(groups[:3])) == 1
    assert groups[3] not in (groups[0], "g")
    assert groups[4:] == ["g"] * 3
    assert [reply["meta_info"]["seer"]["group"] for reply in numbered] == ["7"] * 2


async def test_finished_requests_are_freed_without_a_garbage_collection() -> None:
    async with served(FakeSGLang(longest=1000), server={"group_window_s": 0.1}) as it:
        gc.collect()
        before = requests_in_memory()
        gc.disable()
        try:
            await asyncio.gather(*(it.generate(**body(seed << 7)) for seed in range(5)))
            assert requests_in_memory() > before
            await until(lambda: it.service.generation.open_groups == 0)
            assert not it.service.driver.stands_still
            await until(lambda: requests_in_memory() == before)
        finally:
            gc.enable()


def requests_in_memory() -> int:
    return sum(type(each) is Request for each in gc.get_objects())


async def test_a_continuation_joins_its_group_and_has_only_new_tokens(
    it: Served, fake: FakeSGLang
) -> None:
    seed = 200 << 7
    first = await it.generate(**body(seed, params={"max_new_tokens": 13}))
    begun = PROMPT + first["output_ids"]
    second = await it.generate(**body(seed, return_logprob=True) | {"input_ids": begun})
    assert first["meta_info"]["seer"]["group"] == second["meta_info"]["seer"]["group"]
    assert second["meta_info"]["prompt_tokens"] == len(begun)
    expected = whole(seed, len(PROMPT), fake, 13 + LIMIT)
    assert first["output_ids"] + second["output_ids"] == expected
    assert len(second["meta_info"]["output_token_logprobs"]) == LIMIT
    assert second["meta_info"]["weight_versions"][0]["end"] == LIMIT


async def test_the_group_of_an_aborted_response_waits_for_its_continuation() -> None:
    fake, seeds = FakeSGLang(longest=1000, delay_s=0.01), [(150 + i) << 7 for i in range(3)]
    limit = {"max_new_tokens": 1000}
    async with served(fake, server={"group_window_s": 0.01}) as it:
        tasks = [asyncio.create_task(it.generate(**body(s, params=limit))) for s in seeds]
        await until(lambda: it.service.generation.in_progress == 3)
        answers = list(it.service.generation._answers.values())
        await until(lambda: all(each.request and each.request.response_ids for each in answers))
        await it.generate(**body(1 << 7) | {"input_ids": [1]})
        await it.post("/abort_request", abort_all=True)
        begun = [(await task)["output_ids"] for task in tasks]
        assert all(begun) and len({tuple(ids) for ids in begun}) == 3
        group = (await tasks[0])["meta_info"]["seer"]["group"]
        await until(lambda: it.service.generation.open_groups == 1)
        for seed, ids in zip(seeds, begun, strict=True):
            fields = body(seed, params=limit) | {"input_ids": PROMPT + ids}
            reply = await it.generate(**fields)
            assert reply["meta_info"]["seer"]["group"] == group
            assert ids + reply["output_ids"] == whole(seed, len(PROMPT), fake, 1000)


@pytest.mark.parametrize("spaces", [True, False])
async def test_spaces_between_special_tokens_divide_a_request_like_others(
    it: Served, spaces: bool
) -> None:
    params = {"spaces_between_special_tokens": spaces}
    reply = await it.generate(**body(200 << 7, params=params))
    assert it.service.passthrough.counts == {}
    assert reply["meta_info"]["seer"]["chunks"] == LIMIT / CHUNK


async def test_a_group_that_fails_because_of_one_request_costs_its_siblings_nothing() -> None:
    def rejects(call: dict[str, Any]) -> bool:
        return bool(call["sampling_params"]["sampling_seed"] == 13)

    fakes = [FakeSGLang(longest=1000, delay_s=0.01, rejects=rejects) for _ in range(2)]
    seeds = [i << 7 for i in range(300, 308)]
    async with served(*fakes) as it:
        calls = [it.generate(**body(seed, group_id="g")) for seed in seeds]
        bad = it.post("/generate", **body(13, group_id="g"))
        *replies, (status, refusal) = await asyncio.gather(*calls, bad)
    assert status == 400
    assert "fault 400" in refusal["error"]["message"]
    for seed, reply in zip(seeds, replies, strict=True):
        assert reply["output_ids"] == whole(seed, len(PROMPT), fakes[0], LIMIT)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_leaves_nothing_behind(stream: bool) -> None:
    fake = FakeSGLang(longest=100_000, delay_s=0.05)
    async with served(fake, server={"group_window_s": 0.0}) as it:
        fields = body(99_000 << 7, stream=stream, params={"max_new_tokens": 10_000})
        call = asyncio.create_task(it.post("/generate", **fields))
        await until(lambda: fake.steps > 2)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await until(lambda: it.service.generation.in_progress == 0)
        await until(lambda: fake.running == 0)
        left = {"route": "/generate", "method": "POST", "status": "client left"}
        assert (await scraped(it))("seer_http_requests_total", **left) == 1
        sent = len(fake.seen)
        await it.generate(**body(1 << 7))
        assert len(fake.seen) == sent + 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input_ids": [1], "text": "a"}, "input_ids"),
        ({"text": "a"}, "tokenizer"),
        ({}, "input_ids"),
        ({"input_ids": [[1], []]}, "empty_prompt"),
        ({"input_ids": [[1], 2]}, "input_ids"),
        ({"input_ids": [1, None]}, "input_ids"),
        ({"input_ids": [[1], [2]], "sampling_params": [{}]}, "sampling_params"),
        ({"input_ids": [[1], [2]], "sampling_params": [{"n": 1}, {"n": 2}]}, "n"),
        ({"input_ids": [[1], [2]], "rid": ["a"]}, "rid"),
        ({"input_ids": [[1], [2]], "return_logprob": [True]}, "return_logprob"),
        ({"input_ids": [1], "stream": {}}, "stream"),
    ],
)
def test_a_request_that_is_not_divided_names_the_field(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotDivisible) as raised:
        GenerateReader(PromptTexts(None, 1000), None).read(msgspec.json.encode(fields))
    assert raised.value.reason == reason


def test_parameters_that_many_prompts_share_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Sampling]()

    def count(sampling: Sampling) -> Iterator[Reason]:
        read.append(sampling)
        return iter(())

    monkeypatch.setattr(generate_body, "invalid", count)
    prompts = [[1] * length for length in range(1, 33)]
    reader = GenerateReader(PromptTexts(None, 1000), None)
    fields = {"input_ids": prompts, "sampling_params": {"max_new_tokens": None}}
    calls = reader.read(msgspec.json.encode(fields)).calls
    assert len(read) == 1
    assert [call.sampling.max_new_tokens for call in calls] == [*range(999, 967, -1)]
    fields["sampling_params"] = {"max_new_tokens": None, "min_new_tokens": 980}
    with pytest.raises(NotDivisible, match="min_new_tokens"):
        reader.read(msgspec.json.encode(fields))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"logprob_start_len": 0}, "logprob_start_len"),
        ({"top_logprobs_num": 2}, "top_logprobs_num"),
        ({"return_hidden_states": True}, "return_hidden_states"),
        ({"lora_path": "x"}, "lora_path"),
        ({"session_params": {"id": "s"}}, "session_params"),
        ({"params": {"regex": "a+"}}, "regex"),
        ({"params": {"frequency_penalty": 0.5}}, "frequency_penalty"),
        ({"params": {"max_new_tokens": 0}}, "max_new_tokens"),
        ({"params": {"custom_params": {"return_top_p_token_ids": True}}}, "custom_params"),
    ],
)
async def test_what_cannot_cross_a_chunk_goes_through_as_it_is(
    it: Served, fake: FakeSGLang, fields: dict[str, Any], reason: str
) -> None:
    sent = body(200 << 7, **fields)
    reply = await it.generate(**sent)
    assert it.service.passthrough.counts == {reason: 1}
    assert it.service.generation.in_progress == 0
    (call,) = fake.seen
    assert call.pop("rid") == reply["meta_info"]["id"]
    assert call == sent
    assert reply["text"] == "ignored"  # the engine's own answer


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"params": {"no such name": 1}}, "no such name"),
        ({"params": {"return_routed_experts": True}}, "return_routed_experts"),
        ({"group_size": "many"}, "group_size"),
        ({"a_field_of_tomorrow": 1}, "a_field_of_tomorrow"),
    ],
)
async def test_what_sglang_does_not_know_is_refused_by_name(
    it: Served, fake: FakeSGLang, fields: dict[str, Any], named: str
) -> None:
    status, reply = await it.post("/generate", **body(200 << 7, **fields))
    assert (status, reply["error"]["message"].partition(": ")[0]) == (400, named)
    assert not fake.seen


async def test_an_answer_that_breaks_off_takes_no_engine_out_of_service() -> None:
    fake = BreakingOff(longest=1000)
    async with served(fake) as it:
        status, reply = await it.post("/generate", **body(1, top_logprobs_num=1, stream=True))
        assert (status, len(fake.seen)) == (502, 1)
        assert "broke off" in reply["error"]["message"]
        assert it.service.serves("e0")
        assert await it.generate(**body(2))
        assert (await scraped(it))("seer_request_seconds_count", kind="single") == 1


async def test_a_name_in_use_is_refused(it: Served, fake: FakeSGLang) -> None:
    fake.delay_s = 0.05
    busy = asyncio.create_task(it.generate(**body(300 << 7, rid="one")))
    await until(lambda: it.service.generation.in_progress == 1)
    status, reply = await it.post("/generate", **body(3, rid="one"))
    await busy
    assert status == 400
    assert "Duplicate request ID" in reply["error"]["message"]


async def test_a_session_whose_turn_failed_ends_after_its_timeout() -> None:
    fake = FakeSGLang(faults=deque(["400"] * 9))
    async with served(fake) as it:
        assert (await it.post("/generate", **body(13, session_id="s")))[0] == 400
        sessions = it.service.generation.sessions
        assert len(sessions) == 1
        sessions.expire(math.inf)
        assert len(sessions) == 0


@pytest.mark.parametrize("ends", ["by its client", "by itself"])
async def test_the_kv_of_a_conversation_is_kept_until_it_ends(ends: str) -> None:
    fake = FakeSGLang(longest=1000, sessions=True, prompt_lens={})
    name: str | int = "s" if ends == "by itself" else 7
    timeout_s = 0.01 if ends == "by itself" else 3600.0
    settings = {"session_timeout_s": timeout_s, "group_window_s": 0.01}
    async with served(fake, server=settings) as it:
        first = await it.generate(**body(1 << 7, session_id=name))
        await it.generate(**body(2 << 7))
        if ends == "by its client":
            again = {**body(3 << 7, session_id=name)}
            again["input_ids"] = [*again["input_ids"], *first["output_ids"], 5]
            await it.generate(**again)
            assert await it.post("/close_session", session_id=name) == (200, None)
        await until(lambda: len(it.service.generation.sessions) == 0)
        named = [call["session_id"] for call in fake.seen if "session_id" in call]
        turns = list(dict.fromkeys(named))
        await until(lambda: fake.closed == turns)
    assert len(turns) == (2 if ends == "by its client" else 1)
    assert len(named) < len(fake.seen), "other requests have no session"


@pytest.mark.parametrize("name", [7, None, True, ["7"]])
async def test_only_a_text_names_a_session_of_an_engine(name: object) -> None:
    async with served(FakeSGLang(sessions=True)) as it:
        it.service.pinned.add("7", "e0")
        await it.post("/close_session", session_id=name)
        assert it.service.pinned.of({"id": "7"}) is not None


async def test_two_servers_on_one_engine_name_no_call_alike() -> None:
    fake = FakeSGLang(longest=1000, prompt_lens={})
    async with contextlib.AsyncExitStack() as stack:
        engines = {"launch": "external", "urls": [await stack.enter_async_context(serving(fake))]}
        config = parse({"engines": engines, "server": {"port": 0}})
        for seed in (1 << 20, 2 << 20):
            it = await stack.enter_async_context(served_config(Rollout(config, gives_up=False)))
            await it.generate(**body(seed))
    rids = [call["rid"] for call in fake.seen]
    assert len(rids) == len(set(rids)) >= 2
