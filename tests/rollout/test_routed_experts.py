"""Routed experts of divided requests, joined over chunks, on fake engines."""

import base64
import contextlib
import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer_sgl import Rollout
from seer_sgl.errors import ConfigError, PromptError
from seer_sgl.rollout.samples import SampleWriter
from seer_sgl.routed_experts import ExpertShape
from seer_sgl.types import Group
from tests.fake_sglang import FakeSGLang, serving
from tests.rollout.fakes import PROMPTS, N, check, fakes, rolled, samples_of
from tests.support.experts import SHAPE, SPOILED, ExpertEngine, rows_of

ASKED = {"sampling": {"return_routed_experts": True}}
EXPERTS: Any = ExpertEngine  # it has the log of `Logging`


def check_rows(groups: list[Group], shape: ExpertShape = SHAPE) -> None:
    """Fails unless every sample is there, with the tokens and rows of an undivided call."""
    samples = samples_of(groups)
    check(samples)
    for sample in samples.values():
        experts, tokens = sample.routed_experts, len(sample.prompt_ids) + sample.response_length
        assert experts is not None
        assert experts.dtype == shape.dtype
        assert experts.shape == (tokens - 1, shape.layers, shape.top_k)
        assert experts.array().shape == experts.shape
        assert bytes(experts.data) == rows_of(sample.seed, 0, tokens - 1, shape)


@pytest.mark.parametrize(
    ("shape", "dtype"), [(SHAPE, "uint8"), (ExpertShape(layers=2, top_k=3, experts=384), "int16")]
)
async def test_rows_of_many_chunks_are_those_of_an_undivided_call(
    shape: ExpertShape, dtype: str
) -> None:
    async with fakes(kind=EXPERTS, shape=shape) as it:
        groups, report = await rolled(it.config_with(**ASKED))
    check_rows(groups, shape)
    assert shape.dtype == dtype
    assert report["chunks"] > 2 * report["samples"]
    first = [call for call in it.calls if call["routed_experts_start_len"] == 0]
    assert len(first) == report["samples"], "a request asks for the rows of its prompt once"
    for call in it.calls:
        if call not in first:
            assert call["routed_experts_start_len"] == len(call["input_ids"]) - 1


async def test_nothing_is_asked_for_or_returned_by_default() -> None:
    async with fakes(kind=EXPERTS) as it:
        groups, _ = await rolled(it.config)
    assert all(sample.routed_experts is None for sample in samples_of(groups).values())
    assert not any("return_routed_experts" in call for call in it.calls)
    assert not any("return_routed_experts" in call["sampling_params"] for call in it.calls)


@pytest.mark.parametrize("name", sorted(SPOILED))
async def test_malformed_rows_cost_a_chunk_and_never_a_sample(name: str) -> None:
    async with fakes(kind=EXPERTS) as it:
        for server in it.servers:
            assert isinstance(server, ExpertEngine)
            server.spoiled = deque(["", name])
        groups, report = await rolled(it.config_with(**ASKED))
    check_rows(groups)
    assert sum(engine["bad_replies"] for engine in report["engines"]) == 2


async def test_chunks_that_end_early_bring_the_rows_of_the_tokens_that_count() -> None:
    async with fakes(kind=EXPERTS) as it:
        for server in it.servers:
            server.faults = deque(["abort", "abort_late", "abort_queued", "ok"] * 4)
        groups, _ = await rolled(it.config_with(**ASKED))
        assert not any(server.faults for server in it.servers)
    check_rows(groups)


async def test_a_resumed_rollout_has_the_rows_of_both_processes(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with fakes(kind=EXPERTS, delay_s=0.005) as it:
        config = it.config_with(**ASKED, rollout={"journal": str(path)})
        await rolled(config, groups=2)
        begun = len(it.calls)
        groups, report = await rolled(it.config_with(**ASKED), resume=path)
        assert report["resumed"]["requests"] > 0
        check_rows(groups)
        chunks = (call for call in it.calls[begun:] if "." in call["rid"])  # not of orphans
        later = [call["routed_experts_start_len"] for call in chunks]
        assert any(later), "rows of the journal are not asked for again"


async def test_samples_jsonl_has_rows_with_their_form(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    async with fakes(kind=EXPERTS) as it, Rollout(it.config_with(**ASKED)) as rollout:
        writer = SampleWriter(path)
        groups = [group async for group in rollout.run(PROMPTS, [writer])]
        writer.close()
    samples = samples_of(groups)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == len(samples) == len(PROMPTS) * N
    for line in lines:
        written, sample = line["routed_experts"], samples[line["group_id"], line["index"]]
        rows = np.frombuffer(base64.b64decode(written["data"]), written["dtype"])
        assert sample.routed_experts is not None
        assert (rows.reshape(written["shape"]) == sample.routed_experts.array()).all()


async def test_engines_that_return_none_are_refused_in_one_line() -> None:
    line = r"^sampling\.return_routed_experts: engine e0 returns none: it needs a model with a mixt"
    async with fakes() as it:
        with pytest.raises(ConfigError, match=line):
            await rolled(it.config_with(**ASKED))
        own = [{**PROMPTS[0], "sampling": {"return_routed_experts": True}}]
        with pytest.raises(PromptError, match=r"^prompt 'p0': sampling\.return_routed_experts: "):
            await rolled(it.config, own)


async def test_engines_that_return_other_rows_are_refused_in_one_line() -> None:
    line = "^engines: only some of the engines return routed experts, or in different forms$"
    for other in (FakeSGLang(), ExpertEngine(shape=ExpertShape(3, 2, 9))):
        async with contextlib.AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serving(e)) for e in (ExpertEngine(), other)]
            with pytest.raises(ConfigError, match=line):
                await rolled({"engines": {"launch": "external", "urls": urls}})
