"""slime's and miles' debug rollout data: files of `torch.save`.

`--save-debug-rollout-data PATH` writes `{"rollout_id": ..., "samples": [...]}`, one dict per sample
(`save_debug_rollout_data` in slime/observability/rollout_data_utils.py and `Sample.to_dict` in
slime/utils/types.py, THUDM/slime 624b824; `save_debug_rollout_data` in miles/ray/rollout/
debug_data.py, radixark/miles 31f1ca9). `tokens` is prompt and response. Tokens of tools have
`loss_mask` 0, and 0.0 in `rollout_log_probs` (`Sample.append_response_tokens`). The file names
neither sampling parameters nor seeds.

torch is needed for these files only. It loads tensors and plain values, and runs no code of the
file (`weights_only`).
"""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from seer_sgl.bounds import Natural, TokenId
from seer_sgl.config import plain
from seer_sgl.errors import ConfigError

from .trace import Imported, TracedResponse

ZIP = b"PK\x03\x04"  # the beginning of a file of `torch.save`
IMAGES = "with images"  # they are in no file, and a server needs them


class SlimeSample(msgspec.Struct, kw_only=True):
    """The fields of a dumped `Sample` that an audit reads."""

    tokens: list[TokenId]
    response_length: Natural
    group_index: int | None = None
    index: int | None = None
    rollout_log_probs: list[float] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = []
    spec_info: dict[str, float] | None = None
    multimodal_inputs: Any = None
    status: str = "completed"

    @property
    def unusable(self) -> str | None:
        """Why the sample cannot be audited; None if it can."""
        if self.multimodal_inputs is not None:
            return IMAGES
        if not 0 < self.response_length < len(self.tokens):
            return "without tokens"
        count = self.response_length
        lists = [
            values for values in (self.rollout_log_probs, self.loss_mask) if values is not None
        ]
        return (
            "lists of different lengths" if any(len(values) != count for values in lists) else None
        )


def is_dump(path: Path) -> bool:
    """Returns whether a file is one of `torch.save`. Raises OSError."""
    with path.open("rb") as file:  # one that is cut short is no zip any more, but begins like one
        return file.read(len(ZIP)) == ZIP or zipfile.is_zipfile(file)


def read_dump(path: Path) -> list[SlimeSample]:
    """Returns the samples of a dump. Raises ConfigError if it is invalid, or torch is missing."""
    try:
        import torch
    except ImportError as error:
        raise ConfigError(f"{path}: a file of torch.save, which needs torch to be read") from error
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds; some advise to load what may run code
        why = (
            "torch cannot load it: it is cut short, or has other values than tensors and plain ones"
        )
        raise ConfigError(f"{path}: {why}") from error
    samples = content.get("samples") if isinstance(content, Mapping) else None
    if not isinstance(samples, list) or not samples:
        raise ConfigError(f"{path}: no samples: slime's debug rollout data has a list of them")
    return [_sample(sample, f"{path}: samples[{number}]") for number, sample in enumerate(samples)]


def responses_of(path: Path, source: str) -> Imported:
    """Returns the responses of a dump, for a trace. Tokens of tools are not the model's."""
    samples = read_dump(path)
    return Imported(
        format="slime's debug rollout data",
        responses=(
            TracedResponse(
                place=f"{source}: {path}: samples[{number}]",
                length=sample.response_length
                if sample.loss_mask is None
                else sum(map(bool, sample.loss_mask)),
                group=None if sample.group_index is None else str(sample.group_index),
                index=sample.index,
                prompt_tokens=max(0, len(sample.tokens) - sample.response_length),
            )
            for number, sample in enumerate(samples)
        ),
        assumed=["Tokens of tools are left out; turns count as one response."],
    )


def _sample(content: Any, place: str) -> SlimeSample:
    if not isinstance(content, Mapping):
        raise ConfigError(f"{place}: not an object")
    known = {
        name: _listed(value, f"{place}.{name}")
        for name, value in content.items()
        if name in SlimeSample.__struct_fields__
    }
    try:
        sample = msgspec.convert(known, SlimeSample)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place}: {plain(str(error))}") from error
    if not all(map(math.isfinite, sample.rollout_log_probs or ())):
        raise ConfigError(f"{place}.rollout_log_probs: a number that is not finite")
    return sample


def _listed(value: Any, place: str) -> Any:
    """Returns a tensor as a list, and any other value unchanged."""
    if not hasattr(value, "tolist"):
        return value
    try:
        return value.tolist()
    except (RuntimeError, NotImplementedError) as error:  # a sparse tensor, or one without data
        raise ConfigError(f"{place}: a tensor that has no list of values") from error
