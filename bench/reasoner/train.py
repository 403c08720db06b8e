"""Trains the reasoning model from scratch on one CPU core.

    python -m bench.reasoner.train --out DIR [--seed 0] [--quick]

The benchmark of a rollout backend needs long-tailed response lengths that depend on the prompt, so
it needs a model that really reasons. The task (``task.py``) has such lengths, and a decoder with
0.8 M parameters learns it in well under an hour. These choices matter:

* Muon for the matrices. AdamW needs about three times the tokens for the same arithmetic.
* The words of a phrase are random by construction, so their loss counts less than the digits'.
* One document per row, with few distinct row lengths: rows that mix documents make the first step
  of a chain bad, and oneDNN compiles once per new tensor shape.
* Half of the tokens come in short windows, then chains are shown whole. The model learns copying
  and arithmetic while attention is cheap, and keeps them over the thousands of tokens of a chain.
* bfloat16 multiplications (autocast; the weights stay float32) are 1.6 times as fast.

The schedule counts tokens, not seconds, so a seed gives the same model on a slower machine.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bench.reasoner import task, tokenizer
from seer_sgl.torchvision_schemas import define_missing_schemas

define_missing_schemas()  # transformers imports torchvision, which fails with a CPU torch
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

PROMPT_COUNTS = {"held_out": 256, "train": 512}


class Plan(NamedTuple):
    """Counts are tokens; rates are per update."""

    total: int = 25_000_000
    batch: int = 4096
    short_window: int = 512
    long_share: float = 0.35  # share of the tokens, at the end, from chains shown whole
    long_crop_rate: float = 0.5  # share of long chains that are cropped even then
    muon_rate: float = 0.015
    adam_rate: float = 0.003
    warm_up_updates: int = 60
    flat_share: float = 0.4  # of the tokens at the full rate, before it falls linearly to zero
    weight_decay: float = 0.05
    word_weight: float = 0.3  # loss weight of a phrase's words; a digit's is 1
    verdict_weight: float = 2.0  # one token per step determines the next step


QUICK = Plan(total=500_000)


class Document(NamedTuple):
    ids: list[int]
    scored: list[int]  # 1 where the loss counts: in the response, not in the prompt


def model_config() -> Qwen2Config:
    vocab = task.vocabulary()
    return Qwen2Config(
        vocab_size=len(vocab),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=tokenizer.CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=vocab["<bos>"],
        eos_token_id=vocab["<eos>"],
        pad_token_id=vocab["<pad>"],
        attn_implementation="sdpa",
    )


class Stream:
    """An endless stream of batches; ``progress`` (0 to 1) determines the window."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.plan = plan
        self.rng = random.Random(seed)
        self.progress = 0.0
        self.rows: dict[int, list[Document]] = defaultdict(list)

    def document(self) -> Document:
        prompt = task.mixed_prompt(self.rng, held_out=False)
        question, response = task.encode(prompt.text), task.encode(task.trace(prompt, self.rng))
        document = Document(question + response, [0] * len(question) + [1] * len(response))
        crop = self.progress < 1 - self.plan.long_share
        if crop or self.rng.random() < self.plan.long_crop_rate:
            document = self.cropped(document)
        return document

    def cropped(self, document: Document) -> Document:
        """Returns the begin, the end, or a random window of a document longer than a window."""
        window = self.plan.short_window
        last = len(document.ids) - window
        if last <= 0:
            return document
        start = self.rng.choice((0, last, self.rng.randint(0, last)))
        ids, scored = (part[start : start + window] for part in document)
        if start > 0:  # the operands of the first step are outside the window
            scored[:20] = [0] * 20
        return Document(ids, scored)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields ids and scored, [rows, length] each, of about ``plan.batch`` tokens."""
        while True:
            document = self.document()
            grain = 64 if len(document.ids) <= self.plan.short_window else 256
            length = -(-len(document.ids) // grain) * grain
            rows = self.rows[length]
            rows.append(document)
            if len(rows) >= self.plan.batch // length:
                yield (
                    padded([d.ids for d in rows], length),
                    padded([d.scored for d in rows], length),
                )
                rows.clear()


def padded(rows: list[list[int]], length: int) -> Tensor:
    """Returns [rows, length], padded with 0, which is <pad> and not scored."""
    return torch.tensor([row + [0] * (length - len(row)) for row in rows])


def optimizers(model: Qwen2ForCausalLM, plan: Plan) -> list[torch.optim.Optimizer]:
    """Returns Muon for the matrices of the blocks, and AdamW for embeddings, norms and biases."""
    embedding = model.model.embed_tokens.weight
    matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
    others = [embedding, *(p for p in model.parameters() if p.ndim == 1)]
    return [
        torch.optim.Muon(
            matrices, plan.muon_rate, weight_decay=plan.weight_decay, adjust_lr_fn="original"
        ),
        torch.optim.AdamW(
            others, plan.adam_rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True
        ),
    ]


def rate_factor(plan: Plan, update: int, progress: float) -> float:
    warm_up = min(1.0, (update + 1) / plan.warm_up_updates)
    return warm_up * max(0.01, min(1.0, (1 - progress) / (1 - plan.flat_share)))


def token_weights(plan: Plan) -> Tensor:
    """Returns [vocabulary]: the loss weight of each token."""
    weights = dict.fromkeys(task.vocabulary(), plan.word_weight)
    weights |= dict.fromkeys("0123456789", 1.0) | dict.fromkeys(task.VERDICTS, plan.verdict_weight)
    return torch.tensor(list(weights.values()))


def train(plan: Plan, seed: int) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(model_config())
    parameters = list(model.parameters())
    print(f"{sum(p.numel() for p in parameters):,} parameters", flush=True)
    pair = optimizers(model, plan)
    full_rates = [optimizer.param_groups[0]["lr"] for optimizer in pair]
    weights = token_weights(plan)
    stream = Stream(plan, seed)
    seen, update, shown, loss_sum, began = 0, 0, 0, 0.0, time.monotonic()
    for ids, scored in stream:
        stream.progress = seen / plan.total
        if stream.progress >= 1:
            break
        factor = rate_factor(plan, update, stream.progress)
        for optimizer, rate in zip(pair, full_rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids, use_cache=False).logits[:, :-1].float()
        target = ids[:, 1:]
        weight = scored[:, 1:] * weights[target]
        each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), target, reduction="none")
        loss = (each * weight).sum() / weight.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer in pair:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen, update = seen + int(scored.sum()), update + 1
        loss_sum += loss.item()
        if update % 100 == 0:
            seconds = time.monotonic() - began
            print(
                f"update {update} tokens {seen / 1e6:.2f} M loss {loss_sum / (update - shown):.4f} "
                f"rate {factor:.3f} {seconds:.0f} s {seen / seconds:.0f} tokens/s",
                flush=True,
            )
            shown, loss_sum = update, 0.0
    return model


def save(model: Qwen2ForCausalLM, folder: Path) -> None:
    """Writes a Hugging Face checkpoint: config, generation config, weights and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.save_pretrained(folder)
    tokenizer.save(folder)


def write_prompts(folder: Path) -> None:
    """Writes the prompts. They do not depend on the training seed, so figures stay comparable."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in PROMPT_COUNTS.items():
        prompts = task.prompt_file(random.Random(name), name == "held_out", count)
        with (folder / f"{name}.jsonl").open("w") as lines:
            for prompt in prompts:
                record = {
                    "id": f"gcd-{prompt.first}-{prompt.second}",
                    "prompt": prompt.text,
                    "metadata": {"answer": prompt.answer, "steps": prompt.steps},
                }
                lines.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the tiny reasoning model on one CPU core.")
    parser.add_argument("--out", type=Path, required=True, help="folder for model/ and prompts/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a one-minute smoke run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    write_prompts(options.out / "prompts")
    save(train(QUICK if options.quick else Plan(), options.seed), options.out / "model")


if __name__ == "__main__":
    main()
