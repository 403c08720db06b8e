"""Traces in plain files: JSON lines and CSV."""

import json
from pathlib import Path

import pytest

from seer_sgl.errors import ConfigError
from seer_sgl.traces.reading import read_trace
from seer_sgl.traces.trace import UNKNOWN_PROMPT, Trace


def lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def shape(trace: Trace) -> list[tuple[str, int, list[int]]]:
    return [(group.group_id, len(group.prompt_ids), group.lengths) for group in trace.groups]


def test_a_line_is_a_response_or_a_group(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "t.jsonl",
        {"group": 7, "length": 5, "prompt_tokens": 3},
        {"group_id": "b", "lengths": [4, 9], "prompt_ids": [1, 2]},
        {"group": 7, "response_ids": [1, 2, 3], "extra": {}},
        {"group_id": "b", "response_length": 8, "index": 2, "failure": "given up"},
    )
    trace = read_trace(path)
    assert shape(trace) == [("7", 3, [5, 3]), ("b", 2, [4, 9])]
    assert trace.assumed == []


def test_responses_with_one_prompt_are_a_group(tmp_path: Path) -> None:
    line = {"prompt_ids": [1, 2], "response_length": 4}
    path = lines(tmp_path / "t.jsonl", line, {**line, "prompt_ids": [1]}, line)
    assert [lengths for _, _, lengths in shape(read_trace(path))] == [[4, 4], [4]]


@pytest.mark.parametrize(
    "text",
    ["group,length,prompt_tokens\na,10,3\nb,20,3\na,30,3\n", "a,10,3\nb,20,3\n\na,30,3\n"],
    ids=["with names", "without names"],
)
def test_a_csv_has_groups_and_lengths(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    trace = read_trace(path)
    assert (trace.format, shape(trace)) == ("CSV", [("a", 3, [10, 30]), ("b", 3, [20])])
    assert trace.assumed == []


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Length, Other, Group\n10, x, a\n20, y, a\n")
    assert shape(read_trace(path)) == [("a", UNKNOWN_PROMPT, [10, 20])]


def test_what_a_file_lacks_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("length\n10\n0\n20\n30\n")
    alone, pairs = read_trace(path), read_trace(path, group_size=2)
    assert [lengths for _, _, lengths in shape(alone)] == [[10], [20], [30]]
    assert [lengths for _, _, lengths in shape(pairs)] == [[10], [20, 30]]
    assert alone.assumed == [
        "Responses without tokens, left out: 1.",
        f"Prompts whose length is not in the file: 3, with {UNKNOWN_PROMPT} tokens each.",
        "The file has no groups: each response has a prompt of its own.",
    ]
    assert pairs.assumed[-1] == "The file has no groups: 2 responses in a row are one."


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("t.jsonl", '{"group": 1}\n', "t.jsonl:1: give response_length, response_ids or lengths"),
        ("t.jsonl", '{"group": 1, "length": "x"}\n', "t.jsonl:1: .*length: expected int"),
        ("t.jsonl", "no JSON\n", "t.jsonl:1: not JSON"),
        ("t.csv", "a,10\nb,x\n", "t.csv:2: length: 'x' is not a number of tokens"),
        ("t.csv", "group,length\n", "no response with tokens"),
        ("none.csv", None, "none.csv: No such file or directory"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_trace(tmp_path / name)
