"""The driver reads and writes text as SGLang's own functions do, in the form of many families."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import pytest

from seer_sgl.driver import load_tokenizer as loading
from seer_sgl.driver.tokenizer import Tokenizer
from seer_sgl.link.tokenizer import LoadedTokenizer, TokenizerSource
from tests.e2e.conftest import ROOT
from tests.support.tokenizers import load_tokenizer

from .byte_rows import ROWS, ByteRow
from .families import FAMILIES, Family
from .multimodal import MULTIMODAL
from .random_texts import random_texts
from .sglang_reads import Answer, Loading, Task

pytestmark = pytest.mark.process
TEXTS = 500
MANY_TEXTS = 10_000
LINES = "b\na  c"


class SglangReads:
    """A process that reads with SGLang's functions."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __call__(self, task: Task) -> Answer:
        return msgspec.json.decode(self._reply(task), type=Answer)

    def load(self, source: TokenizerSource) -> LoadedTokenizer:
        """Returns what the driver's own process for a tokenizer would."""
        return msgspec.json.decode(self._reply(Loading(source)), type=LoadedTokenizer)

    def _reply(self, asked: Task | Loading) -> bytes:
        pipes: tuple[IO[bytes] | None, ...] = (self._process.stdin, self._process.stdout)
        stdin, stdout = pipes
        assert stdin is not None
        assert stdout is not None
        stdin.write(msgspec.json.encode(asked) + b"\n")
        stdin.flush()
        line = stdout.readline()
        assert line, "SGLang's process ended"
        return line


@pytest.fixture(scope="module")
def sglang() -> Iterator[SglangReads]:
    """Yields what reads with SGLang's functions."""
    command = [sys.executable, "-m", "tests.tokenizers.sglang_reads"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        yield SglangReads(process)


@pytest.fixture
def one_process(sglang: SglangReads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads the driver's tokenizers in the same process, as importing SGLang takes ten seconds.

    Families FRESH, and the long tests of all, have the process that a driver starts for each.
    """
    monkeypatch.setattr(loading, "_asked", sglang.load)


def read_here(tokenizer: Tokenizer, task: Task) -> Answer:
    """Returns what the driver reads and writes."""
    texts, windows = task.texts, task.windows
    return Answer(
        prompts=[tokenizer.encode(text).tolist() for text in texts],
        parts=[tokenizer.encode_part(text).tolist() for text in texts],
        stop_lens=[tokenizer.stop_len(text) for text in texts],
        tails=[tokenizer.decode(ids) for ids in windows],
        written=[
            (tokenizer.response_text(ids, True), tokenizer.response_text(ids)) for ids in windows
        ],
        chats=[_chat(tokenizer, text) for text in texts if tokenizer._tokenizer.chat_template],
    )


def _chat(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.apply_chat_template([{"role": "user", "content": text}]).tolist()


def task_for(folder: Path, tokenizer: Tokenizer, count: int, *, own_code: bool = False) -> Task:
    """Returns random texts, and windows of their tokens that begin and end inside characters."""
    special = sorted(tokenizer._tokenizer.get_added_vocab())
    texts = [LINES, *random_texts(count, 1, special)]
    windows = [tokenizer.encode(text).tolist()[1:][-9:] for text in texts]
    # The others refuse a token beyond the vocabulary, in SGLang's scheduler too.
    fast = getattr(tokenizer._tokenizer, "is_fast", False)
    beyond = [[tokenizer.vocab_size, *ids] for ids in windows[:9]] if fast else []
    return Task(str(folder), own_code, texts, [ids for ids in [*windows, *beyond] if ids])


def compare(driver: Answer, sglang: Answer, task: Task) -> None:
    """Asserts that both read alike, and shows the first text that they do not."""
    for name, given in (
        ("prompts", task.texts),
        ("parts", task.texts),
        ("stop_lens", task.texts),
        ("chats", task.texts),
        ("tails", task.windows),
        ("written", task.windows),
    ):
        ours, theirs = getattr(driver, name), getattr(sglang, name)
        assert len(ours) == len(theirs) in (0, len(given))
        for what, here, there in zip(given, ours, theirs, strict=False):
            assert here == there, (name, what)


def check_family(family: Family, parent: Path, sglang: SglangReads, count: int) -> None:
    folder, images = family.make(parent), family in MULTIMODAL
    source = TokenizerSource(
        tokenizer_path=str(folder),
        model_path=str(folder),
        trust_remote_code=family.own_code,
        enable_multimodal=images or None,  # SGLang leaves the images of Gemma 3 out without it
    )
    tokenizer = loading.tokenizer_of(source)
    assert tokenizer is not None
    assert (tokenizer._writer is not tokenizer._tokenizer) == images
    task = task_for(folder, tokenizer, count, own_code=family.own_code)
    task.images = images
    compare(read_here(tokenizer, task), sglang(task), task)


# With code of their own, and with images.
FRESH = ("kimi", "qwen2-vl")
# One of each kind of files, class and code.
QUICK = (*FRESH, "qwen2", "deepseek", "mistral-model", "tekken", "gemma3")


@pytest.mark.parametrize(
    "family",
    [family for family in (*FAMILIES, *MULTIMODAL) if family.name in QUICK],
    ids=lambda family: family.name,
)
def test_a_family_is_read_as_sglang_reads_it(
    family: Family, tmp_path: Path, sglang: SglangReads, request: pytest.FixtureRequest
) -> None:
    if family.name not in FRESH:
        request.getfixturevalue("one_process")
    check_family(family, tmp_path, sglang, TEXTS)


@pytest.mark.long
@pytest.mark.parametrize("family", [*FAMILIES, *MULTIMODAL], ids=lambda family: family.name)
def test_ten_thousand_texts_of_a_family_are_read_as_sglang_reads_them(
    family: Family, tmp_path: Path, sglang: SglangReads
) -> None:
    check_family(family, tmp_path, sglang, MANY_TEXTS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.model_type}-{row.tokenizer_class}")
@pytest.mark.usefixtures("one_process")
def test_what_transformers_reads_otherwise_is_read_as_sglang_reads_it(
    row: ByteRow, tmp_path: Path, sglang: SglangReads
) -> None:
    folder = row.make(tmp_path)
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer is not None
    task = task_for(folder, tokenizer, TEXTS)
    answer = sglang(task)
    compare(read_here(tokenizer, task), answer, task)

    assert read_alone(folder, LINES) != answer.prompts[0], "or the row shows nothing"


def read_alone(folder: Path, text: str) -> list[int] | None:
    """Returns the tokens that transformers alone reads; None if it cannot load the tokenizer."""
    try:
        loaded = loading._by_transformers(TokenizerSource(tokenizer_path=str(folder)))
    except (ModuleNotFoundError, RuntimeError):  # a Llama without torchvision's operators
        return None
    return Tokenizer(loaded).encode(text).tolist()
