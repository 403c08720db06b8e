"""Reads texts with SGLang's own functions, for a comparison: a program of its own.

Each line of standard input is a Task or a Loading in JSON; standard output gets an Answer for each
Task, and a LoadedTokenizer for each Loading. Importing SGLang changes transformers, so a test does
not import it.
"""

import json
import os
import sys
from typing import Any

import msgspec

from seer_sgl.link.tokenizer import TokenizerSource
from seer_sgl.plugin.tokenizer import load
from seer_sgl.torchvision_schemas import define_missing_schemas


class Loading(msgspec.Struct, tag=True):
    """A tokenizer that the driver wants a copy of."""

    source: TokenizerSource


class Task(msgspec.Struct, tag=True):
    """A tokenizer and what to read with it. `windows`: lists of token ids to decode.

    images: whether the model reads images too.
    """

    folder: str
    own_code: bool
    texts: list[str]
    windows: list[list[int]]
    images: bool = False


class Answer(msgspec.Struct):
    """What SGLang reads and writes, in the order of the task.

    `stop_lens`: of a request with that stop string. `tails`: the text in which the scheduler looks
    for one. `written`: the text of a response, without and with special tokens.
    """

    prompts: list[list[int]]
    parts: list[list[int]]
    stop_lens: list[int]
    tails: list[str]
    written: list[tuple[str, str]]
    chats: list[list[int]]


def answer(task: Task) -> Answer:
    """Returns what the processes of an SGLang server do with a task's texts and tokens."""
    from sglang.srt.managers.detokenizer_manager import DetokenizerManager
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.utils.hf_transformers_utils import (
        get_processor,
        get_tokenizer,
        get_tokenizer_from_processor,
    )
    from sglang.srt.utils.patch_tokenizer import decode_without_hf_kwargs

    tokenizer = writer = get_tokenizer(task.folder, trust_remote_code=task.own_code)
    if task.images:
        processor = get_processor(
            task.folder, trust_remote_code=task.own_code, model_name=task.folder
        )
        tokenizer = get_tokenizer_from_processor(processor)
    fast = getattr(tokenizer, "is_fast", False)

    def stop_len(text: str) -> int:
        params = SamplingParams(stop=[text])
        params.normalize(tokenizer)
        return int(params.stop_str_max_len)

    def written(ids: list[int], skip: bool) -> str:
        ids = DetokenizerManager._clamp_decode_ids(ids, len(writer))
        # DetokenizerManager._grouped_batch_decode
        if not fast:
            return str(decode_without_hf_kwargs(writer, ids, skip))
        options = {"skip_special_tokens": skip}
        # Our server takes either value: no tokenizer reads it.
        (text,) = {
            str(writer.batch_decode([ids], spaces_between_special_tokens=spaces, **options)[0])
            for spaces in (True, False)
        }
        return text

    def prompt(text: str) -> Any:  # TokenizerManager._tokenize_texts
        return tokenizer([text])["input_ids"][0] if fast else tokenizer.encode(text)

    return Answer(
        prompts=[list(prompt(text)) for text in task.texts],
        parts=[list(tokenizer.encode(text, add_special_tokens=False)) for text in task.texts],
        stop_lens=[stop_len(text) for text in task.texts],
        tails=[tokenizer.decode(ids) for ids in task.windows],
        written=[(written(ids, True), written(ids, False)) for ids in task.windows],
        chats=[_chat(tokenizer, text) for text in task.texts if tokenizer.chat_template],
    )


def _chat(tokenizer: Any, text: str) -> list[int]:
    """Returns the prompt of a chat (OpenAIServingChat._render_and_encode_chat_template)."""
    from types import SimpleNamespace

    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat

    serving: Any = SimpleNamespace(
        tokenizer_manager=SimpleNamespace(tokenizer=tokenizer),
        _tokenizer_auto_adds_specials=len(tokenizer.encode("")) > 0,
    )
    lossy = OpenAIServingChat._probe_prompt_text_round_trip(serving)
    serving._prompt_text_round_trip_is_lossy = lossy
    ids, _ = OpenAIServingChat._render_and_encode_chat_template(
        serving,
        [{"role": "user", "content": text}],
        tools=None,
        template_kwargs={},
        encode_kwargs=(
            {"add_special_tokens": False} if serving._tokenizer_auto_adds_specials else {}
        ),
        use_cache=False,
    )
    return list(ids)


def main() -> None:
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    define_missing_schemas()
    for line in sys.stdin.buffer:
        asked = msgspec.json.decode(line, type=Task | Loading)
        reply = load(asked.source) if isinstance(asked, Loading) else answer(asked)
        out.write(json.dumps(msgspec.to_builtins(reply)).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
