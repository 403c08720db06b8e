"""What reports and complaints show of a config: all of it but its secrets. The one place for it."""

import json
import re
from typing import Any

from .values import USERINFO

MASK = "***"
SECRETS = ("key", "token", "password", "secret")
FLAGS = ("engines.sglang.", "bench.ngram.")
HIDDEN = ("engines.environment", "engines.api_key")
WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")


def is_secret(name: str) -> bool:
    """Whether the name of a flag or of a field is that of a secret.

    `hf_token`, `accessKeys` and `ssl-keyfile-password` are; `max-total-tokens` is a number of
    tokens, and `tokenizer-path` no token at all.
    """
    words = [word.lower() for word in WORD.findall(name)]
    return any(word.removesuffix("s").endswith(SECRETS) and word != "tokens" for word in words)


def masked(value: Any, key: str = "") -> Any:
    """A config as plain values, or its part at `key`, with MASK for the API key, every environment
    variable, flags with the name of a secret (also inside of JSON) and what logs a URL in."""
    if isinstance(value, dict):
        prefix = f"{key}." if key else ""
        return {name: masked(below, f"{prefix}{name}") for name, below in value.items()}
    if value is None or isinstance(value, bool):
        return value
    flag = key.split(".", 2)[2] if key.startswith(FLAGS) else None
    if key.startswith(HIDDEN) or (flag is not None and is_secret(flag)):
        return MASK
    if isinstance(value, list):
        return [masked(item, key) for item in value]
    if isinstance(value, str):
        return without_userinfo(value) if flag is None else _flag_value(value)
    return value


def without_userinfo(text: str) -> str:
    """A text with MASK for the user names and passwords in its URLs."""
    return USERINFO.sub(f"://{MASK}@", text)


def _flag_value(text: str) -> str:
    """The value of a flag, which may be JSON. What should be JSON and is none hides as a whole."""
    if not text.lstrip().startswith(("{", "[")):
        return without_userinfo(text)
    try:
        return json.dumps(_json(json.loads(text)))
    except (ValueError, RecursionError):
        return MASK


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: MASK if is_secret(name) else _json(of) for name, of in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    return _flag_value(value) if isinstance(value, str) else value
