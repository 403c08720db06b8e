"""The reasoning task: the greatest common divisor of two numbers by repeated subtraction.

A prompt is ``<bos> gcd A , B ? <think>``. The chain of thought restates the pair, subtracts the
smaller number from the larger until both are equal, and closes with ``</think> answer G <eos>``.
Numbers are three digits, zero-padded, least significant digit first, because a subtraction with
borrow is then local for a model that writes from left to right.

The prompt determines the number of subtractions, which is heavy-tailed (the sum of the partial
quotients of A / B). Response lengths are therefore heavy-tailed too. Siblings of one prompt agree
in length and arithmetic, but not in wording. Some traces guess once the numbers are small, which
reinforcement learning can improve.

All functions are pure: the same ``random.Random`` state gives the same prompts and traces.
"""

import math
import random
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

LARGEST = 999  # three digits
STEPS_MIN, STEPS_MAX = 8, 224  # subtractions; fewer than 8 would let two siblings coincide
TAIL_SHARE = 0.1875  # 3 of 16 prompts are chosen for their length
TAIL_MIN = 40  # subtractions of the shortest tail prompt
HASTY_BELOW = 50  # a trace may guess once the larger number is at most this
HASTY_RATE = 0.035  # probability of a guess before each such subtraction

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
VERDICTS = ("more", "swap", "same")  # difference > smaller, < smaller, = smaller

OPENINGS = (
    "we start with {a} and {b} .",
    "ok , the larger is {a} and the smaller is {b} .",
    "take {a} and {b} .",
    "let us start : {a} , {b} .",
)
STEPS = (
    "now {a} - {b} = {c} , {v} .",
    "so {a} minus {b} gives {c} , {v} .",
    "next we have {a} - {b} = {c} , {v} .",
    "from {a} take {b} : {c} , {v} .",
    "then {a} less {b} is {c} ; {v} .",
    "subtract : {a} - {b} = {c} , so {v} .",
    "and {a} minus {b} leaves {c} ; {v} .",
    "the larger is {a} , the smaller is {b} , they differ by {c} , {v} .",
)
CHECKS = ("check {b} + {c} = {a} , ok .", "indeed {b} + {c} is {a} .")
ENDINGS = ("both are {b} , done .", "done , {b} is left .", "we have {b} and {b} , done .")
GUESSES = ("skip , maybe it is {g} .", "skip , so it is {g} .")
ANSWER = "</think> answer {g} <eos>"


class Prompt(NamedTuple):
    """One question; ``first`` and ``second`` are in the order shown, either may be larger."""

    first: int
    second: int

    @property
    def answer(self) -> int:
        return math.gcd(self.first, self.second)

    @property
    def steps(self) -> int:
        return count_steps(self.first, self.second)

    @property
    def question(self) -> str:
        """The user's turn without the special tokens around it."""
        return f"gcd {spell(self.first)} , {spell(self.second)} ?"

    @property
    def text(self) -> str:
        return f"<bos> {self.question} <think>"


def spell(number: int) -> str:
    """Returns the three digits, least significant first: 120 -> "0 2 1"."""
    return " ".join(f"{number:03d}"[::-1])


def unspell(digits: Sequence[str]) -> int:
    return int("".join(reversed(digits)))


@cache
def vocabulary() -> dict[str, int]:
    """Returns word -> id: specials, digits, then the words of the phrases by first appearance."""
    texts = ("<think> gcd , ?", *OPENINGS, *STEPS, *VERDICTS, *CHECKS, *ENDINGS, *GUESSES, ANSWER)
    words = [word for text in texts for word in text.split() if not word.startswith("{")]
    return {w: i for i, w in enumerate(dict.fromkeys((*SPECIAL, *"0123456789", *words)))}


def encode(text: str) -> list[int]:
    vocab = vocabulary()
    return [vocab[word] for word in text.split()]


def count_steps(first: int, second: int) -> int:
    """Returns the number of subtractions in Euclid's algorithm: the sum of the quotients."""
    steps, large, small = 0, max(first, second), min(first, second)
    while small:
        steps += large // small
        large, small = small, large % small
    return steps


def is_held_out(first: int, second: int) -> bool:
    """Returns whether a pair is never trained on: a quarter of all pairs, by a hash of the
    unordered pair."""
    pair = f"{max(first, second)},{min(first, second)}"
    return zlib.crc32(pair.encode()) % 4 == 0


