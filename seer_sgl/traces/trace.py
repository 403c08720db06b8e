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
MOST_TOKENS = 1 << 24  # of a prompt or a response: a larger number is a mistake of its file
MOST_PROMPT_TOKENS = 1 << 28  # of all prompts: a trace holds them, 4 bytes each


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
    ConfigError if two samples of a group have one index, a number of tokens is above MOST_TOKENS
    (all prompts: MOST_PROMPT_TOKENS), or there is no response with tokens.
    """
    prompts: dict[str, array[int]] = {}
    lengths: dict[str, dict[int, int]] = {}
    missing: Counter[str] = Counter()
    unknown: set[str] = set()  # groups whose prompt no response has so far
    held = 0
    for number, response in enumerate(imported.responses):
        _check_size(response)
        if response.length < 1:
            missing["tokens"] += 1
            continue
        missing["groups"] += response.group is None and not response.prompt_ids
        missing["responses"] += 1
        key = _key(response, number // (group_size or 1))
        known = bool(response.prompt_ids or response.prompt_tokens)
        if key not in prompts or (known and key in unknown):
            (unknown.discard if known else unknown.add)(key)
            held += response.prompt_tokens or 0
            if held > MOST_PROMPT_TOKENS:
                raise ConfigError(
                    f"{response.place}: prompt_tokens: {held} tokens in all prompts; at most "
                    f"{MOST_PROMPT_TOKENS}"
                )
            first_id = prompts[key][0] if key in prompts else len(prompts)
            prompts[key] = _prompt(response, first_id)
        samples = lengths.setdefault(key, {})
        index = len(samples) if response.index is None else response.index
        if index in samples:
            raise ConfigError(f"{response.place}: index: sample {index} of its group appears twice")
        samples[index] = response.length
    if not prompts:
        raise ConfigError(f"{name}: no response with tokens")
    missing["prompts"] = len(unknown)
    return Trace(
        name=name,
        format=imported.format,
        groups=[
            Responses(key, prompt, [length for _, length in sorted(lengths[key].items())])
            for key, prompt in prompts.items()
        ],
        assumed=[*imported.assumed, *_assumed(missing, group_size)],
    )


def _check_size(response: TracedResponse) -> None:
    for name, tokens in (("length", response.length), ("prompt_tokens", response.prompt_tokens)):
        if tokens is not None and tokens > MOST_TOKENS:
            raise ConfigError(f"{response.place}: {name}: {tokens} tokens; at most {MOST_TOKENS}")


def _key(response: TracedResponse, number: int) -> str:
    if response.group is not None:
        # No group of the file has a name of ours, so that none gets responses that are not its own.
        ours = response.group.startswith(("#", "[", "="))
        return f"={response.group}" if ours else response.group
    return str(response.prompt_ids) if response.prompt_ids else f"#{number}"


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
    if missing["groups"]:
        lacking = f"{missing['groups']} of {missing['responses']} responses have no group"
        if missing["groups"] == missing["responses"]:
            lacking = "The file has no groups"
        instead = "each response has a prompt of its own"
        if group_size is not None:
            instead = f"{group_size} responses in a row are one"
        sentences.append(f"{lacking}: {instead}.")
    return sentences
