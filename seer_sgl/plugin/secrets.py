"""Masks the keys that SGLang would write to its log and into `/server_info`."""

from typing import Any

from seer_sgl.config.masking import MASK

from .hook import Hook

KEYS = ("api_key", "admin_api_key", "ssl_keyfile_password")  # of ServerArgs


def hooks() -> list[Hook]:
    return [
        Hook(
            "sglang.srt.server_args.ServerArgs.resolved_dict",
            mask,
            "after",
            "SGLang writes all its arguments to the log and into `/server_info`; API keys and "
            "passwords among them are masked.",
            "SGLang masks its keys itself.",
        )
    ]


def mask(result: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
    """Hook after `ServerArgs.resolved_dict`, the arguments that SGLang shows: masks the keys."""
    return {name: MASK if name in KEYS and value else value for name, value in result.items()}
