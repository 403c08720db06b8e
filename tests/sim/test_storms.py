"""Rollouts under many faults: every sample once, its tokens as without faults, nothing left over.

The simulated engines fail; scheduler, driver and monitor are the real ones. A seed that fails here
is repeated by `python -m tests.sim.storm SEED`.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.types import Chunk
from tests.sim.storm import weather

REQUESTS = 200
SEEDS = 40  # `make soak` runs a thousand larger ones
ROOT = Path(__file__).resolve().parent.parent.parent
TRACE = "from tests.sim.test_storms import trace; print(trace(3))"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_sample_comes_once_with_its_tokens(seed: int) -> None:
    assert weather(seed, REQUESTS).counts.total() > 0


@pytest.mark.process
def test_storms_have_every_kind_of_fault() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS, SEEDS + 8):
        counts += weather(seed, REQUESTS).counts
    messages = {
        f"{fate} {what}" for fate in ("lost", "late", "doubled") for what in ("replies", "acks")
    }
    assert set(counts) >= {
        "death",
        "hang",
        "cut",
        "reads",
        "other weights",
        "untrue acks",
        *messages,
    }


class Sent(Observer):
    """The chunks in the order of sending."""

    def __init__(self) -> None:
        self.chunks: list[tuple[float, str, str]] = []

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self.chunks.append((now, chunk.rid, chunk.engine_id))


def trace(seed: int) -> list[tuple[float, str, str]]:
    """Returns every chunk of a storm: its time, rid and engine."""
    sent = Sent()
    weather(seed, REQUESTS, [sent])
    return sent.chunks


@pytest.mark.process
def test_a_seed_repeats_its_storm_in_every_process() -> None:
    other = subprocess.run(
        [sys.executable, "-c", TRACE],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == f"{trace(3)}\n"
