"""The files that an audit reads: their fields, and the errors of invalid ones."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seer_sgl.audit.formats import SampleFile, read_samples
from seer_sgl.audit.recorded import labels
from seer_sgl.errors import ConfigError
from seer_sgl.sampling import NEUTRAL
from tests.traces.slime import dumped, save

from .scoring_sglang import write_lines

VERL = {"input": "a", "output": "b", "gts": None, "score": 1.0, "step": 3}
PLAIN = {"prompt_ids": [1, 2], "response_ids": [3, 4], "log_probs": [-0.5, None]}


def read(path: Path, wanted: int = 32, seed: int = 0) -> SampleFile:
    return read_samples(path, wanted, seed, NEUTRAL)


def test_lines_of_your_own_need_tokens_only(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "mine.jsonl", [PLAIN])
    (sample,) = read(path).samples
    assert (sample.name, sample.prompt_ids, sample.response_ids) == ("line 1", [1, 2], [3, 4])
    assert sample.log_probs[0] == -0.5
    assert np.isnan(sample.log_probs[1])
    assert sample.unrepeatable == "without a seed"
    assert labels(sample)["engine"] == ["unknown", "unknown"]


def test_the_choice_is_random_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "samples.jsonl", [PLAIN | {"group_id": i} for i in range(99)])
    names = [[sample.name for sample in read(path, 5, seed).samples] for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]
    assert len(set(names[0])) == 5
    assert read(path, 5).total == 99


def test_samples_without_a_response_make_room_for_others(tmp_path: Path) -> None:
    given_up = [PLAIN | {"failure": "refused"}, PLAIN | {"response_ids": [], "log_probs": []}]
    path = write_lines(tmp_path / "samples.jsonl", [*given_up, PLAIN, PLAIN])
    assert len(read(path, 2).samples) == 2
    assert read(path, 3).left_out == {"given up by the rollout": 1, "without tokens": 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        (json.dumps(VERL), "veRL's rollout data has texts without token ids"),
        ('{"prompt_ids": [1]}', "response_ids: missing"),
        (json.dumps(PLAIN | {"log_probs": [-1.0]}), "1 log probabilities for 2 tokens"),
        (json.dumps(PLAIN | {"prompt_ids": [-1]}), "prompt_ids"),
        (json.dumps(PLAIN | {"weight_spans": [{"version": "a", "tokens": -1}]}), "weight_spans"),
        (json.dumps(PLAIN | {"sampling": {"temprature": 1}}), "sampling"),
    ],
)
def test_an_invalid_line_is_named_with_its_reason(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(ConfigError) as error:
        read(path)
    assert f"{path}:2: " in str(error.value)
    assert message in str(error.value)


def test_a_pipe_is_refused_instead_of_read_from_its_middle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe: a pipe, which can be read only once"):
        read(tmp_path / "pipe")


def test_missing_and_empty_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no samples"):
        read(tmp_path / "empty.jsonl")
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="Is a directory"):
        read(tmp_path)


def test_samples_whose_prompts_have_images_are_left_out(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "samples.jsonl", [PLAIN | {"images": each} for each in (2, 0, ["a"])]
    )
    file = read(path)
    assert [sample.name for sample in file.samples] == ["line 2"]
    assert file.left_out == {"with images": 2}


def test_a_dump_of_slime_has_prompt_response_and_log_probs(tmp_path: Path) -> None:
    tool = dumped(index=26, loss_mask=[1, 0, 1], rollout_log_probs=[-0.1, 0.0, -0.3])
    image = dumped(index=27, multimodal_inputs={"images": [1]})
    updated = dumped(index=28, weight_versions=["7", "8", "8"])
    file = read(save(tmp_path / "0.pt", dumped(), tool, image, updated))
    assert (file.format, file.total) == ("slime's debug rollout data", 4)
    assert file.left_out == {"with images": 1}
    by_name = {sample.name: sample for sample in file.samples}
    whole, tools = by_name["3[25]"], by_name["3[26]"]
    assert (whole.prompt_ids, whole.response_ids) == ([5, 6], [7, 8, 9])
    assert whole.log_probs.tolist() == [-0.1, -0.2, -0.3]
    assert labels(whole)["weight version"] == ["7"] * 3
    assert labels(by_name["3[28]"])["weight version"] == ["unknown"] * 3
    assert by_name["3[28]"].mixed == ["7", "8"]
    assert np.isnan(tools.log_probs).tolist() == [False, True, False]
    assert tools.unrepeatable == "some tokens are not the model's"


def test_a_dump_runs_no_code(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> Any:
            return (print, ("the file's code ran",))

    with pytest.raises(ConfigError, match="torch cannot load it"):
        read(save(tmp_path / "0.pt", Code()))


def test_a_dump_without_torch_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", b"")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match="needs torch to be read"):
        read(path)


@pytest.mark.process
def test_an_audit_needs_neither_torch_nor_numba_nor_matplotlib(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "samples.jsonl", [PLAIN])
    code = f"""
import sys
for name in ("torch", "numba", "matplotlib", "sglang"):
    sys.modules[name] = None
from pathlib import Path
import seer_sgl.audit.command
from seer_sgl.audit.formats import read_samples, read_sampling
assert len(read_samples(Path({str(path)!r}), 8, 0, read_sampling([])).samples) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_spans_of_any_size_end_with_the_response(tmp_path: Path) -> None:
    spans = [{"version": version, "tokens": (1 << 63) - 1} for version in "abc"]
    path = write_lines(tmp_path / "samples.jsonl", [PLAIN | {"weight_spans": spans}])
    assert labels(read(path).samples[0])["weight version"] == ["a", "a"]
