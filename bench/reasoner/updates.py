"""Updates the reasoner by policy gradient from its own samples, as one epoch of RL does.

The loss of a sample is that of GRPO without a KL term, on policy: the mean over its tokens of minus
the log probability, times the advantage, which is the reward less the mean of the group's, over
their standard deviation. One optimizer step per batch of groups.
"""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from bench.reasoner.batches import Graded, batches, rows_of
from seer_sgl.torchvision_schemas import define_missing_schemas

define_missing_schemas()  # transformers imports torchvision, which fails with a CPU torch
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

LEARNING_RATE = 1e-4  # as in integrations/openrlhf/tests/reasoner/grpo.py
MEASURED = 64  # samples by which the divergence is estimated


def update(model: Path, samples: Sequence[Graded], updates: int, out: Path) -> float:
    """Writes a model that has taken `updates` optimizer steps to `out`, with its tokenizer.

    Returns the divergence of the new model from the old one: the mean over the tokens of some
    samples of the k3 estimate, in nats.
    """
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    before = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for batch, weights in batches(samples, updates):
        for rows in rows_of(batch):
            logprobs = _logprobs(policy, [batch[i] for i in rows])
            losses = [-weights[i] * each.mean() for i, each in zip(rows, logprobs, strict=True)]
            (torch.stack(losses).sum() / len(batch)).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    policy.save_pretrained(out)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)
    return _divergence(before, policy, samples)


def _logprobs(model: torch.nn.Module, samples: Sequence[Graded]) -> list[Tensor]:
    """Returns the log probabilities of each sample's response tokens."""
    whole = [[*sample.prompt_ids, *sample.response_ids] for sample in samples]
    longest = max(map(len, whole))
    ids = torch.tensor([each + [0] * (longest - len(each)) for each in whole])
    logits = model(input_ids=ids[:, :-1]).logits.float()  # causal: padding follows all tokens
    chosen = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
    return [
        chosen[i, len(sample.prompt_ids) - 1 : len(whole[i]) - 1]
        for i, sample in enumerate(samples)
    ]


@torch.no_grad()
def _divergence(before: torch.nn.Module, after: torch.nn.Module, all_: Sequence[Graded]) -> float:
    samples = random.Random(1).sample(list(all_), min(MEASURED, len(all_)))
    found = []
    for rows in rows_of(samples):
        chosen = [samples[i] for i in rows]
        for old, new in zip(_logprobs(before, chosen), _logprobs(after, chosen), strict=True):
            found += [math.expm1(ratio) - ratio for ratio in (new - old).tolist()]
    return fmean(found)
