"""The wall clock is set back during a rollout and between two of its processes."""

import time
from pathlib import Path

import pytest
from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.types import Chunk
from tests.rollout.fakes import PROMPTS, N, check, fakes, rolled, samples_of

HOUR_S = 3600.0


class WallClock(Observer):
    """The wall clock of this process; it is set back an hour when the tenth chunk is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.back_s = 0.0
        self.sent_chunks = 0
        self._time, self._time_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: self._time() - self.back_s)
        monkeypatch.setattr(time, "time_ns", lambda: self._time_ns() - int(self.back_s * 1e9))

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self.sent_chunks += 1
        if self.sent_chunks == 10:
            self.back_s += HOUR_S


async def test_a_clock_set_back_by_hours_changes_neither_samples_nor_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fakes(delay_s=0.005) as it:
        clock, path = WallClock(monkeypatch), tmp_path / "journal"
        config = it.config_with(rollout={"journal": str(path)})
        before = time.time()
        await rolled(config, groups=2, observers=[clock])
        assert time.time() < before, "the clock was set back while chunks were in flight"
        clock.back_s += HOUR_S
        groups, report = await rolled(it.config, resume=path)
    check(samples_of(groups))
    assert report["resumed"]["tokens"] > 0
    assert report["samples"] == len(PROMPTS) * N
    assert 0 < report["resumed"]["at_s"] <= report["wall_s"] < HOUR_S
    for sample in samples_of(groups).values():
        assert 0 <= sample.submitted_at <= sample.started_at <= sample.finished_at
        assert sample.finished_at < HOUR_S
    for engine in report["engines"]:
        assert engine["throughput_tok_s"] >= 0
        assert all(0 <= state["at_s"] <= report["wall_s"] for state in engine["states"])
