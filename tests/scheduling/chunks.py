"""The chunks that a scheduler sends."""

from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.types import Chunk


def take(scheduler: Scheduler, now: float = 0.0) -> Chunk:
    """Returns the next chunk, which there has to be."""
    chunk = scheduler.next_assignment(now)
    assert chunk is not None
    return chunk


def take_all(scheduler: Scheduler) -> list[Chunk]:
    """Returns the chunks that can be sent now."""
    chunks = []
    while (chunk := scheduler.next_assignment(0.0)) is not None:
        chunks.append(chunk)
    return chunks
