"""Requests as SGLang's scheduler has them."""

from types import SimpleNamespace
from typing import Any

PROMPT = [1, 2, 3]


def request(rid: str, output: list[int], **origin: Any) -> Any:
    given = {"group": "g", "sample": 0, "prompt_len": 3, **origin}
    return SimpleNamespace(
        rid=rid,
        origin_input_ids=list(PROMPT),
        output_ids=list(output),
        finished_len=None,
        sampling_params=SimpleNamespace(custom_params={"seer_sgl": given}, max_new_tokens=50),
    )
