"""The groups that a scheduler is given, and the chunks that it sends."""

from typing import Any

from seer_sgl.scheduling.scheduler import Scheduler
from seer_sgl.types import Chunk, Group
from tests.helpers import make_group


def submitted(scheduler: Scheduler, group_id: str = "g", **options: Any) -> Group:
    """Submits a group (`make_group`) and returns it."""
    group = make_group(group_id, **options)
    scheduler.submit(group)
    return group


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
