"""Images in `/generate` and `/rollout`, on fake engines."""

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import pytest

from seer_sgl.link.contract import ORIGIN
from seer_sgl.rollout import images
from seer_sgl.server import generate_body
from seer_sgl.server.passthrough import media
from tests.server.helpers import Served, served
from tests.server.rollout_client import rollout
from tests.support.images import PLACEHOLDER, ImageEngine, data_url
from tests.support.waiting import until

SEED = 77 << 7
IDS = [5, 5, PLACEHOLDER, 5]


@pytest.fixture
def model(tmp_path: Any) -> dict[str, Any]:
    """A model's section of the config that names the placeholder of an image."""
    (tmp_path / "config.json").write_text(json.dumps({"image_token_id": PLACEHOLDER}))
    return {"path": str(tmp_path)}


@pytest.fixture
def engine() -> ImageEngine:
    return ImageEngine(longest=1000)


@pytest.fixture
async def it(engine: ImageEngine, model: dict[str, Any]) -> AsyncIterator[Served]:
    async with served(engine, model=model) as opened:
        yield opened


def body(seed: int = SEED, **more: Any) -> dict[str, Any]:
    params = {"max_new_tokens": 40, "sampling_seed": seed}
    return {"input_ids": IDS, "image_data": [data_url(1)], "sampling_params": params, **more}


async def test_a_response_behind_an_image_is_divided(model: dict[str, Any]) -> None:
    engines = [ImageEngine(longest=1000) for _ in range(2)]
    async with served(*engines, model=model) as it:
        reply = await it.generate(**body())
        meta = reply["meta_info"]
        assert meta["seer"]["chunks"] > 3
        assert meta["seer"]["recomputed_tokens"] == 0
        assert meta["prompt_tokens"] == len(IDS) - 1 + 20
        assert meta["completion_tokens"] == 40
        continued = await it.generate(**body(input_ids=IDS + reply["output_ids"][:20]))
        assert continued["meta_info"]["prompt_tokens"] == len(IDS) - 1 + 20 + 20
        assert continued["meta_info"]["seer"]["group"] == meta["seer"]["group"]
        single = await it.generate(**body(image_data=data_url(1)))
        assert single["output_ids"] == reply["output_ids"]
    calls = [call for engine in engines for call in engine.seen]
    assert all(call["image_data"] == [data_url(1)] for call in calls)
    assert all(call["input_ids"][: len(IDS)] == IDS for call in calls)


async def test_a_response_without_a_limit_has_what_the_images_leave(model: dict[str, Any]) -> None:
    engine = ImageEngine(longest=1000, max_request_len=190)
    params = {"max_new_tokens": None, "sampling_seed": 999 << 7}
    large = [data_url(1, (280, 280))]  # taken for 100 tokens; the engine makes 20 of it
    async with served(engine, model=model) as it:
        reply = await it.generate(**body(image_data=large, sampling_params=params))
        assert reply["meta_info"]["seer"]["chunks"] > 1
    assert reply["meta_info"]["completion_tokens"] == 190 - len(IDS) + 1 - 20


async def test_siblings_have_equal_images(it: Served, engine: ImageEngine) -> None:
    groups = []
    for image in (1, 2, 1, 2):
        reply = await it.generate(**body(image_data=[data_url(image)]))
        groups.append(reply["meta_info"]["seer"]["group"])
    assert groups[0] == groups[2] != groups[1] == groups[3]
    params = [{"max_new_tokens": 40, "sampling_seed": SEED + (i << 7)} for i in range(3)]
    batch = body(input_ids=[IDS, IDS, [5, 5]], image_data=[data_url(1), [data_url(2)], None])
    replies = await it.generate(**batch | {"sampling_params": params})
    assert [reply["meta_info"]["prompt_tokens"] for reply in replies] == [23, 23, 2]
    for call in engine.seen:
        assert len(call.get("image_data", [])) == call["input_ids"].count(PLACEHOLDER)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["data:image/png;base64,AAAA"], "image_data[0]: 'data:image/png;base64,AAAA': no image"),
        (["/etc/passwd.png"], "image_data[0]: '/etc/passwd.png': files are not read"),
        (["http://127.0.0.1/a.png"], "image_data[0]: 'http://127.0.0.1/a.png': addresses"),
    ],
)
async def test_a_bad_image_is_refused(
    it: Served, engine: ImageEngine, given: list[str], why: str
) -> None:
    status, reply = await it.post("/generate", **body(image_data=given))
    assert status == 400
    assert reply["error"]["message"].startswith(why)
    group = {"prompt_ids": IDS, "image_data": given}
    status, reply = await it.post("/rollout", groups=[group])
    assert status == 400
    assert f"groups[0]: {why}" in str(reply)
    part = {"type": "image_url", "image_url": {"url": given[0]}}
    chat = {"messages": [{"role": "user", "content": [part]}], "model": "m"}
    status, reply = await it.post("/v1/chat/completions", **chat)
    assert status == 400
    assert f"messages: {why}" in str(reply).replace('\\"', "'")
    assert not engine.seen


