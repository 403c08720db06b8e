"""The traces of a what-if: folders, names, and what is said about several of them."""

from pathlib import Path

import pytest

from seer_sgl.errors import ConfigError
from seer_sgl.what_if.trace_files import assumed_of, read_traces

LINE = '{"group": 1, "length": 5, "prompt_tokens": 3}\n'


def write(path: Path, text: str = LINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_folder_stands_for_its_rollouts_of_training(tmp_path: Path) -> None:
    for name in ("10.jsonl", "9.jsonl", ".8.jsonl", "val_7.jsonl"):
        write(tmp_path / name)
    (tmp_path / "6.jsonl").mkdir()
    traces = read_traces([tmp_path])
    assert [trace.name for trace in traces] == ["9.jsonl", "10.jsonl"]
    assert assumed_of(traces) == [f"Files val_* in {tmp_path}, left out: 1."]


def test_a_path_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("t" * 300)
    with pytest.raises(ConfigError, match=f"^TRACE: {path}: File name too long$"):
        read_traces([path])


def test_traces_of_equal_file_names_are_named_by_their_paths(tmp_path: Path) -> None:
    paths = [write(tmp_path / step / "samples.jsonl") for step in ("a", "b")]
    other = write(tmp_path / "other.jsonl")
    names = [trace.name for trace in read_traces([*paths, other])]
    assert names == [*map(str, paths), "other.jsonl"]


def test_what_every_trace_lacks_is_said(tmp_path: Path) -> None:
    lacking = write(tmp_path / "t.csv", "length,prompt_tokens\n5,3\n")
    full = write(tmp_path / "full.jsonl")
    sentence = "The file has no groups: each response has a prompt of its own."
    assert assumed_of(read_traces([lacking, full])) == [f"t.csv: {sentence}"]
    assert assumed_of(read_traces([lacking])) == [sentence]
