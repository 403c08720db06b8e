"""`PromptTexts`: the token ids of the texts of prompts, within limits of time and memory. Pure."""

import threading
from array import array
from collections.abc import Callable, Iterable

from seer_sgl.rollout.long_texts import count_to, is_long
from seer_sgl.types import token_array

from .errors import BadRequest

MOST_CHARACTERS_PER_TOKEN = 256  # on average; the longest tokens of most tokenizers have 128
MOST_EXCESS = 4  # SGLang may cut a prompt that is too long, and a longer one is refused
_very_long = threading.Lock()


class PromptTexts:
    """Reads texts of prompts.

    `encode` returns the ids of a text; None: no tokenizer. `longest`: the most tokens of prompt and
    response together.
    """

    def __init__(self, encode: "Callable[[str], array[int]] | None", longest: int) -> None:
        self.encode = encode
        self.longest = longest

    def ids(self, text: str, name: str = "text") -> "array[int] | None":
        """Returns the tokens of a text; None without a tokenizer. `name`: the field that has it.

        Raises BadRequest for a text that cannot have as few as `longest` tokens: tokenising it
        would take this server, or the HTTP process of an engine, minutes. Raises it for far more
        tokens, too. A text with very many characters is counted first, and only one such text is
        read at a time: it is longer than what is read outside of threads (THREAD_BYTES), so only
        threads wait.
        """
        longest, encode = self.longest, self.encode
        if len(text) > longest * MOST_CHARACTERS_PER_TOKEN:
            raise BadRequest(
                f"{name}: {len(text)} characters; the longest prompt has {longest - 1} tokens"
            )
        if encode is None:
            return None
        if not is_long(text, longest):
            return encode(text)
        with _very_long:
            count = count_to(text, encode, MOST_EXCESS * longest)
            if count > MOST_EXCESS * longest:
                raise BadRequest(
                    f"{name}: more than {count} tokens; the longest prompt has {longest - 1} tokens"
                )
            return encode(text) if count else token_array([])

    def lengths(self, name: str, texts: Iterable[str]) -> tuple[int, ...]:
        """Returns the tokens of each text; without a tokenizer its characters.

        Raises BadRequest for a text that is too long or has no token: it would crash an engine.
        SGLang itself refuses an empty text.
        """
        lengths = []
        for text in texts:
            ids = self.ids(text, name)
            lengths.append(len(text if ids is None else ids))
            if text and not lengths[-1]:
                raise BadRequest(f"{name}: empty prompt")
        return tuple(lengths)
