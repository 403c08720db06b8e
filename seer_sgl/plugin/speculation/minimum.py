"""Applies `min_new_tokens` to each token of a step, also to the nodes of a draft.

SGLang's penalty counts steps, and a verified step yields several tokens. Here the position of a
token decides. A hook leaves the stop tokens to this file (penalties.py).
"""

from typing import NamedTuple

import numpy as np
import torch

from seer_sgl.plugin.sglang_types import SglSamplingInfo, SglScheduleBatch


class Minimum(NamedTuple):
    """The stop tokens that some requests of a batch must not draw yet.

    floors: int64 [n], the first position at which a request may draw a stop token. stops: float32
    [n, vocabulary], -inf at a request's stop tokens and 0 elsewhere.
    """

    floors: torch.Tensor
    stops: torch.Tensor

    def penalties(self, positions: torch.Tensor) -> torch.Tensor:
        """Returns what is added to the logits that the tokens at `positions` [n] are drawn from."""
        return torch.where((positions < self.floors)[:, None], self.stops, 0.0)


def minimum_of(batch: SglScheduleBatch, ahead: int) -> Minimum | None:
    """Returns the minimum of a step; None if no request is below its own.

    ahead: of the first token that the step draws, from the length of the sequence in `batch`.
    """
    stops = getattr(batch.sampling_info, "seer_stops", None)
    if stops is None:
        return None
    floors = np.array(
        [len(req.origin_input_ids) + req.sampling_params.min_new_tokens for req in batch.reqs]
    )
    if not (batch.seq_lens_cpu.numpy() + ahead < floors).any():
        return None
    return Minimum(torch.from_numpy(floors).to(stops.device, non_blocking=True), stops)


def penalize(info: SglSamplingInfo, minimum: Minimum | None, positions: torch.Tensor) -> None:
    """Adds a minimum to the penalties of a step that draws one token per request.

    positions: int64 [n], of the tokens that it draws.
    """
    if minimum is not None:
        own, others = minimum.penalties(positions), info.acc_additive_penalties
        info.acc_additive_penalties = own if others is None else others + own
