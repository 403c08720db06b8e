"""Writes samples to `samples.jsonl`."""

from array import array
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.errors import RolloutError
from seer_sgl.files import LineFile, explained
from seer_sgl.types import Request, Sample


def _array_to_list(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    raise NotImplementedError(f"cannot write a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_array_to_list)


def encode_sample(sample: Sample) -> bytes:
    """Returns a sample as JSON.

    Raises TypeError or NotImplementedError if the prompt's metadata has no JSON form.
    """
    return _encoder.encode(sample)


class SampleWriter(Observer):
    """Writes one line per finished request to the file `path` (LineFile).

    Raises RolloutError if the file cannot be written, or if a prompt's metadata has no JSON form.
    """

    def __init__(self, path: Path) -> None:
        self._lines = LineFile(path)

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        try:
            line = encode_sample(sample)
        except (TypeError, NotImplementedError) as error:
            why = f"metadata of prompt {request.group.group_id!r}: {error}"
            raise RolloutError(f"{self._lines.path}: {why}") from error
        with explained(self._lines.path):
            self._lines.append(line + b"\n")

    def close(self) -> None:
        """Closes the file; it is empty if no request has finished."""
        with explained(self._lines.path):
            self._lines.close()
