"""Reads the images of prompts, and checks them before anything is generated.

An image is given as a data URL, as plain base64, as the name of a file below a configured folder,
or as an http(s) address if that is allowed. It is read once, and sent as a data URL.
"""

import asyncio
import base64
import binascii
import io
import os
import re
import warnings
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import aiohttp
from typing_extensions import override

from seer_sgl.config import ImagesConfig
from seer_sgl.timing import DEFAULT, Timing

DATA_URL = re.compile(r"data:image/[A-Za-z0-9.+-]{1,32};base64,")
ADDRESS = re.compile(r"https?://", re.IGNORECASE)
USER = re.compile(r"//[^/?#]*@")
# What SGLang takes for the name of a file (`load_image`).
FILE = re.compile(r"file://|.*\.(?:png|jpe?g|webp|gif|bmp|tiff?)$", re.IGNORECASE | re.DOTALL)
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_BYTES = 32 << 20  # of one encoded image
MAX_BODY_BYTES = 256 << 20  # of the different images of one body of a client, as data URLs
MOST_OF_BODY = 1024  # images of all prompts of a `/generate`, whose prompts have one thread
SHOWN = 80  # characters of a reference in a message
# Pixels per token and side: 14 x 14 patches, of which 2 x 2 are one token, as in Qwen2-VL and Kimi.
SIDE = 28
MOST_TOKENS = 16384  # of one image; Qwen2-VL shrinks larger ones


class Images(NamedTuple):
    """The images of a prompt. `tokens`: about how many they have."""

    urls: tuple[str, ...] = ()
    tokens: int = 0


NO_IMAGES = Images()


class ImageReader:
    """Reads images as the config allows it.

    `placeholder`: the token that a prompt has for an image; None: unknown.
    """

    def __init__(
        self, config: ImagesConfig, placeholder: int | None = None, timing: Timing = DEFAULT
    ) -> None:
        self._config = config
        self.placeholder = placeholder
        self._timing = timing

    def missing(self, ids: "array[int]", images: int) -> int:
        """Returns how many images a prompt has placeholders for beyond `images`; less than 0: the
        number of images without one; 0 if the placeholder is unknown."""
        return 0 if self.placeholder is None else ids.count(self.placeholder) - images

    def read(self, references: Sequence[str]) -> Images:
        """Returns the images of a prompt. Raises ValueError, in one line, for an unusable one."""
        if len(references) > self._config.most:
            raise ValueError(
                f"image_data: {len(references)} images; at most {self._config.most} (images.most)"
            )
        urls, tokens = [], 0
        for number, reference in enumerate(references):
            try:
                url, more = self._one(reference)
            except ValueError as error:
                raise ValueError(f"image_data[{number}]: {shown(reference)}: {error}") from error
            urls.append(url)
            tokens += more
        return Images(tuple(urls), tokens)

    def of_body(self, most: int | None = None) -> "BodyReader":
        """Returns a reader of the images of one body. `most`: of all its prompts; None: any."""
        return BodyReader(self._config, self.placeholder, self._timing, most)

    def _one(self, reference: str) -> tuple[str, int]:
        """Returns an image as a data URL, and about how many tokens it has. Raises ValueError."""
        content = self._content(reference)
        kind, width, height = _inspected(content, self._config.max_pixels)
        tokens = min(MOST_TOKENS, -(-width // SIDE) * -(-height // SIDE))
        return f"data:image/{kind};base64,{base64.b64encode(content).decode()}", tokens

    def _content(self, reference: str) -> bytes:
        """Returns the bytes of an image. Raises ValueError with the reason why there are none."""
        if reference.startswith("data:"):
            match = DATA_URL.match(reference)
            if match is None:
                raise ValueError("not a data URL such as data:image/png;base64,...")
            return _decoded(reference[match.end() :])
        if ADDRESS.match(reference):
            if not self._config.http:
                raise ValueError("addresses are not fetched; images.http allows it")
            if USER.search(reference):
                raise ValueError("an address with a user name or password is not fetched")
            return _fetched(reference, self._timing.fetch_s)
        if FILE.match(reference):
            return self._file(reference.removeprefix("file://"))
        return _decoded(reference)

    def _file(self, name: str) -> bytes:
        if self._config.folder is None:
            raise ValueError("files are not read; images.folder allows those of a folder")
        folder = Path(self._config.folder).resolve()
        try:
            file = (folder / name).resolve()
            if not file.is_relative_to(folder):
                raise ValueError("outside images.folder")
            if not file.is_file():
                raise ValueError("no such file in images.folder")
            if file.stat().st_size > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES >> 20} MB")
            return file.read_bytes()
        except OSError as error:
            raise ValueError(error.strerror) from error
        except RuntimeError as error:  # of `resolve`, up to Python 3.12
            raise ValueError("a loop of symbolic links") from error


class BodyReader(ImageReader):
    """Reads the images of one body of a client. Each reference is read, and held, once."""

    def __init__(
        self, config: ImagesConfig, placeholder: int | None, timing: Timing, most: int | None
    ) -> None:
        super().__init__(config, placeholder, timing)
        self._most = most
        self._count = 0
        self._bytes = 0
        self._known: dict[str, tuple[str, int]] = {}

    @override
    def read(self, references: Sequence[str]) -> Images:
        self._count += len(references)
        if self._most is not None and self._count > self._most:
            raise ValueError(f"image_data: more than {self._most} images in one body")
        return super().read(references)

    @override
    def _one(self, reference: str) -> tuple[str, int]:
        if reference not in self._known:
            found = super()._one(reference)
            self._bytes += len(found[0])
            if self._bytes > MAX_BODY_BYTES:
                raise ValueError(f"more than {MAX_BODY_BYTES >> 20} MB of images in one body")
            self._known[reference] = found
        return self._known[reference]


def shown(reference: str) -> str:
    """Returns the beginning of a reference for a message, without a user name and password."""
    if "://" in reference[:SHOWN]:
        reference = re.sub(r"//.*@", "//***@", reference, count=1, flags=re.DOTALL)
    return repr(reference if len(reference) <= SHOWN else f"{reference[:SHOWN]}...")


def _decoded(text: str) -> bytes:
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise ValueError(f"more than {MAX_BYTES >> 20} MB")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"no base64: {error}") from error


