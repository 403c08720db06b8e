"""The trainer's own log probabilities of the tokens of a probe. All ranks compute them together."""

from typing import Any

import torch


def own_log_probs(actor: Any, ids: list[int], ring_attn_group: Any) -> list[float]:
    """Returns the log probabilities of ids[1:] by OpenRLHF's Actor, as it would be served.

    OpenRLHF divides logits by the sampling temperature; the engines' log probabilities of a prompt
    are those of temperature 1.
    """
    training, temperature = actor.training, actor.temperature
    device = torch.cuda.current_device()
    sequence = torch.tensor([ids], dtype=torch.long, device=device)
    actor.eval()
    actor.temperature = 1.0
    try:
        with torch.no_grad():
            found = actor(
                sequence,
                attention_mask=torch.ones_like(sequence),
                return_logprobs=True,
                ring_attn_group=ring_attn_group,
            )
    finally:
        actor.temperature = temperature
        actor.train(training)
    values: list[float] = found[0].float().tolist()
    return values


def sample_ids(experience: Any, count: int) -> list[int]:
    """Returns the first tokens of a sample in OpenRLHF's replay buffer."""
    kept = experience.sequences.flatten()[experience.attention_mask.flatten().bool()]
    ids: list[int] = kept[:count].tolist()
    return ids
