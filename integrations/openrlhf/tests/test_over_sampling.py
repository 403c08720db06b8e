"""Dynamic filtering with prompts ahead: it has no serial tail, and loses no prompt."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from fake_fleet import FakeClient
from sampling import Sampling, Setup, sampling, update
from seer_openrlhf.ahead import reserve_of

PROMPTS = [f"prompt {number}" for number in range(24)]


class Judge:
    """An executor that scores a prompt's samples, as a reward function does.

    `rejected`: the numbers of the prompts whose samples all get the score 0; others get 0.5.
    """

    def __init__(self, rejected: set[int]) -> None:
        from openrlhf.utils.agent import SingleTurnAgentExecutor

        self._executor = SingleTurnAgentExecutor()
        self._rejected = rejected

    async def execute(self, *, label: str, **call: Any) -> Any:
        response = await self._executor.execute(label=label, **call)
        score = 0.0 if int(label) in self._rejected else 0.5
        return {**response, "reward": score, "scores": score}


def setup(over_sampling: float, rejected: set[int], **options: Any) -> Setup:
    options = {"prompts": PROMPTS, "filtering": True, **options}
    return Setup(over_sampling=over_sampling, executor=Judge(rejected), **options)


def used(samples: list[Any]) -> list[int]:
    return [int(label) for sample in samples for label in sample.labels]


def in_progress(fleet: FakeClient) -> list[str]:
    return [group["id"] for body in fleet.rollouts for group in body["groups"]]


def test_one_means_the_batches_of_openrlhf() -> None:
    with sampling(setup(1.0, {1, 4})) as run:
        samples, rate, consumed, end = run.generator.generate_samples(max_len=64, max_new_tokens=8)
        assert used(samples) == [0, 0, 2, 2, 3, 3, 5, 5]
        assert (round(rate or 0), consumed, end) == (133, 6, False)
        assert run.loader.state_dict()["seer_openrlhf"]["left_over"] == []


def test_replacements_are_in_progress_before_the_first_group_ends() -> None:
    fleet = FakeClient()
    with sampling(setup(1.5, {0}, fleet=fleet)) as run:
        run.batch()
    assert [len(body["groups"]) for body in fleet.rollouts[:1]] == [6]


def test_a_batch_ends_without_the_groups_that_are_not_needed() -> None:
    fleet = FakeClient()
    fleet.gates = {"1": asyncio.Event(), "2": asyncio.Event()}  # they never end
    with sampling(setup(1.5, set(), fleet=fleet)) as run:
        samples = run.batch()
        assert used(samples) == [0, 0, 3, 3, 4, 4, 5, 5]
        assert run.front.get_num_unfinished_requests() == 0
        left_over = run.loader.state_dict()["seer_openrlhf"]["left_over"]
        assert [label for _, label, _ in left_over] == ["1", "2"]
        fleet.gates.clear()
        assert used(run.batch())[:4] == [1, 1, 2, 2]
    assert fleet.aborted == {"1": 2, "2": 2}


class ClosedLate:
    """The front, whose batches are closed only when nothing is in progress."""

    def __init__(self, run: Sampling) -> None:
        self._ray = run.ray
        self._front = run.ray.actor(run.front)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._front, name)

    @property
    def close_batch(self) -> Any:
        while self._ray.get(self._front.get_num_unfinished_requests.remote()):
            time.sleep(0.001)
        return self._front.close_batch


def test_groups_that_were_ready_count_in_the_next_batch_and_are_not_generated_again() -> None:
    fleet = FakeClient()
    with sampling(setup(1.5, set(), fleet=fleet)) as run:
        run.generator._front = ClosedLate(run)
        first = set(used(run.batch()))
        left = set(range(6)) - first
        update(run, "1")
        second = run.batch()
    assert left < set(used(second)) and not first & set(used(second))
    assert [len(body["groups"]) for body in fleet.rollouts] == [6, 4]  # of 6: 2 were ready
    for sample in second:
        assert sample.info["seer_staleness"].item() == (int(sample.labels[0]) in left)


def batches(run: Sampling) -> list[tuple[list[int], int]]:
    """Returns of all batches of an episode the prompts used, and how many were consumed."""
    found, end = [], False
    while not end:
        samples, _, consumed, end = run.generator.generate_samples(max_len=64, max_new_tokens=8)
        found.append((used(samples)[::2], consumed))
    return found


@pytest.mark.parametrize("over_sampling", [1.0, 1.25, 2.0, 7.0])
@pytest.mark.parametrize("rejected", [set(), {0, 1, 2, 5, 9, 17}, set(range(24))])
def test_every_prompt_of_an_episode_is_judged_once(
    over_sampling: float, rejected: set[int]
) -> None:
    with sampling(setup(over_sampling, rejected)) as run:
        found = batches(run)
    assert Counter(p for batch, _ in found for p in batch) == Counter(set(range(24)) - rejected)
    assert sum(consumed for _, consumed in found) == 24
    assert all(len(batch) == 4 for batch, _ in found[:-2])


@pytest.mark.parametrize("factor", [1.0, 2.0])  # of the resumed run
@pytest.mark.parametrize("done", range(1, 6))
def test_a_checkpoint_keeps_the_prompts_that_were_in_progress(done: int, factor: float) -> None:
    fleet = FakeClient()
    fleet.gates = {"0": asyncio.Event()}
    with sampling(setup(2.0, set(), fleet=fleet)) as run:
        first = [prompt for _ in range(done) for prompt in used(run.batch())[::2]]
        state = run.loader.state_dict()
    with sampling(setup(factor, set())) as resumed:
        resumed.loader.load_state_dict(state)
        rest = [prompt for batch, _ in batches(resumed) for prompt in batch]
        again = [prompt for batch, _ in batches(resumed) for prompt in batch]  # the next episode
    assert Counter([*first, *rest]) == Counter(range(24)) == Counter(again)


def test_an_evaluation_leaves_the_left_over_prompts_alone() -> None:
    fleet = FakeClient()
    fleet.gates = {"0": asyncio.Event()}
    with sampling(setup(1.5, set(), fleet=fleet)) as run:
        run.batch()
        fleet.gates.clear()
        held_out = run.evaluate()
        assert [sample.prompts[0] for sample in held_out[::3]] == ["held out 0", "held out 1"]
        assert 0 in used(run.batch())


@pytest.mark.parametrize(
    ("prompts", "factor", "reserve"),
    [(4, 1.0, 0), (4, 1.25, 1), (4, 1.3, 2), (10, 1.1, 1), (3, 4, 9)],
)
def test_the_reserve_is_rounded_up(prompts: int, factor: float, reserve: int) -> None:
    assert reserve_of(prompts, factor) == reserve
