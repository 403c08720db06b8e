"""The set of running requests of a simulated engine."""

import gc
import weakref

from seer_sgl.scheduling.updatable_queue import MOST_VOID
from seer_sgl.sim.job import Job
from seer_sgl.sim.running_set import RunningSet
from seer_sgl.types import Chunk, Move
from tests.helpers import make_group


class SeenJob(Job):
    """A job to which weak references are possible."""


def test_jobs_that_have_left_are_forgotten_also_without_retractions() -> None:
    running, seen = RunningSet(), weakref.WeakSet[SeenJob]()
    for number in range(1000):
        (request,) = make_group(f"g{number}", n=1).requests
        chunk = Chunk(
            request=request,
            engine_id="e0",
            rid=f"r{number}",
            max_new_tokens=2,
            kv_tokens=12,
            move=Move.STAY,
            migrated=False,
        )
        job = SeenJob(chunk, 2)
        seen.add(job)
        running.enter(job)
        running.step(1, 1.0)
        assert list(running.done()) == [job]
    del job, chunk, request
    gc.collect()
    assert len(seen) <= MOST_VOID + 3
