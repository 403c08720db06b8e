"""The journal's crash test: whatever its bytes become, a resume is exact or refused."""

import random

import pytest

from seer_sgl.driver.journal.blocks import FIRST_LINE, OVERHEAD, Damaged
from seer_sgl.driver.journal.folder import JournalFolder
from seer_sgl.driver.journal.journal import Journal
from seer_sgl.driver.journal.stored import read
from seer_sgl.driver.journal.writer import BlockWriter
from seer_sgl.errors import JournalError
from seer_sgl.types import RequestState
from tests.driver.journal.kept import (
    State,
    Supervised,
    make_journal,
    requests_of,
    resumed,
    returned,
    state_of,
)

FLIPS = 1000


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Supervised:
    return make_journal(tmp_path_factory.mktemp("kept") / "journal", random.Random(1))


def damaged(kept: Supervised, content: bytes) -> State | None:
    """Returns the state that a resume finds in other bytes; None if it is refused."""
    (kept.path / "journal").write_bytes(content)
    try:
        groups, _ = resumed(kept.path)
    except (JournalError, Damaged):
        return None
    return state_of(groups)


def test_a_whole_journal_is_restored_exactly(kept: Supervised) -> None:
    assert damaged(kept, kept.content) == kept.states[-1]
    finished = [finish for *_, finish, _ in kept.states[-1]]
    assert None in finished, "some requests are unfinished"
    assert {"stop", "length"} <= set(finished)


@pytest.mark.process
def test_a_journal_cut_at_any_byte_is_restored_up_to_its_last_whole_block(kept: Supervised) -> None:
    for length in range(kept.positions[0], len(kept.content) + 1):
        whole = sum(position <= length for position in kept.positions)
        assert damaged(kept, kept.content[:length]) == kept.states[whole - 1]


def test_a_journal_cut_within_its_header_has_nothing_to_resume(kept: Supervised) -> None:
    for length in range(kept.positions[0]):
        (kept.path / "journal").write_bytes(kept.content[:length])
        with JournalFolder(kept.path, create=False) as folder:
            assert read(folder) is None


def test_with_a_flipped_bit_a_journal_is_exact_or_refused(kept: Supervised) -> None:
    draw, refused, shortened = random.Random(2), 0, 0
    for _ in range(FLIPS):
        content = bytearray(kept.content)
        at = draw.randrange(len(content))
        content[at] ^= 1 << draw.randrange(8)
        state = damaged(kept, bytes(content))
        if state is None:
            refused += 1
            assert at < kept.positions[-2], "the last block is cut, and the others are not"
        else:
            shortened += 1
            assert state == kept.states[-2]
            assert at >= kept.positions[-2]
    assert refused > FLIPS / 2
    assert shortened > 0


def test_several_damages_at_once_are_exact_or_refused(kept: Supervised) -> None:
    draw, outcomes = random.Random(3), {True: 0, False: 0}
    for _ in range(FLIPS):
        content = bytearray(kept.content[: draw.randint(1, len(kept.content))])
        for _ in range(draw.randint(1, 4)):
            at, count = draw.randrange(len(content)), draw.randint(1, 200)
            content[at : at + count] = draw.choice([b"\0" * count, draw.randbytes(count), b""])
            if not content:
                break
        state = damaged(kept, bytes(content))
        outcomes[state is None] += 1
        assert state is None or state in kept.states
    assert min(outcomes.values()) > 0


def test_blocks_that_are_missing_doubled_or_swapped_are_refused(kept: Supervised) -> None:
    first, second, third = (
        kept.content[kept.positions[i] : kept.positions[i + 1]] for i in (3, 4, 5)
    )
    before, behind = kept.content[: kept.positions[3]], kept.content[kept.positions[6] :]
    for middle in ((first, third), (first, first, second, third), (second, first, third)):
        assert damaged(kept, before + b"".join(middle) + behind) is None


def test_what_a_power_failure_leaves_behind_the_last_block_is_cut(kept: Supervised) -> None:
    for rest in (b"\0" * 5000, random.Random(4).randbytes(5000), kept.content[-OVERHEAD:]):
        assert damaged(kept, kept.content + rest) == kept.states[-1]


def test_a_resumed_journal_continues_behind_the_cut(kept: Supervised) -> None:
    (kept.path / "journal").write_bytes(kept.content[:-3])
    groups, stored = resumed(kept.path)
    with JournalFolder(kept.path, create=False) as folder:
        writer = BlockWriter(folder.resume(stored.tail), stored.tail, folder.name)
        journal = Journal(writer, started_at=0.0)
        for request in requests_of(groups):
            if request.state is not RequestState.FINISHED:
                journal.grown(returned(request, random.Random(5)))
        journal.close()
    again, _ = resumed(kept.path)
    assert state_of(again) == state_of(groups) != kept.states[-2]


def test_a_newer_version_is_refused_by_name(kept: Supervised) -> None:
    newer = b"seer-sgl journal 2\n" + kept.content[len(FIRST_LINE) :]
    (kept.path / "journal").write_bytes(newer)
    with pytest.raises(JournalError, match="version 2; this seer-sgl reads version 1"):
        resumed(kept.path)


def test_another_file_is_refused(kept: Supervised) -> None:
    for content in (b"{}\n", b"seer-sgl journal\n", b"\0" * 100, b"seer-sgl journal x\n"):
        (kept.path / "journal").write_bytes(content)
        with pytest.raises(JournalError, match="it is no journal of seer-sgl"):
            resumed(kept.path)
