"""What an engine ran and queued, from its polls; the timeline draws it."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from seer_sgl.engine_types import EngineLoad
from seer_sgl.report.lanes import MAX_LANES, Lanes, draw_rows, nearest, spans_above_zero
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.style import OURS, styled_figure
from seer_sgl.report.timeline import draw_timeline
from tests.helpers import make_group
from tests.support.infos import info


def polled(engines: int = 2) -> Recorder:
    """Returns a rollout of 10 s whose engines queue requests in its first half."""
    names = [f"e{number}" for number in range(engines)]
    record = Recorder("r", 1, [info(name) for name in names], [make_group(n=4)], started_at=100.0)
    for name in names:
        for second in range(10):
            queued = 3 if second < 5 else 0
            load = EngineLoad(used_tokens=50, progress=(), running=2, queued=queued)
            record.loaded(name, load, 100.5 + second)
    record.finished_at.extend([2.0, 4.0, 6.0, 10.0])
    record.response_lens.extend([10] * 4)
    return record


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ([0.0, 1.0, 1.4], [5.0, 5.0, 5.0]),
        ([1.6, 2.4, 2.6], [6.0, 6.0, 7.0]),
        ([3.0, 6.0, 6.1], [7.0, 7.0, 0.0]),
        ([36.9, 37.0, 40.0, 99.0], [0.0, 8.0, 8.0, 0.0]),
    ],
    ids=["before the first poll", "between polls", "after an answer", "around a late answer"],
)
def test_the_nearest_poll_counts_unless_it_is_too_far(
    times: Sequence[float], found: Sequence[float]
) -> None:
    answered = nearest([1.0, 2.0, 3.0, 40.0], [5, 6, 7, 8], np.array(times))
    assert answered.tolist() == found


def test_an_engine_that_was_never_polled_is_idle() -> None:
    assert nearest([], [], np.array([1.0, 2.0])).tolist() == [0.0, 0.0]


def test_lanes_have_running_and_queued_requests_apart_and_the_share_of_the_kv() -> None:
    lanes = Lanes.of(polled(), cells=10)
    assert (lanes.wall_s, lanes.tail_at, lanes.tail_s) == (10.0, 10.0, 0.0)
    assert (lanes.most, lanes.most_running) == (5.0, 2.0)
    lane = lanes.engines[0]
    assert lane.running == [2.0] * 10
    assert lane.queued == [3.0] * 5 + [0.0] * 5
    assert lane.kv == [50 / info("a").max_total_num_tokens] * 10


def waiting(record: Recorder) -> Recorder:
    """Adds a second in which seven requests wait for KV on the first engine."""
    for half in range(4):
        load = EngineLoad(used_tokens=50, progress=(), running=2, kv_waiting=7 * (half < 2))
        record.loaded("e0", load, 110.0 + half / 2)
    record.finished_at.append(12.0)
    return record


def test_requests_that_wait_for_kv_are_a_series_of_their_own() -> None:
    lanes = Lanes.of(waiting(polled()), cells=12)
    first, second = lanes.engines
    assert first.kv_waiting == [0.0] * 10 + [7.0, 0.0]
    assert (first.queued[10], second.kv_waiting) == (0.0, [])
    assert (lanes.kv_waiting, lanes.most) == (True, 9.0)
    assert not Lanes.of(polled()).kv_waiting


@pytest.mark.parametrize("engines", [2, MAX_LANES + 1])
def test_the_timeline_explains_requests_that_wait_for_kv(engines: int, tmp_path: Path) -> None:
    svg, _ = draw_timeline(waiting(polled(engines)), tmp_path / "timeline")
    words = " ".join(re.findall(r"<!-- (.*?) -->", svg.read_text()))
    assert ("requests that wait for KV" in words) == (engines <= MAX_LANES)
    assert ("dotted: others wait for KV" in words) == (engines > MAX_LANES)


def test_rows_have_one_colour_and_show_no_idle_time() -> None:
    record = polled(3)
    record.finished_at.append(20.0)  # no engine runs anything after 13 s
    with styled_figure(6, 3) as figure:
        axis = figure.subplots()
        draw_rows(axis, Lanes.of(record, cells=20), OURS)
    assert {to_hex(bar.get_facecolor()) for bar in axis.patches} == {OURS}
    bars = [bar for bar in axis.patches if isinstance(bar, Rectangle)]
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0.0, 13.0)] * 3
    assert len(axis.collections) == 3, "the queue of each engine"


def test_spans_are_the_runs_of_cells_above_zero() -> None:
    assert spans_above_zero([0, 1, 2, 0, 3], wall_s=10.0) == [(2.0, 4.0), (8.0, 2.0)]
    assert spans_above_zero([0, 0], wall_s=10.0) == spans_above_zero([], wall_s=0.0) == []


@pytest.mark.process
@pytest.mark.parametrize("engines", [1, MAX_LANES, MAX_LANES + 1, 300])
def test_the_timeline_fits_any_number_of_engines(engines: int, tmp_path: Path) -> None:
    svg, png = draw_timeline(polled(engines), tmp_path / "timeline")
    words = set(re.findall(r"<!-- (.*?) -->", svg.read_text()))
    assert "4 samples in 10.0 s; the last 10 % of them took 0.0 s" in words
    assert ("queued requests" in words) == (engines <= MAX_LANES)
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert svg.stat().st_size + png.stat().st_size < 2 << 20, "the reserve of a full disk"
