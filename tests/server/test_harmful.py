"""What would end an engine is refused, also when a request is sent on as it is."""

from typing import Any

import msgspec
import pytest

from seer_sgl.server.errors import BadRequest
from seer_sgl.server.harmful import READ, require_harmless
from seer_sgl.types import EngineInfo
from tests.fake_sglang import FakeSGLang
from tests.server.helpers import served

VOCABULARY = 100


def request(**fields: Any) -> dict[str, Any]:
    return dict.fromkeys(READ) | fields


async def engine() -> EngineInfo:
    async with served(FakeSGLang()) as it:
        (info,) = it.service.infos()
    return info


@pytest.mark.parametrize(
    ("ids", "params", "named"),
    [
        ([-1], {}, "input_ids"),
        ([5, VOCABULARY], {}, "input_ids"),
        ([[5], [VOCABULARY]], {}, "input_ids"),
        ([[5], []], {}, "input_ids"),
        ([5], {"max_new_tokens": 4.0}, "max_new_tokens"),
        ([5], {"beam_width": 1.5}, "beam_width"),
        ([5], {"json_schema": {"type": "object"}}, "json_schema"),
        ([5], {"skip_special_tokens": "yes"}, "skip_special_tokens"),
        ([5], {"top_k": 1 << 31}, "top_k"),
        ([5], {"min_p": 0.1}, "min_p"),
        ([5], {"stop_token_ids": [VOCABULARY], "min_new_tokens": 1}, "stop_token_ids"),
        ([5], {"stop_token_ids": [-1], "min_new_tokens": 1}, "stop_token_ids"),
        ([5], {"logit_bias": {"5": None}}, "logit_bias"),
        ([5], {"logit_bias": [1]}, "logit_bias"),
        ([5], {"stop_regex": "(a+)+$"}, "stop_regex"),
        ([5], {"stop_regex": ["x", "(?:a|[ab]c)*d"]}, "stop_regex"),
    ],
)
async def test_what_ends_an_engine_is_refused_by_name(
    ids: list[Any], params: dict[str, Any], named: str
) -> None:
    info = msgspec.structs.replace(await engine(), vocab_size=VOCABULARY)
    for parameters in (params, [{}, params]):
        with pytest.raises(BadRequest, match=f"^{named}: "):
            require_harmless(request(input_ids=ids, sampling_params=parameters), [info])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"logprob_start_len": -2}, "logprob_start_len"),
        ({"top_logprobs_num": VOCABULARY + 1}, "top_logprobs_num"),
        ({"top_logprobs_num": [1]}, "top_logprobs_num"),
        ({"logprob_start_len": [0]}, "logprob_start_len"),
    ],
)
async def test_log_probabilities_that_end_an_engine_are_refused_where_they_are_wanted(
    fields: dict[str, Any], named: str
) -> None:
    info = msgspec.structs.replace(await engine(), vocab_size=VOCABULARY)
    require_harmless(request(input_ids=[5], **fields), [info])
    with pytest.raises(BadRequest, match=f"^{named}: "):
        require_harmless(request(input_ids=[5], return_logprob=True, **fields), [info])
    with pytest.raises(BadRequest, match="positional_embed_overrides"):
        require_harmless(request(input_ids=[5], positional_embed_overrides=[1]), [info])
    batch = request(input_ids=[[5]], return_logprob=True, top_logprobs_num=[1])
    require_harmless(batch, [info])


@pytest.mark.parametrize(
    "params",
    [
        {"max_new_tokens": 0, "min_new_tokens": 0, "top_k": -1, "min_p": 0.0},
        {"stop_token_ids": [VOCABULARY]},
        {"stop_regex": ["\\n\\n+Q: \\d+", "(END|STOP)+", "a{1,3}b+"], "logit_bias": {"5": -1.5}},
        {"a name of tomorrow": [1.5]},
        None,
        "not an object",
    ],
)
async def test_what_sglang_takes_or_refuses_itself_goes_through(params: Any) -> None:
    require_harmless(request(input_ids=[5], sampling_params=params), [await engine()])
    require_harmless(request(sampling_params=params), [await engine()])


async def test_a_divided_request_has_no_stop_outside_the_vocabulary_beside_a_least_length() -> None:
    fake = FakeSGLang()
    params = {"stop_token_ids": [VOCABULARY], "min_new_tokens": 1}
    async with served(fake) as it:
        for each in it.service.fleet.engines:
            each._info = msgspec.structs.replace(each.info, vocab_size=VOCABULARY)
        status, reply = await it.post("/generate", input_ids=[5], sampling_params=params)
    assert (status, reply["error"]["message"][:15]) == (400, "stop_token_ids:")
    assert not fake.seen
