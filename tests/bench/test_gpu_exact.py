"""Comparing samples on a GPU machine: the combinations, and what is said about a difference."""

import pytest

from bench.gpu.combinations import PLAIN, WAYS, Setup, Work, config, engines, kinds, placement
from bench.gpu.exact import line
from bench.gpu.shares import Difference, Response, Spread, difference, parting
from seer_sgl.config import parse

SETUPS = ["triton-float32", "triton-bfloat16-greedy", "fa3-bfloat16", "torch_native-float32"]


def said(tokens: list[int], logprob: float = -1.0) -> Response:
    return Response(tokens, [logprob] * len(tokens))


def test_identical_samples_differ_in_their_log_probabilities_only() -> None:
    one = {"a/0": said([1, 2, 3], -1.0), "a/1": said([4], -2.0)}
    other = {"a/0": said([1, 2, 3], -1.5), "a/1": said([4], -2.0), "not in one": said([5])}
    assert difference(one, other) == Difference(2, 2, Spread(0.0, 0.25, 0.5), None, None)


def test_a_sample_that_parts_counts_up_to_there() -> None:
    one = {"a/0": Response([1, 2, 3, 4], [-1.0, -1.0, -1.0, -1.0])}
    other = {"a/0": Response([1, 2, 9, 9], [-1.0, -1.25, -3.0, -9.0])}
    found = difference(one, other)
    assert (found.samples, found.identical) == (1, 0)
    assert found.parts_at == Spread(2, 2, 2)
    assert found.logprob_gap == Spread(0.25, 0.25, 0.25)
    assert found.gap_there == Spread(2.0, 2.0, 2.0)


def test_a_sample_that_ends_early_parts_at_its_end() -> None:
    assert parting([1, 2], [1, 2, 3]) == 2
    assert difference({"a": said([1])}, {"a": said([1, 2])}).gap_there is None
    assert difference({}, {}) == Difference(0, 0, None, None, None)


@pytest.mark.parametrize("name", SETUPS)
def test_every_way_of_every_setup_is_a_valid_rollout(name: str) -> None:
    setup = Setup.parse(name)
    for servers in kinds(setup):
        trees = [config(setup, servers, way, Work()) for way in WAYS[servers]]
        fleets = {repr(parse(tree).fleet) for tree in trees}
        assert len(fleets) == 1, "the ways of one kind share its engines"
        for way, tree in zip(WAYS[servers], trees, strict=True):
            assert parse(tree).scheduling.divide == (way.moves is not None)
            assert (placement(servers, way) is None) == (way.moves is None)


def test_setups_are_read_from_their_names() -> None:
    assert [Setup.parse(name).name for name in SETUPS] == SETUPS
    assert Setup.parse("triton-float32") == Setup("triton", "float32", True)
    assert Setup.parse("torch_native-float32-greedy") == Setup("torch_native", "float32", False)
    for name in ("triton", "triton-fp32", "triton-float32-sampled"):
        with pytest.raises(ValueError, match="BACKEND-DTYPE"):
            Setup.parse(name)


def test_what_a_setup_cannot_do_is_left_out() -> None:
    assert "trees" in [servers.name for servers in kinds(Setup.parse("triton-float32"))]
    assert "trees" not in [servers.name for servers in kinds(Setup.parse("fa3-bfloat16"))]
    assert kinds(Setup.parse("triton-float32"))[0] == PLAIN
    exact = [setup for setup in SETUPS if any(one.exact for one in kinds(Setup.parse(setup)))]
    assert exact == ["triton-float32", "fa3-bfloat16"], "elsewhere the key is refused"
    with pytest.raises(ValueError, match="no engines 'forests'"):
        kinds(Setup.parse("triton-float32"), ["forests"])


def test_float32_is_not_computed_in_tf32() -> None:
    assert engines(Setup.parse("triton-float32"))["environment"] == {"TRITON_F32_DEFAULT": "ieee"}
    assert "environment" not in engines(Setup.parse("triton-bfloat16"))


def test_each_row_is_shown_in_one_line() -> None:
    row = {"setup": "triton-float32", "servers": "plain"}
    assert line(row | {"start_s": 33.3}) == "triton-float32, plain: up after 33 s"
    assert line(row | {"error": "no kernel\nthe log"}) == "triton-float32, plain: no kernel"
    shares = {"as_plain": None, "as_exact": None, "as_first": {"identical": 3, "samples": 4}}
    assert line(row | {"way": "whole"} | shares) == "triton-float32, plain, whole: 3/4 as its first"