def natural_prompt(rng: random.Random, held_out: bool) -> Prompt:
    """Returns a divisor, log-uniform in 1..60, times a uniform coprime pair."""
    while True:
        divisor = int(math.exp(rng.uniform(0, math.log(60))))
        x = rng.randint(2, LARGEST // divisor)
        y = rng.randint(1, x - 1)
        a, b = divisor * x, divisor * y
        if is_held_out(a, b) != held_out or not STEPS_MIN <= count_steps(a, b) <= STEPS_MAX:
            continue
        if math.gcd(x, y) == 1:
            return shuffled(rng, a, b)


@cache
def tail_pairs(held_out: bool) -> list[list[tuple[int, int]]]:
    """Returns the pairs by their number of steps, 0 to STEPS_MAX; empty below TAIL_MIN."""
    pairs: list[list[tuple[int, int]]] = [[] for _ in range(STEPS_MAX + 1)]
    for a in range(2, LARGEST + 1):
        for b in range(1, a):
            steps = count_steps(a, b)
            if TAIL_MIN <= steps <= STEPS_MAX and is_held_out(a, b) == held_out:
                pairs[steps].append((a, b))
    return pairs


def tail_prompt(rng: random.Random, held_out: bool, low: float = 0.0, high: float = 1.0) -> Prompt:
    """Returns a prompt with many steps: log-uniform between two quantiles of
    TAIL_MIN..STEPS_MAX."""
    while True:
        quantile = rng.uniform(low, high)
        steps = round(TAIL_MIN * (STEPS_MAX / TAIL_MIN) ** quantile)
        if candidates := tail_pairs(held_out)[steps]:
            return shuffled(rng, *rng.choice(candidates))


def shuffled(rng: random.Random, a: int, b: int) -> Prompt:
    return Prompt(a, b) if rng.random() < 0.5 else Prompt(b, a)


def mixed_prompt(rng: random.Random, held_out: bool) -> Prompt:
    if rng.random() < TAIL_SHARE:
        return tail_prompt(rng, held_out)
    return natural_prompt(rng, held_out)


def trace(prompt: Prompt, rng: random.Random) -> str:
    """Returns one chain of thought and its answer.

    Each trace draws a wording style (Dirichlet weights over the phrasings, a rate of re-checks),
    so that siblings differ in wording and length but not in arithmetic.
    """
    style = [rng.gammavariate(0.6, 1.0) for _ in STEPS]
    check_rate = rng.betavariate(0.5, 2.5)
    large, small = max(prompt), min(prompt)
    parts = [rng.choice(OPENINGS).format(a=spell(large), b=spell(small))]
    while True:
        if large <= HASTY_BELOW and rng.random() < HASTY_RATE:
            result = guess(small, rng)
            parts.append(rng.choice(GUESSES).format(g=spell(result)))
            break
        difference = large - small
        verdict = VERDICTS[0 if difference > small else 1 if difference < small else 2]
        digits = {"a": spell(large), "b": spell(small), "c": spell(difference)}
        parts.append(rng.choices(STEPS, style)[0].format(**digits, v=verdict))
        if rng.random() < check_rate:
            parts.append(rng.choice(CHECKS).format(**digits))
        if difference == small:
            parts.append(rng.choice(ENDINGS).format(**digits))
            result = small
            break
        large, small = max(difference, small), min(difference, small)
    return " ".join((*parts, ANSWER.format(g=spell(result))))


def guess(small: int, rng: random.Random) -> int:
    """Returns a guess: with probability 1/2 the smaller number, which is sometimes right."""
    return small if rng.random() < 0.5 else rng.randint(1, max(2, small))


def prompt_file(rng: random.Random, held_out: bool, count: int) -> Iterator[Prompt]:
    """Yields distinct prompts, in random order within blocks of 16 with three tail prompts each.

    The three come from different thirds of the tail, so every prefix has the same tail as the file.
    """
    seen: set[tuple[int, int]] = set()
    block: list[Prompt] = []
    while len(seen) < count:
        if not block:
            block = [natural_prompt(rng, held_out) for _ in range(13)]
            block += [tail_prompt(rng, held_out, i / 3, (i + 1) / 3) for i in range(3)]
            rng.shuffle(block)
        prompt = block.pop()
        pair = (max(prompt), min(prompt))
        if pair not in seen:
            seen.add(pair)
            yield prompt
