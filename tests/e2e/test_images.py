"""Prompts with images on real servers of a tiny Qwen2-VL: divided requests that move and are
drafted have the samples of undivided ones."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.errors import RolloutError
from seer_sgl.link.contract import LONGEST, ORIGIN, PROMPT_LEN
from seer_sgl.rollout.samples import encode_sample
from seer_sgl.types import ChunkResult
from tests.e2e.calls import post
from tests.e2e.compare import Migrations, Samples, accepted_drafts, assert_identical
from tests.e2e.pools import pooled
from tests.e2e.rig import PAGE
from tests.e2e.two_engines import TwoEngines, two_engines
from tests.e2e.vision import SGLANG, SIZES, data_url, marks, vision_model, vision_prompts
from tests.server.helpers import served_config
from tests.support.timing import PATIENT

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

LENGTH, CHUNK = 48, 16
MARKED = 0.2  # of the response tokens: marks of images, where a bias makes them likely


class Inputs(Migrations):
    """The input tokens of each chunk that came back: as planned, and as the engine counted."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: list[tuple[int, int | None]] = []
        self.again: list[int] = []  # computed once more, of chunks that did not move

    def returned(self, result: ChunkResult) -> None:
        super().returned(result)
        if result.reply is not None and result.chunk.continues:
            given = result.reply.input_tokens
            self.planned.append((result.chunk.input_len, given))
            if not result.chunk.migrated:
                self.again.append((given or result.chunk.input_len) - result.reply.cached)


def engines(
    folder: Path, model: Path, tokens: int = 8192, **sections: Any
) -> AbstractAsyncContextManager[TwoEngines]:
    """Starts two engines. `tokens`: KV tokens of each."""
    return two_engines(
        folder,
        model,
        {**SGLANG, "max-total-tokens": tokens},
        scheduling={"chunk_tokens": CHUNK},
        sampling={"max_response_len": LENGTH, "ignore_eos": True},
        **sections,
    )


async def test_chunks_behind_images_equal_undivided_requests(tmp_path: Path) -> None:
    model = vision_model(tmp_path)
    prompts = vision_prompts(model, 6)
    prompts[1] = {"id": "p1", "prompt_ids": [40, 41, 42, 43]}  # text among images
    async with engines(tmp_path, model) as it:
        assert all(engine.info.continues_images for engine in it.fleet.engines)
        whole, plain = await it.roll(prompts, divide=False)
        assert plain["chunks"] == plain["samples"] == 24

        seen = Inputs()
        parts, moved = await it.roll(prompts, AlwaysElsewhere(), [seen])
        assert_identical(whole, parts)
        assert moved["migrations"] == 48
        assert len(seen.planned) == 48
        assert all(given in (planned, None) for planned, given in seen.planned)

        seen = Inputs()
        parts, _ = await it.roll(prompts, None, [seen])
        assert_identical(whole, parts)
        assert set(seen.again) == {1}

        others, _ = await it.roll(swapped(prompts), divide=False)
        differ = [key for key in whole if whole[key].response_ids != others[key].response_ids]
        assert len(differ) == 16, "all samples of the four prompts whose images were exchanged"

        await check_marks_in_responses(it, model)
        await check_another_image(it, prompts[0])
        await check_too_long(it, prompts)
        await check_server(it, prompts, whole)
        await check_chat(it)


def swapped(prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns prompts of which two pairs have exchanged their images."""
    exchanged = {0: 4, 4: 0, 2: 5, 5: 2}
    images = {i: prompts[j]["image_data"] for i, j in exchanged.items()}
    return [
        {**prompt, "image_data": images[i]} if i in images else prompt
        for i, prompt in enumerate(prompts)
    ]


async def check_marks_in_responses(it: TwoEngines, model: Path) -> None:
    """Asserts that responses with image tokens in them are continued, which stock SGLang fails
    at."""
    mark = marks(model)
    bias = {"logit_bias": {str(token): 6.0 for token in mark.values()}}
    prompts = [{**prompt, "sampling": bias} for prompt in vision_prompts(model, 6)]
    whole, _ = await it.roll(prompts, divide=False)
    tokens = [token for sample in whole.values() for token in sample.response_ids]
    assert sum(token in mark.values() for token in tokens) > MARKED * len(tokens)
    parts, moved = await it.roll(prompts, AlwaysElsewhere())
    assert_identical(whole, parts)
    assert moved["migrations"] == 48

    url, first = it.urls[0], prompts[0]
    ends = [*first["prompt_ids"], 30, 31, mark["vision_start_token_id"]]
    with pytest.raises(OSError, match="500"):
        await asyncio.to_thread(generate, url, ends, first["image_data"])
    origin = {PROMPT_LEN: len(first["prompt_ids"]), LONGEST: 2000}
    ours = {"custom_params": {ORIGIN: origin}}
    meta = await asyncio.to_thread(generate, url, ends, first["image_data"], **ours)
    assert meta["completion_tokens"] == 1


def generate(url: str, ids: list[int], images: list[str], **params: Any) -> Any:
    """Returns the `meta_info` of an engine's own `/generate` for one more token."""
    sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True, **params}
    fields = {"input_ids": ids, "image_data": images, "sampling_params": sampling}
    return post(f"{url}/generate", **fields)["meta_info"]


