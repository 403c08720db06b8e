"""The parts of messages that are images, in the forms of OpenAI and of transformers.

`{"type": "image_url", "image_url": {"url": U}}`, and `{"type": "image", "image": U}`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from seer_sgl.errors import PromptError

from .images import ImageReader

if TYPE_CHECKING:
    from .prompts import PromptRecord

KINDS = ("image", "image_url")


def with_images(
    record: "PromptRecord", place: str
) -> tuple[Sequence[dict[str, Any]], Sequence[str]]:
    """Returns the messages as a chat template reads them, and the images of the record in order.

    Raises PromptError if an image has no reference, or if images are given twice.
    """
    given = record.image_data
    images = [] if given is None else [given] if isinstance(given, str) else given
    messages, found = [], list[str]()
    for number, message in enumerate(record.messages or ()):
        content = message.get("content")
        if isinstance(content, list):
            where = f"{place}: messages[{number}]"
            content = [_template_part(part, found, where) for part in content]
            message = {**message, "content": content}  # noqa: PLW2901
        messages.append(message)
    if found and images:
        raise PromptError(f"{place}: image_data: the messages have images already")
    return messages, found or images


def _template_part(part: Any, found: list[str], where: str) -> Any:
    """Returns a part as templates read it; adds an image to `found`."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in KINDS:
        return part
    reference = part.get(kind)
    if isinstance(reference, dict):
        reference = reference.get("url")
    if not isinstance(reference, str):
        raise PromptError(f"{where}: a part of type {kind!r} has no image")
    found.append(reference)
    return {"type": "image"}


def has_images(record: "PromptRecord") -> bool:
    """Returns whether a prompt has images."""
    return bool(record.image_data) or any(_image_parts(record.messages or []))


def with_data_urls(messages: Sequence[Any], images: ImageReader) -> list[Any]:
    """Returns the messages of a chat with its images as data URLs.

    Raises ValueError, in one line, for an image that cannot be read.
    """
    found: list[str] = []
    for part in _image_parts(messages):
        reference = part.get(part["type"])
        url = reference.get("url") if isinstance(reference, dict) else reference
        found += [url] if isinstance(url, str) else []
    urls = iter(images.read(found).urls)
    return [_replaced(message, urls) for message in messages]


def _replaced(message: Any, urls: Iterator[str]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        reference = part.get(kind) if kind in KINDS else None
        if isinstance(reference, dict) and isinstance(reference.get("url"), str):
            part = {**part, kind: {**reference, "url": next(urls)}}  # noqa: PLW2901
        elif isinstance(reference, str):
            part = {**part, kind: next(urls)}  # noqa: PLW2901
        parts.append(part)
    return {**message, "content": parts}


def _image_parts(messages: Sequence[Any]) -> Iterator[dict[str, Any]]:
    return (part for part in parts_of(messages) if part.get("type") in KINDS)


def parts_of(messages: Any) -> Iterator[dict[str, Any]]:
    """Yields the parts of messages that are objects; none of what is no list of messages."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield part
