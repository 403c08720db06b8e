"""Ten rounds of slime's calls on two real engines, compared with a plain engine.

Where a response is cut by an abort depends on time. So each `/generate` is sent to the plain engine
too, with the weights of its round: the tokens are the same up to the cut.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from integrations.slime.client import Generated, Options, Sample, Slime
from seer_sgl import Rollout
from tests.e2e.calls import post
from tests.e2e.compare import LOGPROB_TOLERANCE, saved_steps
from tests.e2e.conftest import MODEL
from tests.e2e.draws import steps
from tests.e2e.held_out import prompts
from tests.e2e.rig import Rig
from tests.e2e.undivided import MOST_TIES, after, assert_near_tie, equal_tokens, generate
from tests.e2e.weights import other_weights
from tests.server.helpers import served_config

ROUNDS = 10
SIBLINGS = 4
OPTIONS = Options(
    rollout_batch_size=2,
    over_sampling_batch_size=4,
    n_samples_per_prompt=SIBLINGS,
    rollout_max_response_len=96,
    abort_retry_s=0.1,
)
UNFINISHED = "abort"


def reward(sample: Sample) -> float:
    """Returns a reward of the tokens; those of a group are sometimes equal."""
    return float(sum(sample.tokens) % 2)


def finish(meta: Mapping[str, Any]) -> tuple[str, Any]:
    """Returns why a response ended, and what it matched."""
    reason: dict[str, Any] = meta["finish_reason"]
    return reason["type"], reason.get("matched")


async def plain(url: str, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the answers of the plain engine."""
    room = asyncio.Semaphore(24)
    async with aiohttp.ClientSession() as session:

        async def answer(fields: dict[str, Any]) -> dict[str, Any]:
            async with room:
                return await generate(session, url, fields)

        return await asyncio.gather(*map(answer, bodies))


async def compare(url: str, call: Generated, answer: dict[str, Any]) -> int:
    """Asserts that a call has the tokens of the plain engine, up to an abort, but for near ties;
    returns their number.

    A response that continues after an abort is a new text in every run, so there can be near ties.
    """
    ours, theirs = (meta["output_token_logprobs"] for meta in (call.meta, answer["meta_info"]))
    place = equal_tokens(call.ids, [token for _, token, _ in theirs])
    pairs = zip(ours[:place], theirs[:place], strict=True)
    worst = max((abs(one[0] - other[0]) for one, other in pairs), default=0.0)
    assert worst < LOGPROB_TOLERANCE
    if place == len(call.ids):
        ended = finish(call.meta)[0] != UNFINISHED
        assert not ended or place == len(theirs)
        assert not ended or finish(call.meta) == finish(answer["meta_info"])
        return 0
    assert place < len(theirs), "tokens behind the end"
    end = place + 1
    await assert_near_tie(url, call.body, call.ids[:end], theirs[place][1])
    if end == len(call.ids):
        return 1  # the engine cannot say how its other token would have ended
    limit = call.body["sampling_params"]["max_new_tokens"] - end
    body = after(call.body, call.ids[:end], limit) | {"return_logprob": True}
    meta = {**call.meta, "output_token_logprobs": ours[end:]}
    (other,) = await plain(url, [body])
    return 1 + await compare(url, Generated(call.sample, body, call.ids[end:], meta), other)


@pytest.mark.shared_engines
async def test_ten_rounds_of_slime_have_the_samples_of_a_plain_engine(
    rig: Rig, tmp_path: Path
) -> None:
    folders = [str(MODEL), str(other_weights(tmp_path / "other", factor=1.1))]
    scheduling = {"chunk_tokens": 32, "max_inflight_per_engine": 5}
    config = rig.fleet(scheduling=scheduling) | {"server": {"port": 0}}
    kept, ties = [], 0
    with rig.weights_given_back():
        async with served_config(Rollout(config, gives_up=False)) as it:
            slime = Slime(
                it.session, it.url, it.url, prompts=prompts(40), reward=reward, options=OPTIONS
            )
            assert await slime.register() == {"num_gpus": 2, "tp_size": 2, "pp_size": 1}
            for version in range(ROUNDS):
                await slime.update_from_disk(folders[version % 2], version)
                kept += await slime.rollout()
            assert it.service.passthrough.counts == {}
        calls: dict[int, list[Generated]] = {version: [] for version in range(ROUNDS)}
        for call in slime.calls:
            (version,) = {span["version"] for span in call.meta["weight_versions"]} or {"0"}
            calls[int(version)].append(call)
        for place, folder in enumerate(folders):
            same = [call for version in range(place, ROUNDS, 2) for call in calls[version]]
            post(f"{rig.plain}/update_weights_from_disk", model_path=folder)
            answers = await plain(rig.plain, [call.body for call in same])
            for call, answer in zip(same, answers, strict=True):
                ties += await compare(rig.plain, call, answer)
    assert ties <= MOST_TIES
    assert all(calls.values())
    check_rounds(slime, kept)


def check_rounds(slime: Slime, kept: Sequence[Sequence[Sample]]) -> None:
    """Asserts that what the test is about has happened."""
    assert len(kept) == ROUNDS * OPTIONS.rollout_batch_size
    assert slime.dropped, "by the dynamic filter"
    counts = Counter(call.sample for call in slime.calls)
    continued = [sample for group in kept for sample in group if counts[sample] > 1]
    assert any(len(set(sample.weight_versions)) > 1 for sample in continued)
    assert sum(call.meta["seer"]["chunks"] > 1 for call in slime.calls) > len(slime.calls) / 4
    groups = defaultdict(set)
    for call in slime.calls:
        groups[call.sample.index // SIBLINGS].add(call.meta["seer"]["group"])
    assert all(len(names) == 1 for names in groups.values()), "also after an abort and an update"
    assert sum(saved_steps(call.meta) for call in slime.calls) > 0, "drafts were accepted"


@pytest.mark.long
@pytest.mark.shared_engines
async def test_with_its_siblings_known_a_rollout_takes_fewer_forward_passes(rig: Rig) -> None:
    options = Options(
        rollout_batch_size=4,
        over_sampling_batch_size=4,
        n_samples_per_prompt=8,
        rollout_max_response_len=300,
    )
    passes, tokens = [], []
    async with aiohttp.ClientSession() as session:
        for window_s in (0.0, 5.0):  # 0: every request is a group of its own
            rig.reset()
            config = rig.fleet() | {"server": {"port": 0, "group_window_s": window_s}}
            async with served_config(Rollout(config, gives_up=False)) as it:
                slime = Slime(
                    *(it.session, it.url, it.url),
                    prompts=prompts(40),
                    reward=lambda sample: float(sample.index),
                    options=options,
                )
                before = sum([await steps(session, url) for url in rig.urls])
                for _ in range(3):
                    await slime.rollout()
                passes.append(sum([await steps(session, url) for url in rig.urls]) - before)
            tokens.append(sorted(call.ids for call in slime.calls))
    assert tokens[0] == tokens[1] and len(tokens[0]) == 96
    print(f"{sum(map(len, tokens[0]))} tokens, forward passes without and with siblings: {passes}")
    assert passes[1] < passes[0]