async def check_another_image(it: TwoEngines, prompt: dict[str, Any]) -> None:
    """Asserts that the text behind another image is no hit of the cache."""
    (engine, _), ids = it.fleet.engines, prompt["prompt_ids"]
    await engine.flush()
    other = [data_url(777, SIZES[0])]
    cached = [
        (await asyncio.to_thread(generate, engine.info.url, ids, images))["cached_tokens"]
        for images in (prompt["image_data"], other, prompt["image_data"])
    ]
    before = len(ids) - 8  # the image's mark and all behind it are six tokens and two marks
    assert cached == [0, before, len(ids) + 5 - 1]


async def check_too_long(it: TwoEngines, prompts: list[dict[str, Any]]) -> None:
    """Asserts that an image with more tokens than the context costs its own prompt only."""
    huge = {**prompts[0], "id": "huge", "image_data": [data_url(5, (1400, 1400))]}
    groups = []
    async with it.opened() as rollout:
        with pytest.raises(RolloutError, match=r"1 of 2 groups .* 2520 prompt tokens with those"):
            async for group in rollout.run([huge, prompts[3]]):
                groups.append(group)  # noqa: PERF401 (a list would be lost with the error)
    assert [group.group_id for group in groups] == ["p3"]


async def check_server(it: TwoEngines, prompts: list[dict[str, Any]], whole: Samples) -> None:
    """Asserts that `/generate` divides a request with images, as ids and as text, like SGLang's."""
    config = {**it.config, "server": {"port": 0}}
    rollout = Rollout(config, fleet=it.fleet, gives_up=False, timing=PATIENT)
    async with served_config(rollout) as server:
        for name in ("p0", "p2"):
            prompt = next(each for each in prompts if each["id"] == name)
            sample = whole[name, 1]
            params = {
                **{"max_new_tokens": LENGTH, "ignore_eos": True, "temperature": 1.0},
                "sampling_seed": sample.seed,
            }
            fields = {"image_data": prompt["image_data"], "sampling_params": params}
            reply = await server.generate(input_ids=prompt["prompt_ids"], **fields)
            assert reply["output_ids"] == sample.response_ids.tolist()
            assert reply["meta_info"]["seer"]["chunks"] == 3
            assert rollout.tokenizer is not None
            text = rollout.tokenizer.decode(prompt["prompt_ids"])
            own = fields | {"text": text}
            there = await asyncio.to_thread(post, f"{it.urls[0]}/generate", **own)
            here = await server.generate(**own)
            assert here["output_ids"] == there["output_ids"]
            assert here["text"] == there["text"]
            for key in ("prompt_tokens", "completion_tokens"):
                assert here["meta_info"][key] == there["meta_info"][key]
        assert not server.service.passthrough.counts


async def check_chat(it: TwoEngines) -> None:
    """Asserts that a chat whose parts are images is that of the engine's own chat endpoint."""
    url = {"url": data_url(3)}
    parts = [{"type": "image_url", "image_url": url}, {"type": "text", "text": "what is it?"}]
    messages = [{"role": "user", "content": parts}]
    async with it.opened() as rollout:
        sampling = {"temperature": 0.0}
        prompts = [{"messages": messages, "n": 1, "sampling": sampling}]
        ((sample,),) = [group.samples async for group in rollout.run(prompts)]
    assert sample.chunks == 3
    own = {"messages": messages, "temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}
    chats = f"{it.urls[0]}/v1/chat/completions"
    there = await asyncio.to_thread(post, chats, model="m", **own)
    (choice,) = there["choices"]
    assert choice["message"]["content"] == sample.text
    images = SIZES[0][0] // 28 * SIZES[0][1] // 28
    assert there["usage"]["prompt_tokens"] == len(sample.prompt_ids) - 1 + images


@pytest.mark.parametrize("backend", ["file", "mooncake"])
async def test_moved_and_drafted_chunks_behind_images_equal_undivided_requests(
    tmp_path: Path, backend: str
) -> None:
    model = vision_model(tmp_path)
    prompts = vision_prompts(model, 32)
    prompts[1] = {"id": "p1", "prompt_ids": [40, 41, 42, 43]}
    pool, draft = pooled(backend), {"scope": "engine", "paths": 4}
    async with engines(tmp_path, model, 1536, kv_pool=pool, draft=draft) as it:
        whole, plain = await it.roll(prompts, divide=False)
        assert plain["chunks"] == plain["samples"] == 128
        history = tmp_path / "history.jsonl"
        history.write_bytes(b"\n".join(map(encode_sample, whole.values())))

        seen, placement = Inputs(), AlwaysElsewhere(fetch=True)
        parts, moved = await it.roll(prompts, placement, [seen], history=history)
        assert_identical(whole, parts)
        assert moved["migrations"] == 256
        assert moved["cached_tokens"]["storage"] > 10_000
        assert accepted_drafts(moved) > 500
        assert not seen.left_kv_behind
        again = [fetch.recomputed for fetch in seen.in_time]
        assert max(again) <= PAGE, "a page, with those of the images"

        parts, short = await it.roll(prompts, placement, history=history, kv_ledger=False)
        assert_identical(whole, parts)
        assert short["retractions"] > 0
        assert accepted_drafts(short) > 500
