"""Random texts of what tokenizers treat differently."""

import random
from collections.abc import Sequence

SCRIPTS = (
    "etaoin shrdlu ETAOIN",
    "0123456789.,:;-+*/=<>(){}[]'\"!?#$%&@^_`~|\\",
    "日本語中文テキスト한국어、。！",
    "äöüßéèñçşğıİЖдяΣςאבعربनमस्ไทย",
    "e\u0301a\u0308n\u0303ﬁ①½Å\u212b가\u1100\u1161",  # combining marks, other normalisation forms
    "👍🏽👩\u200d👧🇩🇪\ufe0f😀",
    "\ufffd\ufffd\ufffe",
    "\x00\x01\x07\x1b\x7f\x85\u200b\u200e\u2028\u00ad",
    "▁ĠĊ<0x0A>",
)
WHITE = (" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", " " * 40, "\n" * 12)
WORDS = ("the", "isn't", "we'll", " fox", "return", "12345", "e\u0301te\u0301", "<0xE2>", "</s>")


def random_text(choice: random.Random, special: Sequence[str]) -> str:
    """Returns a text of up to twelve pieces, some of them special tokens."""
    pieces = []
    for _ in range(choice.randint(1, 12)):
        kind = choice.random()
        if kind < 0.55:
            script = choice.choice(SCRIPTS)
            pieces.append("".join(choice.choices(script, k=choice.randint(1, 6))))
        elif kind < 0.75:
            pieces.append(choice.choice(WHITE))
        elif kind < 0.95:
            pieces.append(choice.choice(WORDS))
        elif special:
            pieces.append(choice.choice(special))
    return "".join(pieces) or "x"


def random_texts(count: int, seed: int, special: Sequence[str] = ()) -> list[str]:
    """Returns `count` texts, the same ones for a seed."""
    choice = random.Random(seed)
    return [random_text(choice, special) for _ in range(count)]
