"""vLLM's input type; openrlhf imports it for its own engine actor, which never runs here."""

from typing import TypedDict


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: list[int]
