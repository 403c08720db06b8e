"""Weight versions: the checkpoint's step, and one more for each send of changed weights."""

from pathlib import Path

import pytest
from seer_openrlhf.versions import Versions, checkpoint_step


def test_each_send_after_a_training_is_one_more() -> None:
    versions = Versions(0)
    assert [versions.next(updates) for updates in (0, 1, 3)] == [0, 1, 2]


def test_the_same_weights_keep_their_version() -> None:
    versions = Versions(4)
    assert [versions.next(updates) for updates in (8, 8, 9, 9)] == [4, 4, 5, 5]


@pytest.mark.parametrize(
    ("latest", "step"),
    [("global_step7", 7), ("best_global_step12\n", 12), ("epoch3", 0), ("", 0)],
)
def test_the_newest_checkpoint_names_its_step(tmp_path: Path, latest: str, step: int) -> None:
    (tmp_path / "latest").write_text(latest)
    assert checkpoint_step(tmp_path) == step


def test_without_a_checkpoint_the_step_is_zero(tmp_path: Path) -> None:
    assert checkpoint_step(tmp_path / "none") == 0
