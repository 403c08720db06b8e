"""Builds at the start of an engine what SGLang would build in the first step of a rollout.

An engine is ready when all that it needs is loaded. SGLang's warm-up request is greedy, so the
seeded sampler is still to be compiled on a GPU; the draft index is compiled when the drafting
starts (draft/compiled.py), and the hash of page names not at all (page_hash.py).
"""

from .hook import SCHEDULER, Hook
from .sglang_types import SglScheduler

BATCHES = (1, 2)  # torch.compile makes one version for one row, and one for any other number


def draw_with_seeds(result: None, scheduler: SglScheduler, *_: object, **__: object) -> None:
    """Hook after `Scheduler.__init__`: draws a token for dummy requests, as a first step would."""
    import torch
    from sglang.srt.layers.sampler import sampling_from_probs_torch

    if not scheduler.server_args.enable_deterministic_inference:
        return
    vocab, device = scheduler.model_config.vocab_size, scheduler.device
    for batch in BATCHES:
        probs = torch.full((batch, vocab), 1.0 / vocab, device=device)
        seeds = torch.zeros(batch, dtype=torch.int64, device=device)
        sampling_from_probs_torch(probs, sampling_seed=seeds, positions=seeds.clone())


def hooks() -> list[Hook]:
    """Returns the hooks of this file."""
    return [
        Hook(
            f"{SCHEDULER}.__init__",
            draw_with_seeds,
            "after",
            "SGLang compiles its seeded sampler for a GPU in the first step that uses it; a draw "
            "before the engine is ready does it earlier.",
        )
    ]
