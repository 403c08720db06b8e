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
from tests.e2e.compare import LOGPROB_TOLERANCE
from tests.e2e.conftest import MODEL
from tests.e2e.rig import Rig
from tests.e2e.test_mixed import steps
from tests.e2e.test_server_weights import prompts
from tests.e2e.undivided import assert_same_but_for_ties
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


def finish(meta: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = meta["finish_reason"]
    return found


async def plain(url: str, folder: str, calls: Sequence[Generated]) -> list[dict[str, Any]]:
    """Returns the answers of the plain engine, with the weights in a folder."""
    room = asyncio.Semaphore(24)
    async with aiohttp.ClientSession() as session:

        async def post(path: str, fields: dict[str, Any]) -> Any:
            async with room, session.post(f"{url}/{path}", json=fields) as reply:
                assert reply.status == 200, await reply.text()
                return await reply.json(content_type=None)

        await post("update_weights_from_disk", {"model_path": folder})
        found: list[dict[str, Any]] = await asyncio.gather(
            *(post("generate", call.body) for call in calls)
        )
    return found


async def compare(url: str, call: Generated, answer: dict[str, Any]) -> None:
    """Asserts that a call has the tokens of the plain engine, up to an abort.

    A response that goes on after an abort is a new text in every run. So there can be near ties.
    """
    meta = answer["meta_info"]
    whole = [token for _, token, _ in meta["output_token_logprobs"]]
    ended = finish(call.meta)["type"] != UNFINISHED
    if call.ids != (whole if ended else whole[: len(call.ids)]):
        params = {"max_new_tokens": len(call.ids), "ignore_eos": True}
        params = {**call.body["sampling_params"], **params}
        fields = {"input_ids": call.body["input_ids"], "sampling_params": params}
        assert await assert_same_but_for_ties(url, [fields], [call.ids]) > 0, "another ending"
        return
    if ended:
        assert finish(call.meta) == finish(meta)
    pairs = zip(call.meta["output_token_logprobs"], meta["output_token_logprobs"], strict=False)
    worst = max((abs(ours[0] - theirs[0]) for ours, theirs in pairs), default=0.0)
    assert worst < LOGPROB_TOLERANCE


@pytest.mark.shared_engines
async def test_ten_rounds_of_slime_have_the_samples_of_a_plain_engine(
    rig: Rig, tmp_path: Path
) -> None:
    folders = [str(MODEL), str(other_weights(tmp_path / "other", factor=1.1))]
    scheduling = {"chunk_tokens": 32, "max_inflight_per_engine": 5}
    config = rig.fleet(scheduling=scheduling) | {"server": {"port": 0}}
    kept = []
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
            for call, answer in zip(same, await plain(rig.plain, folder, same), strict=True):
                await compare(rig.plain, call, answer)
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
    drafted = [call.meta for call in slime.calls if call.meta.get("spec_verify_ct")]
    tokens = sum(meta["completion_tokens"] for meta in drafted)
    assert tokens - sum(meta["spec_verify_ct"] for meta in drafted) > 200, "steps that drafts saved"


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
