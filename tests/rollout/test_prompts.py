"""Reading prompts: valid ones are accepted; each error names the file and the line."""

import json
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer_sgl.errors import PromptError
from seer_sgl.rollout.long_texts import PIECE
from seer_sgl.rollout.prompts import PromptReader, PromptRecord
from seer_sgl.rollout.writable import MAX_DEPTH, unwritable
from seer_sgl.types import Prompt, Sampling


class FakeTokenizer:
    vocab_size = 50

    def __init__(self) -> None:
        self.lengths: list[int] = []  # of the texts that it was given

    def encode(self, text: str) -> "array[int]":
        self.lengths.append(len(text))
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


def test_text_messages_and_ids_behind_a_byte_order_mark(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '\ufeff{"prompt": "a bb ccc"}',
        "",
        '{"messages": [{"role": "user", "content": "a bb"}], "n": 2, "id": "chat"}',
        '{"prompt_ids": [7, 8], "metadata": {"answer": [1]}, "id": 9}',
    )
    text, chat, ids = reader().read(path)
    assert (list(text.prompt_ids), text.n, text.prompt_id) == ([1, 2, 3], 4, "1")
    assert text.text == "a bb ccc"
    assert (list(chat.prompt_ids), chat.n, chat.prompt_id) == ([40, 1, 2, 41], 2, "chat")
    assert (list(ids.prompt_ids), ids.metadata, ids.prompt_id) == ([7, 8], {"answer": [1]}, "9")


