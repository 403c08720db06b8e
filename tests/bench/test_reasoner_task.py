"""The reasoning task, its tokenizer, the shipped prompts and checkpoint, reward and evaluation."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from bench.reasoner import evaluate, task
from bench.reasoner.reward import reward

FOLDER = Path(task.__file__).parent
MODEL = FOLDER / "model"
PROMPTS = {True: FOLDER / "prompts" / "held_out.jsonl", False: FOLDER / "prompts" / "train.jsonl"}


def prompts(held_out: bool) -> list[dict[str, Any]]:
    return [json.loads(line) for line in PROMPTS[held_out].read_text().splitlines()]


def numbers(prompt: str) -> tuple[int, int]:
    digits = [word for word in prompt.split() if word.isdigit()]
    return task.unspell(digits[:3]), task.unspell(digits[3:])


# The task


def test_the_split_ignores_the_order_of_the_pair_and_holds_out_a_quarter() -> None:
    pairs = [(a, b) for a in range(2, 200) for b in range(1, a)]
    assert all(task.is_held_out(a, b) == task.is_held_out(b, a) for a, b in pairs)
    assert 0.24 < sum(task.is_held_out(a, b) for a, b in pairs) / len(pairs) < 0.26


# The shipped prompts


@pytest.mark.parametrize("held_out, at_least", [(True, 256), (False, 512)])
def test_shipped_prompts_are_distinct_on_their_side_of_the_split_and_have_their_answer(
    held_out: bool, at_least: int
) -> None:
    records = prompts(held_out)
    pairs = [numbers(record["prompt"]) for record in records]
    assert len(records) >= at_least
    assert len({frozenset(pair) for pair in pairs}) == len(records)
    assert all(task.is_held_out(*pair) == held_out for pair in pairs)
    for record, pair in zip(records, pairs, strict=True):
        prompt = task.Prompt(*pair)
        assert record["prompt"] == prompt.text
        assert record["metadata"] == {"answer": prompt.answer, "steps": prompt.steps}


def test_the_first_32_prompts_of_the_file_have_a_long_tail() -> None:
    steps = sorted(record["metadata"]["steps"] for record in prompts(held_out=True)[:32])
    assert steps[-1] >= 6 * steps[16]


# The tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(MODEL)


def test_the_tokenizer_gives_the_trained_ids_and_never_a_second_bos(tokenizer: Any) -> None:
    for record in prompts(held_out=True)[:32]:
        ids = task.encode(record["prompt"])
        assert tokenizer.encode(record["prompt"]) == ids
        assert tokenizer.encode(record["prompt"], add_special_tokens=False) == ids
        assert ids.count(tokenizer.bos_token_id) == 1


def test_a_response_survives_the_round_trip_through_the_tokenizer(tokenizer: Any) -> None:
    rng = random.Random(5)
    ids = task.encode(task.trace(task.Prompt(84, 120), rng))
    text = tokenizer.decode(ids)
    assert tokenizer.encode(text) == ids
    assert "</think> answer" in tokenizer.decode(ids, skip_special_tokens=True)


# The checkpoint


def test_the_checkpoint_is_small_and_declares_how_to_stop() -> None:
    config = json.loads((MODEL / "config.json").read_text())
    generation = json.loads((MODEL / "generation_config.json").read_text())
    vocab = task.vocabulary()
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["vocab_size"] == len(vocab)
    assert config["eos_token_id"] == generation["eos_token_id"] == vocab["<eos>"]
    assert (MODEL / "model.safetensors").stat().st_size <= 10_000_000


# The reward


@pytest.mark.parametrize(
    "response",
    [
        "so it goes </think> answer 2 1 0 <eos>",
        " . </think> answer 2 1 0<eos>",
        "</think> answer 2 1 0",
        "</think>answer210 ",
    ],
)
def test_a_right_answer_earns_one_with_or_without_special_tokens(response: str) -> None:
    assert reward(response, 12) == 1.0


@pytest.mark.parametrize(
    "response",
    [
        "</think> answer 1 2 0 <eos>",
        "answer 2 1 0 <eos>",
        "</think> answer 2 1",
        "</think> answer 2 1 0 now",
        "</think> answer 2 1 0 </think> answer 3 0 0",
        "",
        "\x00\ud800 \u221e",
        "</think> answer \u0662 \u0661 \u0660",  # digits, but not ours
    ],
)
def test_wrong_truncated_and_garbled_responses_earn_nothing(response: str) -> None:
    assert reward(response, 12) == 0.0


# The evaluation


def test_icc_is_one_without_spread_in_groups_and_low_without_spread_between() -> None:
    assert evaluate.icc([[1, 1], [2, 2], [5, 5]]) == pytest.approx(1.0)
    assert evaluate.icc([[1, 5], [1, 5], [1, 5]]) == pytest.approx(-1.0)
    # By hand: mean squares 8 between and 2 within, so (8 - 2) / (8 + 2).
    assert evaluate.icc([[1, 3], [3, 5], [5, 7]]) == pytest.approx(0.6)
    assert math.isnan(evaluate.icc([[1, 2]]))


def test_the_facts_of_a_small_file_are_right_and_its_failures_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right, wrong = "</think> answer 2 1 0 <eos>", "</think> answer 9 9 9 <eos>"
    rows = [
        ("a", list(range(10)), right, "stop"),
        ("a", list(range(10)), wrong, "stop"),
        ("b", list(range(100)), right, "stop"),
        ("b", list(range(98)), right, "length"),
    ]
    keys = ("group_id", "response_ids", "text", "finish_reason")
    records = [{**dict(zip(keys, row, strict=True)), "metadata": {"answer": 12}} for row in rows]
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join(json.dumps({**record, "extra": None}) for record in records) + "\n")

    assert evaluate.main([str(path), "--json", "--check"]) == 1
    output = capsys.readouterr()
    facts = json.loads(output.out)
    assert facts["samples"] == 4 and facts["groups"] == 2
    assert facts["accuracy"] == 0.75
    assert facts["length_max"] == 100
    assert facts["length_median"] == 54
    assert facts["icc_log_length"] > 0.99
    assert facts["finished_share"] == 0.75
    assert facts["duplicate_siblings"] == 1 and not facts["all_siblings_differ"]
    assert facts["shared_ngram_share"] == pytest.approx((1 + 1 + 91 / 93 + 1) / 4)
    assert "failed: finished_share >= 0.99" in output.err
