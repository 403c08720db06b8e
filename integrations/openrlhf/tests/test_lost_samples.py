"""Samples that were aborted or lost never reach the trainer: their group is repeated as a whole."""

from typing import Any

import pytest
from fake_fleet import FakeClient, Fault
from openrlhf.utils.agent import SingleTurnAgentExecutor
from sampling import Setup, sampling
from seer_openrlhf import batch
from seer_openrlhf.client import ServerError
from seer_openrlhf.groups import ATTEMPTS, PromptFailed


def always(fault: str) -> Fault:
    return lambda rollout, group, index: fault if (group, index) == ("2", 1) else None


@pytest.mark.parametrize("fault", ["abort", "empty", "fail", "end"])
def test_a_group_with_a_lost_sample_is_repeated_as_a_whole_and_counted(fault: str) -> None:
    fleet = FakeClient(fault=lambda *place: fault if place == (0, "2", 1) else None)
    with sampling(Setup(fleet=fleet)) as run:
        samples = run.batch()
    lost = {"2", "3"} if fault == "end" else {"2"}  # the end comes before the samples of group 3
    repeated = [group for body in fleet.rollouts[1:] for group in body["groups"]]
    assert {(group["id"], group["n"]) for group in repeated} == {(name, 2) for name in lost}
    assert len(samples) == 8
    for sample in samples:
        assert sample.response_length.item() >= 1
        assert sample.info["seer_repeated_groups"].item() == len(lost)


@pytest.mark.parametrize("fault", ["abort", "empty", "fail"])
def test_a_group_that_is_always_lost_ends_the_batch_and_names_the_prompt(fault: str) -> None:
    fleet = FakeClient(fault=always(fault))
    with sampling(Setup(fleet=fleet)) as run:
        with pytest.raises(PromptFailed, match=f"^prompt 'prompt 2' failed {ATTEMPTS} times: "):
            run.batch()
        assert run.front.get_num_unfinished_requests() == 0
    assert len(fleet.rollouts) == ATTEMPTS


def test_a_server_that_breaks_off_ends_the_batch_at_once() -> None:
    fleet = FakeClient(fault=always("break"))
    with sampling(Setup(fleet=fleet)) as run, pytest.raises(ServerError, match="ended before"):
        run.batch()
    assert len(fleet.rollouts) == 1


def test_an_empty_prompt_is_an_error_of_one_line() -> None:
    fleet = FakeClient()
    setup = Setup(prompts=["first", "", "third", "fourth"], fleet=fleet)
    with sampling(setup) as run, pytest.raises(PromptFailed) as failure:
        run.batch()
    assert str(failure.value) == ("prompt '' failed 3 times: ValueError: the prompt has no tokens")


def test_other_groups_do_not_wait_for_one_that_failed_before_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "IDLE_S", 3600.0)

    class Hasty(SingleTurnAgentExecutor):  # type: ignore[misc]
        failed = False

        async def execute(self, *, label: str, **call: Any) -> Any:
            if label == "1" and not self.failed:
                self.failed = True
                raise OSError("no sandbox")
            return await super().execute(label=label, **call)

    with sampling(Setup(executor=Hasty())) as run:
        assert len(run.batch()) == 8


def test_the_batch_after_a_failed_one_starts_afresh() -> None:
    fleet = FakeClient(
        fault=lambda rollout, group, _: "fail" if rollout < 3 and group == "0" else None
    )
    with sampling(Setup(fleet=fleet)) as run:
        with pytest.raises(PromptFailed):
            run.batch()
        assert len(run.batch()) == 8


@pytest.mark.parametrize("actions", [[], [(64, 70)], [(0, 1)], [(9, 9)]])
def test_a_response_without_an_action_token_is_no_sample(actions: list[tuple[int, int]]) -> None:
    class Silent:
        """An executor whose responses have other actions."""

        async def execute(self, **call: Any) -> Any:
            response = await SingleTurnAgentExecutor().execute(**call)
            return {**response, "action_ranges": actions}

    with (
        sampling(Setup(executor=Silent())) as run,
        pytest.raises(PromptFailed, match="a response has no token of its own in 64 tokens"),
    ):
        run.batch()
