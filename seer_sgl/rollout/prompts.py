"""Reads prompts from a JSONL file or Python objects, checks and tokenizes them.

A line is `{"prompt": str | "messages": [...] | "prompt_ids": [...], "image_data"?: [...], "n"?,
"id"?, "metadata"?, "sampling"?: {...}}`. `sampling` overrides single parameters of the config's
sampling.
Every error message names the file and the line (or the position in a Python sequence).
"""

import itertools
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from seer_sgl.admission.sampling import invalid
from seer_sgl.bounds import LARGEST, LARGEST_ID, TokenId
from seer_sgl.config import plain
from seer_sgl.config.reading import key_and_message
from seer_sgl.config.tree import MOST_SAMPLES, Samples
from seer_sgl.config.values import invalid_values
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.errors import PromptError
from seer_sgl.files import numbered_lines
from seer_sgl.sampling import NEUTRAL
from seer_sgl.types import Prompt, Sampling, token_array

from .images import ImageReader
from .long_texts import count_to, is_long
from .message_parts import with_images
from .writable import unwritable


class PromptRecord(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A prompt as the user writes it; exactly one of prompt, messages and prompt_ids.

    `image_data`: its images, in the order of their placeholders (images.py). Messages may have them
    as parts instead.
    """

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt_ids: list[TokenId] | None = None
    image_data: list[str] | str | None = None
    n: Samples | None = None
    id: str | Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)] | None = None
    metadata: Any = None
    sampling: dict[str, Any] | None = None


PromptLike = Prompt | PromptRecord | Mapping[str, Any] | str
_decoder = msgspec.json.Decoder(PromptRecord)


class PromptReader(msgspec.Struct, frozen=True):
    """Turns the user's prompts into Prompts.

    `n`: samples of a prompt without its own `n`. `vocab_size` and `max_prompt_len` (tokens; None:
    unknown): the model's limits. `sampling`: the default, which a prompt's own overrides.
    `no_chats`: why messages are refused; None: they are not. `images`: reads the images of prompts;
    None: they are refused.
    """

    n: int
    tokenizer: Tokenizer | None
    vocab_size: int | None
    max_prompt_len: int | None
    sampling: Sampling = NEUTRAL
    no_chats: str | None = None
    images: ImageReader | None = None

    def of_body(self) -> "PromptReader":
        """Returns a reader of the prompts of one body of a client, which holds an image once."""
        images = None if self.images is None else self.images.of_body()
        return msgspec.structs.replace(self, images=images)

    def read(self, path: Path, limit: int | None = None) -> list[Prompt]:
        """Returns the first `limit` prompts of a JSONL file.

        Raises PromptError if one is invalid.
        """
        with closing(self._records(path)) as records:  # also the file, if a prompt is invalid
            return list(self._unique(itertools.islice(records, limit), str(path), {}))

    def convert(self, prompts: Iterable[PromptLike]) -> list[Prompt]:
        """Returns prompts from Python objects: Prompts, mappings like a JSONL line, or texts.

        Raises PromptError if one is invalid.
        """
        return list(self.each(prompts, "prompts", {}))

    def each(
        self, prompts: Iterable[PromptLike], source: str, places: dict[str, str]
    ) -> Iterator[Prompt]:
        """Yields prompts like `convert`, one at a time.

        `source`: what error messages call the sequence. `places`: by id, where the prompts so far
        came from; the new ones are added, and positions in the sequence count on from them.
        """
        return self._unique(self._items(prompts, source, len(places)), source, places)

    def _records(self, path: Path) -> Generator[tuple[str, str, PromptRecord]]:
        """Yields (place, default id, record) for each non-empty line."""
        try:
            for number, line in numbered_lines(path):
                place = f"{path}:{number}"
                yield place, str(number), _decode_line(line, place)
        except OSError as error:
            raise PromptError(f"{path}: {error.strerror}") from error

    def _items(
        self, prompts: Iterable[PromptLike], source: str, first: int
    ) -> Iterator[tuple[str, str, PromptRecord | Prompt]]:
        for number, item in enumerate(prompts):
            place, default_id = f"{source}[{number}]", str(first + number)
            if isinstance(item, str):
                yield place, default_id, PromptRecord(prompt=item)
            elif isinstance(item, Prompt):
                yield place, default_id, item
            else:
                yield place, default_id, _record(item, place)

    def _unique(
        self,
        records: Iterable[tuple[str, str, PromptRecord | Prompt]],
        source: str,
        places: dict[str, str],
    ) -> Iterator[Prompt]:
        before = len(places)
        for place, default_id, record in records:
            prompt = self._prompt(record, default_id, place)
            if prompt.prompt_id in places:
                first = places[prompt.prompt_id]
                raise PromptError(f"{place}: id {prompt.prompt_id!r} is already used at {first}")
            places[prompt.prompt_id] = place
            yield prompt
        if len(places) == before:
            raise PromptError(f"{source}: no prompts")

    def _prompt(self, record: PromptRecord | Prompt, default_id: str, place: str) -> Prompt:
        for name in ("prompt", "messages", "id", "prompt_id", "metadata", "sampling"):
            problem = unwritable(getattr(record, name, None))
            if problem is not None:
                raise PromptError(f"{place}: {name}: {problem}")
        if record.messages is not None and self.no_chats is not None:
            raise PromptError(f"{place}: messages: {self.no_chats}")
        if isinstance(record, Prompt):
            prompt = record
            _check_made(prompt, place)
        else:
            messages, given = with_images(record, place)
            prompt = Prompt(
                prompt_id=default_id if record.id is None else str(record.id),
                prompt_ids=self._ids(record, messages, place),
                n=record.n or self.n,
                text=record.prompt,
                messages=record.messages,
                metadata=record.metadata,
                sampling=None
                if record.sampling is None
                else overridden(self.sampling, record.sampling, place),
                image_data=tuple(given),
            )
        ids = prompt.prompt_ids
        if not ids:
            raise PromptError(f"{place}: the prompt is empty")
        values = np.frombuffer(ids, dtype=np.int32)
        wrong = values[(values < 0) | (values >= (self.vocab_size or LARGEST_ID))]
        if wrong.size:
            of = f" of {self.vocab_size}" if self.vocab_size else ""
            raise PromptError(f"{place}: token id {wrong[0]} is outside the vocabulary{of}")
        if self.max_prompt_len is not None and len(ids) > self.max_prompt_len:
            raise PromptError(
                f"{place}: {len(ids)} prompt tokens; the engines accept {self.max_prompt_len} "
                "and at least one response token"
            )
        return self._with_images(prompt, place)

    def _with_images(self, prompt: Prompt, place: str) -> Prompt:
        """Returns a prompt whose images are read; it has a placeholder for each."""
        given, ids = prompt.image_data, prompt.prompt_ids
        if not given or prompt.image_tokens:  # this class has read them
            return prompt
        if self.images is None:
            raise PromptError(f"{place}: image_data: images are not read here")
        if self.images.missing(ids, len(given)):
            raise PromptError(
                f"{place}: image_data: {len(given)} images, but the prompt has the placeholder "
                f"{self.images.placeholder} {len(given) + self.images.missing(ids, len(given))} "
                "times"
            )
        try:
            found = self.images.read(given)
        except ValueError as error:
            raise PromptError(f"{place}: {error}") from error
        return msgspec.structs.replace(prompt, image_data=found.urls, image_tokens=found.tokens)

    def _require_few(self, text: str, tokenizer: Tokenizer, place: str) -> None:
        """Raises PromptError for a text with far too many tokens, of which it reads few."""
        most = self.max_prompt_len
        if most is not None and is_long(text, most):
            enough = 2 * most  # where pieces meet, there may be a token more
            if count_to(text, tokenizer.encode, enough) > enough:
                raise PromptError(
                    f"{place}: more than {enough} prompt tokens; the engines accept {most} "
                    "and at least one response token"
                )

    def _chat_ids(
        self, messages: list[dict[str, Any]], tokenizer: Tokenizer, place: str
    ) -> "array[int]":
        try:
            # A template may leave long parts of the messages out.
            if self.max_prompt_len is not None and is_long(str(messages), self.max_prompt_len):
                self._require_few(tokenizer.chat_text(messages), tokenizer, place)
            return tokenizer.apply_chat_template(messages)
        except ValueError as error:
            raise PromptError(f"{place}: {error}") from error

    def _ids(
        self, record: PromptRecord, messages: Sequence[dict[str, Any]], place: str
    ) -> "array[int]":
        forms = [record.prompt, record.messages, record.prompt_ids]
        if sum(form is not None for form in forms) != 1:
            raise PromptError(f"{place}: give exactly one of prompt, messages and prompt_ids")
        if record.prompt_ids is not None:
            return token_array(record.prompt_ids)
        if self.tokenizer is None:
            raise PromptError(f"{place}: text prompts need a tokenizer: set model.path")
        if record.prompt is not None:
            if not record.prompt:
                raise PromptError(f"{place}: the prompt is empty")
            self._require_few(record.prompt, self.tokenizer, place)
            return self.tokenizer.encode(record.prompt)
        for number, message in enumerate(messages):
            if not isinstance(message.get("role"), str):
                raise PromptError(f"{place}: messages[{number}] has no role")
        return self._chat_ids(list(messages), self.tokenizer, place)


def overridden(sampling: Sampling, overrides: Mapping[str, Any], place: str) -> Sampling:
    """Returns sampling parameters with some replaced. Raises PromptError for impossible ones."""
    if "n" in overrides:
        raise PromptError(f"{place}: sampling.n: give n beside sampling")
    try:
        sampling = sampling.with_overrides(overrides)
    except msgspec.ValidationError as error:
        key, why = key_and_message(str(error))
        raise PromptError(f"{place}: {f'sampling.{key}'.rstrip('.')}: {why}") from error
    _check(sampling, place)
    return sampling


def _check_made(prompt: Prompt, place: str) -> None:
    """Raises PromptError for a Prompt whose fields have wrong types or values."""
    if not isinstance(prompt.prompt_id, str):
        raise PromptError(f"{place}: prompt_id: expected str")
    if not isinstance(prompt.n, int) or not 1 <= prompt.n <= MOST_SAMPLES:
        raise PromptError(f"{place}: n: {prompt.n!r} is not in 1..{MOST_SAMPLES}")
    if not isinstance(prompt.prompt_ids, array) or prompt.prompt_ids.typecode != "i":
        raise PromptError(f"{place}: prompt_ids: expected array('i')")
    if prompt.sampling is not None:
        if not isinstance(prompt.sampling, Sampling):
            raise PromptError(f"{place}: sampling: expected Sampling")
        overridden(prompt.sampling, {}, place)  # a struct that Python made has any types
    images = prompt.image_data
    if not isinstance(images, tuple | list) or not all(isinstance(url, str) for url in images):
        raise PromptError(f"{place}: image_data: expected a tuple of texts")


def _check(sampling: Sampling, place: str) -> None:
    for key, why in invalid_values(msgspec.structs.asdict(sampling), "sampling"):
        raise PromptError(f"{place}: {key}: {why}")
    for key, why in invalid(sampling):
        raise PromptError(f"{place}: {f'sampling.{key}'.rstrip('.')}: {why}")


def _record(item: PromptRecord | Mapping[str, Any], place: str) -> PromptRecord:
    try:
        fields = msgspec.structs.asdict(item) if isinstance(item, PromptRecord) else dict(item)
        return msgspec.convert(fields, PromptRecord)
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        raise PromptError(f"{place}: {plain(str(error))}") from error


def _decode_line(line: bytes, place: str) -> PromptRecord:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError as error:
        raise PromptError(f"{place}: {plain(str(error))}") from error
    except UnicodeDecodeError as error:
        raise PromptError(f"{place}: not UTF-8") from error
    except RecursionError as error:
        raise PromptError(f"{place}: nested too deeply") from error
    except ValueError as error:  # a number with 5,000 digits
        raise PromptError(f"{place}: {error}") from error
