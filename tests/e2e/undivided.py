"""Requests that an engine answers directly and undivided, to compare a rollout's tokens with.

SGLang draws the token with the greatest score: log probability plus the seed's noise. Engines that
compute in other pieces differ by rounding, and can draw different tokens where two scores are about
equal: a near tie. All tokens behind it differ then, so they are compared anew.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp

from seer_sgl.seeded_noise import gumbel
from tests.e2e.compare import LOGPROB_TOLERANCE

MOST_TIES = 1  # per comparison: in about one of fifteen runs a token differed (docs/exactness.md)


async def generate(
    session: aiohttp.ClientSession, url: str, fields: dict[str, Any]
) -> dict[str, Any]:
    """Returns an engine's answer to /generate."""
    async with session.post(f"{url}/generate", json=fields) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def undivided(url: str, bodies: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Returns the tokens of requests that an engine answers directly, without old KV."""
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/flush_cache", params={"timeout": "30"}) as reply:
            assert reply.status == 200
        replies = await asyncio.gather(*(generate(session, url, each) for each in bodies))
    return [list(reply["output_ids"]) for reply in replies]


async def assert_same_but_for_ties(
    url: str, bodies: Sequence[dict[str, Any]], ours: Sequence[Sequence[int]]
) -> int:
    """Asserts that an engine draws our tokens, but for near ties; returns their number, at most
    MOST_TIES.

    `bodies`: of /generate, with input ids, a seed, temperature 1 and no filters. `ours`: the tokens
    of each, as many as it asks for.
    """
    ties, open_requests = 0, list(zip(bodies, ours, strict=True))
    while open_requests:
        theirs = await undivided(url, [fields for fields, _ in open_requests])
        continued = []
        for (fields, tokens), other in zip(open_requests, theirs, strict=True):
            place = equal_tokens(tokens, other)
            if place == len(tokens):
                continue
            await assert_near_tie(url, fields, tokens[: place + 1], other[place])
            ties += 1
            rest = tokens[place + 1 :]
            if rest:
                continued.append((after(fields, tokens[: place + 1], len(rest)), rest))
        assert ties <= MOST_TIES, "rounding alone has fewer near ties"
        open_requests = continued
    return ties


async def assert_near_tie(
    url: str, fields: dict[str, Any], ours: Sequence[int], theirs: int
) -> None:
    """Asserts that rounding decides between the last token of `ours` and `theirs`.

    `fields`: of the /generate that begins with `ours`, as in `assert_same_but_for_ties`. `theirs`:
    the token that the engine drew instead of the last one.
    """
    request = after(fields, ours[:-1], 1)
    candidates = [ours[-1], theirs]
    async with aiohttp.ClientSession() as session:
        logs = {"return_logprob": True, "token_ids_logprob": candidates}
        answer = await generate(session, url, {**request, **logs})
    (drawn,), meta = answer["output_ids"], answer["meta_info"]
    ((drawn_log_prob, _, _),) = meta["output_token_logprobs"]
    (log_probs,) = meta["output_token_ids_logprobs"]
    assert [token for _, token, _ in log_probs] == candidates
    seed, last = request["sampling_params"]["sampling_seed"], len(request["input_ids"]) - 1
    drawn_score = drawn_log_prob + gumbel(seed, last, drawn)
    gaps = [drawn_score - log_prob - gumbel(seed, last, token) for log_prob, token, _ in log_probs]
    assert max(map(abs, gaps)) <= LOGPROB_TOLERANCE, {
        "seed": seed,
        "input tokens": len(fields["input_ids"]),
        "equal tokens": len(ours) - 1,  # 0: perhaps of old weights or old KV
        "ours, theirs": candidates,
        "gaps to the drawn token": gaps,
    }


def equal_tokens(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Returns how many tokens are equal before the first difference or the end of the shorter."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


def after(fields: dict[str, Any], tokens: Sequence[int], limit: int) -> dict[str, Any]:
    """Returns the request that continues behind tokens of its response, with a new limit."""
    params = {**fields["sampling_params"], "max_new_tokens": limit}
    return {"input_ids": [*fields["input_ids"], *tokens], "sampling_params": params}
