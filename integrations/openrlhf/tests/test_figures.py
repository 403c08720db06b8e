"""The figures of samples and batches, and how they reach OpenRLHF's logs."""

from typing import Any

import pytest
from fake_fleet import FakeClient
from sampling import Setup, begin_update, sampling, update
from seer_openrlhf.figures import BatchFigures, SampleFigures, staleness, version_number
from seer_openrlhf.weight_clock import WeightClock


def response(*spans: tuple[str, int], **changes: Any) -> Any:
    return {
        "response_ids": [1] * sum(tokens for _, tokens in spans),
        "accept_length": None,
        "engines": [],
        "weight_spans": [{"version": version, "tokens": tokens} for version, tokens in spans],
        **changes,
    }


def test_a_sample_across_an_update_says_which_tokens_are_of_which_weights() -> None:
    figures = SampleFigures()
    figures.add(response(("3", 5), ("4", 2), ("5", 6)))
    logs = figures.logs()
    assert (logs["seer_weight_versions"], logs["seer_oldest_version"]) == (3, 3)
    assert (logs["seer_newest_version"], logs["seer_older_tokens"]) == (5, 7)
    assert logs["seer_newest_tokens"] == 6
    assert staleness(6, logs) == 3


def test_the_accept_length_of_several_responses_is_per_verification() -> None:
    figures = SampleFigures()
    figures.add(response(("1", 12), accept_length=3.0))  # 4 verifications
    figures.add(response(("1", 4)))  # without drafts: one step per token
    assert figures.logs()["seer_accept_length"] == 2.0


def test_a_migration_is_a_chunk_on_another_engine_than_the_one_before() -> None:
    figures = SampleFigures()
    figures.add(response(("1", 1), engines=["a", "a", "b", "a"]))
    figures.add(response(("1", 1), engines=["b"]))
    assert figures.logs()["seer_migrations"] == 2


def test_an_executor_that_asked_for_nothing_has_the_same_keys() -> None:
    figures = SampleFigures()
    empty = figures.logs()
    figures.add(response(("1", 1)))
    assert empty.keys() == figures.logs().keys()


def test_the_tail_begins_when_nine_tenths_are_finished() -> None:
    figures = BatchFigures()
    figures.sent(10.0)
    for number in range(10):
        figures.finished(tokens=5, now=11.0 + number)
    logs = figures.logs(now=23.0)
    assert logs["seer_reward_wait_s"] == 3.0
    assert (logs["seer_rollout_s"], logs["seer_tail_s"]) == (10.0, 1.0)
    assert logs["seer_tokens_per_s"] == 5.0


def test_a_batch_without_responses_has_the_same_keys() -> None:
    figures = BatchFigures()
    empty = figures.logs(3.0)
    figures.sent(1.0)
    figures.finished(1, 2.0)
    assert empty.keys() == figures.logs(3.0).keys()


def test_names_of_weights_that_are_no_steps_are_the_start() -> None:
    assert [version_number(name) for name in ("7", "default", "", "-1", "²")] == [7, 0, 0, 0, 0]


def test_an_update_lasts_from_its_first_to_its_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100))
    monkeypatch.setattr("seer_openrlhf.weight_clock.clock", lambda: next(times))
    clock = WeightClock()
    for path, version in (
        ("/pause_generation", None),
        ("/begin_weight_update", None),
        ("/update_weights_from_distributed", "1"),
        ("/update_weights_from_distributed", "1"),
        ("/end_weight_update?timeout=30", None),
        ("/continue_generation", None),
    ):
        with clock.during(path, version):
            pass
    assert (clock.version, clock.seconds) == (1, 4)
    with clock.during("/update_weights_from_disk", "2"):
        pass
    assert (clock.version, clock.seconds) == (2, 1)


def test_every_sample_has_the_figures_of_its_batch() -> None:
    fleet = FakeClient()
    with sampling(Setup(fleet=fleet)) as run:
        before = run.batch()
        update(run, "1")
        begin_update(run, "2")
        fleet.version = "1"  # of a response that began before the update, in partial rollout
        after = run.batch()
    assert {sample.info["seer_staleness"].item() for sample in before} == {0.0}
    assert {sample.info["seer_staleness"].item() for sample in after} == {1.0}
    assert (
        set(before[0].info)
        == set(after[0].info)
        >= {
            "seer_accept_length",
            "seer_migrations",
            "seer_repeated_groups",
            "seer_reward_wait_s",
            "seer_rollout_s",
            "seer_tail_s",
            "seer_tokens_per_s",
            "seer_weight_sync_s",
        }
    )
    assert after[0].info["seer_weight_sync_s"].item() > 0
    assert "seer_place" not in after[0].info
