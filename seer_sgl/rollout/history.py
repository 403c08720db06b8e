"""Reads responses of an earlier rollout to the same prompts, for engines to draft from.

A line is a sample as in `samples.jsonl`; only its `prompt_ids` and `response_ids` are read.
"""

from array import array
from pathlib import Path

import msgspec

from seer_sgl.bounds import TokenId
from seer_sgl.types import Prompt, token_array

from .jsonl import read_jsonl

KEY = "draft.history"


class _Record(msgspec.Struct):
    prompt_ids: list[TokenId]
    response_ids: list[TokenId]


_decoder = msgspec.json.Decoder(_Record)


class History:
    """Responses by prompt."""

    def __init__(self) -> None:
        self._responses: dict[bytes, list[array[int]]] = {}

    def add(self, prompt_ids: "array[int]", response_ids: "array[int]") -> None:
        """Adds one response to a prompt."""
        self._responses.setdefault(prompt_ids.tobytes(), []).append(response_ids)

    def of(self, prompt: Prompt) -> "list[array[int]]":
        """Returns all responses to a prompt, in the order of the file."""
        return self._responses.get(prompt.prompt_ids.tobytes(), [])


def read_history(path: Path) -> History:
    """Returns the responses in a file. Raises ConfigError with file and line."""
    history = History()
    for _, record in read_jsonl(path, KEY, _decoder, "samples"):
        history.add(token_array(record.prompt_ids), token_array(record.response_ids))
    return history
