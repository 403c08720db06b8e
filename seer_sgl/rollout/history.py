"""Reads responses of an earlier rollout to the same prompts, for engines to draft from.

A line is a sample as in `samples.jsonl`; only its `prompt_ids` and `response_ids` are read.
"""

from array import array
from pathlib import Path

import msgspec

from seer_sgl.bounds import TokenId
from seer_sgl.driver.draft_groups import Responses
from seer_sgl.types import token_array

from .jsonl import read_jsonl

KEY = "draft.history"


class _Record(msgspec.Struct):
    prompt_ids: list[TokenId]
    response_ids: list[TokenId]


_decoder = msgspec.json.Decoder(_Record)


def read_history(path: Path) -> Responses:
    """Returns a function from a prompt to its responses in a file, in their order there.

    Raises ConfigError with file and line.
    """
    responses: dict[bytes, list[array[int]]] = {}
    for _, record in read_jsonl(path, KEY, _decoder, "samples"):
        of_prompt = responses.setdefault(token_array(record.prompt_ids).tobytes(), [])
        of_prompt.append(token_array(record.response_ids))
    return lambda prompt: responses.get(prompt.prompt_ids.tobytes(), ())
