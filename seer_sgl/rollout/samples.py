"""Writes samples to `samples.jsonl`."""

from array import array
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.errors import RolloutError
from seer_sgl.files import LineFile, explained
from seer_sgl.types import Request, Sample

MOST_WAITING = 8  # samples with routed experts, of megabytes each


def _array_to_list(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    raise NotImplementedError(f"cannot write a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_array_to_list)


def encode_sample(sample: Sample) -> bytes:
    """Returns a sample as JSON.

    Raises TypeError or NotImplementedError if the prompt's metadata has no JSON form.
    """
    if sample.routed_experts is not None:
        encoded: Any = sample.routed_experts.json()
        sample = msgspec.structs.replace(sample, routed_experts=encoded)
    return _encoder.encode(sample)


class SampleWriter(Observer):
    """Writes one line per finished request to the file `path` (LineFile).

    Samples with routed experts are written in a thread. Raises RolloutError if the file cannot be
    written, or if a prompt's metadata has no JSON form; from a thread, with a later sample.
    """

    def __init__(self, path: Path) -> None:
        self._lines = LineFile(path)
        self._thread = ThreadPoolExecutor(1, "samples")
        self._waiting: deque[Future[None]] = deque()

    @override
    def finished(self, request: Request, sample: Sample) -> None:
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= MOST_WAITING):
            self._waiting.popleft().result()
        if sample.routed_experts is None and not self._waiting:
            self._write(sample)
        else:
            self._waiting.append(self._thread.submit(self._write, sample))

    def close(self) -> None:
        """Closes the file; it is empty if no request has finished."""
        self._thread.shutdown()
        with explained(self._lines.path):
            self._lines.close()
        while self._waiting:
            self._waiting.popleft().result()

    def _write(self, sample: Sample) -> None:
        try:
            line = encode_sample(sample)
        except (TypeError, NotImplementedError) as error:
            why = f"metadata of prompt {sample.group_id!r}: {error}"
            raise RolloutError(f"{self._lines.path}: {why}") from error
        with explained(self._lines.path):
            self._lines.append(line + b"\n")