def _fetched(address: str, within_s: float) -> bytes:
    """Returns what an address has. Raises ValueError, in one line, with the reason why not."""
    with ThreadPoolExecutor(1) as thread:  # the caller may be inside a running event loop
        return thread.submit(lambda: asyncio.run(_fetch(address, within_s))).result()


async def _fetch(address: str, within_s: float) -> bytes:
    content = bytearray()
    try:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=within_s),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,  # few bytes may be many
            ) as session,
            session.get(address) as answer,
        ):
            if answer.status != HTTPStatus.OK:
                raise ValueError(f"HTTP {answer.status}")
            async for part in answer.content.iter_chunked(1 << 16):
                content += part
                if len(content) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES >> 20} MB")
    except TimeoutError as error:
        raise ValueError(f"no answer within {within_s:g} s") from error
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, UnicodeError) as error:
        raise ValueError("it is, or leads to, no http(s) address") from error
    except aiohttp.TooManyRedirects as error:
        raise ValueError("too many redirects") from error
    except OSError as error:
        unnamed = error.errno is None or error.errno <= 0  # of a name that is not found
        reason = type(error).__name__ if unnamed else os.strerror(error.errno or 0)
        raise ValueError(f"cannot be fetched: {reason}") from error
    except aiohttp.ClientError as error:  # its text may have several lines
        raise ValueError(f"no answer of HTTP: {type(error).__name__}") from error
    return bytes(content)


def _inspected(content: bytes, max_pixels: int) -> tuple[str, int, int]:
    """Returns format, width and height of an image that can be decoded.

    Its size is checked before its pixels are decoded. Raises ValueError for anything else.
    """
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise ValueError("empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, which max_pixels refuses
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise ValueError(
                        f"{width} x {height} pixels; at most {max_pixels} (images.max_pixels)"
                    )
                image.load()
                return (image.format or "").lower(), width, height
    except UnidentifiedImageError as error:
        raise ValueError(f"no image in one of the formats {', '.join(FORMATS)}") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"{error} (images.max_pixels)") from error
    except ValueError:
        raise
    except Exception as error:  # of the many decoders: OSError, SyntaxError, struct.error, ...
        raise ValueError(f"cannot be decoded: {error or type(error).__name__}") from error
