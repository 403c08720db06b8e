"""`engines.cores`: which cores an engine is pinned to."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.engine.launch import cores
from seer_sgl.engine.launch.cores import engine_cores, machine_cores
from seer_sgl.errors import ConfigError

EIGHT = [0, 1, 2, 3, 4, 5, 6, 7]


def auto(engines: int, machine: list[int], gpu: bool) -> list[list[int] | None]:
    return [engine_cores("auto", slot, engines, machine, gpu) for slot in range(engines)]


def test_engines_without_a_gpu_have_one_core_each_in_turn() -> None:
    assert auto(3, [4, 6], gpu=False) == [[4], [6], [4]]
    assert auto(1, EIGHT, gpu=False) == [[0]]
    # Cores 0 and 4 may be threads of one physical core: engines begin on different ones.
    assert auto(2, [0, 4, 1, 5], gpu=False) == [[0], [1]]


def test_engines_with_gpus_share_all_cores() -> None:
    assert auto(1, EIGHT, gpu=True) == [EIGHT]
    assert auto(2, EIGHT, gpu=True) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert auto(3, EIGHT, gpu=True) == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert auto(5, [0, 1], gpu=True) == [[0], [1], [0], [1], [0]], "more engines than cores"
    assert engine_cores("auto", 2, 2, EIGHT, gpu=True) == [0, 1, 2, 3], "one is added later"


@given(st.integers(1, 64), st.sets(st.integers(0, 255), min_size=1, max_size=128))
def test_shares_are_equal_disjoint_and_leave_no_core_out(engines: int, usable: set[int]) -> None:
    machine = sorted(usable)
    shares = [share or [] for share in auto(engines, machine, gpu=True)][: len(machine)]
    assert [core for share in shares for core in share] == machine
    sizes = {len(share) for share in shares}
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_lists_are_taken_as_they_are_and_none_pins_nothing() -> None:
    assert engine_cores([[3], [1, 2]], 1, 2, EIGHT, gpu=True) == [1, 2]
    assert engine_cores(None, 0, 1, EIGHT, gpu=True) is None
    with pytest.raises(ConfigError, match="1 lists, and engine 2 needs one"):
        engine_cores([[0]], 1, 1, EIGHT, gpu=True)


def test_threads_of_a_physical_core_and_cores_of_a_processor_stay_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two processors of two cores of two threads, numbered as Linux usually does.
    for core in EIGHT:
        folder = tmp_path / str(core)
        folder.mkdir()
        (folder / "physical_package_id").write_text(f"{core // 2 % 2}\n")
        (folder / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    monkeypatch.setattr(cores, "TOPOLOGY", str(tmp_path / "{}"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(EIGHT))
    assert machine_cores() == [0, 4, 1, 5, 2, 6, 3, 7]
    monkeypatch.setattr(cores, "TOPOLOGY", str(tmp_path / "absent-{}"))
    assert machine_cores() == EIGHT
