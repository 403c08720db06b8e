"""Traces in plain files: JSON lines and CSV."""

import gzip
import json
import os
from pathlib import Path

import pytest

from seer_sgl.errors import ConfigError
from seer_sgl.traces.reading import read_trace
from seer_sgl.traces.trace import UNKNOWN_PROMPT, Trace

INDEXED = '{"group_id": "a", "index": 0, "response_length": 8}\n'


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
        {"group": 7, "length": 0},
    )
    trace = read_trace(path)
    assert shape(trace) == [("7", 3, [5, 3]), ("b", 2, [4, 9])]
    assert trace.assumed == ["Responses without tokens, left out: 1."]


def test_lines_of_lengths_are_a_group_each_and_a_byte_order_mark_is_no_json(
    tmp_path: Path,
) -> None:
    path = lines(tmp_path / "t.jsonl", {"lengths": [5, 6]}, {"lengths": [7, 8]})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    trace = read_trace(path)
    assert [lengths for _, _, lengths in shape(trace)] == [[5, 6], [7, 8]]
    assert not any("no groups" in line for line in trace.assumed)


def test_responses_with_one_prompt_are_a_group(tmp_path: Path) -> None:
    line = {"prompt_ids": [1, 2], "response_length": 4}
    path = lines(tmp_path / "t.jsonl", line, {**line, "prompt_ids": [1]}, line)
    assert [lengths for _, _, lengths in shape(read_trace(path))] == [[4, 4], [4]]


def test_prompts_without_tokens_are_unknown_and_not_one_prompt(tmp_path: Path) -> None:
    line = {"prompt_ids": [], "response_length": 4}
    trace = read_trace(lines(tmp_path / "t.jsonl", line, line))
    assert [lengths for _, _, lengths in shape(trace)] == [[4], [4]]
    assert "The file has no groups: each response has a prompt of its own." in trace.assumed


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


def test_the_length_of_a_prompt_may_be_in_any_row_of_its_group(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("group,length,prompt_tokens\na,10,\nb,20,\na,30,500\nc,40,7\na,50,3\n")
    trace = read_trace(path)
    groups = [("a", 500, [10, 30, 50]), ("b", UNKNOWN_PROMPT, [20]), ("c", 7, [40])]
    assert shape(trace) == groups
    assert len({group.prompt_ids[0] for group in trace.groups}) == 3
    assert trace.assumed == [
        f"Prompts whose length is not in the file: 1, with {UNKNOWN_PROMPT} tokens each."
    ]


def test_responses_without_a_group_are_counted_and_join_no_other(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("group,length\n1,10\n,20\n")
    trace = read_trace(path)
    assert [lengths for _, _, lengths in shape(trace)] == [[10], [20]]
    assert "1 of 2 responses have no group: each response has a prompt of its own." in trace.assumed


def test_names_in_another_encoding_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("group,length\ngrün,10\ngrän,20\ngrün,30\n".encode("latin-1"))
    assert [lengths for _, _, lengths in shape(read_trace(path))] == [[10, 30], [20]]


def test_no_name_of_a_group_takes_responses_without_one(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "t.jsonl",
        {"group": "#1", "length": 5},
        {"length": 6},
        {"group": "[1]", "length": 7},
        {"prompt_ids": [1], "length": 8},
        {"group": "=#1", "length": 9},
    )
    assert [lengths for _, _, lengths in shape(read_trace(path))] == [[5], [6], [7], [8], [9]]


@pytest.mark.parametrize(
    "text",
    [
        "step,group_id,response_length\n7,a,10\n7,a,20\n",
        "Length, Other, Group\n10, x, a\n20, y, a\n",
        "\ufeffgroup,length\na,10\na,20\n",
        "\ufeffa,10\na,20\n",
    ],
    ids=["other names", "capitals and spaces", "byte order mark", "mark without names"],
)
def test_a_csv_may_have_other_names_and_a_byte_order_mark(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    assert shape(read_trace(path)) == [("a", UNKNOWN_PROMPT, [10, 20])]


def test_a_csv_may_have_long_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"length,text\n10,{'x' * 200_000}\n")
    assert [lengths for _, _, lengths in shape(read_trace(path))] == [[10]]


def test_prompts_of_all_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seer_sgl.traces.trace.MOST_PROMPT_TOKENS", 100)
    path = tmp_path / "t.csv"
    path.write_text("a,10,60\na,10,60\nb,10,60\n")
    with pytest.raises(ConfigError, match=r"t.csv:3: prompt_tokens: 120 tokens in all prompts"):
        read_trace(path)


def test_a_pipe_is_refused_instead_of_read_from_its_middle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe: a pipe, which can be read only once"):
        read_trace(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"input": "a", "output": "b", "score": 1, "step": 1}', "veRL's rollout data"),
        ('{"group": "a", "prompt_len": 3, "out_lens": [5]}', "a trace of tpu-inference"),
        ('[{"request": "a", "info": {"response_metrics": {"output_tokens": 5}}}]', "inference-"),
        (
            '{"cache_version": 1, "rows": [{"sample_index": 0, "group_index": 0, "items": '
            '[{"attrs": {"end_attrs": {"completion_tokens": 4}}}]}]}',
            "slime's trace timeline",
        ),
    ],
)
def test_every_format_of_text_may_have_a_byte_order_mark(
    tmp_path: Path, text: str, kind: str
) -> None:
    path = tmp_path / "t.json"
    path.write_text(f"\ufeff{text}", encoding="utf-8")
    assert read_trace(path).format.startswith(kind)


