"""A speculative run stops where plain decoding would have stopped, and the reply reports where an
aborted step began and how SGLang counts stop strings."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seer_sgl.link.contract import EXAMINED, STOP_TOKENS
from seer_sgl.plugin.stop_conditions import report_abort_position, report_window
from tests.e2e.conftest import MODEL
from tests.tokenizers.byte_rows import ROWS

from .probe import run_probe

CASES = 2000
# Parts of characters of two, three and four bytes, a line feed, a letter and both in one token.
PARTS = [0xC3, 0xA9, 0xE6, 0x97, 0xF0, 0xCC, 0x81, ord("\n"), ord("a"), 256]

# Runs the hook, the scheduler's output of two requests and the tokenizer manager with SGLang's own
# classes, in a process of its own (see test_attention.py). The first request is aborted in a step
# of five tokens; the second one is flushed beside it and aborted later.
META_PROBE = """
import json
from array import array
from types import SimpleNamespace
from seer_sgl.plugin import cpu, stop_conditions
cpu.prepare()
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.managers.scheduler_components.output_streamer import _GenerationStreamAccumulator
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

for hook in stop_conditions.hooks():
    HookRegistry.register(hook.target, hook.function, HookType(hook.kind))
HookRegistry.apply_hooks()
params = SamplingParams(max_new_tokens=500)
reqs = {rid: Req(rid, "", array("q", [1]), params, vocab_size=1000) for rid in "ab"}
meta = {rid: {} for rid in reqs}
states = {rid: SimpleNamespace(customized_info_accumulated={}) for rid in reqs}

def step(rid, tokens, abort=False):
    req = reqs[rid]
    req.output_ids.extend([7] * tokens)
    if abort:
        req.to_finish = FINISH_ABORT()
        req.update_finish_state(tokens)

def send(*rids):
    sent = _GenerationStreamAccumulator(
        return_logprob=False, return_hidden_states=False, return_routed_experts=False,
        return_indexer_topk=False, return_sampling_mask=False,
        spec_algorithm=SpeculativeAlgorithm.NONE, disaggregation_mode=DisaggregationMode.NULL,
        default_stream_interval=1, default_force_stream_interval=50,
        get_cached_tokens_details=lambda _: None, rust_server_mode=True, current_weight_version="v",
    )
    for rid in rids:
        sent.accept(req=reqs[rid])
    for i, rid in enumerate(sent.rids):
        TokenizerManager.update_request_meta_info(
            TokenizerManager, meta[rid], states[rid], sent.customized_info, i, None
        )

step("a", 50), step("b", 50), send("a", "b")
step("a", 3), step("a", 5, abort=True), step("b", 50), send("b", "a")
step("b", 1, abort=True), send("b")
print(json.dumps(meta))
"""

# A grammar ends with the end token; with `ignore_eos` SGLang's plain decoding draws one token more.
# SGLang's result processor shows a grammar the token of a step before or behind the check.
GRAMMAR_PROBE = """
from array import array
from types import SimpleNamespace
from seer_sgl.plugin import cpu, stop_conditions
cpu.prepare()
from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler_components.batch_result_processor import (
    SchedulerBatchResultProcessor as Results,
)
from sglang.srt.sampling.sampling_params import SamplingParams

EOS = 2

class Grammar(BaseGrammarObject):
    ended = False

    def accept_token(self, token):
        self.ended |= token == EOS

    def is_terminated(self):
        return self.ended

def end(tokens, speculative):
    params = SamplingParams(max_new_tokens=9, ignore_eos=True)
    params.normalize(None)
    req = Req("r", "", array("q", [1]), params, vocab_size=1000)
    req.grammar = Grammar()
    for number, token in enumerate(tokens):
        early = speculative and number > 0  # the first token is that of the prefill
        if early:
            stop_conditions.note_open_grammars(SimpleNamespace(reqs=[req], has_grammar=True))
            Results._accept_grammar_tokens(None, req, [token])
        req.output_ids.append(token)
        stop_conditions.check_for_end(Req.update_finish_state, req)
        if req.finished():
            return list(req.output_ids), req.finished_reason.to_json()
        if not early:
            Results._accept_grammar_tokens(None, req, [token])

for before in ([], [5], [5, 6]):
    whole = [*before, EOS, 7], {"type": "stop", "matched": 7}
    drawn = [*before, EOS, 7, 8, 9]
    assert end(drawn, False) == whole
    assert end(drawn, True) == whole, (before, end(drawn, True))
"""


@pytest.mark.process
def test_a_grammar_ends_a_response_of_a_drafting_engine_where_it_ends_a_plain_one() -> None:
    run_probe("-c", GRAMMAR_PROBE)


@pytest.mark.process
def test_runs_of_any_size_and_chunks_of_any_size_end_as_token_by_token(tmp_path: Path) -> None:
    """The program asserts the identity of every case; this test checks the counts of outcomes."""
    models = json.dumps({str(MODEL): [], str(ROWS[0].make(tmp_path)): PARTS})
    words, parts = run_probe("-m", "tests.plugin.stop_cases", str(CASES), models)
    for seen in (words, parts):
        assert seen["stock differs"] > CASES / 50, "the cases must cover a difference"
        assert seen["divided"] > CASES / 2
        for end in ("stop str", "stop int", "length NoneType"):
            assert seen[end] > CASES / 50, end


@pytest.mark.process
def test_the_report_arrives_through_sglangs_own_way_into_meta_info() -> None:
    meta = run_probe("-c", META_PROBE)
    assert meta == {"a": {EXAMINED: [53] * 8}, "b": {EXAMINED: [None] * 50 + [100]}}


def request(tokens: int, **fields: Any) -> Any:
    """Returns a running request with so many tokens."""
    plain = {"to_finish": None, "finished_reason": None, "customized_info": None}
    return SimpleNamespace(output_ids=[5] * tokens, **{**plain, **fields})


def test_an_aborted_request_reports_its_tokens_before_the_step() -> None:
    aborted = request(7, to_finish="abort")
    report_abort_position(aborted, 3)
    assert aborted.customized_info == {EXAMINED: [4] * 7}
    plain = request(7, to_finish="abort", customized_info={"of others": [0] * 7})
    report_abort_position(plain, 1)
    assert plain.customized_info == {"of others": [0] * 7, EXAMINED: [6] * 7}
    early = request(0, to_finish="abort")
    report_abort_position(early, 1)
    assert early.customized_info == {EXAMINED: []}


def test_no_other_request_reports_where_its_step_began() -> None:
    for other in (request(7), request(7, to_finish="abort", finished_reason="stop")):
        report_abort_position(other, 3)
        assert other.customized_info is None


@pytest.mark.parametrize(
    ("finished", "stops", "counts"),
    [("length", ["stop"], {STOP_TOKENS: [4, 4, 4]}), (None, ["stop"], {}), ("length", [], {})],
    ids=["finished", "running", "without stop strings"],
)
def test_a_finished_request_reports_sglangs_count_of_its_stop_strings_tokens(
    finished: str | None, stops: list[str], counts: dict[str, list[int]]
) -> None:
    params = SimpleNamespace(stop_strs=stops, stop_str_max_len=4)
    others = {"other": [1, 2, 3]}
    req = request(3, finished_reason=finished, sampling_params=params, customized_info=dict(others))
    report_window(req)
    assert req.customized_info == others | counts