async def test_what_the_server_cannot_place_passes_through(
    it: Served, engine: ImageEngine, model: dict[str, Any]
) -> None:
    await it.generate(**body(input_ids=[5, 5]))
    assert it.service.passthrough.counts == {"image_data": 1}
    (call,) = engine.seen
    assert ORIGIN not in call["sampling_params"].get("custom_params", {})
    assert call["image_data"] == [data_url(1)]
    for wrong in (
        {"input_ids": [*IDS, PLACEHOLDER]},  # SGLang never answers
        {"image_data": ["/etc/passwd.png"], "logprob_start_len": 0},
        {"image_data": ["http://127.0.0.1/a.png"], "top_logprobs_num": 1},
    ):
        status, reply = await it.post("/generate", **body(**wrong))
        assert (status, reply["error"]["message"][:10]) == (400, "image_data")
    without = ImageEngine(longest=1000, continues=False)
    async with served(without, model=model) as other:
        await other.generate(**body())
        assert other.service.passthrough.counts == {"image_data": 1}


VIDEO = {"type": "video_url", "video_url": {"url": "http://10.0.0.1/a"}}
ADDRESS = {"text": "a", "image_data": "http://10.0.0.1/a"}
NOT_READ = "image_data: 'http://10.0.0.1/a': only data URLs"


@pytest.mark.parametrize(
    ("path", "fields", "why"),
    [
        ("/generate", body(image_data=["http://169.254.169.254/x", {}]), "image_data"),
        ("/generate", body(audio_data="/etc/passwd"), "audio_data"),
        ("/generate", body(video_data=[["http://10.0.0.1/a"]]), "video_data"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [VIDEO]}]}, "messages"),
        ("/encode", ADDRESS, NOT_READ),
        ("/classify", ADDRESS, NOT_READ),
        ("/v1/messages", ADDRESS, NOT_READ),
    ],
)
async def test_no_reference_reaches_an_engine(
    it: Served, engine: ImageEngine, path: str, fields: dict[str, Any], why: str
) -> None:
    status, reply = await it.post(path, **fields)
    message = reply.get("error", reply)["message"]
    assert (status, message[: len(why)]) == (400, why)
    assert "\n" not in message
    assert not engine.seen


