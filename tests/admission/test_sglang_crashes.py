"""What would crash an engine is refused by name, also when a request passes through."""

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seer_sgl.admission.sglang_crashes import crashing
from seer_sgl.admission.sglang_fields import DROPPED, INTERNAL, GenerateFields, SamplingFields
from tests.support.infos import info

VOCABULARY = 100
ENGINE = msgspec.structs.replace(info("e0"), vocab_size=VOCABULARY)


def refused(fields: dict[str, Any]) -> str | None:
    """Returns the first field or parameter that an engine would crash on."""
    return next((refusal.key for refusal in crashing(fields, [ENGINE])), None)


@pytest.mark.parametrize(
    ("ids", "params", "named"),
    [
        ([-1], {}, "input_ids"),
        ([5, VOCABULARY], {}, "input_ids"),
        ([[5], [VOCABULARY]], {}, "input_ids"),
        ([[5], []], {}, "input_ids"),
        ([[5], 5], {}, "input_ids"),
        ([5], {"max_new_tokens": 4.0}, "max_new_tokens"),
        ([5], {"beam_width": 1.5}, "beam_width"),
        ([5], {"json_schema": {"type": "object"}}, "json_schema"),
        ([5], {"skip_special_tokens": "yes"}, "skip_special_tokens"),
        ([5], {"skip_special_tokens": 0}, "skip_special_tokens"),
        ([5], {"n": 0}, "n"),
        ([5], {"top_k": 1 << 31}, "top_k"),
        ([5], {"top_k": 3e9}, "top_k"),
        ([5], {"stream_interval": 0}, "stream_interval"),
        ([5], {"min_p": 0.1}, "min_p"),
        ([5], {"stop_token_ids": [VOCABULARY]}, "stop_token_ids"),
        ([5], {"stop_token_ids": [-1], "min_new_tokens": 1}, "stop_token_ids"),
        ([5], {"stop": ["x" * 10_000_000]}, "stop"),
        ([5], {"repetition_penalty": 1e-40}, "repetition_penalty"),
        ([5], {"logit_bias": {"5": None}}, "logit_bias"),
        ([5], {"logit_bias": {"5": 1e300}}, "logit_bias"),
        ([5], {"logit_bias": [1]}, "logit_bias"),
        ([5], {"custom_params": {"a": [[1]]}}, "custom_params"),
        ([5], {"custom_params": {"seer_sgl": {"group": "other"}}}, "custom_params"),
        ([5], {"stop_regex": "(a+)+$"}, "stop_regex"),
        ([5], {"stop_regex": ["x", "(?:a|[ab]c)*d"]}, "stop_regex"),
        ([5], {"stop_regex": ".*" * 24 + "z"}, "stop_regex"),
        ([5], {"json_schema": json.dumps({"pattern": "(" * 9999})}, "json_schema"),
        ([5], {"structural_tag": json.dumps({"a": "(" * 9999}), "regex": ""}, "structural_tag"),
        ([5], {"is_normalized": True}, "is_normalized"),
        ([5], {"a name of tomorrow": 1}, "a name of tomorrow"),
        ([5], [1], "sampling_params"),
    ],
)
def test_what_ends_an_engine_is_refused_by_name(
    ids: list[Any], params: dict[str, Any], named: str
) -> None:
    batch = ids if isinstance(ids[0], list) else [ids, ids]
    for fields in (
        {"input_ids": ids, "sampling_params": params},
        {"input_ids": batch, "sampling_params": [{}, params]},
    ):
        assert refused(fields) == named


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"text": "x", "input_ids": []}, "input_ids"),
        ({"text": "x", "input_ids": [[5]]}, "text and input_ids"),
        ({"text": []}, "text"),
        ({"text": "x", "lora_id": ["a"]}, "lora_id"),
        ({"text": "x", "lora_id": [None]}, "lora_id"),
        ({"text": "x", "http_worker_ipc": "ipc:///tmp/other"}, "http_worker_ipc"),
        ({"text": "x", "positional_embed_overrides": [1]}, "positional_embed_overrides"),
        ({"text": "x", "a_field_of_tomorrow": 1}, "a_field_of_tomorrow"),
        ({"text": "x", "stream": 1}, "stream"),
        ({"text": "x", "return_logprob": [True]}, "return_logprob"),
        ({"text": ["x", "y"], "return_logprob": [True]}, "return_logprob"),
        ({"text": "x", "rid": ["a"]}, "rid"),
        ({"text": "x", "rid": "HEALTH_CHECK_1"}, "rid"),
        ({"text": "x", "session_params": {"id": 5}}, "id"),
        ({"input_embeds": []}, "input_embeds"),
        ({"input_embeds": [[0.5], [0.5, 0.5]]}, "input_embeds"),
        ({"input_embeds": [[[0.5]], []]}, "input_embeds"),
        ({"input_embeds": [[0.5]], "session_params": {"id": "s"}}, "input_embeds"),
    ],
)
def test_fields_that_do_not_fit_one_another_are_refused(fields: dict[str, Any], named: str) -> None:
    assert refused(fields) == named


