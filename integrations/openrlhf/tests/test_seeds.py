"""A run with the same weights and the same seed gives the same samples."""

import random
from typing import Any

from fake_fleet import FakeClient
from sampling import Sampling, Setup, sampling


def written(samples: list[Any]) -> list[tuple[str, list[int]]]:
    return [(sample.prompts[0], sample.sequences[0].tolist()) for sample in samples]


def run_of(setup: Setup, evaluate: bool = False) -> list[Any]:
    """Returns what two steps have written."""
    with sampling(setup) as run:
        first = written(run.batch())
        if evaluate:
            run.evaluate()
        return [first, written(run.batch())]


def disordered(seed: int, **options: Any) -> Setup:
    fleet = FakeClient(order=random.Random(seed), **options)
    return Setup(n=4, fleet=fleet, shuffle=random.Random(seed + 1))


def test_the_order_of_arrival_changes_no_sample_and_not_their_order() -> None:
    assert run_of(disordered(1)) == run_of(disordered(2)) == run_of(Setup(n=4))


def test_steps_samples_and_seeds_of_runs_differ() -> None:
    first, second = run_of(Setup(prompts=["same"] * 8, n=8))
    other, _ = run_of(Setup(prompts=["same"] * 8, n=8, seed=43))
    responses = {str(tokens) for _, tokens in (*first, *second, *other)}
    assert len(responses) > 80  # of 96; short responses may be equal by chance


def test_a_repeated_group_gets_the_samples_that_it_would_have_had() -> None:
    lost = {(0, "1", 2): "abort", (1, "1", 0): "fail"}
    repeated = disordered(3, fault=lambda *place: lost.get(place))
    assert run_of(repeated) == run_of(Setup(n=4))
    assert len(repeated.fleet.rollouts) == 4


def test_an_evaluation_does_not_change_later_samples_and_repeats_itself() -> None:
    assert run_of(Setup(), evaluate=True) == run_of(Setup())
    with sampling(Setup()) as run:
        first = written(run.evaluate())
        run.batch()
        assert written(run.evaluate()) == first


def test_a_resumed_run_continues_with_the_seeds_of_its_step() -> None:
    prompts = [f"{number}" for number in range(12)]
    with sampling(Setup(prompts=prompts)) as run:
        run.batch()
        state = run.loader.state_dict()
        expected = written(run.batch())
    with sampling(Setup(prompts=prompts)) as resumed:
        resumed.loader.load_state_dict(state)
        assert written(resumed.batch()) == expected


def test_a_checkpoint_without_our_part_is_loaded_as_it_is() -> None:
    with sampling(Setup()) as run:
        run.batch()
        state = {k: v for k, v in run.loader.state_dict().items() if k != "seer_openrlhf"}
    with sampling(Setup()) as resumed:
        resumed.loader.load_state_dict(state)
        assert [prompt for prompt, _ in written(resumed.batch())[::2]] == [
            f"prompt {number}" for number in range(4, 8)
        ]


def names(run: Sampling) -> Any:
    return run.loader.state_dict()["seer_openrlhf"]


def test_the_checkpoint_counts_the_batches_of_the_training_only() -> None:
    with sampling(Setup()) as run:
        run.evaluate()
        run.batch()
        assert names(run) == {"batches": 1, "left_over": []}


def test_rollouts_of_two_runs_have_different_names_and_the_same_samples() -> None:
    setups = [Setup(), Setup()]
    assert run_of(setups[0]) == run_of(setups[1])
    ids = [body["rollout_id"] for setup in setups for body in setup.fleet.rollouts]
    assert len(ids) == len(set(ids)) == 4
