"""The lengths of a real rollout, read from the samples.jsonl of `seer-sgl rollout`."""

from array import array
from collections.abc import Sequence
from pathlib import Path

from seer_sgl.errors import ConfigError
from seer_sgl.rollout.lengths import LengthRecord, read_records
from seer_sgl.types import token_array

from .workload import Responses

SOURCE = "--trace"
UNKNOWN_PROMPT = 512  # tokens of a prompt whose ids the trace does not have


def read_trace(path: Path) -> list[Responses]:
    """Returns the groups of a trace in order of appearance, with their samples by index.

    A line is a sample or a whole group (rollout/lengths.py). Raises ConfigError with file and line.
    """
    prompts: dict[str, array[int]] = {}
    lengths: dict[str, dict[int, int]] = {}
    for place, record in read_records(path, SOURCE):
        group_id = record.group_id or str(record.prompt_ids)
        if group_id not in prompts:
            prompts[group_id] = _prompt(record, len(prompts))
        samples = lengths.setdefault(group_id, {})
        for index, length in record.samples():
            known = len(samples) if index is None else index
            if length < 1:
                raise ConfigError(f"{place}: response_length: must be at least 1")
            if known in samples:
                raise ConfigError(f"{place}: index: sample {known} of its group appears twice")
            samples[known] = length
    return [
        Responses(
            group_id, prompt, [lengths[group_id][index] for index in sorted(lengths[group_id])]
        )
        for group_id, prompt in prompts.items()
    ]


def _prompt(record: LengthRecord, number: int) -> "array[int]":
    if record.prompt_ids:
        return token_array(record.prompt_ids)
    return token_array([number]) * UNKNOWN_PROMPT


def facts(groups: Sequence[Responses]) -> dict[str, dict[str, object]]:
    """Returns the workload of a trace as a tree of settings."""
    lengths = [length for group in groups for length in group.lengths]
    return {
        "workload": {
            "groups": len(groups),
            "n_samples_per_prompt": max(len(group.lengths) for group in groups),
            "prompt_tokens": max(len(group.prompt_ids) for group in groups),
            "lengths": {"mean": sum(lengths) / len(lengths), "max": max(lengths)},
        }
    }