def test_log_probabilities_that_end_an_engine_are_refused() -> None:
    early = {"input_ids": [5], "logprob_start_len": -2}
    assert refused(early) is None  # ignored where no log probability is wanted
    assert refused({**early, "return_logprob": True}) == "logprob_start_len"
    for wanted in (False, True):  # another request of the batch may want some
        many = {"input_ids": [5], "top_logprobs_num": VOCABULARY + 1, "return_logprob": wanted}
        assert refused(many) == "top_logprobs_num"
    batch = {"input_ids": [[5]], "return_logprob": True, "top_logprobs_num": [1]}
    assert refused(batch) is None


@pytest.mark.parametrize(
    "params",
    [
        {"max_new_tokens": 0, "min_new_tokens": 0, "top_k": -1, "min_p": 0.0},
        {"stop_regex": ["\\n\\n+Q: \\d+", "(END|STOP)+", "a{1,3}b+"], "logit_bias": {"5": -1.5}},
        {"temperature": -1.0, "top_p": 7.0, "repetition_penalty": -1.0},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-20},
        dict.fromkeys(SamplingFields.__struct_fields__),
        None,
    ],
)
def test_what_sglang_takes_or_refuses_itself_goes_through(params: Any) -> None:
    assert refused({"input_ids": [5], "sampling_params": params}) is None
    assert refused({"sampling_params": params}) is None
    nothing = dict.fromkeys((*GenerateFields.__struct_fields__, *INTERNAL))
    assert refused(nothing | {"text": "x", "image_data": [{"url": "u"}]}) is None


def test_a_prompt_of_a_session_may_have_no_tokens_of_its_own() -> None:
    assert refused({"input_ids": [], "session_params": {"id": "s"}}) is None


def fields_in(source: str, name: str) -> list[str]:
    """Returns the fields of a class of SGLang, in order; it need not be importable."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("SGLang is not installed")
    tree = ast.parse((Path(spec.submodule_search_locations[0]) / "srt" / source).read_text())
    (found,) = (e for e in ast.walk(tree) if isinstance(e, ast.ClassDef) and e.name == name)
    return [
        each.target.id
        for each in found.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]


def test_every_field_of_sglang_is_known() -> None:
    ours = {"group_id", "group_size"}
    known = {*GenerateFields.__struct_fields__, *INTERNAL, *DROPPED}
    assert known - ours == {*fields_in("managers/io_struct.py", "GenerateReqInput")}
    fields = fields_in("sampling/sampling_params.py", "SamplingParams")
    set_by_itself = fields[fields.index("custom_params") + 1 :]
    assert {*fields} - {*set_by_itself} == {*SamplingFields.__struct_fields__}
    assert "is_normalized" in set_by_itself
