"""Masks the secrets of a config in reports and error messages. All masking happens here."""

import json
import re
from typing import Any

from .values import USERINFO

MASK = "***"
SECRETS = ("key", "token", "password", "secret")
FLAGS = ("engines.sglang.",)
HIDDEN = ("engines.environment", "engines.api_key", "server.api_key", "server.admin_api_key")
WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")


def is_secret(name: str) -> bool:
    """Returns whether the name of a flag or field indicates a secret.

    `hf_token`, `accessKeys` and `ssl-keyfile-password` do; `max-total-tokens` and `tokenizer-path`
    do not.
    """
    words = [word.lower() for word in WORD.findall(name)]
    return any(word.removesuffix("s").endswith(SECRETS) and word != "tokens" for word in words)


def masked(value: Any, key: str = "") -> Any:
    """Returns a config as plain values, or its part at `key`, without secrets.

    MASK replaces the API key, every environment variable, flags that are secrets by name (also
    inside JSON), and user names and passwords in URLs.
    """
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
    """Returns a text with MASK for the user names and passwords in its URLs."""
    return USERINFO.sub(f"://{MASK}@", text)


def _flag_value(text: str) -> str:
    """Returns the masked value of a flag, which may be JSON. Invalid JSON is masked entirely."""
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
