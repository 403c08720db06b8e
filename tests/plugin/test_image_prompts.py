"""Calls that continue a response behind a prompt with images: SGLang reads the prompt only."""

import types
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from seer_sgl.link.contract import LONGEST, ORIGIN, PROMPT_LEN
from seer_sgl.plugin import image_prompts

IMAGE = 9
PROMPT = [1, 2, IMAGE, 3]
EXPANDED = [1, 2, IMAGE, IMAGE, IMAGE, IMAGE, 3]
PADDED = [1, 2, 1000, 1000, 1000, 1000, 3]
CONTEXT = 40


class Manager:
    """SGLang's TokenizerManager, as far as the hooks see it; an image has four tokens.

    `read`: the ids that it took placeholders from. `validated`: what it was asked to check.
    """

    model_config: Any

    def __init__(self) -> None:
        self.read: list[list[int]] = []
        self.validated: list[tuple[int, int]] = []

    async def tokenize(self, obj: Any) -> Any:
        self.read.append(obj.input_ids)
        assert obj.input_ids.count(IMAGE) == 1, "a placeholder per image"
        positions = torch.tensor(
            [[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]]
        )
        processed = types.SimpleNamespace(
            input_ids=EXPANDED,
            padded_input_ids=PADDED,
            mrope_positions=positions,
            mrope_position_delta=torch.tensor([[-2]]),
        )
        ids = list(EXPANDED)
        image_prompts.limit_whole(self.validate, self, obj, ids)
        return image_prompts.append_response(create, self, obj, None, ids, None, processed, None)

    def validate(self, manager: Any, obj: Any, ids: list[int]) -> None:
        most = obj.sampling_params["max_new_tokens"]
        self.validated.append((len(ids), most))
        assert len(ids) + most <= CONTEXT


def create(*given: Any) -> Any:
    """Returns what SGLang would make of its arguments."""
    _, _, _, ids, _, processed, _ = given
    return types.SimpleNamespace(ids=ids, processed=processed)


def call(response: list[int], longest: int = CONTEXT, most: int = 8, **origin: Any) -> Any:
    given = {PROMPT_LEN: len(PROMPT), LONGEST: longest, **origin}
    params = {"max_new_tokens": most, "min_new_tokens": most, "custom_params": {ORIGIN: given}}
    return types.SimpleNamespace(
        input_ids=PROMPT + response, image_data=["one"], sampling_params=params
    )


async def tokenized(manager: Any, obj: Any) -> Any:
    return await image_prompts.read_prompt_only(Manager.tokenize, manager, obj)


@pytest.mark.parametrize(("response", "behind"), [([7, IMAGE, 8], [5, 6, 7]), ([], [])])
async def test_the_response_follows_the_prompt_as_it_was_read(
    response: list[int], behind: list[int]
) -> None:
    manager, obj = Manager(), call(response)
    made = await tokenized(manager, obj)
    assert manager.read == [PROMPT], "the image token of the response is no placeholder"
    assert manager.validated == [(len(EXPANDED) + len(response), 8)]
    assert made.ids == made.processed.input_ids == EXPANDED + response
    assert made.processed.padded_input_ids == PADDED + response
    positions = made.processed.mrope_positions
    assert positions[:, len(EXPANDED) :].tolist() == [behind] * 3
    assert obj.sampling_params["custom_params"][ORIGIN][PROMPT_LEN] == len(EXPANDED)


async def test_the_budget_is_what_the_images_leave() -> None:
    manager, obj = Manager(), call([7] * 5, longest=16)
    await tokenized(manager, obj)
    assert manager.validated == [(len(EXPANDED) + 5, 4)]
    assert obj.sampling_params["min_new_tokens"] == 4
    with pytest.raises(ValueError, match="7 prompt tokens with those of the images; the engines"):
        await tokenized(Manager(), call([], longest=7))


@pytest.mark.parametrize("origin", [{PROMPT_LEN: 0}, {PROMPT_LEN: 6}])
async def test_an_impossible_length_is_refused(origin: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="in an input of 5"):
        await tokenized(Manager(), call([7], **origin))


async def test_other_calls_are_left_alone() -> None:
    text = types.SimpleNamespace(input_ids=[1, 2], image_data=None, sampling_params={})
    foreign = types.SimpleNamespace(
        input_ids=[1, IMAGE], image_data=["one"], sampling_params={"custom_params": {"a": 1}}
    )
    seen = Mock()
    for obj in (text, foreign):
        ids = obj.input_ids

        async def stock(_: Any, given: Any) -> Any:
            return given

        assert await image_prompts.read_prompt_only(stock, Manager(), obj) is obj
        assert obj.input_ids is ids
        image_prompts.limit_whole(seen, Manager(), obj, ids)
        assert seen.call_args.args[2] is ids
        made: Any = image_prompts.append_response(create, Manager(), obj, None, ids)
        assert made.ids is ids
