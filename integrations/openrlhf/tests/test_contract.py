"""What OpenRLHF expects of samples, with its own SamplesGenerator, executors and Experience."""

import random
from typing import Any

import pytest
import torch
from fake_fleet import FakeClient, logprob
from openrlhf.trainer.ppo_utils.experience import (
    Experience,
    make_experience_batch,
    split_experience_batch,
)
from sampling import TOKENIZER, Setup, sampling


def texts(samples: list[Any]) -> list[str]:
    return [TOKENIZER.decode(sample.sequences[0]) for sample in samples]


def test_an_experience_is_one_sample_with_shifted_masks_and_log_probabilities() -> None:
    with sampling(Setup()) as run:
        samples = run.batch()
    assert len(samples) == 8
    for sample in samples:
        tokens = sample.sequences.shape[1]
        prompt = len(TOKENIZER(sample.prompts[0])["input_ids"])
        assert sample.sequences.shape == sample.attention_mask.shape == (1, tokens)
        assert sample.action_mask.shape == sample.rollout_log_probs.shape == (1, tokens - 1)
        assert sample.attention_mask.all()
        assert sample.action_mask[0].tolist() == [0] * (prompt - 1) + [1] * (tokens - prompt)
        assert sample.response_length.tolist() == [tokens - prompt] and tokens > prompt
        assert sample.total_length.tolist() == [tokens]
        of_tokens = [logprob(token) for token in sample.sequences[0, prompt:].tolist()]
        expected = torch.tensor([0.0] * (prompt - 1) + of_tokens)
        assert torch.allclose(sample.rollout_log_probs[0], expected)


def test_a_sample_is_truncated_if_and_only_if_it_ended_at_its_length() -> None:
    with sampling(Setup(n=8)) as run:
        samples = run.batch()
    cut = [sample for sample in samples if not texts([sample])[0].endswith("<eos>")]
    assert cut and len(cut) < len(samples)
    assert [sample for sample in samples if sample.truncated.item()] == cut
    assert all(sample.response_length.item() == 8 for sample in cut)


@pytest.mark.parametrize("n", [1, 3])
def test_groups_are_contiguous_and_complete_in_the_order_of_the_prompts(n: int) -> None:
    fleet = FakeClient(order=random.Random(1))
    with sampling(Setup(n=n, fleet=fleet, shuffle=random.Random(2))) as run:
        samples = run.batch()
    assert [sample.prompts[0] for sample in samples] == [
        f"prompt {number}" for number in range(4) for _ in range(n)
    ]
    assert [sample.labels[0] for sample in samples[::n]] == ["0", "1", "2", "3"]
    assert len(fleet.rollouts) == 1


def test_samples_can_be_merged_and_split_as_the_trainer_does() -> None:
    with sampling(Setup(generate_batch_size=6)) as run:
        samples = [*run.batch(), *run.batch()]  # the second one is partly from OpenRLHF's buffer
    keys = set(samples[0].info)
    assert all(set(sample.info) == keys for sample in samples)
    assert all(value.shape == (1,) for sample in samples for value in sample.info.values())
    merged = Experience.concat_experiences(samples, pad_token_id=0)
    assert merged.info["seer_rollout_s"].shape == (16,)
    items = split_experience_batch(merged)
    again = make_experience_batch(items)
    assert set(again.info) == keys and len(again.info["seer_staleness"]) == 16


def test_every_sampling_parameter_is_explicit() -> None:
    fleet = FakeClient()
    with sampling(Setup(fleet=fleet)) as run:
        run.batch()
    assert fleet.rollouts[0]["groups"][0]["sampling"] == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.0,
        "max_new_tokens": 8,
        "min_new_tokens": 1,
        "stop": [],
        "stop_token_ids": [],
        "ignore_eos": False,
        "skip_special_tokens": False,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
    }


def test_without_a_correction_no_sample_has_log_probabilities() -> None:
    with sampling(Setup(correction="off")) as run:
        assert all(sample.rollout_log_probs is None for sample in run.batch())


def test_without_a_limit_a_response_may_fill_the_rest_of_the_context() -> None:
    fleet = FakeClient()
    with sampling(Setup(fleet=fleet)) as run:
        run.batch(max_new_tokens=None)
    lengths = {
        len(g["prompt_ids"]): g["sampling"]["max_new_tokens"] for g in fleet.rollouts[0]["groups"]
    }
    assert lengths == {8: 56}


def test_a_prompt_that_is_too_long_loses_its_beginning() -> None:
    prompt = "".join(chr(97 + number % 26) for number in range(100))
    with sampling(Setup(prompts=[prompt, "short"], batch_size=2)) as run:
        samples = run.batch(max_len=40)
    assert all(text.startswith(prompt[-32:]) for text in texts(samples[:2]))
    assert all(sample.sequences.shape[1] <= 40 for sample in samples)
    assert all(text.startswith("short") for text in texts(samples[2:]))


def test_unicode_prompts_reach_the_engines_and_come_back_unchanged() -> None:
    prompts = ["好的答案是", "naïve café 🧮", "\u202eright to left\x00"]
    with sampling(Setup(prompts=prompts, batch_size=3)) as run:
        samples = run.batch()
    assert [sample.prompts[0] for sample in samples[::2]] == prompts
    for sample, text in zip(samples, texts(samples), strict=True):
        assert text.startswith(sample.prompts[0])


def test_a_dataloader_that_ends_inside_a_batch_gives_what_it_has() -> None:
    with sampling(Setup(prompts=["a", "b", "c", "d", "e", "f"])) as run:
        batches = [run.generator.generate_samples(max_len=64, max_new_tokens=8) for _ in range(2)]
        assert [(len(samples), used, end) for samples, _, used, end in batches] == [
            (8, 4, False),
            (4, 2, True),
        ]
        assert len(run.batch()) == 8  # the next episode


def test_evaluations_between_steps_have_their_own_size_and_temperature() -> None:
    fleet = FakeClient()
    with sampling(Setup(fleet=fleet)) as run:
        first, held_out, second = run.batch(), run.evaluate(n=3), run.batch()
    assert [len(samples) for samples in (first, held_out, second)] == [8, 6, 8]
    assert [sample.prompts[0] for sample in held_out] == ["held out 0"] * 3 + ["held out 1"] * 3
    shapes = [
        {(group["n"], group["sampling"]["temperature"]) for group in body["groups"]}
        for body in fleet.rollouts
    ]
    assert shapes == [{(2, 0.7)}, {(3, 0.3)}, {(2, 0.7)}]
    assert len({body["rollout_id"] for body in fleet.rollouts}) == 3
