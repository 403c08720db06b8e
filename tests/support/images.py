"""A fake engine that reads images, and pictures as data URLs."""

import base64
import functools
import io
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from seer_sgl.link.contract import LONGEST, ORIGIN
from tests.fake_sglang import FakeSGLang

PLACEHOLDER = 9


@functools.cache
def picture(colour: int = 0, size: tuple[int, int] = (56, 56), form: str = "PNG") -> bytes:
    """Returns a picture of one colour."""
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", size, (colour % 256, colour // 256, 7)).save(content, form)
    return content.getvalue()


def data_url(colour: int = 0, size: tuple[int, int] = (56, 56)) -> str:
    """Returns a picture as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(picture(colour, size)).decode()}"


@dataclass(eq=False)
class ImageEngine(FakeSGLang):
    """A fake of an engine with the plugin that reads images.

    Each image has `tokens_per_image` tokens in place of its placeholder. Like the plugin, it ends a
    response where prompt, images and response have the most tokens.
    """

    tokens_per_image: int = 20
    continues: bool = True
    log: list[dict[str, Any]] = field(default_factory=list)  # of the calls of several fakes

    def __post_init__(self) -> None:
        self.plugin = {
            **{"version": "0", "missing": [], "inexact": None},
            "images": self.continues,
        }
        self.has_image_understanding = True

    @override
    def _reply(self, call: dict[str, Any], fault: str = "ok") -> dict[str, Any]:
        self.log.append(call)
        given = len(call["input_ids"])
        given += (self.tokens_per_image - 1) * len(call.get("image_data", ()))
        params = call["sampling_params"]
        longest = params.get("custom_params", {}).get(ORIGIN, {}).get(LONGEST)
        if longest is not None:
            params["max_new_tokens"] = min(params["max_new_tokens"], longest - given)
        reply = super()._reply(call, fault)
        reply["meta_info"]["prompt_tokens"] = given
        reply["meta_info"]["cached_tokens"] = given - 1
        return reply
