"""SGLang's other endpoints: an engine answers them, and a session stays on its engine."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from yarl import URL

from seer_sgl.engine.answers import AnswerLate, EngineAnswer
from seer_sgl.engine.client import HttpEngine
from seer_sgl.server import generate_body
from seer_sgl.server.openai import engines
from seer_sgl.server.passthrough import other_paths
from seer_sgl.server.passthrough.other_paths import SHORT
from seer_sgl.server.service import THREAD_BYTES
from tests.server.chat_fake import ChatFake, model_folder
from tests.server.helpers import served
from tests.support.bodies import body
from tests.support.waiting import until


async def test_other_endpoints_go_to_an_engine_and_hold_room_in_the_ledger() -> None:
    fake = ChatFake()
    async with served(fake) as it:
        for path in ("/v1/messages", "/v1/embeddings"):
            assert await it.post(path, max_tokens=5) == (200, {"undivided": {"max_tokens": 5}})
        assert it.service.passthrough.counts == {"v1_messages": 1, "v1_embeddings": 1}
        assert await it.post("/parse_function_call", text="x") == (500, None)
        assert it.service.passthrough.counts.total() == 2
        assert not it.service.generation.in_progress


async def test_engines_are_asked_in_turn_and_lost_ones_are_passed_over() -> None:
    fakes = [ChatFake(parsed={}), ChatFake(parsed={})]
    async with served(*fakes) as it:
        for fake in fakes:
            fake.received.clear()  # how it reads text
        for _ in range(4):
            assert await it.post("/parse_function_call", text="x") == (200, {})
    assert [len(fake.received) for fake in fakes] == [2, 2]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"query": [5], "items": [[5], [100]]}, "prompt: token id 100 is outside the vocabulary"),
        ({"query": [5, -1], "items": [[5]]}, "prompt: expected"),
        ({"query": [], "items": [[5], []]}, "prompt: empty prompt"),
        ({"query": [5], "items": [[5]], "query_embed_overrides": [[0.5]]}, "query_embed_overrides"),
        ({"query": [5], "items": [[], [99]]}, None),
        ({"query": "a", "items": ["b"]}, None),
        ({"query": [100], "items": "b", "score_extraction_token": "<eos>"}, "prompt: token id 100"),
    ],
)
async def test_token_ids_to_score_are_those_of_the_model(
    fields: dict[str, Any], why: str | None
) -> None:
    fake = ChatFake()
    async with served(fake) as it:
        for each in it.service.fleet.engines:
            each._info = msgspec.structs.replace(each.info, vocab_size=100)
        status, reply = await it.post("/v1/score", **fields)
    if why is None:
        assert (status, reply) == (200, {"undivided": fields})
    else:
        assert (status, reply["message"][: len(why)]) == (400, why)


@pytest.mark.parametrize(
    ("path", "fields", "why"),
    [
        ("/v1/embeddings", {"input": [5, 100]}, "input: token id 100 is outside"),
        ("/v1/embeddings", {"input": [[5], [100]], "prompt": "a"}, "input: token id 100 is"),
        ("/v1/classify", {"input": [100], "input_ids": [5]}, "input: token id 100 is"),
        ("/encode", {"input_ids": [100], "prompt": "a"}, "input_ids: token id 100 is outside"),
        ("/classify", {"text": "a", "sampling_params": {"stop": [5]}}, "stop: expected"),
        ("/v1/embeddings", {"input": "a"}, None),
        ("/v1/embeddings", {"input": ["a", "b"], "rid": ["x", "y"], "prompt": [5]}, None),
        ("/v1/embeddings", {"input": [{"text": "a"}], "rid": "x"}, None),
        ("/v1/embeddings", {"input": [{"text": "a"}, {"text": "b"}], "rid": ["x", "y"]}, None),
        ("/encode", {"text": [["a", "b"]], "is_cross_encoder_request": True}, None),
        ("/encode", {"text": ["a", "b"], "rid": ["x", "y"], "sampling_params": [{}, {}]}, None),
        ("/encode", {"input_ids": [5], "sampling_params": {"n": 1}}, None),
        ("/encode", {"text": "a"}, None),
    ],
)
async def test_token_ids_to_embed_are_those_of_the_model(
    path: str, fields: dict[str, Any], why: str | None
) -> None:
    fake = ChatFake()
    async with served(fake) as it:
        for each in it.service.fleet.engines:
            each._info = msgspec.structs.replace(each.info, vocab_size=100)
        status, reply = await it.post(path, **fields)
    if why is None:
        assert (status, reply) == (200, {"undivided": fields})
    else:
        assert (status, reply["message"][: len(why)]) == (400, why)


@pytest.mark.parametrize("more", [{}, {"item_first": True}])
async def test_a_text_to_score_has_a_token(tmp_path: Path, more: dict[str, Any]) -> None:
    fake = ChatFake()
    long = "gcd" * SHORT
    async with served(fake, model={"path": model_folder(tmp_path)}) as it:
        for query, items in (("", "gcd"), ("gcd", [" w100", "gcd"]), (long, ["gcd"]), (long, [""])):
            status, reply = await it.post("/v1/score", query=query, items=items, **more)
            assert (status, reply["message"]) == (400, "items: empty prompt")
        assert "/v1/score" not in fake.paths()
        for query, items in ((" w100", ["", "gcd"]), (long, [" w100"]), (long + " w100", "gcd")):
            await it.ok("/v1/score", query=query, items=items, **more)


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/v1/chat/completions", {"response_format": {"pattern": "(" * 9999}}, "response_format"),
        ("/v1/chat/completions", {"messages": [{"tools": ["(" * 9999]}]}, "messages: tools"),
        ("/v1/responses", {"text": {"format": {"pattern": "(" * 9999}}}, "text"),
        ("/v1/messages", {"tools": [{"input_schema": {"pattern": "(" * 9999}}]}, "tools"),
    ],
)
async def test_a_schema_that_ends_an_engine_is_refused_on_every_path(
    path: str, fields: dict[str, Any], named: str
) -> None:
    async with served(ChatFake()) as it:
        status, reply = await it.post(path, **{"messages": [{"content": "(" * 9999}]} | fields)
    assert (status, reply["message"][: len(named) + 2]) == (400, f"{named}: ")


@pytest.mark.parametrize("up", ["..", "%2e%2e", "..%2F.."])
async def test_a_path_leads_to_no_other_endpoint_of_an_engine(up: str) -> None:
    fake = ChatFake()
    async with served(fake, server={"admin_api_key": "admin"}) as it:
        path = URL(f"{it.url}/v1/models/{up}/{up}/flush_cache", encoded=True)
        async with it.session.get(path) as reply:
            assert reply.status == 400
        assert "/flush_cache" not in fake.paths()


async def test_requests_of_a_session_of_sglang_go_where_it_was_opened() -> None:
    fakes = [ChatFake(), ChatFake()]
    async with served(*fakes) as it:
        names = [(await it.post("/open_session", capacity_of_str_len=9))[1] for _ in range(2)]
        assert sorted(names) == sorted(f"session-{id(fake)}" for fake in fakes)
        for name in names * 2:
            status, _ = await it.post(
                "/generate",
                input_ids=[1, 2],
                sampling_params={"max_new_tokens": 2},
                session_params={"id": name},
            )
            assert status == 200
        for fake in fakes:
            wanted = {"id": f"session-{id(fake)}"}
            assert [call["session_params"] for call in fake.seen] == [wanted] * 2
        for name in names:
            await it.post("/close_session", session_id=name)
        for fake in fakes:
            closed = [body for path, body in fake.received if path == "/close_session"]
            assert closed == [{"session_id": f"session-{id(fake)}"}]


Turn = tuple[str, dict[str, Any]]
REPLACING = {"rid": "a", "replace": True}


@pytest.mark.parametrize(
    ("turns", "refused"),
    [
        ([("a", {}), ("b", {"rid": "a"}), ("b", REPLACING), ("b", REPLACING)], False),
        ([("a", {}), ("b", {"rid": "a"}), ("c", {"rid": "a"}), ("d", REPLACING)], False),
        ([("a", {}), ("b", {"rid": "a"}), ("b", {"rid": "a"}), ("c", REPLACING)], True),
        ([("a", {}), ("b", {"rid": "a"}), ("b", {"rid": "b"}), ("c", REPLACING)], True),
        ([("a", {}), ("b", {"rid": "a"}), ("b", {"rid": "a"}), ("b", {"rid": "a"})], False),
    ],
)
async def test_no_turn_makes_an_engine_forget_two_of_one_name(
    turns: list[Turn], refused: bool
) -> None:
    fake = ChatFake()
    async with served(fake) as it:
        name = (await it.post("/open_session", capacity_of_str_len=9))[1]
        replies = [
            await it.post("/generate", **body(2, rid=rid, session_params={"id": name, **session}))
            for rid, session in turns
        ]
        assert [status for status, _ in replies] == [200] * 3 + [400 if refused else 200]
        assert not refused or "session_params: replace" in replies[-1][1]["error"]["message"]
        assert len(fake.seen) == 4 - refused


async def test_a_turn_of_a_session_of_sglang_is_a_response_in_progress() -> None:
    fake = ChatFake()
    async with served(fake, server={"max_requests": 1}) as it:
        name = (await it.post("/open_session", capacity_of_str_len=9))[1]
        turn = body(2, session_params={"id": name})
        fake.faults.append("stall")
        first = asyncio.create_task(it.post("/generate", **turn))
        await until(lambda: len(fake.seen) == 1)
        assert (await it.post("/generate", **turn))[0] == 429
        _, loads = await it.ask("GET", "/v1/loads")
        assert loads["loads"][0]["num_waiting_reqs"] == 0, "its engine has it"
        fake.wake_stalled()
        assert (await first)[0] == 200
        assert not it.service.generation.in_progress


@pytest.mark.parametrize(("size", "asked"), [(2 * THREAD_BYTES, 1), (THREAD_BYTES, 2)])
async def test_a_long_body_that_holds_one_engine_is_not_given_to_the_next(
    monkeypatch: pytest.MonkeyPatch, size: int, asked: int
) -> None:
    names = list[str]()

    async def late(engine: HttpEngine, *_: object) -> EngineAnswer:
        names.append(engine.info.engine_id)
        raise AnswerLate("late", engine_id=engine.info.engine_id)

    async with served(ChatFake(), ChatFake()) as it:
        monkeypatch.setattr(engines, "ask", late)
        monkeypatch.setattr(engines, "HOLDING_BYTES", 2 * THREAD_BYTES)
        status, _ = await it.post("/tokenize", prompt="x" * size)
    assert status == 503
    assert len(set(names)) == len(names) == asked


async def test_a_body_that_a_tokenizer_would_read_for_minutes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_paths, "MOST_ASKED", 1000)
    async with served(ChatFake(parsed={})) as it:
        status, reply = await it.post("/parse_function_call", text="x" * 1000)
        assert (status, reply["message"]) == (400, "the body has more than 1000 bytes: split it")
        assert await it.post("/parse_function_call", text="x" * 900) == (200, {})


async def test_only_texts_of_a_list_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[Any]()
    async with served(ChatFake()) as it:
        monkeypatch.setattr(
            other_paths, "require_short_chat", lambda text, *_: measured.append(text)
        )
        for given in ([5, 6], ["a", "b"]):
            assert (await it.post("/v1/embeddings", input=given))[0] == 200
    assert measured == ["a", "b"], "token ids are many, and take a microsecond each"


LONG = "x" * 50_001
TOO_LONG: dict[str, Any] = {"messages": [{"content": LONG}, {"content": [{"text": LONG}]}]}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", TOO_LONG),
        ("/v1/chat/completions", TOO_LONG | {"frequency_penalty": 0.5, "logprobs": 1}),
        ("/v1/messages", TOO_LONG),
        ("/v1/responses", {"input": LONG + LONG}),
        ("/v1/embeddings", {"input": ["x", LONG + LONG]}),
        ("/classify", {"text": LONG + LONG}),
        ("/v1/rerank", {"documents": ["x", LONG + LONG], "query": "x"}),
        ("/v1/score", {"query": LONG + LONG, "items": ["x"]}),
    ],
)
async def test_far_more_text_than_the_context_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    fake = ChatFake()
    async with served(fake, model={"path": model_folder(tmp_path)}) as it:
        monkeypatch.setattr(generate_body, "LEAST_CHAT", 100_001)
        monkeypatch.setattr(generate_body, "CHAT_CHARACTERS_PER_TOKEN", 1)
        fake.received.clear()
        status, reply = await it.post(path, **fields)
        assert status == 400
        assert reply["message"].startswith(f"{next(iter(fields))}: 100002 characters; the longest")
        assert not fake.received
    name, chat = next(iter(fields.items()))
    monkeypatch.setattr(generate_body, "CHAT_CHARACTERS_PER_TOKEN", 101)
    generate_body.require_short_chat(chat, 1000, name)
