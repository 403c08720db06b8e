"""Builds at the start of an engine what would otherwise be built in the middle of a rollout.

An engine is ready when all that it needs is loaded. What is built where is in docs/fleet.md.
"""

import importlib
import logging
import threading

from seer_sgl.link.contract import ALGORITHM

from .hook import SCHEDULER, Hook
from .sglang_types import SglScheduler, SglServerArgs

logger = logging.getLogger(__name__)
BATCHES = (1, 2)  # torch.compile makes one version for one row, and one for any other number


def load_the_index(_: SglScheduler, server_args: SglServerArgs, *__: object, **___: object) -> None:
    """Hook before `Scheduler.__init__`: loads the draft index beside the model.

    numba compiles it in some 10 s if it finds no compiled code (draft/compiled.py). The start of
    the drafting waits for this import.
    """
    if server_args.speculative_algorithm == ALGORITHM:
        logger.info("seer-sgl: loading the draft index; the first start of a user compiles it")
        load = importlib.import_module
        threading.Thread(target=load, args=("seer_sgl.draft.drafter",), daemon=True).start()


def draw_with_seeds(result: None, scheduler: SglScheduler, *_: object, **__: object) -> None:
    """Hook after `Scheduler.__init__`: draws a token for dummy requests, as a first step would.

    Without gradients, like SGLang's loop: compiled code is for one of both modes.
    """
    import torch
    from sglang.srt.layers.sampler import sampling_from_probs_torch

    if not scheduler.server_args.enable_deterministic_inference:
        return
    vocab, device = scheduler.model_config.vocab_size, scheduler.device
    with torch.no_grad():
        for batch in BATCHES:
            probs = torch.full((batch, vocab), 1.0 / vocab, device=device)
            seeds = torch.zeros(batch, dtype=torch.int64, device=device)
            sampling_from_probs_torch(probs, sampling_seed=seeds, positions=seeds.clone())


def hooks() -> list[Hook]:
    return [
        Hook(
            f"{SCHEDULER}.__init__",
            load_the_index,
            "before",
            "SGLang loads the model here, which takes longer than to compile the draft index, so "
            "both begin together.",
            "SGLang calls plugins before it loads the model.",
        ),
        Hook(
            f"{SCHEDULER}.__init__",
            draw_with_seeds,
            "after",
            "SGLang's warm-up request is greedy, so a GPU would compile the seeded sampler in the "
            "first step of a rollout; a draw before the engine is ready does it earlier.",
            "The warm-up request of SGLang also samples with a seed.",
        ),
    ]
