"""Reads samples from the files that rollouts leave.

| file | fields |
|---|---|
| `samples.jsonl` of seer-sgl | docs/report.md |
| JSON lines of your own | `prompt_ids`, `response_ids`, `log_probs`; others of `SampleLine` |
| slime's and miles' debug rollout data (`.pt`) | traces/slime_dump.py |

veRL's `trainer.rollout_data_dir` has texts only (`input`, `output`, `gts`, `score`, `step`;
`_write_generations` in verl/trainer/ppo/ray_trainer.py, verl-project/verl 1dda039), decoded without
special tokens. So its tokens cannot be compared, and the file is refused with that reason.
"""

import heapq
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from seer_sgl.bounds import Int64, Natural, TokenId
from seer_sgl.config import plain
from seer_sgl.config.reading import read_tree
from seer_sgl.errors import ConfigError
from seer_sgl.files import numbered_lines, refuse_pipe
from seer_sgl.rollout.jsonl import decoded
from seer_sgl.sampling import NEUTRAL, Sampling
from seer_sgl.traces.slime_dump import IMAGES, SlimeSample, is_dump, read_dump
from seer_sgl.types import WeightSpan

from .recorded import RecordedSample

SPARE = 4  # lines that are read per sample that is wanted, as some have no response
VERL = ("input", "output", "score")


class SampleLine(msgspec.Struct, kw_only=True):
    """One JSON line. `log_probs` and `rollout_log_probs` are two names of one field.

    `sampling`: SGLang's `sampling_params` that differ from those of `--set`. `images`: of the
    prompt, their number or a list of them.
    """

    prompt_ids: list[TokenId] | None = None
    response_ids: list[TokenId] | None = None
    log_probs: list[float | None] | None = None
    rollout_log_probs: list[float | None] | None = None
    group_id: str | int | None = None
    index: int | None = None
    seed: Int64 | None = None
    weight_version: str | int | None = None
    weight_spans: list[WeightSpan] | None = None
    engines: list[str] = []
    chunk_lengths: list[Natural] | None = None
    chunks: Natural | None = None
    accept_length: float | None = None
    drafted: bool | None = None
    images: Any = 0
    failure: str | None = None
    sampling: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(SampleLine)


