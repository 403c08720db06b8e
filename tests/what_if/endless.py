"""Fake servers that a trace is replayed on, and the trace."""

from pathlib import Path
from typing import Any

from typing_extensions import override

from tests.fake_sglang import FakeSGLang

LENGTHS = [[9, 20, 31], [5, 5, 70], [2, 3, 4], [64, 1, 12]]  # of the responses of each group
PROMPTS = [11, 3, 20, 7]  # tokens of each group's prompt


class EndlessSGLang(FakeSGLang):
    """A fake server that always generates as many tokens as it may."""

    @override
    def _reply(self, call: dict[str, Any], fault: str = "ok") -> dict[str, Any]:
        tokens = call["sampling_params"]["max_new_tokens"]
        reply = super()._reply(call, fault)
        reply["output_ids"] = [7] * tokens
        reply["meta_info"] |= {
            "finish_reason": {"type": "length", "length": tokens},
            "completion_tokens": tokens,
            "output_token_logprobs": [[-1.0, 7, None]] * tokens,
        }
        return reply


def write_trace(path: Path) -> Path:
    """Writes the trace as a CSV; returns the path."""
    rows = [
        f"{group},{length},{PROMPTS[group]}\n"
        for group, lengths in enumerate(LENGTHS)
        for length in lengths
    ]
    path.write_text("".join(rows))
    return path
