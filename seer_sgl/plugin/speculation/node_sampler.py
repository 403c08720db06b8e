"""Draws a token at every node of a verification, by SGLang's own sampler.

A draw depends on its node alone, so a verification that would need too much memory is sampled in
parts. SGLang's seeded sampler holds several arrays of nodes x vocabulary at once, for which SGLang
reserves no memory when it sizes the KV cache.
"""

import copy
import dataclasses
from typing import Any

import torch

from seer_sgl.plugin.sglang_types import (
    SglLogits,
    SglModelRunner,
    SglSamplingInfo,
    SglScheduleBatch,
)

from .minimum import Minimum

# The fields of SamplingBatchInfo that the sampler uses and that have one row per request.
_ROWS = ("temperatures", "top_ps", "top_ks", "min_ps", "sampling_seed")

# The fields of LogitsProcessorOutput with the logprobs that a request has asked for.
ASKED_LOGPROBS = (
    "next_token_top_logprobs_val",
    "next_token_top_logprobs_idx",
    "next_token_token_ids_logprobs_val",
    "next_token_token_ids_logprobs_idx",
)

# Per node and word, if nothing is fused: logits, logprobs, their copy, the hash, float64 noise and
# float64 logprobs (sglang.srt.layers.sampler, multinomial_with_seed).
WORD_BYTES = 36
MOST_BYTES = 1 << 30


def speculates(sampling: SglSamplingInfo) -> bool:
    """Returns whether the sampler can draw at all nodes of a tree.

    Penalties, grammars and the user's logit processors depend on the tokens before a node, so these
    requests are sampled token by token.
    """
    return not (
        sampling.grammars
        or sampling.has_custom_logit_processor
        or sampling.acc_additive_penalties is not None
        or sampling.acc_scaling_penalties is not None
        or sampling.sampling_mask_batch_indices is not None
    )


class NodeSampler:
    """The sampler of one verification with `width` nodes per request of `batch`."""

    def __init__(
        self, runner: SglModelRunner, batch: SglScheduleBatch, width: int, minimum: Minimum | None
    ) -> None:
        self._sampler = runner.sampler
        self._batch = batch
        self._width = width
        self._minimum = minimum

    def draw(self, output: SglLogits, positions: torch.Tensor) -> torch.Tensor:
        """Returns the draws of all nodes, int32 [n * width], and sets the logprobs in `output`.

        output: logits [n * width, vocabulary]. positions: int64 [n * width].
        """
        sampling, logits = self._batch.sampling_info, output.next_token_logits
        count = len(positions) // self._width
        if self._minimum is not None:
            drawn = positions.view(count, self._width) + 1
            for node in range(self._width):
                logits.view(count, self._width, -1)[:, node].add_(
                    self._minimum.penalties(drawn[:, node])
                )
        if not speculates(sampling):
            return self._one_each(output, positions)
        if sampling.logit_bias is not None:
            logits.view(count, self._width, -1).add_(sampling.logit_bias[:, None])
        most = max(1, MOST_BYTES // (WORD_BYTES * self._width * logits.shape[1]))
        if count <= most:
            return self._part(output, positions, slice(0, count))
        parts: list[SglLogits] = []
        draws = []
        for begin in range(0, count, most):
            rows = slice(begin, min(begin + most, count))
            nodes = slice(rows.start * self._width, rows.stop * self._width)
            part = copy.copy(output)
            part.next_token_logits = logits[nodes]
            draws.append(self._part(part, positions[nodes], rows))
            parts.append(part)
        if self._batch.return_logprob:
            for name in ("next_token_logprobs", *ASKED_LOGPROBS):
                setattr(output, name, _joined(name, parts))
        return torch.cat(draws)

    def _one_each(self, output: SglLogits, positions: torch.Tensor) -> torch.Tensor:
        """Returns the draws of a verification without drafts, as `ModelRunner.sample` does."""
        sampling = self._batch.sampling_info
        sampling.update_regex_vocab_mask()
        sampling.apply_logits_bias(output.next_token_logits)
        sampling.grammar_mask = None
        return self._sampler(
            output,
            sampling,
            self._batch.return_logprob,
            self._batch.top_logprobs_nums,
            self._batch.token_ids_logprobs,
            positions,
        )

    def _part(self, output: SglLogits, positions: torch.Tensor, rows: slice) -> torch.Tensor:
        """Returns the draws at the nodes of the requests `rows`, whose logits are in `output`."""
        return self._sampler(
            output,
            self._repeated(self._batch.sampling_info, rows),
            self._batch.return_logprob,
            self._each(self._batch.top_logprobs_nums, rows),
            self._each(self._batch.token_ids_logprobs, rows),
            positions,
        )

    def _repeated(self, info: Any, rows: slice) -> Any:
        """Returns the sampling parameters of every node, copied from its request."""
        changes = {
            name: value[rows].repeat_interleave(self._width, dim=0)
            for name in _ROWS
            if (value := getattr(info, name)) is not None
        }
        return dataclasses.replace(info, **changes)

    def _each(self, values: list[Any] | None, rows: slice) -> list[Any]:
        return [value for value in (values or [])[rows] for _ in range(self._width)]


def _joined(name: str, parts: list[SglLogits]) -> Any:
    """Returns the logprobs `name` of all parts: one tensor, one list, or None if no part has any.

    The sampler sets a field only if a request of the part has asked for it.
    """
    values = [getattr(part, name) for part in parts]
    first = next((value for value in values if value is not None), None)
    if first is None:
        return None
    if isinstance(first, torch.Tensor):
        return torch.cat(values)
    return [
        row
        for part, rows in zip(parts, values, strict=True)
        for row in (_unasked(name, part) if rows is None else rows)
    ]


def _unasked(name: str, part: SglLogits) -> list[Any]:
    """Returns what SGLang gives the nodes of requests that have not asked for logprobs `name`."""
    logits = part.next_token_logits
    if name == "next_token_token_ids_logprobs_idx":
        return [[]] * len(logits)
    dtype = torch.int64 if name.endswith("_idx") else logits.dtype
    return [logits.new_empty(0, dtype=dtype)] * len(logits)
