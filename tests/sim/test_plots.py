"""The pictures of a simulation."""

import re
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.sim.outcome import Outcome
from seer_sgl.sim.plots import draw_lanes, draw_sweeps
from seer_sgl.sim.sweep import Point
from seer_sgl.sim.variants import Scenario
from seer_sgl.sim.workload import sample
from tests.sim.helpers import small


@pytest.mark.parametrize(
    ("name", "subject"),
    [("qwen2-vl-72b", "Qwen2-VL-72B, 4 engines"), ("samples.jsonl", "samples.jsonl, 4 engines")],
)
def test_lanes_name_the_model_or_the_trace_and_the_engines(
    tmp_path: Path, name: str, subject: str
) -> None:
    config = small()
    svg, _ = draw_lanes(Scenario(name, sample(config.workload), config), tmp_path / "lanes")
    words = set(re.findall(r"<!-- (.*?) -->", svg.read_text()))
    assert f"{subject}, simulated. A row is an engine; white: it is idle." in words
    assert {"runs requests", "others are queued", "all finished"} <= words


def test_a_sweep_of_rollouts_that_take_no_time_is_drawn(tmp_path: Path) -> None:
    none: dict[str, Any] = dict.fromkeys(Outcome.__struct_fields__, 0)
    outcome = Outcome(**none | {"workload": "a", "policy": "seer"})
    points = [Point(value=value, outcome=outcome) for value in (1, 2)]
    assert all(path.stat().st_size for path in draw_sweeps({"count": points}, tmp_path / "sweep"))
