"""Damages journals in two forms, and counts what a reader makes of them.

`python -m bench.journal_forms --json` writes the records of one made-up rollout as blocks (the form
of seer-sgl) and into SQLite in WAL mode (one row per record, a transaction per block,
`synchronous=FULL`). Then it cuts the file at every byte, and flips single bits at random places. A
case is exact (the state after some block), refused (an error), or wrong (any other state, without
an error). SQLite is damaged in its log before a checkpoint, and in its database after one.
"""

import argparse
import json
import random
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from seer_sgl.driver.journal.blocks import Damaged, records_in, scan
from seer_sgl.driver.journal.records import Record, decode
from seer_sgl.driver.journal.restore import restore
from tests.driver.journal.kept import State, Supervised, make_groups, make_journal, state_of

PROMPTS, SAMPLES = 12, 6
Reader = Callable[[bytes], State]


def state_after(records: Iterable[Record]) -> State:
    """Returns the state that records restore. Raises Damaged if they do not fit."""
    groups = make_groups(PROMPTS, SAMPLES)
    restore(groups, records, 0.0)
    return state_of(groups)


def read_blocks(content: bytes) -> State:
    """Reads a journal of seer-sgl."""
    blocks, _ = scan(content)
    if not blocks:
        raise Damaged("no header")
    parts = (content[block.begin : block.end] for block in blocks[1:])
    return state_after(decode(record) for part in parts for record in records_in(part))


class Sqlite:
    """The same records in SQLite, in a folder."""

    def __init__(self, folder: Path, kept: Supervised) -> None:
        self.database = folder / "journal.db"
        self.log = folder / "journal.db-wal"
        connection = sqlite3.connect(self.database, isolation_level=None)
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=full")
        connection.execute("pragma wal_autocheckpoint=0")
        connection.execute("create table records (number integer primary key, record blob)")
        connection.execute("pragma wal_checkpoint(truncate)")
        blocks, _ = scan(kept.content)
        for block in blocks[1:]:
            connection.execute("begin")
            for record in records_in(kept.content[block.begin : block.end]):
                connection.execute("insert into records (record) values (?)", (bytes(record),))
            connection.execute("commit")
        self.before = (self.database.read_bytes(), self.log.read_bytes())
        connection.execute("pragma wal_checkpoint(truncate)")
        self.after = self.database.read_bytes()
        connection.close()

    def read_log(self, content: bytes) -> State:
        """Reads the rollout with another log."""
        return self._read(self.before[0], content)

    def read_database(self, content: bytes) -> State:
        """Reads the rollout from another database, without a log."""
        return self._read(content, b"")

    def _read(self, database: bytes, log: bytes) -> State:
        self.database.with_name("journal.db-shm").unlink(missing_ok=True)
        self.database.write_bytes(database)
        self.log.write_bytes(log)
        connection = sqlite3.connect(self.database)
        try:
            rows = connection.execute("select record from records order by number").fetchall()
        finally:
            connection.close()
        return state_after(decode(record) for (record,) in rows)


def outcome(read: Reader, content: bytes, states: list[State]) -> str:
    """Returns what a reader makes of some bytes: exact, refused or wrong."""
    try:
        return "exact" if read(content) in states else "wrong"
    except (ValueError, sqlite3.Error, msgspec.MsgspecError, TypeError):
        return "refused"


def damage(read: Reader, whole: bytes, states: list[State], flips: int) -> dict[str, object]:
    """Returns the outcomes of cuts in the last 1,024 bytes, and of flipped bits."""
    assert read(whole) == states[-1]
    cuts: Counter[str] = Counter()
    for length in range(max(0, len(whole) - 1024), len(whole)):
        cuts[outcome(read, whole[:length], states)] += 1
    draw, flipped = random.Random(1), Counter[str]()
    for _ in range(flips):
        content = bytearray(whole)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        flipped[outcome(read, bytes(content), states)] += 1
    return {"bytes": len(whole), "cuts": dict(cuts), "flips": dict(flipped)}


def main() -> None:
    """Prints the outcomes, and one JSON object last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept = make_journal(folder / "kept", random.Random(1), PROMPTS, SAMPLES)
        sqlite = Sqlite(folder, kept)
        figures = {
            form: damage(read, whole, kept.states, options.flips)
            for form, read, whole in (
                ("blocks", read_blocks, kept.content),
                ("sqlite_log", sqlite.read_log, sqlite.before[1]),
                ("sqlite_database", sqlite.read_database, sqlite.after),
            )
        }
    if not options.json:
        for form, counts in figures.items():
            print(form, counts)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
