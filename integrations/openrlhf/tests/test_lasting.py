"""Batches whose server ends in the middle: every sample comes once, by the trainer's weights."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mortal_fleet import START, FakeTrainer, MortalFleet
from ray.exceptions import RayTaskError
from sampling import Sampling, Setup, sampling
from seer_openrlhf import revival
from seer_openrlhf.batch import SampleLost
from seer_openrlhf.client import ServerError
from seer_openrlhf.lasting import REPEATS

GROUPS, N = 4, 3


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(_: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(revival, "sleep", sleep)


@contextmanager
def trained(fleet: MortalFleet, version: str = "1") -> Iterator[tuple[Sampling, FakeTrainer]]:
    """Runs the sample path with a trainer that has sent its weights."""
    with sampling(Setup(fleet=fleet, batch_size=GROUPS, n=N, wait_s=60.0)) as run:
        trainer = FakeTrainer(run.front, version)
        run.ray.get(run.ray.actor(trainer).send.remote())
        trainer.sends = 0
        yield run, trainer
        run.ray.get(run.ray.actor(run.front._lasting).close.remote())


def sequences(samples: list[Any]) -> list[list[int]]:
    return [sample.sequences[0].tolist() for sample in samples]


def undisturbed() -> list[list[int]]:
    """Returns the samples of a batch whose server does not end."""
    with trained(MortalFleet()) as (run, _):
        return sequences(run.batch())


def info(samples: list[Any], name: str) -> set[float]:
    return {sample.info[name].item() for sample in samples}


@pytest.mark.parametrize("by_sigterm", [False, True])
@pytest.mark.parametrize("ends_after", [(5,), (0,), (11,), (3, 0, 4)])
def test_with_a_journal_the_rollout_continues(
    ends_after: tuple[int, ...], by_sigterm: bool
) -> None:
    fleet = MortalFleet(*ends_after, by_sigterm=by_sigterm)
    with trained(fleet) as (run, trainer):
        samples = run.batch()
    assert fleet.ends == trainer.sends == len(ends_after)
    assert sequences(samples) == undisturbed()
    assert len(fleet.generated_by) == len(set(fleet.generated_by)) == GROUPS * N
    assert {version for *_, version in fleet.generated_by} == {"1"}
    first, *others = fleet.rollouts
    assert others == [first] * len(ends_after)
    assert fleet.removed == [first["journal"]]
    assert info(samples, "seer_repeated_groups") == {0.0}
    (rate,), (seconds,) = info(samples, "seer_tokens_per_s"), info(samples, "seer_rollout_s")
    assert rate * seconds == pytest.approx(sum(each.response_length.item() for each in samples))
    (restored,) = info(samples, "seer_restored_tokens")
    assert (restored > 0) == (sum(ends_after) > 0)


@pytest.mark.parametrize("by_sigterm", [False, True])
def test_without_a_journal_unfinished_groups_are_made_anew(by_sigterm: bool) -> None:
    fleet = MortalFleet(2 * N + 1, journals=False, by_sigterm=by_sigterm)
    with trained(fleet) as (run, trainer):
        samples = run.batch()
    assert (fleet.ends, trainer.sends) == (1, 1)
    assert sequences(samples) == undisturbed()
    assert info(samples, "seer_repeated_groups") == {2.0}
    assert info(samples, "seer_restored_tokens") == {0.0}
    assert [len(body["groups"]) for body in fleet.rollouts] == [GROUPS, 2]
    times = Counter(group for group, *_ in fleet.generated_by)
    assert sorted(times.values()) == [N, N, N, N + 1]


def test_a_journal_of_older_weights_is_refused_and_no_group_is_mixed() -> None:
    fleet = MortalFleet(N + 1)
    with trained(fleet) as (run, trainer):
        trainer.version = "2"  # it has trained meanwhile
        samples = run.batch()
    versions = [sample.info["seer_newest_version"].item() for sample in samples]
    groups = [set(versions[place : place + N]) for place in range(0, GROUPS * N, N)]
    assert sorted(map(sorted, groups)) == [[1.0], [2.0], [2.0], [2.0]]
    assert sequences(samples) == undisturbed()  # the fake's tokens do not depend on weights
    first, again, fresh = fleet.rollouts
    assert first == again and len(fresh["groups"]) == GROUPS - 1
    assert sorted(fleet.removed) == sorted([first["journal"], fresh["journal"]])


def test_a_server_that_ended_between_two_batches_gets_the_weights_first() -> None:
    fleet = MortalFleet(away=0)
    with trained(fleet) as (run, trainer):
        run.batch()
        fleet.end()  # and it is back before anybody looks
        assert fleet.version == START
        run.batch()
    assert trainer.sends == 1
    assert {version for *_, version in fleet.generated_by} == {"1"}


def test_samples_by_other_weights_are_not_taken() -> None:
    fleet = MortalFleet()
    with trained(fleet) as (run, trainer):
        ready = run.front._revival.ready

        async def ready_before_the_end(*error: Any) -> bool:
            found = await ready(*error)
            if not fleet.ends:
                fleet.away = 0
                fleet.end()  # behind the back of the look
            return found

        vars(run.front._revival)["ready"] = ready_before_the_end
        samples = run.batch()
    assert trainer.sends == 1
    assert START in {version for *_, version in fleet.generated_by}
    assert info(samples, "seer_oldest_version") == {1.0}
    assert sequences(samples) == undisturbed()


def test_a_server_that_ends_again_and_again_ends_the_training() -> None:
    with (
        trained(MortalFleet(*[0] * (REPEATS + 1))) as (run, _),
        pytest.raises((ServerError, RayTaskError), match=f"repeated {REPEATS} times"),
    ):
        run.batch()


def test_without_waiting_the_end_of_the_server_is_an_error() -> None:
    fleet = MortalFleet(1)
    with (
        sampling(Setup(fleet=fleet)) as run,
        pytest.raises(ServerError, match=r"^/rollout: the connection has ended$"),
    ):
        run.batch()


BODY = {"input_ids": [1], "sampling_params": {"sampling_seed": 3, "max_new_tokens": 4}}


def test_a_later_turn_is_sent_again_with_the_weights() -> None:
    fleet = MortalFleet()
    with trained(fleet) as (run, trainer):
        ask = run.ray.actor(run.front._lasting).generate
        first = run.ray.get(ask.remote(BODY))
        fleet.end()
        assert run.ray.get(ask.remote(BODY)) == first
        fleet.end()
        trainer.version = "2"
        with pytest.raises(SampleLost):
            run.ray.get(ask.remote(BODY))
    assert trainer.sends == 2