class SampleFile(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen samples of a file, in random order.

    `total`: samples in the file. `left_out`: how many chosen ones cannot be audited, by reason.
    """

    format: str
    total: int
    samples: list[RecordedSample]
    left_out: dict[str, int]


def read_sampling(overrides: Iterable[str]) -> Sampling:
    """Returns the sampling parameters of `--set NAME=VALUE`. Raises ConfigError."""
    tree, _ = read_tree(None, list(overrides))
    return _with(NEUTRAL, tree, "--set")


def read_samples(path: Path, wanted: int, seed: int, sampling: Sampling) -> SampleFile:
    """Returns `wanted` random samples of a file. Raises ConfigError with file and line.

    `sampling`: the parameters of samples whose file does not name them.
    """
    draw = random.Random(seed)
    try:
        refuse_pipe(path)
        if is_dump(path):
            return _of_dump(path, wanted, draw, sampling)
        return _of_lines(path, wanted, draw, sampling)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _of_lines(path: Path, wanted: int, draw: random.Random, sampling: Sampling) -> SampleFile:
    total = 0

    def keyed() -> Iterator[tuple[float, int, bytes]]:
        nonlocal total
        for number, line in numbered_lines(path):
            total += 1
            yield draw.random(), number, line

    chosen = heapq.nsmallest(SPARE * wanted, keyed())
    read = (_of_line(line, f"{path}:{number}", number, sampling) for _, number, line in chosen)
    samples, left_out = _usable(read, wanted)
    if not total:
        raise ConfigError(f"{path}: no samples")
    return SampleFile(format="JSON lines", total=total, samples=samples, left_out=left_out)


def _usable(
    read: Iterator[RecordedSample | str], wanted: int
) -> tuple[list[RecordedSample], dict[str, int]]:
    """Returns the first `wanted` samples, and how many were left out before the last, by reason."""
    samples: list[RecordedSample] = []
    left_out: Counter[str] = Counter()
    while len(samples) < wanted and (sample := next(read, None)) is not None:
        if isinstance(sample, str):
            left_out[sample] += 1
        else:
            samples.append(sample)
    return samples, dict(left_out)


def _of_line(line: bytes, place: str, number: int, sampling: Sampling) -> RecordedSample | str:
    """Returns a sample, or why it cannot be audited. Raises ConfigError if the line is invalid."""
    record = decoded(line, place, _decoder)
    if record.prompt_ids is None or record.response_ids is None:
        keys = msgspec.json.decode(line)
        if all(key in keys for key in VERL):
            raise ConfigError(
                f"{place}: veRL's rollout data has texts without token ids, which cannot be "
                "compared; write prompt_ids, response_ids and log_probs instead"
            )
        missing = "prompt_ids" if record.prompt_ids is None else "response_ids"
        raise ConfigError(f"{place}: {missing}: missing")
    if record.failure is not None:
        return "given up by the rollout"
    if record.images:
        return IMAGES
    if not record.response_ids or not record.prompt_ids:
        return "without tokens"
    log_probs = record.log_probs if record.log_probs is not None else record.rollout_log_probs
    count = len(record.response_ids)
    if log_probs is not None and len(log_probs) != count:
        raise ConfigError(f"{place}: {len(log_probs)} log probabilities for {count} tokens")
    return RecordedSample(
        name=_name(record, number),
        prompt_ids=record.prompt_ids,
        response_ids=record.response_ids,
        log_probs=_array(log_probs, count),
        spans=_spans(record, count),
        engines=record.engines,
        chunk_lengths=record.chunk_lengths,
        chunks=record.chunks,
        drafted=_drafted(record),
        seed=record.seed,
        sampling=_with(sampling, record.sampling, f"{place}: sampling"),
    )


def _name(record: SampleLine, number: int) -> str:
    if record.group_id is None:
        return f"line {number}"
    return f"{record.group_id}[{number if record.index is None else record.index}]"


def _array(values: Sequence[float | None] | None, count: int) -> Any:
    if values is None:
        return np.full(count, np.nan)
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _spans(record: SampleLine, count: int) -> list[WeightSpan]:
    if record.weight_spans is not None:
        return record.weight_spans
    return [] if record.weight_version is None else [WeightSpan(str(record.weight_version), count)]


def _drafted(record: SampleLine) -> bool | None:
    """Only seer-sgl names the chunks, and gives each drafted sample an accept length."""
    if record.drafted is not None:
        return record.drafted
    known = record.accept_length is not None or record.chunks is not None
    return record.accept_length is not None if known else None


def _with(base: Sampling, overrides: Mapping[str, Any], place: str) -> Sampling:
    if not overrides:
        return base
    try:
        return base.with_overrides(overrides)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: {plain(str(error))}") from error


def _of_dump(path: Path, wanted: int, draw: random.Random, sampling: Sampling) -> SampleFile:
    every = read_dump(path)
    read = (
        sample.unusable or _of_slime(sample, sampling) for sample in draw.sample(every, len(every))
    )
    samples, left_out = _usable(read, wanted)
    return SampleFile(
        format="slime's debug rollout data", total=len(every), samples=samples, left_out=left_out
    )


def _of_slime(sample: SlimeSample, sampling: Sampling) -> RecordedSample:
    begin = len(sample.tokens) - sample.response_length
    known = np.array(sample.loss_mask or [1] * sample.response_length, bool)
    log_probs = _array(sample.rollout_log_probs, sample.response_length)
    versions = list(dict.fromkeys(sample.weight_versions))
    drafts = (sample.spec_info or {}).get("spec_verify_ct", 0)
    return RecordedSample(
        name=f"{sample.group_index}[{sample.index}]",
        prompt_ids=sample.tokens[:begin],
        response_ids=sample.tokens[begin:],
        log_probs=np.where(known, log_probs, np.nan),
        spans=[WeightSpan(versions[0], sample.response_length)] if len(versions) == 1 else [],
        mixed=versions if len(versions) > 1 else [],
        drafted=bool(drafts),
        sampling=sampling,
        whole=bool(known.all()),
    )
