"""SGLang's sampling parameters, as set in a config or with a prompt."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec

from .bounds import LARGEST_ID, CustomParams, Fraction, Natural, Positive, TokenId

# Key in `custom_params`: the group and response that a call continues (link/contract.py).
ORIGIN = "seer_sgl"
# SGLang's name of the limit, and a name common in RL frameworks.
LIMIT, ALIAS = "max_new_tokens", "max_response_len"


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """SGLang's `sampling_params`, which all requests of a group share.

    `max_new_tokens`: the limit of a whole response, over all its chunks. `custom_params`: the
    user's own parameters, sent together with ours. The number of samples per prompt (`n`) is not
    part of it.
    """

    max_new_tokens: Positive = 8192
    """Most tokens of a response, over all of its chunks; `max_response_len` is another name."""
    min_new_tokens: Natural = 0
    """No stop before so many tokens."""
    temperature: Annotated[float, msgspec.Meta(ge=0.0)] = 1.0
    """0: greedy."""
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    """Keep the most likely tokens up to this probability."""
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=LARGEST_ID)] = -1
    """Keep the k most likely tokens; -1: all."""
    min_p: Fraction = 0.0
    """Keep tokens with at least this share of the most likely token's probability."""
    stop: str | list[str] = []
    """Stop strings."""
    stop_token_ids: list[TokenId] = []
    """Tokens that end a response."""
    stop_regex: str | list[str] = []
    """Regular expressions that end a response; requests run undivided."""
    ignore_eos: bool = False
    """Continue after the model's end token."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""
    no_stop_trim: bool = False
    """Keep the stop string in the text."""
    logit_bias: dict[str, float] = {}
    """Added to logits, by token id."""
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] = 0.0
    """Penalty per occurrence of a token; requests run undivided."""
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] = 0.0
    """Penalty for tokens that occurred; requests run undivided."""
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=2.0)] = 1.0
    """Divides the logits of tokens that occurred; requests run undivided."""
    json_schema: str | None = None
    """Grammar; requests run undivided. So do those with the next three."""
    regex: str | None = None
    """Grammar."""
    ebnf: str | None = None
    """Grammar."""
    structural_tag: str | None = None
    """Grammar."""
    custom_params: CustomParams = {}
    """Passed on to SGLang's custom logit processors."""
    return_routed_experts: bool = False
    """Return the experts of each token, for a model with a mixture of experts."""

    def stops(self) -> list[str]:
        """Returns the stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """Returns these parameters with some replaced.

        Raises msgspec.ValidationError for a wrong name or type.
        """
        return msgspec.convert(msgspec.structs.asdict(self) | canonical(overrides), type(self))


NEUTRAL = Sampling()


def canonical(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters under SGLang's names.

    Raises msgspec.ValidationError if the limit is given under both of its names.
    """
    if ALIAS not in parameters:
        return dict(parameters)
    if LIMIT in parameters:
        raise msgspec.ValidationError(f"{LIMIT} and {ALIAS} are two names of one limit: give one")
    return {LIMIT if name == ALIAS else name: value for name, value in parameters.items()}
