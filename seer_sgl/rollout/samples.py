"""Samples become lines of `samples.jsonl`."""

from array import array
from pathlib import Path
from typing import Any

import msgspec

from seer_sgl.driver.loop import Observer
from seer_sgl.errors import RolloutError
from seer_sgl.files import LineFile, explained
from seer_sgl.types import Request


def _array_to_list(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    raise NotImplementedError(f"cannot write a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_array_to_list)


class SampleWriter(Observer):
    """Writes a line to the file `path` for every finished request (LineFile).

    Comes after the SampleMaker among the observers. Raises RolloutError when the disk refuses, or
    for metadata from Python that has no form in JSON.
    """

    def __init__(self, path: Path) -> None:
        self._lines = LineFile(path)

    def finished(self, request: Request) -> None:
        """Write the newest sample of the request's group."""
        group = request.group
        try:
            line = _encoder.encode(group.samples[-1])
        except (TypeError, NotImplementedError) as error:
            why = f"metadata of prompt {group.group_id!r}: {error}"
            raise RolloutError(f"{self._lines.path}: {why}") from None
        with explained(self._lines.path):
            self._lines.append(line + b"\n")

    def close(self) -> None:
        """End the file; it is empty if nothing had finished."""
        with explained(self._lines.path):
            self._lines.close()
