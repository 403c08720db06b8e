"""SGLang's JSON: which deviations are tolerated and which are not."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seer_sgl.engine.wire import Unreadable, decode_generate, sampling_params
from seer_sgl.link.contract import EXAMINED, MAX_COUNT, NO_READ, ORIGIN
from seer_sgl.sampling import NEUTRAL
from seer_sgl.types import Chunk, ChunkReply, Sampling, WeightSpan
from tests.garbage import GARBAGE
from tests.helpers import make_group, make_reply
from tests.support.infos import chunk_on

RID = "g.0.c1/"
VOCAB = 1000
TOKENS = [[-0.25, 7, None], [-1.5, 8, None]]
ABORT = {"type": "abort", "message": "m"}


def chunk(budget: int = 8, sampling: Sampling = NEUTRAL) -> Chunk:
    asked = chunk_on("e0", make_group(n=1, sampling=sampling).requests[0])
    return msgspec.structs.replace(asked, rid=RID, max_new_tokens=budget)


def true_reply(**meta: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "id": RID,
        "finish_reason": {"type": "length", "length": 8},
        "completion_tokens": 2,
        "output_token_logprobs": TOKENS,
        "weight_version": "3",
    }
    return {"text": "x", "meta_info": {**defaults, **meta}}


def decode(asked: int = 8, /, **meta: Any) -> ChunkReply:
    return decode_generate(msgspec.json.encode(true_reply(**meta)), chunk(asked), VOCAB)


def test_unknown_fields_are_skipped_and_missing_ones_have_defaults() -> None:
    reply = decode(new_in_a_later_version={"a": 1})
    assert (list(reply.ids), list(reply.logprobs)) == ([7, 8], [-0.25, -1.5])
    assert (reply.cached, reply.retractions, reply.verify_steps) == (0, 0, 0)
    assert reply.weight_spans == [WeightSpan("3", 2)]


def test_weight_versions_that_change_within_a_chunk_are_kept() -> None:
    spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
    reply = decode(weight_versions=spans, weight_version="4")
    assert reply.weight_spans == [WeightSpan("3", 1), WeightSpan("4", 1)]


@pytest.mark.parametrize(("count", "read"), [(-1, 0), (10**400, MAX_COUNT)])
def test_impossible_counters_stay_in_the_range_of_a_journal(count: int, read: int) -> None:
    reply = decode(num_retractions=count, spec_verify_ct=count, cached_tokens=count)
    assert (reply.retractions, reply.verify_steps, reply.cached_device) == (read,) * 3


def test_cached_tokens_are_split_by_tier() -> None:
    reply = decode(cached_tokens=9, cached_tokens_details={"device": 4, "host": 3, "storage": 2})
    assert (reply.cached_device, reply.cached_host, reply.cached_storage) == (4, 3, 2)
    assert decode(cached_tokens=9).cached_device == 9
    assert decode(cached_tokens=-9).cached == 0, "a counter never costs a chunk"


def test_fewer_logprobs_than_tokens_is_an_error_except_after_an_abort() -> None:
    with pytest.raises(Unreadable, match="2 token logprobs for 3 tokens"):
        decode(completion_tokens=3)
    aborted = decode(completion_tokens=3, finish_reason=ABORT)
    assert list(aborted.ids) == [7], "SGLang has not checked the last token for a stop"
    speculated = decode(finish_reason=ABORT, spec_verify_ct=2)
    assert not speculated.ids, "nor the whole last step of any length"


@pytest.mark.parametrize("steps", [0, 3])
def test_of_an_aborted_reply_all_before_the_last_step_is_kept(steps: int) -> None:
    count = 90  # 40 from the last flush, and 50 that came with another request's abort
    meta: dict[str, Any] = {
        "finish_reason": ABORT,
        "output_token_logprobs": [[-1.0, n, None] for n in range(count)],
        "completion_tokens": count,
        "spec_verify_ct": steps,
    }
    examined: dict[str, Any] = {EXAMINED: [None] * 50 + [83] * 40}
    reply = decode(85, **meta, **examined)
    assert list(reply.ids) == list(range(83))
    assert reply.weight_spans == [WeightSpan("3", 83)]
    examined[EXAMINED] = [0] * count
    assert not decode(**meta, **examined).ids, "aborted in its first step"
    examined[EXAMINED] = [91]
    with pytest.raises(Unreadable, match="91 examined tokens of 90"):
        decode(**meta, **examined)


def test_what_is_true_is_not_refused() -> None:
    assert len(decode(2).ids) == 2, "all requested tokens"
    assert len(decode(9).ids) == 2, "SGLang's own cap"
    assert decode(finish_reason={"type": "stop", "matched": 8}).matched == 8
    assert decode(finish_reason={"type": "stop", "matched": "a string"}).matched == "a string"
    rounded = [[0.00005, VOCAB - 1, None], [-3.4e38, 0, None]]
    assert list(decode(output_token_logprobs=rounded).ids) == [VOCAB - 1, 0]
    at_once = [{"version": "3", "start": 0, "end": 0}]
    assert not decode(
        completion_tokens=0,
        output_token_logprobs=[],
        finish_reason=ABORT,
        weight_versions=at_once,
    ).weight_spans


@pytest.mark.parametrize("shape", sorted(set(GARBAGE) - {"endless"}))
def test_what_cannot_be_true_is_an_error_and_not_a_sample(shape: str) -> None:
    true = true_reply(weight_version="v1")
    with pytest.raises(Unreadable):
        decode_generate(GARBAGE[shape](true), chunk(), VOCAB)


def test_an_unknown_vocabulary_is_not_guessed() -> None:
    body = msgspec.json.encode(true_reply(output_token_logprobs=[[-1.0, 1 << 30, None]] * 2))
    assert list(decode_generate(body, chunk()).ids) == [1 << 30] * 2


NUMBERS = st.sampled_from([-(1 << 63), -1, 0, 1, 2, 7, 8, 999, 1000, 1 << 31, 1 << 63, 0.5, 1e300])
SCALARS = st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "9", "text", RID])
ANYTHING = st.recursive(
    SCALARS | st.sampled_from(["stop", "abort", "length", RID]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "matched", "version", "start", "end"]), inner)
    ),
    max_leaves=8,
)
FIELDS = [
    *["id", "finish_reason", "completion_tokens", "output_token_logprobs", "weight_version"],
    *["weight_versions", "cached_tokens", "cached_tokens_details", "num_retractions"],
    *["spec_verify_ct", EXAMINED],
]
FINISHES = st.sampled_from(["stop", "length", "abort"]).flatmap(
    lambda kind: st.fixed_dictionaries({"type": st.just(kind), "matched": SCALARS})
)
ENTRIES = st.lists(st.tuples(NUMBERS | st.none(), NUMBERS, st.none()), max_size=6)
SPANS = st.lists(
    st.fixed_dictionaries(
        {"version": st.just("3"), "start": st.integers(-1, 4), "end": st.integers(-1, 4)}
    ),
    max_size=3,
)
MUTATIONS = st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=3)
PLAUSIBLE = st.fixed_dictionaries(
    {},
    optional={
        "finish_reason": FINISHES,
        "output_token_logprobs": ENTRIES,
        "completion_tokens": st.integers(-1, 6),
        "weight_versions": SPANS,
        "spec_verify_ct": st.integers(-1, 2),
        EXAMINED: st.lists(st.integers(-1, 6) | st.none(), max_size=3),
    },
)


@settings(deadline=None)
@given(
    meta=MUTATIONS | PLAUSIBLE,
    missing=st.sets(st.sampled_from(FIELDS), max_size=1),
    cuts=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3)), max_size=2),
    budget=st.integers(1, 5),
)
def test_whatever_a_server_replies_only_what_can_be_true_is_appended(
    meta: dict[str, Any], missing: set[str], cuts: list[tuple[int, bytes]], budget: int
) -> None:
    reply = true_reply(**meta)
    for key in missing:
        reply["meta_info"].pop(key, None)
    body = bytearray(msgspec.json.encode(reply))
    for at, new in cuts:
        body[at : at + len(new)] = new
    asked = chunk(budget)
    try:
        read = decode_generate(bytes(body), asked, VOCAB)
    except Unreadable:
        return
    asked.request.append(read)
    assert len(read.ids) <= budget
    assert bool(read.ids) or read.finish == "abort"
    assert all(0 <= token < VOCAB for token in read.ids)
    assert all(-float("inf") < logprob <= 1e-4 for logprob in read.logprobs)
    assert read.finish != "stop" or read.matched is not None


def test_every_sampling_parameter_travels_so_that_no_server_default_applies() -> None:
    own = Sampling(stop=["x"], stop_token_ids=[3], min_new_tokens=20)
    params = sampling_params(chunk(sampling=own), drafting=False)
    assert params["temperature"] == 1.0
    assert params["top_k"] == -1
    assert params["stop"] == ["x"]
    assert params["stop_token_ids"] == [3]
    assert params["max_new_tokens"] == params["min_new_tokens"] == 8, "the limits of this call"
    assert "custom_params" not in params
    assert "json_schema" not in params


@pytest.mark.parametrize(
    ("minimum", "generated", "sent"), [(0, 0, 0), (25, 0, 10), (25, 20, 5), (25, 30, 0)]
)
def test_min_new_tokens_is_what_is_left_of_it(minimum: int, generated: int, sent: int) -> None:
    asked = chunk(10, Sampling(min_new_tokens=minimum))
    if generated:
        asked.request.append(make_reply(generated))
    assert sampling_params(asked, drafting=False).get("min_new_tokens") == sent


def test_a_users_custom_params_stay_beside_ours() -> None:
    own = Sampling(custom_params={"their": [1]})
    assert sampling_params(chunk(sampling=own), drafting=False)["custom_params"] == {"their": [1]}
    both = sampling_params(chunk(sampling=own), drafting=True)["custom_params"]
    assert both.pop("their") == [1]
    assert both == {ORIGIN: {"group": "g", "sample": 0, "prompt_len": 10}}


@pytest.mark.parametrize("drafting", [False, True])
def test_a_chunk_whose_kv_is_computed_forbids_the_engine_to_read_it(drafting: bool) -> None:
    own = Sampling(custom_params={"their": [1]})
    reads = chunk(sampling=own)
    computes = msgspec.structs.replace(reads, reads=False)
    params = sampling_params(computes, drafting)["custom_params"]
    assert params[ORIGIN].pop(NO_READ) is True
    given = sampling_params(reads, drafting)["custom_params"]
    assert params == {**given, ORIGIN: given.get(ORIGIN, {})}
    assert own.custom_params == {"their": [1]}
