"""A tiny Qwen2-VL, made from a seed, its images, and prompts that have some."""

import base64
import functools
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from seer_sgl.config import FlagValue
from tests.e2e.conftest import SGLANG as RIG
from tests.e2e.weights import add_weights
from tests.tokenizers.multimodal import MULTIMODAL

FAMILY = next(family for family in MULTIMODAL if family.name == "qwen2-vl")
SGLANG: dict[str, FlagValue] = {**RIG, "max-total-tokens": 8192, "max-running-requests": 24}
# Names in `config.json` of the tokens that mark an image.
MARKS = {
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "vision_token_id": "<|vision_pad|>",
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
}
# Width and height in pixels; 28 x 28 are a token.
SIZES = ((84, 56), (56, 56), (140, 84), (112, 168))


def vision_model(parent: Path) -> Path:
    """Returns the folder of the model."""
    folder = FAMILY.make(parent)
    file = folder / "config.json"
    config = json.loads(file.read_text()) | marks(folder)
    file.write_text(json.dumps(config))
    return add_weights(folder)


def marks(folder: Path) -> dict[str, int]:
    """Returns the ids of MARKS."""
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in added}
    return {name: ids[text] for name, text in MARKS.items()}


@functools.cache
def png(seed: int, width: int, height: int) -> bytes:
    """Returns a picture of smooth random colours."""
    from PIL import Image

    few = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(few).resize((width, height), Image.Resampling.BICUBIC).save(content, "PNG")
    return content.getvalue()


def data_url(seed: int, size: tuple[int, int] = SIZES[0]) -> str:
    """Returns a picture as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(png(seed, *size)).decode()}"


def vision_prompts(folder: Path, count: int) -> list[dict[str, Any]]:
    """Returns prompts of random tokens with one or two images each."""
    draw, mark = random.Random(3), marks(folder)
    prompts = []
    for number in range(count):
        ids, images = _text(draw, 12 + 5 * number), []
        for each in range(1 + number % 3 // 2):
            images.append(data_url(10 * number + each, SIZES[(number + each) % len(SIZES)]))
            ids += [mark["vision_start_token_id"], mark["image_token_id"]]
            ids += [mark["vision_end_token_id"], *_text(draw, 6)]
        prompts.append({"id": f"p{number}", "prompt_ids": ids, "image_data": images})
    return prompts


def _text(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(20, 200) for _ in range(length)]
