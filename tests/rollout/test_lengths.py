"""Lengths of an earlier rollout: valid files are read, invalid ones refused in one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.errors import ConfigError
from seer_sgl.rollout.lengths import read_lengths
from seer_sgl.scheduling.lengths import prompt_hash
from seer_sgl.types import Group, token_array
from tests.helpers import make_group

IDS = list(range(10))  # the ids of make_group's prompts


def write(path: Path, *lines: dict[str, Any] | str) -> None:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts) + "\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def of(path: Path, group: Group) -> list[int]:
    known = read_lengths(path)
    return [known.true_length(request) for request in group.requests]


def test_samples_are_found_by_their_prompt_whatever_its_id(file: Path) -> None:
    sample = {"group_id": "old", "prompt_ids": IDS, "response_ids": [1], "text": "x"}
    write(
        file,
        sample | {"index": 1, "response_length": 7},
        "",
        sample | {"index": 0, "response_length": 5},
        sample | {"index": 1, "response_length": 8},
        {"group_id": "g", "prompt_ids": [1], "index": 0, "response_length": 99},
    )
    assert of(file, make_group("g", n=3, max_response_len=100)) == [5, 8, 100]


def test_a_line_may_hold_a_whole_group_and_a_group_may_have_but_an_id(file: Path) -> None:
    write(file, {"prompt_ids": IDS, "lengths": [1, 2]}, {"group_id": "h", "lengths": [3, 4]})
    assert of(file, make_group("g", n=2)) == [1, 2]
    other = make_group("h", n=2, prompt_len=11)
    assert of(file, other) == [3, 4]


def test_samples_without_an_index_are_counted(file: Path) -> None:
    write(file, *({"group_id": "h", "response_length": n} for n in (4, 6)))
    assert of(file, make_group("h", n=2, prompt_len=3)) == [4, 6]


def test_prompts_are_told_apart_by_their_tokens() -> None:
    names = {prompt_hash(token_array(ids)) for ids in ([1], [2], [1, 2], [12], [256], [])}
    assert len(names) == 6


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ({"response_length": 3}, "give prompt_ids or group_id"),
        ({"group_id": "g"}, "give exactly one of response_length and lengths"),
        ({"group_id": "g", "response_length": 3, "lengths": [3]}, "give exactly one of"),
        ({"group_id": "g", "response_length": -1}, "response_length: expected int >= 0"),
        ({"group_id": "g", "lengths": []}, "lengths: the list is empty"),
        ({"group_id": "g", "lengths": [1, "x"]}, "lengths[1]: expected int, got str"),
        ({"prompt_ids": [1 << 40], "lengths": [1]}, "prompt_ids[0]: expected int <= "),
        ("{", "not JSON"),
        (f'{{"x": {"[" * 100_000}', "nested too deeply"),
        ('{"group_id": "g", "response_length": 3000000000}', "response_length: expected int <="),
        ("\udcff", "not JSON"),
    ],
)
def test_a_bad_line_is_named(file: Path, line: dict[str, Any] | str, complaint: str) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    good = json.dumps({"group_id": "g", "response_length": 3})
    file.write_bytes(f"{good}\n{text}\n".encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=re.escape(f"{file}:2: {complaint}")) as error:
        read_lengths(file)
    assert str(error.value).startswith("scheduling.lengths: ")
