"""A weight update through a folder: the newest one stays, and engines that fail are named."""

import logging
from pathlib import Path

import pytest
from fake_calls import FakeCalls
from seer_openrlhf.calls import UpdateFailed, WeightError
from seer_openrlhf.disk import DiskSender


def test_older_folders_of_the_run_are_removed_and_others_stay(tmp_path: Path) -> None:
    sender = DiskSender(FakeCalls("e0", "e1"), tmp_path, 60.0)
    (tmp_path / "step-0").mkdir()  # of another run
    for step in (1, 2, 2, 3):
        sender.folder(step).mkdir(exist_ok=True)
        assert sender.load(step) == ["e0", "e1"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-0", "step-3"]


def test_the_engines_load_the_folder_under_the_steps_version(tmp_path: Path) -> None:
    fleet = FakeCalls("e0")
    DiskSender(fleet, tmp_path, 60.0).load(7)
    fields = {"model_path": str(tmp_path / "step-7"), "weight_version": "7"}
    assert fleet.calls == [("/update_weights_from_disk", fields)]


def test_an_engine_that_fails_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fleet = FakeCalls("e0", "e1")
    fleet.alive.remove("e0")
    with caplog.at_level(logging.WARNING):
        assert DiskSender(fleet, tmp_path, 60.0).load(7) == ["e1"]
    assert caplog.messages == ["step 7: not updated: engine e0: it does not answer"]


def test_a_refusal_of_all_may_be_tried_again_and_silence_of_all_may_not(tmp_path: Path) -> None:
    fleet = FakeCalls("e0", "e1")
    fleet.refused = dict.fromkeys(["e0", "e1"], "no such folder")
    sender = DiskSender(fleet, tmp_path, 60.0)
    with pytest.raises(UpdateFailed, match=r"engine e0: no such folder; engine e1: no such"):
        sender.load(7)
    fleet.alive.clear()
    with pytest.raises(WeightError, match="engine e0: it does not answer"):
        sender.load(7)
