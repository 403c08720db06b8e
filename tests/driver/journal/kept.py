"""A journal of a made-up rollout, and the state of its requests after each block."""

import itertools
import random
from array import array
from pathlib import Path
from typing import NamedTuple

from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.journal.blocks import make_block
from seer_sgl.driver.journal.facts import make_header
from seer_sgl.driver.journal.folder import JournalFolder
from seer_sgl.driver.journal.journal import Journal
from seer_sgl.driver.journal.records import Header
from seer_sgl.driver.journal.restore import restore
from seer_sgl.driver.journal.stored import StoredRollout, read, records
from seer_sgl.driver.journal.writer import BlockWriter
from seer_sgl.errors import JournalError
from seer_sgl.sampling import NEUTRAL
from seer_sgl.types import (
    ChunkReply,
    ChunkResult,
    Group,
    Prompt,
    Request,
    RequestState,
    WeightSpan,
    token_array,
)
from tests.support.infos import chunk_on, info

LIMIT = 40
CHUNK = 8
# What a journal restores of a request.
RequestKept = tuple[list[int], list[float], list[tuple[str, int]], str | None, int | str | None]
State = list[RequestKept]


class Supervised(NamedTuple):
    """A journal's folder, its bytes, and the position and the state behind each block."""

    path: Path
    content: bytes
    positions: list[int]
    states: list[State]


class ListWriter(BlockWriter):
    """Takes records into a list; the test decides when a block ends."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def append(self, record: bytes) -> None:
        self.records.append(record)


def make_groups(prompts: int = 3, n: int = 3, *, run_id: str = "run") -> list[Group]:
    """Returns the groups of a rollout."""
    maker = GroupMaker(run_id, 7)
    return [
        maker.group(
            Prompt(prompt_id=f"p{i}", prompt_ids=token_array([i, i + 1]), n=n), NEUTRAL, LIMIT, 0.0
        )
        for i in range(prompts)
    ]


def header_of(groups: list[Group]) -> Header:
    """Returns the header of a rollout of the groups."""
    return make_header(
        rollout_id="rollout",
        run_id="run",
        seed=7,
        seed_setting=7,
        sampling=NEUTRAL,
        engines=[info("e0")],
        groups=groups,
    )


def requests_of(groups: list[Group]) -> list[Request]:
    """Returns all requests in order."""
    return list(itertools.chain.from_iterable(group.requests for group in groups))


def state_of(groups: list[Group]) -> State:
    """Returns what a journal restores of every request."""
    return [
        (
            request.response_ids.tolist(),
            request.logprobs.tolist(),
            [(span.version, span.tokens) for span in request.weight_spans],
            request.finish_reason,
            request.matched,
        )
        for request in requests_of(groups)
    ]


def returned(request: Request, draw: random.Random) -> ChunkResult:
    """Lets a chunk of the request return, as the scheduler does, and returns its result."""
    count = min(request.remaining, CHUNK)
    stops = draw.random() < 0.2
    reply = ChunkReply(
        ids=array("i", [draw.randrange(1000) for _ in range(count)]),
        logprobs=array("f", [-draw.random() for _ in range(count)]),
        weight_spans=[WeightSpan("v1", count)],
        finish="stop" if stops else "length",
        matched=3 if stops else None,
        verify_steps=1,
    )
    chunk = chunk_on(draw.choice(["e0", "e1"]), request)
    now = draw.uniform(10.0, 20.0)
    request.started_at = request.started_at or now
    request.append(reply)
    request.engines.append(chunk.engine_id)
    request.chunk_lengths.append(len(reply.ids))
    if stops or not request.remaining:
        request.finish(reply.finish, reply.matched, now)
    return ChunkResult(chunk=chunk, now=now, reply=reply)


def make_journal(path: Path, draw: random.Random, prompts: int = 3, n: int = 3) -> Supervised:
    """Writes the journal of a rollout that was killed before it was complete."""
    groups = make_groups(prompts, n)
    writer = ListWriter()
    journal = Journal(writer, started_at=0.0)
    with JournalFolder(path, create=True) as folder:
        file, tail = folder.begin(header_of(groups))
        positions, states = [tail.position], [state_of(groups)]
        while left := [r for r in requests_of(groups) if r.state is not RequestState.FINISHED]:
            if len(left) <= 2 and len(states) > 12:
                break
            for _ in range(draw.randint(1, 3)):
                request = draw.choice(left)
                if request.state is not RequestState.FINISHED:
                    journal.grown(returned(request, draw))
            block, tail = make_block(writer.records, tail)
            writer.records.clear()
            file.write(block)
            positions.append(tail.position)
            states.append(state_of(groups))
        file.close()
    return Supervised(path, (path / "journal").read_bytes(), positions, states)


def resumed(path: Path) -> tuple[list[Group], StoredRollout]:
    """Returns the groups of a rollout as a resume finds them. Raises JournalError or Damaged."""
    groups = make_groups(run_id="run-1")
    with JournalFolder(path, create=False) as folder:
        stored = read(folder)
        if stored is None:
            raise JournalError("nothing is there")
        restore(groups, records(folder, stored), 0.0)
        return groups, stored
