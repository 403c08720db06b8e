"""What a server opens to other machines, as it is announced."""

from pathlib import Path

import pytest

from seer_sgl.config import EnginesConfig
from seer_sgl.engine.launch import process
from seer_sgl.engine.launch.process import NCCL_INTERFACE, open_ports


@pytest.mark.parametrize("gpu", [True, False])
def test_ranks_on_other_machines_are_announced(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "gpu_visible", lambda: gpu)
    (line,) = open_ports(8, "10.0.0.1:5000", {})
    assert "10.0.0.1:5000" in line


@pytest.mark.parametrize(
    ("ranks", "gpu", "environment", "is_open"),
    [
        (2, True, {}, True),
        (2, True, {NCCL_INTERFACE: "lo"}, False),
        (2, False, {}, False),
        (1, True, {}, False),
    ],
)
def test_nccl_is_announced_where_it_listens(
    ranks: int,
    gpu: bool,
    environment: dict[str, str],
    is_open: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "gpu_visible", lambda: gpu)
    assert [("NCCL" in line) for line in open_ports(ranks, None, environment)] == [True] * is_open


def test_make_and_the_launcher_agree_on_what_a_gpu_machine_is() -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    (line,) = [line for line in makefile.splitlines() if line.startswith("GPU := ")]
    assert line == f"GPU := $(wildcard {' '.join(process.GPU_SIGNS)})"


def test_a_server_keeps_idle_connections_for_longer_than_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (name,) = process.KEEP_ALIVE
    monkeypatch.delenv(name, raising=False)
    assert float(process.engine_environment(None)[name]) > 2 * EnginesConfig().stall_timeout_s
    monkeypatch.setenv(name, "7")
    assert process.engine_environment(None)[name] == "7"
