"""Groups of sibling responses to draft from: synthetic, or recorded from the tiny reasoner.

`python -m bench.draft_streams` records `bench/reasoner/siblings.npz` again: the first 20 held-out
prompts, 16 responses each, sampled from the reasoner at temperature 1 (two minutes on one core).
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

REASONER = Path(__file__).parent / "reasoner"
RECORDED = REASONER / "siblings.npz"
PROMPTS, SIBLINGS, MAX_TOKENS, SEED = 20, 16, 4096, 0


class Siblings(NamedTuple):
    """A prompt and the responses of its group."""

    prompt: Tokens
    responses: list[Tokens]


def synthetic(
    responses: int, length: int, noise: float, seed: int, vocabulary: int = 32_000
) -> Siblings:
    """Returns responses of `length` tokens, made of shared phrases of 8 to 40 tokens.

    A phrase is drawn by a Zipf-like law. Each of its tokens is replaced by a random token with
    probability `noise`.
    """
    dice = np.random.default_rng(seed)
    phrases = [
        dice.integers(0, vocabulary, dice.integers(8, 41)).astype(np.int32)
        for _ in range(max(50, length // 40))
    ]
    weights = 1 / (np.arange(len(phrases)) + 10.0)
    weights /= weights.sum()
    prompt = dice.integers(0, vocabulary, 200).astype(np.int32)
    texts = []
    for _ in range(responses):
        picks = dice.choice(len(phrases), size=length // 8, p=weights)
        text = np.concatenate([phrases[pick] for pick in picks])[:length]
        wrong = dice.random(length) < noise
        texts.append(np.where(wrong, dice.integers(0, vocabulary, length), text).astype(np.int32))
    return Siblings(prompt, texts)


def recorded(path: Path = RECORDED) -> list[Siblings]:
    """Returns the groups in a file that `record` wrote."""
    with np.load(path) as file:
        prompts, tokens, lengths = file["prompts"], file["tokens"], file["lengths"]
    ends = np.cumsum(lengths)
    texts = np.split(tokens.astype(np.int32), ends[:-1])
    count = len(texts) // len(prompts)
    return [
        Siblings(prompt.astype(np.int32), texts[number * count : (number + 1) * count])
        for number, prompt in enumerate(prompts)
    ]


def record(path: Path = RECORDED) -> None:
    """Samples the reasoner at temperature 1 with plain transformers, all responses in one batch.

    All prompts have the same length, so there is no padding. Finished responses leave the batch.
    """
    import torch

    from seer_sgl.torchvision_schemas import define_missing_schemas

    define_missing_schemas()  # transformers imports torchvision, which fails with a CPU torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(REASONER / "model")
    model = AutoModelForCausalLM.from_pretrained(REASONER / "model", dtype=torch.float32).eval()
    with (REASONER / "prompts" / "held_out.jsonl").open() as lines:
        texts = [json.loads(line)["prompt"] for line, _ in zip(lines, range(PROMPTS), strict=False)]
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    responses: list[list[int]] = [[] for _ in range(PROMPTS * SIBLINGS)]
    running = torch.arange(len(responses))
    cache = DynamicCache()
    inputs = torch.tensor(prompts).repeat_interleave(SIBLINGS, dim=0)
    with torch.inference_mode():
        for _ in range(MAX_TOKENS):
            logits = model(inputs, past_key_values=cache, use_cache=True).logits[:, -1]
            drawn = torch.multinomial(logits.softmax(-1), 1)
            for row, token in zip(running.tolist(), drawn[:, 0].tolist(), strict=True):
                responses[row].append(token)
            going = (drawn[:, 0] != tokenizer.eos_token_id).nonzero()[:, 0]
            if not len(going):
                break
            if len(going) < len(running):
                cache.batch_select_indices(going)
            running, inputs = running[going], drawn[going]
    np.savez_compressed(
        path,
        prompts=np.array(prompts, np.uint8),
        tokens=np.concatenate([np.array(response, np.uint8) for response in responses]),
        lengths=np.array([len(response) for response in responses], np.int32),
    )


if __name__ == "__main__":
    record()
