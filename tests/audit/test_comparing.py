"""The figures of an audit: temperatures, differences, near ties and limits."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.audit.audit_report import PassReport
from seer_sgl.audit.client import Generated
from seer_sgl.audit.first_difference import equal_tokens, first_difference
from seer_sgl.audit.formats import SampleFile
from seer_sgl.audit.log_prob_figures import LogProbFigures, log_prob_figures
from seer_sgl.audit.plan import plan
from seer_sgl.audit.recorded import RecordedSample
from seer_sgl.audit.rescale import rescaled
from seer_sgl.audit.served import ServedModel, provenance
from seer_sgl.audit.thresholds import exceeded, read_limits
from seer_sgl.errors import ConfigError
from seer_sgl.sampling import Sampling
from seer_sgl.types import WeightSpan

GREEDY = Sampling(temperature=0.0)
SERVED = ServedModel(url="http://x", sglang_version="1", model_path="m", weight_version="v1")


def recorded(ids: list[int], **options: object) -> RecordedSample:
    log_probs = np.full(len(ids), -1.0)
    return RecordedSample(
        name="s",
        prompt_ids=[1, 2],
        response_ids=ids,
        log_probs=log_probs,
        **options,  # type: ignore[arg-type]
    )


def again(ids: list[int]) -> Generated:
    return Generated(ids, np.full(len(ids), -0.9), 0)


@given(
    logits=st.lists(st.floats(-8, 8), min_size=8, max_size=40),
    temperature=st.floats(0.2, 3.0),
    candidates=st.integers(1, 8),
    token=st.integers(0, 7),
)
def test_rescaling_is_wrong_by_at_most_the_error_that_it_names(
    logits: list[float], temperature: float, candidates: int, token: int
) -> None:
    values = np.array(logits)
    one = values - np.log(np.exp(values).sum())
    hot = values / temperature
    exact = (hot - np.log(np.exp(hot).sum()))[token]
    top = np.sort(one)[::-1][:candidates][None]
    result = rescaled(one[[token]], top, temperature, complete=False)
    assert -1e-9 <= result.log_probs[0] - exact <= result.error[0] + 1e-9
    whole = rescaled(one[[token]], np.sort(one)[None], temperature, complete=True)
    assert whole.log_probs[0] == pytest.approx(exact, abs=1e-9)
    assert whole.error[0] == 0


def test_figures_of_known_differences() -> None:
    figures = log_prob_figures(np.array([0.0, 0.5, -0.1, math.nan]), clip=0.2)
    assert figures is not None
    assert (figures.tokens, figures.max) == (3, 0.5)
    assert figures.mean == pytest.approx(0.2)
    assert figures.kl == pytest.approx((math.expm1(0.5) - 0.5 + math.expm1(-0.1) + 0.1) / 3)
    assert figures.clipped == pytest.approx(1 / 3)
    assert log_prob_figures(np.array([math.nan]), clip=0.2) is None


def test_a_greedy_gap_is_the_difference_of_two_log_probabilities() -> None:
    sample = recorded([5, 6, 7], sampling=GREEDY)
    server = np.array([-1.0, -0.95, -1.0])
    found = first_difference(sample, again([5, 8, 7]), server, tie=0.06)
    assert found is not None
    assert (found.position, found.recorded, found.generated) == (1, 6, 8)
    assert found.gap == pytest.approx(0.05)
    assert found.near_tie
    assert (found.tokens_after, found.agree_after) == (1, 1.0)
    assert first_difference(sample, again([5, 6, 7]), server, tie=0.06) is None
    assert equal_tokens([5, 6, 7], [5, 6, 9]) == 2


def test_a_gap_that_the_noise_does_not_explain_is_unknown() -> None:
    sample = recorded([5], sampling=GREEDY)
    found = first_difference(sample, again([8]), np.array([-0.1]), tie=0.06)
    assert found is not None, "the server's own token is the less likely one"
    assert (found.gap, found.near_tie) == (None, None)


def test_a_sample_of_as_many_tokens_as_sglang_refuses_is_left_out() -> None:
    samples = [recorded([5, 6], sampling=GREEDY), recorded([5, 6, 7], sampling=GREEDY)]
    file = SampleFile(format="JSON lines", total=2, samples=samples, left_out={})
    served = msgspec.structs.replace(SERVED, longest=5)  # two tokens are the prompt's
    chosen = plan(file, served, None)
    assert [sample.response_ids for sample in chosen.samples] == [[5, 6]]
    assert chosen.left_out == {"longer than the server accepts": 1}


def test_limits_are_read_and_checked() -> None:
    assert read_limits(["max=1e-3", "changed=0"]) == {"max": 1e-3, "changed": 0}
    for wrong in ("max", "mox=1", "max=x", "max=-1", "max=nan"):
        with pytest.raises(ConfigError, match="--fail"):
            read_limits([wrong])


def test_a_limit_holds_for_the_worst_pass_and_for_something_measured() -> None:
    figures = [
        LogProbFigures(tokens=1, mean=mean, p99=mean, max=mean, kl=0.0, clipped=0.0)
        for mean in (0.1, 0.3)
    ]
    passes = [
        PassReport(name="p", samples=1, tokens=1, cached_tokens=0, log_probs=each)
        for each in figures
    ]
    weights = provenance([recorded([1])], SERVED)
    assert exceeded({"mean": 0.3, "kl": 0.0}, passes, weights) == []
    assert exceeded({"mean": 0.2}, passes, weights) == ["mean: 0.3, more than 0.2"]
    assert exceeded({"changed": 5}, passes, weights) == [
        "changed: nothing was compared that it could limit"
    ]


@pytest.mark.parametrize(
    ("spans", "line"),
    [
        ([], "weights: the samples name no version"),
        ([WeightSpan("v1", 2)], "weights: samples and server have version 'v1'"),
        ([WeightSpan("v0", 1), WeightSpan("v1", 1)], "weights: DIFFERENT: 1 of 1 samples"),
        (
            [WeightSpan("v0", 0), WeightSpan("v1", 2)],
            "weights: samples and server have version 'v1'",
        ),
    ],
)
def test_weights_are_compared_in_one_line(spans: list[WeightSpan], line: str) -> None:
    found = provenance([recorded([1, 2], spans=spans)], SERVED)
    assert found.line.startswith(line)
    assert "no digests to compare" in found.line


def test_a_sample_of_several_weight_versions_has_tokens_of_other_weights() -> None:
    samples = [recorded([1, 2], mixed=["v0", "v1"]), recorded([1, 2], spans=[WeightSpan("v1", 2)])]
    found = provenance(samples, SERVED)
    assert found.other_samples == 1
    assert found.line.startswith("weights: DIFFERENT: 1 of 2 samples have tokens of other weights")
    assert "('v0', 'v1')" in found.line
    assert found.versions == {"": 2, "v1": 2}
