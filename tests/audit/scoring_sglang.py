"""A fake SGLang server with a model: the logits of a token depend on the three tokens before it.

It answers prefills and generates like SGLang with deterministic inference. Faults make its log
probabilities depend on the batch or on its prefix cache.
"""

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from seer_sgl.seeded_noise import gumbel
from tests.fake_sglang import FakeSGLang

WORDS = 24  # in the vocabulary
PROMPT = 6


def log_probs_after(tokens: list[int], temperature: float = 1.0, shift: float = 0.0) -> Any:
    """Returns the log probabilities of all tokens after these. `shift`: other weights."""
    logits = np.random.default_rng(tokens[-3:]).normal(0.0, 2.0, WORDS) / temperature
    logits += shift * np.arange(WORDS)
    return logits - np.log(np.exp(logits).sum())


@functools.cache
def noise_of(seed: int, position: int) -> Any:
    """Returns the noise of all tokens at a position; it costs more than all else here."""
    return np.array([gumbel(seed, position, word) for word in range(WORDS)])


def drawn(
    tokens: list[int], seed: int, temperature: float, shift: float = 0.0
) -> tuple[int, float]:
    """Returns the next token and its log probability. Temperature 0: the likeliest."""
    scored = log_probs_after(tokens, temperature or 1.0, shift)
    noise = noise_of(seed, len(tokens) - 1) if temperature else 0.0
    token = int(np.argmax(scored + noise))
    return token, float(scored[token])


def sample_line(index: int, tokens: int = 40, temperature: float = 1.0) -> dict[str, Any]:
    """Returns a sample as samples.jsonl has it."""
    prompt = [(7 * index + place) % WORDS for place in range(PROMPT)]
    ids: list[int] = []
    values = []
    for _ in range(tokens):
        token, value = drawn([*prompt, *ids], 100 + index, temperature)
        ids.append(token)
        values.append(value)
    return {
        "group_id": f"g{index // 4}",
        "index": index % 4,
        "prompt_ids": prompt,
        "response_ids": ids,
        "rollout_log_probs": values,
        "seed": 100 + index,
        "weight_spans": [{"version": "v1", "tokens": tokens}],
        "chunks": 2,
        "engines": ["e0", "e1"],
        "chunk_lengths": [tokens // 2, tokens - tokens // 2],
        "accept_length": None,
    }


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@dataclass(eq=False)
class ScoringSGLang(FakeSGLang):
    """`shift`: of the logits, as of other weights; `batch_shift`, `cache_shift`: the same, while
    other calls run and for cached prompts. `prefill_shift`: of the logits of a prefill."""

    shift: float = 0.0
    batch_shift: float = 0.0
    prefill_shift: float = 0.0
    cache_shift: float = 0.0
    delay_s: float = 0.001  # so that calls of a batch run side by side
    cached: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)

    @override
    def _reply(self, call: dict[str, Any], fault: str = "ok") -> dict[str, Any]:
        ids, params = call["input_ids"], call["sampling_params"]
        prompt = (call["extra_key"], tuple(ids[:PROMPT]))
        hit = prompt in self.cached
        self.cached.add(prompt)
        shift = self.shift + (self.batch_shift if self.running > 1 else 0.0)
        shift += self.cache_shift if hit else 0.0
        meta: dict[str, Any] = {
            "id": call["rid"],
            "finish_reason": {"type": "length", "length": params["max_new_tokens"]},
            "cached_tokens": PROMPT - 1 if hit else 0,
            "weight_version": self.weight_version,
        }
        if params["max_new_tokens"] == 0:
            return {"meta_info": meta | self._prefilled(call, shift + self.prefill_shift)}
        out = []
        for _ in range(params["max_new_tokens"]):
            token, value = drawn(ids, params.get("sampling_seed", 42), params["temperature"], shift)
            ids = [*ids, token]
            out.append([value, token, None])
        return {"meta_info": meta | {"output_token_logprobs": out}}

    def _prefilled(self, call: dict[str, Any], shift: float) -> dict[str, Any]:
        ids, begin, top = call["input_ids"], call["logprob_start_len"], call["top_logprobs_num"]
        entries: list[Any] = [[None, ids[begin], None]]
        rows: list[Any] = [None]
        for place in range(begin + 1, len(ids)):
            scored = log_probs_after(ids[:place], 1.0, shift)
            entries.append([float(scored[ids[place]]), ids[place], None])
            best = np.argsort(-scored)[:top].tolist()
            rows.append([[float(scored[word]), word, None] for word in best])
        return {"input_token_logprobs": entries, **({"input_top_logprobs": rows} if top else {})}

    @override
    async def flush(self, fields: dict[str, Any]) -> Any:
        self.cached.clear()
        return await super().flush(fields)
