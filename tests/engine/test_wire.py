"""SGLang's JSON: what is tolerated and what is not."""

import math
from typing import Any

import msgspec
import pytest

from seer_sgl.config import SamplingConfig
from seer_sgl.engine.wire import constant_sampling_params, decode_generate
from seer_sgl.types import WeightSpan


def body(**meta: Any) -> bytes:
    defaults: dict[str, Any] = {
        "finish_reason": {"type": "length", "length": 2},
        "completion_tokens": 2,
        "output_token_logprobs": [[-0.25, 7, None], [-1.5, 8, None]],
        "weight_version": "3",
    }
    return msgspec.json.encode({"text": "x", "meta_info": {**defaults, **meta}})


def test_unknown_fields_are_skipped_and_missing_ones_have_defaults() -> None:
    reply = decode_generate(body(new_in_a_later_version={"a": 1}))
    assert (list(reply.ids), list(reply.logprobs)) == ([7, 8], [-0.25, -1.5])
    assert (reply.cached, reply.retractions, reply.verify_steps) == (0, 0, 0)
    assert reply.weight_spans == [WeightSpan("3", 2)]


def test_weight_versions_that_change_within_a_chunk_are_kept() -> None:
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
    reply = decode_generate(body(weight_versions=spans, weight_version="4"))
    assert reply.weight_spans == [WeightSpan("3", 1), WeightSpan("4", 1)]


def test_cached_tokens_are_split_by_tier() -> None:
    reply = decode_generate(
        body(cached_tokens=9, cached_tokens_details={"device": 4, "host": 3, "storage": 2})
    )
    assert (reply.cached_device, reply.cached_host, reply.cached_storage) == (4, 3, 2)
    assert decode_generate(body(cached_tokens=9)).cached_device == 9


def test_fewer_logprobs_than_tokens_is_an_error_except_after_an_abort() -> None:
    with pytest.raises(msgspec.ValidationError, match="2 token logprobs for 3 tokens"):
        decode_generate(body(completion_tokens=3))
    aborted = body(completion_tokens=3, finish_reason={"type": "abort", "message": "m"})
    assert list(decode_generate(aborted).ids) == [7], "the last token was not looked at for a stop"
    speculated = body(finish_reason={"type": "abort", "message": "m"}, spec_verify_ct=2)
    assert not decode_generate(speculated).ids, "nor a whole step, however long"


def test_an_abort_in_the_queue_brings_no_tokens() -> None:
    meta = {"finish_reason": {"type": "abort", "message": "m"}, "weight_version": "1"}
    reply = decode_generate(msgspec.json.encode({"meta_info": meta}))
    assert (len(reply.ids), reply.weight_spans, reply.finish) == (0, [], "abort")


def test_an_impossible_token_has_logprob_minus_infinity() -> None:
    reply = decode_generate(body(output_token_logprobs=[[None, 7, None], [-1.0, 8, None]]))
    assert list(reply.logprobs) == [-math.inf, -1.0]


def test_nan_logits_are_an_error_not_a_sample() -> None:
    with pytest.raises(msgspec.ValidationError, match="NaN"):
        decode_generate(body(finish_reason={"type": "stop", "matched": "NaN happened"}))


def test_every_sampling_parameter_travels_so_that_no_server_default_applies() -> None:
    params = constant_sampling_params(SamplingConfig(stop=["x"], stop_token_ids=[3]))
    assert params["temperature"] == 1.0
    assert params["top_k"] == -1
    assert params["stop"] == ["x"]
    assert params["stop_token_ids"] == [3]
    assert "max_response_len" not in params
    assert "json_schema" not in params
