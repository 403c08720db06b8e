"""Divided equals undivided, token for token, on real SGLang servers.

Seeded, temperature 1, deterministic inference, float32. Every chunk is forced onto the other
server, which has to recompute the KV of all earlier chunks.
"""

from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from tests.e2e.compare import Samples, assert_identical, roll
from tests.e2e.conftest import external

pytestmark = pytest.mark.shared_engines

LONGEST = 1500  # tokens; the ledger lets six such requests run at once


async def both_ways(
    urls: list[str], prompts: int, chunk_tokens: int, sampling: dict[str, Any]
) -> tuple[Samples, Samples, Any]:
    """Returns (samples undivided on the first server, samples divided over both servers with every
    chunk on the other one, report of the latter)."""
    sampling = {"max_response_len": LONGEST, **sampling}
    whole, plain = await roll(
        external(urls[:1], sampling=sampling, scheduling={"divide": False}), prompts
    )
    assert plain["chunks"] == plain["samples"]
    assert plain["retractions"] == 0
    parts, report = await roll(
        external(urls, sampling=sampling, scheduling={"chunk_tokens": chunk_tokens}),
        prompts,
        placement=AlwaysElsewhere(),
    )
    assert report["migrations"] == report["chunks"] - report["samples"]
    assert report["recomputed_tokens"] > 0
    return whole, parts, report


async def test_divided_over_two_servers_equals_undivided_on_one(engine_urls: list[str]) -> None:
    whole, parts, report = await both_ways(engine_urls, 8, 128, {})
    assert len(whole) == 64
    assert_identical(whole, parts)
    assert max(sample.chunks for sample in parts.values()) > 5
    assert {sample.finish_reason for sample in whole.values()} >= {"stop"}
    assert report["chunks"] > 2 * report["samples"]


async def test_string_stops_that_span_chunks_end_where_they_should(engine_urls: list[str]) -> None:
    sampling = {"stop": ["swap . then", "more . check", "skip ,"]}
    chunk_tokens = 9
    whole, parts, _ = await both_ways(engine_urls, 8, chunk_tokens, sampling)
    assert len(whole) == 64
    assert_identical(whole, parts)
    stopped = [sample for sample in parts.values() if isinstance(sample.matched, str)]
    assert len(stopped) >= 16
    for sample in stopped:
        assert str(sample.matched) not in (sample.text or "")
    # Some stops begin in one chunk and end in the next: a token of this model is a word, and fewer
    # words lie after the boundary than the stop has.
    assert any(
        0 < sample.response_length % chunk_tokens < len(str(sample.matched).split())
        for sample in stopped
    )


async def test_min_new_tokens_counts_over_all_chunks(engine_urls: list[str]) -> None:
    minimum = 300
    whole, parts, _ = await both_ways(engine_urls, 8, 128, {"min_new_tokens": minimum})
    assert len(whole) == 64
    assert_identical(whole, parts)
    lengths = [sample.response_length for sample in parts.values()]
    assert min(lengths) > minimum - 1
    plain, _ = await roll(external(engine_urls[:1], sampling={"max_response_len": minimum}), 8)
    assert min(sample.response_length for sample in plain.values()) < minimum


async def test_length_and_stop_token_ends_are_right_across_chunks(engine_urls: list[str]) -> None:
    first, _ = await roll(external(engine_urls[:1]), 1)
    token = next(iter(first.values())).response_ids[100]
    sampling = {"max_response_len": 150, "stop_token_ids": [token], "min_new_tokens": 90}
    whole, parts, _ = await both_ways(engine_urls, 8, 40, sampling)
    assert_identical(whole, parts)
    ended = [s.response_length for s in parts.values() if s.finish_reason == "length"]
    assert ended
    assert set(ended) == {150}
    assert any(sample.matched == token for sample in parts.values())


async def test_penalties_run_undivided_with_one_warning(
    engine_urls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    sampling = {"frequency_penalty": 0.3, "max_response_len": 200}
    samples, report = await roll(external(engine_urls, sampling=sampling), 2)
    assert report["chunks"] == report["samples"] == len(samples) == 16
    assert max(sample.response_length for sample in samples.values()) > 64, "longer than a chunk"
    assert sum("cannot cross a chunk boundary" in line for line in caplog.messages) == 1
    whole, _ = await roll(
        external(engine_urls[:1], sampling=sampling, scheduling={"divide": False}), 2
    )
    assert_identical(whole, samples)
