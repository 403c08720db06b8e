"""Dumps of other frameworks. The files in dumps/ were written by the functions that the modules'
docstrings name, cut out of the named commits and run on tiny data; tpu-inference's begins with the
line of its README."""

import math
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.errors import ConfigError
from seer_sgl.traces.reading import read_trace
from seer_sgl.traces.trace import Trace
from tests.traces.slime import dumped, save

DUMPS = Path(__file__).parent / "dumps"
# By file: the format; prompt tokens and response lengths of each group.
READ = {
    "verl.jsonl": ("veRL's rollout data", [(3, [3, 4]), (4, [8])]),
    "verl-v1.jsonl": ("veRL's rollout data", [(3, [3, 4]), (4, [8])]),
    "nemo-rl.jsonl": ("NeMo-RL's training data", [(3, [2, 4]), (2, [2])]),
    "tpu-inference.jsonl": ("a trace of tpu-inference", [(7570, [521]), (310, [120, 20])]),
    "inference-perf.json": ("inference-perf's requests", [(12, [31, 9]), (20, [7])]),
    "slime-timeline.json": ("slime's trace timeline", [(3, [2, 4]), (2, [2])]),
}


def shape(trace: Trace) -> list[tuple[int, list[int]]]:
    return [(len(group.prompt_ids), group.lengths) for group in trace.groups]


@pytest.mark.parametrize("name", READ)
def test_a_dump_has_groups_prompts_and_lengths(name: str) -> None:
    trace = read_trace(DUMPS / name)
    assert (trace.format, shape(trace)) == READ[name]
    assert trace.assumed


def test_texts_are_counted_by_a_tokenizer() -> None:
    trace = read_trace(DUMPS / "verl.jsonl", count=lambda text: len(text.split()))
    assert shape(trace) == [(3, [1, 4]), (3, [8])]
    assert "tokens are those of --tokenizer" in trace.assumed[0]


def test_failed_requests_are_left_out_and_counted() -> None:
    assert "Failed requests, left out: 1." in read_trace(DUMPS / "inference-perf.json").assumed


@pytest.mark.parametrize(
    "text",
    [
        '[{"request": "a", "info": {"response_metrics": {"output_tokens": 5}, "input_tokens": 3}},'
        '{"request": "a", "info": null}, {"request": "a", "info": {"response_metrics": null}}]',
        '{"token_ids": [[7, 8, 9, 1, 2, 3, 4, 5]], "token_loss_mask": [[0, 0, 0, 1, 1, 1, 1, 1]],'
        ' "input_lengths": [8]}\n'
        + '{"token_ids": [[7, 8, 9]], "token_loss_mask": [[0, 0, 0]], "input_lengths": [3]}\n'
        * 2,
    ],
    ids=["inference-perf", "NeMo-RL"],
)
def test_responses_without_counts_or_tokens_are_left_out_and_counted(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "dump.json"
    path.write_text(text)
    trace = read_trace(path)
    assert shape(trace) == [(3, [5])]
    assert "Responses without tokens, left out: 2." in trace.assumed


def test_a_dump_of_slime_has_groups_prompts_and_lengths(tmp_path: Path) -> None:
    whole = dumped(index=26, loss_mask=None)
    tool = dumped(group_index=4, index=32, loss_mask=[1, 0, 1])
    trace = read_trace(save(tmp_path / "3.pt", dumped(), whole, tool))
    assert trace.format == "slime's debug rollout data"
    assert shape(trace) == [(2, [3, 3]), (2, [2])]


def test_a_dump_of_slime_that_is_cut_short_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "3.pt", dumped())
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ConfigError, match="torch cannot load it: it is cut short"):
        read_trace(path)


@pytest.mark.parametrize("kind", ["sparse", "meta", "nan"])
def test_a_dump_of_slime_with_wrong_numbers_is_named(tmp_path: Path, kind: str) -> None:
    import torch

    numbers: Any = [-1.0, math.nan]
    if kind != "nan":
        numbers = torch.ones(2)
        numbers = numbers.to_sparse() if kind == "sparse" else numbers.to("meta")
    path = save(tmp_path / "3.pt", dumped(rollout_log_probs=numbers))
    with pytest.raises(ConfigError, match=r"\.rollout_log_probs: a (tensor|number) that"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"input": "a", "output": 3, "score": 1, "step": 1}', ":1: output: expected str"),
        (
            '{"token_ids": [[1, 2]], "token_loss_mask": [[1]], "input_lengths": [2]}',
            ":1: token_ids, token_loss_mask: of different lengths",
        ),
        ('{"group": 1, "prompt_len": 1, "out_lens": "x"}', ":1: out_lens: expected array"),
        ('[{"info": null}]', "object missing required field request"),
        ("[", "not JSON"),
        ('{"cache_version": 1, "rows": 5}', "rows: expected array"),
    ],
)
def test_a_damaged_dump_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_trace(path)
