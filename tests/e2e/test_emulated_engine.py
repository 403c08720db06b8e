"""A drafting engine with the code of GPUs generates what a plain CPU engine generates.

tests/emulation states what is emulated and what it cannot show.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.config import FlagValue
from seer_sgl.engine.launch.exact import ROOT_ONLY
from tests.e2e.compare import LOGPROB_TOLERANCE
from tests.e2e.held_out import tokenizer
from tests.emulation.generate import Facts, assert_same, facts, generate
from tests.emulation.server import DRAFTING, EXACT, GRAPHS, LARGEST, WIDTHS, Settings, emulated

pytestmark = [pytest.mark.shared_engines, pytest.mark.long]

PROMPT = "<bos> gcd 6 5 4 , 6 1 9 ? <think>"
SEEDS = (7, 7, 7, 8)  # drafts from the first request fit the next two, and the last one in part
TOKENS = 40
T1: Mapping[str, Any] = {"temperature": 1.0}
TOKEN_BY_TOKEN: Mapping[str, Mapping[str, Any]] = {
    "penalty": {**T1, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    "bias": {**T1, "logit_bias": {"10": -2.0}},  # is sampled at all nodes
    "minimum": {**T1, "min_new_tokens": TOKENS // 2, "ignore_eos": False},
}
GRAMMAR: Mapping[str, Mapping[str, Any]] = {"regex": {**T1, "regex": "( [0-9]){400} ok"}}
GREEDY: Mapping[str, Any] = {"temperature": 0.0}


async def drafted(
    plain_url: str,
    folder: Path,
    flags: Mapping[str, FlagValue],
    *,
    paths: int = 4,
    exact: bool = False,
    seeds: tuple[int, ...] = SEEDS,
    sampling: Mapping[str, Any] = T1,
) -> Facts:
    """Compares the answers of an emulated engine with those of a plain one; returns its facts."""
    prompt = tokenizer().encode(PROMPT)
    plain = await generate(plain_url, prompt, seeds, TOKENS, **sampling)
    chosen = Settings(every_width=True)
    with emulated(folder, {**DRAFTING, **flags}, chosen, paths=paths, exact=exact) as url:
        assert (await facts(url)).draft["paths"] == paths
        answers = await generate(url, prompt, seeds, TOKENS, **sampling)
        found = await facts(url)
    assert_same(answers, plain, LOGPROB_TOLERANCE)
    assert sum(found.draft["accepted_by_position"]) > TOKENS // 2
    assert all(found.draft["steps"][str(width)] > 0 for width in WIDTHS)
    assert found.emulation["loops"] == {"event_loop_overlap": 1}
    assert found.emulation["late"] > 0
    assert_overlapped(found)
    return found


def assert_overlapped(found: Facts) -> None:
    """Asserts that no plain step after a plain one waits for the device; others wait once."""
    gaps, decoded = found.emulation["gaps"], found.emulation["decoded"]
    assert decoded["plain"] > 0
    assert gaps["plain"] == 0
    assert gaps.get("drafted", 0) <= decoded.get("drafted", 0)


def assert_replayed(found: Facts) -> None:
    """Asserts that every step of every width was a replay, and some of a graph for more requests.

    The measurement of the step times replays each graph once.
    """
    for width in map(str, WIDTHS):
        measured = len(GRAPHS)
        assert found.emulation["captured"][width] == len(GRAPHS)
        replayed = found.emulation["replayed"][width] - measured
        assert replayed == found.draft["steps"][width]
    assert found.emulation["padded"] > 0


async def test_overlapped_steps_graphs_and_triton_masks_of_every_width_change_no_token(
    engine_urls: list[str], tmp_path: Path
) -> None:
    found = await drafted(engine_urls[0], tmp_path, EXACT)
    assert_replayed(found)
    assert found.emulation["gaps"]["drafted"] > 0, "the counter counts"


async def test_chains_beside_steps_of_the_same_kernel_change_no_token(
    engine_urls: list[str], tmp_path: Path
) -> None:
    found = await drafted(engine_urls[0], tmp_path, EXACT, paths=1, exact=True)
    assert_replayed(found)
    assert "DECODE" not in found.emulation["eager"]


async def test_the_kernels_without_deterministic_inference_change_no_greedy_token(
    engine_urls: list[str], tmp_path: Path
) -> None:
    assert_replayed(await drafted(engine_urls[0], tmp_path, {}, sampling=GREEDY))


async def test_a_batch_beyond_the_graphs_runs_without_one_at_every_width(
    engine_urls: list[str], tmp_path: Path
) -> None:
    flags = {**EXACT, "max-running-requests": LARGEST + 2}
    seeds = (7, 7, 7, 8, 8, 9, 9)  # after the first, six at once
    found = await drafted(engine_urls[0], tmp_path, flags, seeds=seeds)
    assert found.emulation["eager"]["TARGET_VERIFY"] > 0
    assert all(found.emulation["replayed"][str(width)] > 0 for width in WIDTHS)


async def test_an_engine_without_graphs_verifies_every_width(
    engine_urls: list[str], tmp_path: Path
) -> None:
    flags = {**EXACT, "disable-cuda-graph": True}
    found = await drafted(engine_urls[0], tmp_path, flags)
    assert found.emulation["captured"] == {}
    assert found.emulation["eager"]["TARGET_VERIFY"] > 0


@pytest.mark.parametrize("kinds", [TOKEN_BY_TOKEN, GRAMMAR], ids=["penalties", "grammar"])
async def test_what_depends_on_earlier_tokens_is_sampled_token_by_token(
    engine_urls: list[str], tmp_path: Path, kinds: Mapping[str, Mapping[str, Any]]
) -> None:
    prompt = tokenizer().encode(PROMPT)
    with emulated(tmp_path, {**DRAFTING, **EXACT}, Settings(every_width=True)) as url:
        for kind, sampling in kinds.items():
            plain = await generate(engine_urls[0], prompt, SEEDS, TOKENS, **sampling)
            answers = await generate(url, prompt, SEEDS, TOKENS, **sampling)
            assert_same(answers, plain, LOGPROB_TOLERANCE, kind)
        found = await facts(url)
    assert found.emulation["eager"].get("TARGET_VERIFY", 0) == 0


async def test_a_plain_engine_that_is_exact_verifies_the_root_alone_and_changes_no_token(
    engine_urls: list[str], tmp_path: Path
) -> None:
    prompt, seeds = tokenizer().encode(PROMPT), (7, 8, 9, 10)
    plain = await generate(engine_urls[0], prompt, seeds, TOKENS, **T1)
    with emulated(tmp_path, {**EXACT, **ROOT_ONLY}, Settings()) as url:
        answers = await generate(url, prompt, seeds, TOKENS, **T1)
        found = await facts(url)
    assert_same(answers, plain, LOGPROB_TOLERANCE)
    assert found.draft is None
    assert found.emulation["captured"] == {"1": len(GRAPHS)}
    assert found.emulation["replayed"]["1"] >= 2 * (TOKENS - 1)
    assert "DECODE" not in found.emulation["eager"]
    assert_overlapped(found)
