"""Prompts in: what is accepted, and that each mistake is named with its file and line."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from seer_sgl.errors import PromptError
from seer_sgl.rollout.prompts import PromptReader
from seer_sgl.types import Prompt


class FakeTokenizer:
    vocab_size = 50

    def encode(self, text: str) -> "array[int]":
        return array("i", [len(word) for word in text.split()])

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> "array[int]":
        if not messages:
            raise ValueError("chat template: no messages")
        return array("i", [40, *self.encode(messages[-1]["content"]), 41])


def reader() -> PromptReader:
    tokenizer: Any = FakeTokenizer()
    return PromptReader(4, tokenizer, vocab_size=50, max_prompt_len=8)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "p.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_text_messages_and_ids(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"prompt": "a bb ccc"}',
        "",
        '{"messages": [{"role": "user", "content": "a bb"}], "n": 2, "id": "chat"}',
        '{"prompt_ids": [7, 8], "metadata": {"answer": [1]}, "id": 9}',
    )
    text, chat, ids = reader().read(path)
    assert (list(text.prompt_ids), text.n, text.prompt_id, text.text) == (
        [1, 2, 3],
        4,
        "1",
        "a bb ccc",
    )
    assert (list(chat.prompt_ids), chat.n, chat.prompt_id) == ([40, 1, 2, 41], 2, "chat")
    assert (list(ids.prompt_ids), ids.metadata, ids.prompt_id) == ([7, 8], {"answer": [1]}, "9")


def test_limit_takes_the_first_prompts(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "a"}', '{"prompt": "b"}', "not json")
    assert len(reader().read(path, 2)) == 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "input data was truncated"),
        ("[]", "expected object"),
        ('{"prompt": 3}', "prompt: expected str | null, got int"),
        ('{"promt": "a"}', "unknown field promt"),
        ('{"prompt": ""}', "the prompt is empty"),
        ('{"prompt_ids": []}', "the prompt is empty"),
        ('{"messages": []}', "chat template: no messages"),
        ('{"messages": [{}]}', "messages[0] has no role"),
        ("{}", "exactly one of prompt, messages and prompt_ids"),
        ('{"prompt": "a", "prompt_ids": [1]}', "exactly one of"),
        ('{"prompt_ids": [1, 50]}', "token id 50 is outside the vocabulary of 50"),
        ('{"prompt_ids": [-1]}', "expected int >= 0"),
        ('{"prompt_ids": [1.5]}', "expected int"),
        ('{"prompt_ids": [1,2,3,4,5,6,7,8,9]}', "9 prompt tokens; the engines take 8"),
        ('{"prompt": "a", "n": 0}', "expected int >= 1"),
        ('{"prompt": "x", "id": "first"}', "id 'first' was used at"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = write(tmp_path, '{"prompt": "a", "id": "first"}', line)
    with pytest.raises(PromptError) as raised:
        reader().read(path)
    assert complaint in str(raised.value)
    assert str(raised.value).startswith(f"{path}:2: ")
    assert "\n" not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"nowhere\.jsonl: No such file"):
        reader().read(tmp_path / "nowhere.jsonl")
    with pytest.raises(PromptError, match="Is a directory"):
        reader().read(tmp_path)
    with pytest.raises(PromptError, match="no prompts"):
        reader().read(write(tmp_path, ""))
    binary = tmp_path / "b.jsonl"
    binary.write_bytes(b'{"prompt": "\xff\xfe"}')
    with pytest.raises(PromptError, match=r"b\.jsonl:1: "):
        reader().read(binary)


def test_text_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    bare = PromptReader(1, None, None, None)
    with pytest.raises(PromptError, match="need a tokenizer"):
        bare.read(write(tmp_path, '{"prompt": "a"}'))
    assert bare.convert([{"prompt_ids": [123456]}])[0].prompt_ids[0] == 123456


def test_python_objects() -> None:
    ready = Prompt(prompt_id="r", prompt_ids=array("i", [1]), n=1)
    prompts = reader().convert(["a b", {"prompt_ids": [3]}, ready])
    assert [list(prompt.prompt_ids) for prompt in prompts] == [[1, 1], [3], [1]]
    with pytest.raises(PromptError, match=r"prompts\[1\]: "):
        reader().convert(["a", {"nope": 1}])
    with pytest.raises(PromptError, match=r"prompts\[0\]: token id 99"):
        reader().convert([Prompt(prompt_id="r", prompt_ids=array("i", [99]), n=1)])
    with pytest.raises(PromptError, match="no prompts"):
        reader().convert([])
