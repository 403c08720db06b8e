"""The soak's figures for memory, KV hits and drift."""

import subprocess
import sys

import pytest

from seer_sgl.benchmark.process_tree import process_tree
from seer_sgl.benchmark.soak import drift, kv_hit_share
from seer_sgl.engine.launch.process import SERVER_MODULE
from seer_sgl.report.recorder import Recorder
from tests.support.rows import soak_row


def test_a_leak_of_a_megabyte_a_rollout_is_told_and_the_warm_up_is_not() -> None:
    engines = [15000.0, 19000.0, *(20000.0 + step for step in range(8))]
    rows = [soak_row(number, engines_mb=mb) for number, mb in enumerate(engines)]
    assert drift(rows) == {
        "wall_s": 0.0,
        "driver_mb": 0.0,
        "engines_mb": 1.0,
        "others_mb": 0.0,
        "kv_hit_share": 0.0,
    }


def test_drift_is_the_slope_of_all_warm_rollouts() -> None:
    walls = [99.0, 99.0, 20.0, 26.0, 20.0, 26.0]
    rows = [soak_row(number, wall_s=wall) for number, wall in enumerate(walls)]
    assert drift(rows)["wall_s"] == pytest.approx(1.2)


def test_fewer_than_four_rollouts_tell_no_drift() -> None:
    assert drift([soak_row(number) for number in range(3)]) == {}
    assert drift([soak_row(number) for number in range(4)])


def test_a_figure_that_a_rollout_lacks_has_no_drift() -> None:
    rows = [soak_row(number, kv_hit_share=None if number == 4 else 0.9) for number in range(6)]
    assert "kv_hit_share" not in drift(rows)


def test_the_hit_share_is_that_of_continuations() -> None:
    record = Recorder("r", 1, [], [], started_at=0.0)
    assert kv_hit_share(record) is None
    record.totals.recomputed, record.totals.reused = 10, 90
    assert kv_hit_share(record) == 0.9


@pytest.mark.process
def test_servers_and_their_children_are_told_from_others() -> None:
    waits = "import sys; print(flush=True); sys.stdin.read()"
    spawns = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}])"
    commands = [[sys.executable, "-c", spawns, SERVER_MODULE], [sys.executable, "-c", waits]]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(line, stdin=pipe, stdout=pipe) for line in commands]
    try:
        for process in processes:  # up, with its child
            assert process.stdout is not None
            process.stdout.readline()
        now = process_tree()
        server, other = (process.pid for process in processes)
        (sglang,) = now.servers
        assert SERVER_MODULE in sglang.command
        assert sglang.processes[0].pid == server
        assert len(sglang.processes) == 2
        assert other in {process.pid for process in now.others}
    finally:
        for process in processes:
            process.communicate(timeout=30)  # which closes what they read
