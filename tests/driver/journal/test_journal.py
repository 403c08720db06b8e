"""What a journal writes of a rollout's events."""

import random

from seer_sgl.driver.journal.journal import Journal
from seer_sgl.driver.journal.records import Ended, Record, Returned, decode
from tests.driver.journal.kept import ListWriter, make_groups, requests_of, returned
from tests.helpers import made_sample


def written(writer: ListWriter) -> list[Record]:
    return [decode(record) for record in writer.records]


def test_the_end_of_a_request_is_written_once_with_its_last_chunk() -> None:
    writer, draw = ListWriter(), random.Random(1)
    journal = Journal(writer, started_at=0.0)
    first, second = requests_of(make_groups(prompts=1, n=2))
    while first.finished_at is None:
        journal.grown(returned(first, draw))
    journal.finished(first, made_sample(first))
    records = written(writer)
    assert all(isinstance(record, Returned) for record in records)
    assert [bool(record.finish) for record in records if isinstance(record, Returned)] == [
        *[False] * (len(records) - 1),
        True,
    ]
    writer.records.clear()
    second.finish("abort", None, 3.0)  # without a chunk
    journal.finished(second, made_sample(second))
    (record,) = written(writer)
    assert isinstance(record, Ended)
    assert (record.order, record.finish) == (second.order, "abort")