async def test_images_are_decoded_in_a_thread_however_the_field_is_spelt(
    it: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, kind = [], {"Content-Type": "application/json"}
    inspected = images._inspected

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return inspected(*given)

    monkeypatch.setattr(images, "_inspected", noted)
    for more in ({}, {"logprob_start_len": 0}):
        text = json.dumps(body(**more)).replace('"image_data"', '"image\\u005fdata"')
        assert "u005f" in text
        async with it.session.post(f"{it.url}/generate", data=text, headers=kind) as reply:
            assert reply.status == 200, await reply.text()
    assert len(threads) >= 2
    assert threading.main_thread() not in threads


async def test_a_body_has_limited_images(
    it: Served, engine: ImageEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate_body, "MOST_OF_BODY", 1)
    monkeypatch.setattr(media, "MOST_OF_BODY", 1)
    two: dict[str, Any] = {"input_ids": [IDS, IDS], "image_data": [data_url(1)] * 2}
    for more in ({}, {"top_logprobs_num": 1}):
        status, reply = await it.post("/generate", **body(**two | more))
        assert status == 400
        assert reply["error"]["message"] == "image_data: more than 1 images in one body"
    assert not engine.seen


async def test_each_prompt_of_a_batch_has_its_placeholders(it: Served, engine: ImageEngine) -> None:
    two: dict[str, Any] = {"input_ids": [IDS, [*IDS, PLACEHOLDER]], "top_logprobs_num": 1}
    for image in ([data_url(1)] * 2, data_url(1), [None, [data_url(1)]]):
        status, reply = await it.post("/generate", **body(**two, image_data=image))
        assert status == 400
        assert "1 images, but the prompt 1 has the placeholder 9 2" in str(reply)
    assert not engine.seen


async def test_no_image_is_read_for_a_rollout_without_room(
    model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_inspected", lambda *_: pytest.fail("an image was read"))
    group = {"prompt_ids": IDS, "image_data": [data_url(3)]}
    async with served(ImageEngine(), model=model, server={"max_requests": 9}) as it:
        for n in ({"n": 10}, {}):
            status, reply = await it.post("/rollout", groups=[{**group, **n}, "text"])
            assert status == 400
            assert "responses; server.max_requests is 9" in str(reply)


async def test_groups_that_a_reject_adds_have_images(it: Served, engine: ImageEngine) -> None:
    group = {"prompt_ids": IDS, "image_data": [data_url(3)], "n": 3}
    first, options = {**group, "id": "a"}, {"target_groups": 1, "dynamic_filtering": True}
    added = [{**group, "id": "b", "image_data": [data_url(4)]}, {**group, "id": "c"}]
    async with rollout(it, [first], **options) as stream:
        lines = stream.lines()
        assert [(await anext(lines)).get("group_id") for _ in range(2)] == [None, "a"]
        (status, verdict), (unknown, _) = await asyncio.gather(
            stream.verdict("reject", "a", groups=added[:1]),
            stream.verdict("reject", "x", groups=added[1:]),
        )
        assert (status, unknown, verdict["unfinished"]) == (200, 404, 1)
        line = await anext(lines)
        assert line["group_id"] == "b"
        assert [sample["images"] for sample in line["samples"]] == [1, 1, 1]
        await stream.verdict("accept", "b")
        assert (await anext(lines))["event"] == "end"
    assert {call["image_data"][0] for call in engine.seen} == {data_url(3), data_url(4)}


@pytest.mark.parametrize("left", [False, True])
async def test_a_session_of_images_is_closed_once_no_turn_waits(
    left: bool, model: dict[str, Any]
) -> None:
    engine = ImageEngine(longest=1000, sessions=True, faults=deque(["stall"]))
    turn = body(session_params={"id": "mine"}, rid="t0")
    async with served(engine, model=model) as it:
        it.service.pinned.add("mine", "e0")
        session = it.service.pinned.of({"id": "mine"})
        assert session is not None
        waiting = asyncio.create_task(it.generate(**turn))
        await engine.stalled.wait()
        if left:
            waiting.cancel()
            await until(lambda: not session.running)
        for _ in range(1 if left else 2):
            assert await it.post("/close_session", session_id="mine") == (200, None)
        if not left:
            status, answer = await it.post("/generate", **{**turn, "rid": "t1"})
            assert (status, "close was requested" in str(answer)) == (400, True)
            assert not engine.closed, "SGLang would take its images away"
            engine.wake_stalled()
            assert (await waiting)["output_ids"]
        await until(lambda: it.service.pinned.of({"id": "mine"}) is None)
    assert (engine.closed, engine.aborted) == (["mine"], ["t0"] if left else [])


async def test_a_session_that_was_opened_again_outlives_the_end_of_the_first(
    model: dict[str, Any],
) -> None:
    engine = ImageEngine(longest=1000, sessions=True, faults=deque(["stall"]))
    async with served(engine, model=model) as it:
        it.service.pinned.add("mine", "e0")
        turn = body(session_params={"id": "mine"}, rid="t0")
        waiting = asyncio.create_task(it.generate(**turn))
        await engine.stalled.wait()
        assert await it.post("/close_session", session_id="mine") == (200, None)
        it.service.pinned.add("mine", "e0")  # on another engine
        again = it.service.pinned.of({"id": "mine"})
        engine.wake_stalled()
        assert (await waiting)["output_ids"]
        await until(lambda: not it.service._tasks)
        assert engine.closed == ["mine"]
        assert it.service.pinned.of({"id": "mine"}) is again
