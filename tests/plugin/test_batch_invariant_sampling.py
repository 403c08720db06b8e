"""Seeded draws of SGLang's own sampler are distributed right and depend on their own row alone."""

import json
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare

from seer_sgl.plugin import batch_invariant_sampling

from .probe import run_probe

pytestmark = pytest.mark.process

COLUMNS = 50
DRAWS = 30_000  # of each kind
# temperature, top-p, top-k (0: all), min-p
KINDS: Sequence[tuple[float, float, int, float]] = (
    (1.0, 1.0, 0, 0.0),
    (0.7, 0.9, 0, 0.0),
    (1.5, 1.0, 7, 0.0),
    (1.0, 0.6, 20, 0.0),
    (2.0, 0.8, 9, 0.0),
    (1.0, 1.0, 1, 0.0),
    (1.2, 1.0, 0, 0.1),
)
PROBE = """
import json
import sys
from functools import partial
import torch
from seer_sgl.plugin import cpu
cpu.prepare()
from sglang.srt.layers import sampler
from sglang.srt.sampling.sampling_params import TOP_K_ALL
from seer_sgl.plugin import batch_invariant_sampling

stock = sampler.top_k_top_p_min_p_sampling_from_probs_torch
kinds, columns, draws = json.loads(sys.argv[1])
torch.manual_seed(3)
logits = 2.0 * torch.randn(columns)
logits[7] = logits[3]  # a tie
hooked = partial(batch_invariant_sampling.draw_by_column, stock)

def arguments(rows, seeds):
    probs = torch.stack([torch.softmax(logits / kinds[row][0], 0) for row in range(len(kinds))])
    wanted = torch.tensor(kinds)[rows]
    top_ks = wanted[:, 2].to(torch.int32)
    top_ks[top_ks == 0] = TOP_K_ALL
    positions = torch.arange(len(rows)) % 977
    return probs[rows], top_ks, wanted[:, 1], wanted[:, 3], False, seeds, positions

def draw(function, rows, seeds):
    probs, top_ks, top_ps, min_ps, _, seeds, positions = arguments(rows, seeds)
    needed = function is hooked and bool((min_ps > 0).any())
    return function(probs, top_ks, top_ps, min_ps, needed, seeds, positions)

def counts(rows, tokens):
    return [torch.bincount(tokens[rows == kind], minlength=columns).tolist()
            for kind in range(len(kinds))]

# All kinds in turn, thousands of rows per batch.
rows = torch.arange(draws * len(kinds)) % len(kinds)
seeds = torch.arange(len(rows)) * 7919 + 11
mixed = torch.cat([draw(hooked, *part) for part in zip(rows.split(7000), seeds.split(7000))])
answer = {"logits": logits.tolist(), "mixed": counts(rows, mixed)}

# The same rows without their neighbours: each kind alone, and the first by SGLang's own function.
small = rows[:7000]
for kind in range(len(kinds)):
    at = small == kind
    probs, *filters, positions = arguments(small, seeds[:7000])
    filters = [value[at] if torch.is_tensor(value) else value for value in filters]
    filters[3] = kinds[kind][3] > 0
    single = hooked(probs[at], *filters, positions[at])
    assert (single == mixed[:7000][at]).all(), kinds[kind]
at = small == 0
probs, *_, positions = arguments(small, seeds[:7000])
plain = sampler.sampling_from_probs_torch(probs[at], seeds[:7000][at], positions[at])
assert (plain == mixed[:7000][at]).all()
moved = draw(stock, small, seeds[:7000])
assert not (plain == moved[at]).all(), "the hook is no longer needed"

# A row without top-p loses no token to rounding: the sum exceeds 1 before the last of them. How a
# softmax rounds depends on the processor, so they are scaled.
tail = torch.softmax(torch.randn(40, 20_000), -1) * (1 + 1e-5)
everything = torch.full((40,), TOP_K_ALL, dtype=torch.int32)
ones, zeros, some = torch.ones(40), torch.zeros(40), torch.arange(40)
def kept(function):
    _, ranked, tokens, weights = function(
        tail, everything, ones, zeros, False, some, some, return_filtered_probs=True)
    return int((ranked > 0).sum())
assert kept(hooked) == int((tail > 0).sum()) > kept(stock)

# The support that SGLang returns.
probs, top_ks, top_ps, min_ps, _, seeds, positions = arguments(torch.tensor([3, 4]), some[:2])
def support(function):
    tokens, ranked, order, weights = function(
        probs, top_ks, top_ps, min_ps, False, seeds, positions, return_filtered_probs=True)
    assert (weights == probs.gather(1, tokens.view(-1, 1).long()).view(-1)).all()
    return [str(tokens.dtype), ranked.tolist(), order.dtype == torch.int32,
            [set(row[value > 0].tolist()) for row, value in zip(order, ranked)]]
assert support(hooked) == support(stock)

# Without seeds SGLang draws.
unseeded = (probs, top_ks, top_ps, min_ps, True, None, positions)
def noted(*args, **kwargs):
    assert all(a is b for a, b in zip(args, unseeded, strict=True))
    assert kwargs == {"return_filtered_probs": False}
    return "stock"
assert batch_invariant_sampling.draw_by_column(noted, *unseeded) == "stock"
print(json.dumps(answer))
"""


def distribution(
    logits: NDArray[np.float64], temperature: float, top_p: float, top_k: int, min_p: float
) -> NDArray[np.float64]:
    """Returns the distribution of a kind, filtered token by token."""
    shares = np.exp(logits / temperature)
    shares /= shares.sum()
    kept = np.zeros_like(shares)
    mass = 0.0
    for rank, token in enumerate(np.argsort(-shares, kind="stable")):
        if mass > top_p or (top_k and rank >= top_k) or shares[token] < min_p * shares.max():
            break
        kept[token] = shares[token]
        mass += shares[token]
    kept /= kept.sum()
    return kept


def test_every_kind_is_sampled_from_its_own_distribution_and_depends_on_its_own_row() -> None:
    """The program asserts what does not depend on the distribution."""
    answer = run_probe("-c", PROBE, json.dumps([KINDS, COLUMNS, DRAWS]))
    logits = np.array(answer["logits"])
    for kind, counts in zip(KINDS, np.array(answer["mixed"]), strict=True):
        expected = DRAWS * distribution(logits, *kind)
        inside = expected > 0
        assert counts[~inside].sum() == 0, kind
        if inside.sum() > 1:
            assert chisquare(counts[inside], expected[inside]).pvalue > 1e-3, kind


def test_a_greedy_request_has_its_logprobs_at_temperature_1_in_every_batch() -> None:
    batch = SimpleNamespace(
        temperatures=torch.tensor([[0.5], [0.5], [1.0]]), top_ks=torch.tensor([1, 2, 1])
    )
    batch_invariant_sampling.greedy_at_temperature_one(batch)
    assert batch.temperatures.tolist() == [[1.0], [0.5], [1.0]]
