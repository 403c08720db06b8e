"""What a journal writes of a rollout's events."""

import random

import msgspec

from seer_sgl.driver.journal.journal import Journal
from seer_sgl.driver.journal.records import Ended, Record, Returned, decode, encode
from seer_sgl.driver.journal.restore import restore
from seer_sgl.routed_experts import ExpertShape, RoutedExperts
from seer_sgl.types import ChunkResult, Group
from tests.driver.journal.kept import ListWriter, make_groups, requests_of, returned
from tests.helpers import made_sample, make_reply
from tests.support.infos import chunk_on


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


def with_images() -> Group:
    (group,) = make_groups(prompts=1, n=1)
    group.prompt = msgspec.structs.replace(group.prompt, image_data=("u",), image_tokens=4)
    group.image_tokens, group.longest = 4, 200
    return group


def test_routed_experts_behind_images_are_restored() -> None:
    writer, shape = ListWriter(), ExpertShape(layers=1, top_k=2, experts=8)
    journal, live = Journal(writer, started_at=0.0), with_images()
    (request,) = live.requests
    for images_and_prompt, first_row in ((102, 0), (102, 109)):
        given = images_and_prompt + request.generated
        rows = given + 8 - 1 - first_row
        experts = RoutedExperts.of(memoryview(bytes(rows * shape.row_bytes)), shape)
        reply = msgspec.structs.replace(make_reply(8), input_tokens=given, routed_experts=experts)
        chunk = chunk_on("e0", request)
        request.started_at = 0.0
        request.append(reply)
        journal.grown(ChunkResult(chunk=chunk, now=1.0, reply=reply))
    again = with_images()
    restore([again], written(writer), 0.0)
    assert (again.requests[0].routed, again.image_tokens, again.counted) == (117, 100, True)


def test_a_chunk_of_a_journal_without_input_tokens_is_read() -> None:
    writer = ListWriter()
    (request,) = requests_of(make_groups(prompts=1, n=1))
    Journal(writer, started_at=0.0).grown(returned(request, random.Random(1)))
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(writer.records[0])[:-1])
    (record,) = written(writer)
    assert decode(older) == record
    assert encode(decode(older)) == writer.records[0]
