"""A trace: the prompts of a rollout that happened, and the lengths of its responses."""

from array import array
from collections import Counter
from collections.abc import Iterable

import msgspec

from seer_sgl.bounds import TokenId
from seer_sgl.errors import ConfigError
from seer_sgl.types import token_array

# Tokens of a prompt whose length the trace does not have: short, so that no gain comes from shared
# prompts that are an assumption.
UNKNOWN_PROMPT = 64


class Responses(msgspec.Struct, frozen=True):
    """A planned group: its prompt, and the lengths of its responses in tokens."""

    group_id: str
    prompt_ids: "array[int]"
    lengths: list[int]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The lengths of one rollout. `assumed`: what the file does not have, in sentences."""

    name: str
    format: str
    groups: list[Responses]
    assumed: list[str] = []


class TracedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One response of a file. `place`: for messages about it; `length`: in tokens; `index`: within
    its group, None: the next one; `prompt_tokens`: for a prompt without ids."""

    place: str
    length: int
    group: str | None = None
    index: int | None = None
    prompt_ids: list[TokenId] | None = None
    prompt_tokens: int | None = None


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an importer found. `assumed`: sentences that only this format needs."""

    format: str
    responses: Iterable[TracedResponse]
    assumed: list[str] = []


def grouped(name: str, imported: Imported, group_size: int | None = None) -> Trace:
    """Returns the groups in order of appearance, with their samples by index.

    `group_size`: responses in a row that are a group, where the file has no groups. Raises
    ConfigError if two samples of a group have one index, or there is no response with tokens.
    """
    prompts: dict[str, array[int]] = {}
    lengths: dict[str, dict[int, int]] = {}
    missing: Counter[str] = Counter()
    for number, response in enumerate(imported.responses):
        if response.length < 1:
            missing["tokens"] += 1
            continue
        missing["groups"] += response.group is None and response.prompt_ids is None
        key = _key(response, number // (group_size or 1))
        if key not in prompts:
            missing["prompts"] += not (response.prompt_ids or response.prompt_tokens)
            prompts[key] = _prompt(response, len(prompts))
        samples = lengths.setdefault(key, {})
        index = len(samples) if response.index is None else response.index
        if index in samples:
            raise ConfigError(f"{response.place}: index: sample {index} of its group appears twice")
        samples[index] = response.length
    if not prompts:
        raise ConfigError(f"{name}: no response with tokens")
    return Trace(
        name=name,
        format=imported.format,
        groups=[
            Responses(key, prompt, [length for _, length in sorted(lengths[key].items())])
            for key, prompt in prompts.items()
        ],
        assumed=[*imported.assumed, *_assumed(missing, group_size)],
    )


def _key(response: TracedResponse, number: int) -> str:
    if response.group is not None:
        return response.group
    return str(number) if response.prompt_ids is None else str(response.prompt_ids)


def _prompt(response: TracedResponse, number: int) -> "array[int]":
    if response.prompt_ids:
        return token_array(response.prompt_ids)
    return token_array([number]) * (response.prompt_tokens or UNKNOWN_PROMPT)


def _assumed(missing: Counter[str], group_size: int | None) -> list[str]:
    sentences = []
    if missing["tokens"]:
        sentences.append(f"Responses without tokens, left out: {missing['tokens']}.")
    if missing["prompts"]:
        sentences.append(
            f"Prompts whose length is not in the file: {missing['prompts']}, with "
            f"{UNKNOWN_PROMPT} tokens each."
        )
    if missing["groups"] and group_size is None:
        sentences.append("The file has no groups: each response has a prompt of its own.")
    elif missing["groups"]:
        sentences.append(f"The file has no groups: {group_size} responses in a row are one.")
    return sentences
