"""Keys that SGLang would write to its log and into `/server_info` with all its other arguments."""

from collections.abc import Callable
from typing import Any

from seer_sgl.config.masking import MASK

KEYS = ("api_key", "admin_api_key", "ssl_keyfile_password")  # of ServerArgs


def hooks() -> list[tuple[str, Callable[..., Any], str]]:
    """The hooks as (SGLang target, function, kind of hook)."""
    return [("sglang.srt.server_args.ServerArgs.resolved_dict", mask, "after")]


def mask(result: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
    """After `ServerArgs.resolved_dict`, which is what SGLang shows of its arguments."""
    return {name: MASK if name in KEYS and value else value for name, value in result.items()}