def test_a_compressed_file_is_named(tmp_path: Path) -> None:
    for name in ("t.csv", "t.jsonl"):
        (tmp_path / name).write_bytes(gzip.compress(b"a,10\n"))
        with pytest.raises(ConfigError, match=f"{name}: compressed with gzip"):
            read_trace(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("t.jsonl", '{"group": 1}\n', "t.jsonl:1: give response_length, response_ids or lengths"),
        ("t.jsonl", '{"group": 1, "length": "x"}\n', "t.jsonl:1: .*length: expected int"),
        ("t.jsonl", '{"group": 1, "lengths": []}', "t.jsonl:1: lengths: the list is empty"),
        ("t.jsonl", '{"lengths": [1], "response_length": 1}', "t.jsonl:1: give exactly one of"),
        ("t.jsonl", INDEXED + INDEXED, "t.jsonl:2: index: sample 0 of its"),
        ("t.jsonl", INDEXED + '{"response_length": -1}', "t.jsonl:2: response_length: exp"),
        ("t.jsonl", "no JSON\n", "t.jsonl:1: not JSON"),
        ("t.csv", "a,10\nb,x\n", "t.csv:2: length: 'x' is not a number of tokens"),
        ("t.csv", "group,length\n", "no response with tokens"),
        (
            "t.csv",
            "step,group,response_len\n1,2,3\n",
            "t.csv:1: no column named length; columns: st",
        ),
        ("t.csv", "a,12x\na,10\n", "t.csv:1: no column named length; columns: a, 12x"),
        ("t.csv", "1,2,3,4\n", "t.csv:1: no column named length"),
        ("t.csv", "a,1000,20\na,2,500,20\n", "t.csv:2: 4 columns, and the first row has no na"),
        ("t.csv", "length,group,length\n1,a,2\n", "t.csv:1: 2 columns named length"),
        ("t.csv", f"a,10\na,{'9' * 5000}\n", r"t.csv:2: length: '9{20}...' is not a number"),
        ("t.csv", "a,10\na,\u0661\n", "t.csv:2: length: .* is not a number of tokens"),
        ("t.csv", "a,10,2000000000\n", "t.csv:1: prompt_tokens: 2000000000 tokens; at most"),
        ("t.csv", "a,10\na,2000000000\n", "t.csv:2: length: 2000000000 tokens; at most"),
        ("t.jsonl", '{"length": 5, "prompt_tokens": 2000000000}', "t.jsonl:1: prompt_tokens: 2"),
        (
            "t.jsonl",
            '{"group": 1, "prompt_len": 9223372036854775807, "out_lens": [1]}',
            "t.jsonl:1: prompt_tokens: 9223372036854775807 tokens; at most",
        ),
        ("none.csv", None, "none.csv: No such file or directory"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_trace(tmp_path / name)