@pytest.mark.parametrize("word", ["ab ", "a" * 50_000 + " "])
def test_a_very_long_text_is_read_whole_only_if_it_may_fit(word: str) -> None:
    tokenizer: Any = FakeTokenizer()
    text = (word * (1 + 20 * PIECE // len(word)))[: 20 * PIECE]
    prompts = PromptReader(4, tokenizer, None, 100).each([text], "groups", {})
    if word == "ab ":
        with pytest.raises(PromptError, match="more than 200 prompt tokens; the engines"):
            list(prompts)
        assert tokenizer.lengths == [PIECE]
    else:
        assert len(next(iter(prompts)).prompt_ids) == len(text.split())
        assert tokenizer.lengths == [*[PIECE] * 20, 20 * PIECE]


@pytest.mark.parametrize("shown", [True, False])
def test_a_chat_far_beyond_the_context_is_refused_by_the_first_pieces_of_its_text(
    shown: bool,
) -> None:
    """A template may leave long messages out: then the chat is read."""

    class Chats(FakeTokenizer):
        def chat_text(self, messages: list[dict[str, Any]]) -> str:
            return str(messages[0 if shown else -1]["content"])

        def apply_chat_template(self, messages: list[dict[str, Any]]) -> "array[int]":
            return self.encode(self.chat_text(messages))

    tokenizer: Any = Chats()
    contents = ["ab " * 10 * PIECE, "a bb"]
    chat = {"messages": [{"role": "user", "content": content} for content in contents]}
    prompts = PromptReader(4, tokenizer, None, 100).each([chat], "groups", {})
    if shown:
        with pytest.raises(PromptError, match=r"groups\[0\]: more than 200 prompt tokens"):
            list(prompts)
        assert tokenizer.lengths == [PIECE]
    else:
        assert list(next(iter(prompts)).prompt_ids) == [1, 2]
        assert tokenizer.lengths == [4]


def test_limit_takes_the_first_prompts(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "a"}', '{"prompt": "b"}', "not json")
    assert len(reader().read(path, 2)) == 2


DEEP = 100_000
LATE = MAX_DEPTH + 50  # msgspec can read this depth here, but not write it deeper in the stack


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
        ('{"prompt_ids": [1,2,3,4,5,6,7,8,9]}', "9 prompt tokens; the engines accept 8"),
        ('{"prompt": "a", "n": 0}', "expected int >= 1"),
        ('{"prompt": "x", "id": "first"}', "id 'first' is already used at"),
        ('{"prompt": "a", "metadata": ' + "[" * DEEP + "]" * DEEP + "}", "nested too deeply"),
        ('{"prompt": "a", "metadata": ' + "[" * LATE + "]" * LATE + "}", "metadata: nested deeper"),
        (
            '{"messages": [{"role": "u", "content": ' + "[" * LATE + "]" * LATE + "}]}",
            "messages: n",
        ),
        ('{"prompt": "a", "metadata": "\\ud800"}', "2: "),
        ('{"prompt": "a", "id": ' + "9" * 400 + "}", "id: "),
        ('{"prompt": "a", "metadata": ' + "9" * 5000 + "}", "2: "),
        ('{"prompt": "a", "n": 9000000000}', "n: expected int <= "),
        ('{"prompt": "a", "n": NaN}', "2: "),
    ],
    ids=lambda text: text[:30],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = write(tmp_path, '{"prompt": "a", "id": "first"}', line)
    with pytest.raises(PromptError) as raised:
        reader().read(path)
    assert complaint in str(raised.value)
    assert str(raised.value).startswith(f"{path}:2: ")
    assert str(raised.value).isprintable()


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
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
    with pytest.raises(PromptError, match="no prompts"):
        reader().convert([])


def made(**fields: Any) -> Prompt:
    """Returns a Prompt that Python made: nothing checks the types of its fields."""
    return Prompt(prompt_id="p", prompt_ids=array("i", [1]), n=1, **fields)


ITSELF: dict[str, Any] = {}
ITSELF["me"] = [ITSELF]
HALF = "half a pair: \ud800"


@pytest.mark.parametrize(
    "wrong",
    [
        HALF,
        {"prompt_ids": [1], "id": HALF},
        {"prompt_ids": [1], "metadata": {"a": [HALF]}},
        {"prompt_ids": [1], "metadata": {HALF: 1}},
        {"messages": [{"role": "user", "content": HALF}]},
        {"prompt_ids": [1], "metadata": ITSELF},
        {"prompt_ids": [1], "n": 0},
        {"prompt_ids": [1], "sampling": {"top_k": 0}},
        PromptRecord(prompt_ids=[1 << 40]),
        PromptRecord(prompt_ids=[1], n=-1),
        {"nope": 1},
        Prompt(prompt_id="r", prompt_ids=array("i", [99]), n=1),
        Prompt(prompt_id=HALF, prompt_ids=array("i", [1]), n=1),
        Prompt(prompt_id=5, prompt_ids=array("i", [1]), n=1),  # type: ignore[arg-type]
        Prompt(prompt_id="p", prompt_ids=array("i", [1]), n=1, metadata=HALF),
        Prompt(prompt_id="p", prompt_ids=array("i", [1]), n=0),
        Prompt(prompt_id="p", prompt_ids=array("i", [1]), n=1 << 40),
        Prompt(prompt_id="p", prompt_ids=[1], n=1),  # type: ignore[arg-type]
        Prompt(prompt_id="p", prompt_ids=array("q", [1]), n=1),
        made(sampling=Sampling(temperature=np.float64(0.7))),
        made(sampling=Sampling(max_new_tokens=20.0)),  # type: ignore[arg-type]
        made(sampling=Sampling(stop_token_ids=[-1])),
        made(sampling=Sampling(logit_bias={5: 1.0})),  # type: ignore[dict-item]
        made(image_data=None),
        made(image_data=5),
        7,
    ],
    ids=range(26),
)
def test_python_objects_that_cannot_be_rolled_out_are_named(wrong: Any) -> None:
    with pytest.raises(PromptError, match=r"^prompts\[1\]: ") as raised:
        reader().convert(["a", wrong])
    assert str(raised.value).isprintable()


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
records = st.dictionaries(
    st.sampled_from([*PromptRecord.__struct_fields__, "x"]),
    st.one_of(json_values, st.lists(st.integers(0, 60), max_size=10)),
)
lines = st.one_of(
    st.builds(json.dumps, records).map(str.encode),
    st.builds(json.dumps, json_values).map(str.encode),
    st.binary(max_size=20),
)


@given(lines)
def test_any_line_gives_prompts_or_a_prompt_error(tmp_path_factory: Any, line: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(line)
    try:
        for prompt in reader().read(path):
            assert unwritable(prompt.metadata) is None
    except PromptError as error:
        assert str(error).isprintable()


python_values = st.recursive(
    st.one_of(
        json_values,
        st.text(st.characters(categories=["Cs", "L"]), max_size=3),
        st.binary(),
        st.complex_numbers(),
    ),
    lambda inner: st.one_of(st.tuples(inner, inner), st.sets(st.integers()), st.lists(inner)),
    max_leaves=8,
)


@given(
    st.one_of(
        python_values,
        st.dictionaries(st.sampled_from(PromptRecord.__struct_fields__), python_values),
    )
)
def test_any_object_gives_prompts_or_a_prompt_error(value: Any) -> None:
    try:
        for prompt in reader().convert([value]):
            assert unwritable([prompt.prompt_id, prompt.metadata]) is None
    except PromptError as error:
        assert str(error).isprintable()


def test_metadata_from_python_may_have_no_form_in_json() -> None:
    for metadata in ({(1, 2): 3}, {None: 1}, object(), {"a": {1, 2}}):
        (prompt,) = reader().convert([{"prompt_ids": [1], "metadata": metadata}])
        assert prompt.metadata is metadata


def test_a_prompts_own_sampling_replaces_parts_of_the_rollouts(tmp_path: Path) -> None:
    base = Sampling(max_new_tokens=100, temperature=0.7)
    lines = [
        '{"prompt_ids": [1]}',
        '{"prompt_ids": [1], "sampling": {"top_k": 5, "stop_regex": "://[a-z]+@"}}',
        '{"prompt_ids": [1], "sampling": {"max_response_len": 7, "custom_params": {"a": [1]}}}',
    ]
    reader = PromptReader(4, None, None, None, base)
    plain, own, short = reader.read(write(tmp_path, *lines))
    assert plain.sampling is None
    assert own.sampling == Sampling(
        max_new_tokens=100, temperature=0.7, top_k=5, stop_regex="://[a-z]+@"
    )
    assert short.sampling is not None
    assert (short.sampling.max_new_tokens, short.sampling.temperature) == (7, 0.7)
    assert short.sampling.custom_params == {"a": [1]}


@pytest.mark.parametrize(
    ("sampling", "complaint"),
    [
        ('{"n": 3}', "sampling.n: give n beside sampling"),
        ('{"temprature": 1}', "sampling: object contains unknown field temprature"),
        ('{"temperature": -1}', "sampling.temperature: expected float >= 0.0"),
        ('{"top_k": 0}', r"sampling.top_k: must be -1 \(off\) or at least 1"),
        ('{"min_new_tokens": 101}', "sampling.min_new_tokens: exceeds max_new_tokens"),
        ('{"stop": ""}', "sampling.stop: an empty stop string"),
        ('{"regex": "a", "ebnf": "b"}', "sampling: only one of json_schema, regex, ebnf and"),
        (
            '{"custom_params": {"seer_sgl": 1}}',
            "sampling.custom_params: the key 'seer_sgl' is reserved",
        ),
        (
            '{"max_response_len": 5, "max_new_tokens": 5}',
            "sampling: max_new_tokens and max_response_len are two names of one limit: give one",
        ),
        ("5", "sampling: expected object | null, got int"),
    ],
)
def test_a_prompts_own_sampling_is_checked_like_the_configs(
    tmp_path: Path, sampling: str, complaint: str
) -> None:
    path = write(tmp_path, '{"prompt_ids": [1]}', f'{{"prompt_ids": [1], "sampling": {sampling}}}')
    with pytest.raises(PromptError, match=rf"p\.jsonl:2: {complaint}"):
        PromptReader(4, None, None, None, Sampling(max_new_tokens=100)).read(path)
