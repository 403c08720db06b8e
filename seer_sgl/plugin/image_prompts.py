"""Prompts with images that are continued: SGLang reads the prompt as it did for the first chunk.

SGLang puts the tokens of the images in place of the placeholders itself, so every chunk is sent the
prompt as it was written, the images, and the response so far. Stock SGLang looks for placeholders
in the response too, and reads the whole input as text. Here only the prompt is read, and the
response follows it unchanged, at the positions that decoding gave it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from seer_sgl.link.contract import LONGEST, PROMPT_LEN

from .hook import TOKENIZER_MANAGER, Hook
from .origin import origin_in
from .sglang_types import SglGenerateReq, SglProcessed, SglTokenized, SglTokenizerManager

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def hooks() -> list[Hook]:
    return [
        Hook(
            f"{TOKENIZER_MANAGER}._tokenize_one_request",
            read_prompt_only,
            "around",
            "SGLang takes an image token in a response for a placeholder, and reads a prompt with "
            "images and the response after it as one text; only the prompt is read.",
            "SGLang continues a response behind a prompt with images.",
        ),
        Hook(
            f"{TOKENIZER_MANAGER}._validate_one_request",
            limit_whole,
            "around",
            "Only SGLang knows how many tokens the images have; the response limit is what they "
            "leave.",
            "SGLang reports the length of a prompt with images before it generates.",
        ),
        Hook(
            f"{TOKENIZER_MANAGER}._create_tokenized_object",
            append_response,
            "around",
            "SGLang has read the prompt; the response so far follows it.",
            "SGLang continues a response behind a prompt with images.",
        ),
    ]


async def read_prompt_only(
    stock: Callable[..., Awaitable[T]], manager: SglTokenizerManager, obj: SglGenerateReq
) -> T:
    """Hook around `TokenizerManager._tokenize_one_request`: sets the response aside."""
    origin = _origin(obj)
    ids, length = obj.input_ids, origin.get(PROMPT_LEN)
    if LONGEST in origin and isinstance(ids, list) and isinstance(length, int):
        if not 0 < length <= len(ids):
            raise ValueError(f"a prompt of {length} tokens in an input of {len(ids)}")
        obj.seer_response, obj.input_ids = ids[length:], ids[:length]
    return await stock(manager, obj)


def limit_whole(
    stock: Callable[..., None],
    manager: SglTokenizerManager,
    obj: SglGenerateReq,
    input_ids: list[int] | None,
) -> None:
    """Hook around `TokenizerManager._validate_one_request`: checks prompt and response together.

    `max_new_tokens` is lowered to what prompt, images and response leave.
    """
    response = getattr(obj, "seer_response", None)
    if response is None or input_ids is None:
        stock(manager, obj, input_ids)
        return
    longest, params = _origin(obj)[LONGEST], obj.sampling_params
    left = longest - len(input_ids) - len(response)
    if left < 1:
        raise ValueError(
            f"image_data: {len(input_ids)} prompt tokens with those of the images; the engines "
            f"accept {longest - 1 - len(response)} and at least one response token"
        )
    for name in ("max_new_tokens", "min_new_tokens"):
        if params.get(name) is not None:
            params[name] = min(params[name], left)
    stock(manager, obj, [*input_ids, *response])


def append_response(  # noqa: PLR0917 (SGLang's own parameters)
    stock: Callable[..., SglTokenized],
    manager: SglTokenizerManager,
    obj: SglGenerateReq,
    input_text: str | None,
    input_ids: list[int],
    input_embeds: Any = None,
    mm_inputs: SglProcessed | None = None,
    token_type_ids: Any = None,
) -> SglTokenized:
    """Hook around `TokenizerManager._create_tokenized_object`: puts the response behind the prompt.

    The engine's drafts learn the length that the prompt has with its images.
    """
    response = getattr(obj, "seer_response", None)
    if response is not None:
        _origin(obj)[PROMPT_LEN] = len(input_ids)
        input_ids = [*input_ids, *response]
        if mm_inputs is not None:
            _extend(mm_inputs, response)
        if token_type_ids is not None:  # 1 marks an image
            token_type_ids = [*token_type_ids, *[0] * len(response)]
    return stock(manager, obj, input_text, input_ids, input_embeds, mm_inputs, token_type_ids)


def _extend(inputs: SglProcessed, response: Sequence[int]) -> None:
    """Appends a response to what SGLang has made of a prompt: ids and positions."""
    for name in ("input_ids", "padded_input_ids"):
        ids = getattr(inputs, name)
        if ids is not None:
            setattr(inputs, name, [*ids, *response])
    positions, delta = inputs.mrope_positions, inputs.mrope_position_delta
    if positions is not None and delta is not None:
        inputs.mrope_positions = _behind(positions, int(delta.flatten()[0]), len(response))


def _behind(positions: torch.Tensor, delta: int, count: int) -> torch.Tensor:
    """Returns the positions of a prompt [3, tokens] and of `count` response tokens behind it.

    delta: from a token's place to its position (`ForwardBatch._compute_mrope_positions_decode`).
    """
    import torch

    first = positions.shape[1] + delta
    more = torch.arange(first, first + count, dtype=positions.dtype, device=positions.device)
    return torch.cat([positions, more.expand(positions.shape[0], -1)], dim=1)


def _origin(obj: SglGenerateReq) -> dict[str, Any]:
    """Returns the driver's words about a call that has images; else empty."""
    params = obj.sampling_params
    if not getattr(obj, "image_data", None) or not isinstance(params, Mapping):
        return {}
    return origin_in(params.get("custom_params"))
