"""Images, videos and audio of a body that passes through: an engine would open every file and
fetch every address that one names. Pure, but for the reading of images that the config allows."""

from collections.abc import Callable, Iterator
from typing import Any

from seer_sgl.rollout.images import ADDRESS, FILE, MOST_OF_BODY, ImageReader, shown
from seer_sgl.rollout.message_parts import parts_of
from seer_sgl.server.errors import BadRequest

# SGLang's forms of an image that is processed already (`_get_preprocessed_input_format`).
PROCESSED = ("processor_output", "precomputed_embedding")
FORMATS = (*PROCESSED, *map(str.upper, PROCESSED))
PARTS = ("video_url", "audio_url")
OPENED = ("video_data", "audio_data")
MEDIA = ("image_data", *OPENED)  # of `/generate`
# Where bodies of other paths have media, in parts of messages and beside texts.
NAMED = ("image", "image_url", "video", "audio", *PARTS, *MEDIA)
JPEG = "/9j/"  # the first bytes of every JPEG in base64
LEVELS = 3  # prompts, images of a prompt, and the list that SGLang makes of them


def read_images(given: Any, images: ImageReader, batch: bool) -> Any:
    """Returns `image_data` with every image as a data URL. Raises BadRequest for one that cannot be
    read, and for a value that is neither an image nor SGLang's form of a processed one.

    batch: an entry per prompt.
    """
    images = images.of_body(MOST_OF_BODY)
    if batch and isinstance(given, list):
        return [_read(entry, images, LEVELS - 1) for entry in given]
    return _read(given, images, LEVELS)


def number_of(given: Any) -> int:
    """Returns how many images the `image_data` of a prompt has."""
    return sum(image is not None for image in _leaves(given))


def _read(given: Any, images: ImageReader, levels: int) -> Any:
    """Returns the images of one prompt. `levels`: the most lists in each other."""
    found: list[str] = []

    def found_one(reference: str) -> str:
        found.append(reference)
        return reference

    _replaced(given, found_one, levels)
    try:
        urls = iter(images.read(found).urls)
    except ValueError as error:
        raise BadRequest(str(error)) from error
    return _replaced(given, lambda _: next(urls), levels)


def _replaced(value: Any, replace: Callable[[str], str], levels: int) -> Any:
    """Returns a value with every image replaced, in order. Raises BadRequest for anything else."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, list) and levels:
        return [_replaced(entry, replace, levels - 1) for entry in value]
    if value is not None:
        _require_processed("image_data", value)
    return value


def require_inline(fields: dict[str, Any]) -> None:
    """Raises BadRequest for a video or audio of the decoded body that is no data URL.

    Plain base64 is refused too: SGLang takes it for the name of a file if there is one.
    """
    for name in OPENED:
        for value in _leaves(fields.get(name)):
            if isinstance(value, dict):
                _require_processed(name, value)
            elif isinstance(value, str):
                _require_data_url(name, value)
    for part in parts_of(fields.get("messages")):
        for name in PARTS:
            for text in _texts(part.get(name)):
                _require_data_url(f"messages: {name}", text)


def require_no_reference(fields: Any) -> None:
    """Raises BadRequest for media of a body that its engine would open or fetch.

    fields: of the decoded body of a passthrough request. Tools are not media.
    """
    left = [fields]
    while left:
        for value in _leaves(left.pop()):
            if not isinstance(value, dict):
                continue
            for name, text in _media(value):
                image = name in ("image", "image_url", "image_data", "source")
                if not (image and _is_base64(text)):
                    _require_data_url(name, text)
            # A call's arguments are no media; at the top, `input` is what embeddings have.
            call = value is not fields and value.get("type") == "tool_use"
            other = "input" if call else "tools" if value is fields else None
            left += [member for name, member in value.items() if name != other]


def _media(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the references of an object by the name that it has for them."""
    for name in NAMED:
        for reference in _leaves(part.get(name)):
            url = reference.get("url") if isinstance(reference, dict) else reference
            if isinstance(url, str):
                yield name, url
    source = part.get("source")
    if isinstance(source, dict) and isinstance(source.get("url"), str):
        yield "source", source["url"]


def _is_base64(text: str) -> bool:
    """Returns whether SGLang takes a text for an image itself, not for a place to read it from."""
    path = text.startswith("/") and not text.startswith(JPEG)
    return not (path or ":" in text[:16] or FILE.match(text))


def _require_processed(name: str, value: Any) -> None:
    """Raises BadRequest for what is not processed already, or names a file or an address."""
    if not isinstance(value, dict) or value.get("format") not in FORMATS:
        raise BadRequest(
            f"{name}: {_shown(value)}: must be a text, or an object of SGLang with a format "
            f"({' or '.join(PROCESSED)})"
        )
    for text in _texts(value):
        if ADDRESS.match(text) or FILE.match(text) or text.startswith("/"):
            raise BadRequest(f"{name}: {_shown(text)}: a reference in a processed object")


def _require_data_url(name: str, text: str) -> None:
    if not text.startswith("data:"):
        raise BadRequest(f"{name}: {_shown(text)}: only data URLs (data:...;base64,...) are read")


def _leaves(value: Any) -> Iterator[Any]:
    """Yields what lists in each other have."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        else:
            yield one


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts of a value, but for its keys."""
    left = [value]
    while left:
        for one in _leaves(left.pop()):
            if isinstance(one, dict):
                left += one.values()
            elif isinstance(one, str):
                yield one


def _shown(value: Any) -> str:
    return shown(value) if isinstance(value, str) else type(value).__name__
