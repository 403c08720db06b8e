"""A weight update through a process group, with engines that die before, in and after it."""

import logging
from typing import Any

import pytest
import torch
from fake_calls import FakeCalls, FakeGroup
from seer_openrlhf.broadcasts import JOIN, LEAVE, UPDATE, BroadcastSender
from seer_openrlhf.calls import UpdateFailed, WeightError
from seer_openrlhf.weight_clock import BEGIN, END

BUCKETS = [
    [("a", torch.zeros(2, 3, dtype=torch.bfloat16)), ("b", torch.ones(4))],
    [("c", torch.ones(1))],
]


class Sending:
    """A sender, and the groups that it has joined."""

    def __init__(self, fleet: FakeCalls) -> None:
        self.fleet = fleet
        self.groups: list[FakeGroup] = []
        self.names: list[str] = []
        self.refuse = False  # to join
        self.sender = BroadcastSender(fleet, "gloo", 60.0, lambda: ("here", 20000), join=self._join)

    def _join(self, name: str, *_: Any, **__: Any) -> Any:
        if self.refuse:
            raise RuntimeError("timed out")
        self.names.append(name)
        self.groups.append(FakeGroup())
        return self.groups[-1]

    def send(self, step: int) -> list[str]:
        """Makes one attempt, as the trainer does."""
        self.sender.begin(step)
        failure: UpdateFailed | WeightError | None = None
        for bucket in BUCKETS:
            if failure is None:
                try:
                    self.sender.send(bucket)
                except UpdateFailed as error:
                    failure = error
        return self.sender.end(failure)


def paths(fleet: FakeCalls) -> list[str]:
    """Returns the calls since the last time."""
    found = [path for path, _ in fleet.calls]
    fleet.calls.clear()
    return found


def test_the_buckets_go_to_all_engines_between_begin_and_end() -> None:
    fleet = FakeCalls("e0", "e1")
    sending = Sending(fleet)
    assert sending.send(3) == ["e0", "e1"]
    bodies = [fields for path, fields in fleet.calls if path == UPDATE]
    assert [body["names"] for body in bodies] == [["a", "b"], ["c"]]
    assert bodies[0]["dtypes"] == ["bfloat16", "float32"]
    assert bodies[0]["shapes"] == [[2, 3], [4]]
    assert {body["weight_version"] for body in bodies} == {"3"}
    assert paths(fleet) == [BEGIN, JOIN, UPDATE, UPDATE, END]
    assert sending.send(4) == ["e0", "e1"]
    assert paths(fleet) == [BEGIN, UPDATE, UPDATE, END], "the group is made once"
    assert len(sending.groups) == 1 and len(sending.groups[0].sent) == 6


@pytest.mark.parametrize("path", [JOIN, UPDATE])
def test_after_an_engine_ends_in_an_update_the_others_get_all_again(path: str) -> None:
    fleet = FakeCalls("e0", "e1")
    fleet.dies[path, 1] = "e0"
    sending = Sending(fleet)
    with pytest.raises(UpdateFailed, match="engine e0: it does not answer"):
        sending.send(3)
    assert not fleet.open
    assert sending.send(3) == ["e1"]
    assert not fleet.open
    assert len(set(sending.names)) == 2
    assert [group.left for group in sending.groups] == [1, 0]
    assert len(sending.groups[1].sent) == 3


def test_an_engine_that_ended_before_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    fleet = FakeCalls("e0", "e1")
    sending = Sending(fleet)
    sending.send(3)
    fleet.alive.remove("e0")
    with caplog.at_level(logging.WARNING):
        assert sending.send(4) == ["e1"]
    assert caplog.messages == ["step 4: the update continues without engine e0: it does not answer"]
    assert sending.names[0] not in fleet.members and len(sending.groups) == 2


def test_an_engine_that_ends_after_the_buckets_is_named(caplog: pytest.LogCaptureFixture) -> None:
    fleet = FakeCalls("e0", "e1")
    fleet.dies[END, 1] = "e0"
    with caplog.at_level(logging.WARNING):
        assert Sending(fleet).send(3) == ["e1"]
    assert caplog.messages == ["step 3: not updated: engine e0: it does not answer"]


def test_after_the_end_of_the_server_its_new_engines_join_a_new_group() -> None:
    fleet = FakeCalls("e0", "e1")
    sending = Sending(fleet)
    sending.send(3)
    fleet.restart()
    assert sending.send(3) == ["e0", "e1"]
    assert [group.left for group in sending.groups] == [1, 0]
    paths(fleet)
    sending.send(4)
    assert paths(fleet) == [BEGIN, UPDATE, UPDATE, END], "once for each end"


def test_an_engine_that_comes_back_or_joins_is_in_the_next_group() -> None:
    fleet = FakeCalls("e0", "e1")
    fleet.alive.remove("e0")
    sending = Sending(fleet)
    assert sending.send(1) == ["e1"]
    fleet.alive.append("e0")
    fleet.engines.append("e2")
    fleet.alive.append("e2")
    fleet.versions["e2"] = "default"
    assert sending.send(2) == ["e0", "e1", "e2"]
    assert list(fleet.members.values()) == [["e0", "e1", "e2"]]


def test_without_engines_there_is_one_line() -> None:
    fleet = FakeCalls("e0", "e1")
    fleet.alive.clear()
    with pytest.raises(WeightError) as caught:
        Sending(fleet).send(3)
    assert str(caught.value) == (
        "no engine is left: engine e0: it does not answer; engine e1: it does not answer"
    )
    assert not fleet.open


def test_an_update_that_another_trainer_has_left_open_is_ended() -> None:
    fleet = FakeCalls("e0")
    fleet.open = True
    assert Sending(fleet).send(3) == ["e0"]
    assert paths(fleet)[:3] == [BEGIN, END, BEGIN]


def test_a_broadcast_that_fails_ends_the_group_and_the_update() -> None:
    fleet = FakeCalls("e0")
    sending = Sending(fleet)
    sending.sender.begin(1)
    sending.groups[0].failure = "Connection closed by peer"
    with pytest.raises(UpdateFailed, match="the server's") as caught:
        sending.sender.send(BUCKETS[0])
    with pytest.raises(UpdateFailed) as again:
        sending.sender.end(caught.value)
    assert again.value is caught.value
    assert sending.groups[0].left == 1 and not fleet.open
    assert paths(fleet)[-2:] == [END, LEAVE]


def test_a_group_that_cannot_be_made_leaves_no_update_open() -> None:
    fleet = FakeCalls("e0")
    sending = Sending(fleet)
    sending.refuse = True
    with pytest.raises(UpdateFailed, match=r"^the process group was not made: timed out$"):
        sending.send(1)
    assert not fleet.open
    sending.refuse = False
    assert sending.send(1) == ["e0"]
