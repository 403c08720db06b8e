"""Requests that an engine answers directly and undivided, and whose tokens are compared with those.

SGLang draws the token with the greatest score: log probability plus the seed's noise. Engines that
compute in other pieces differ by rounding, and can draw different tokens where two scores are about
equal. All that follows differs then, so it is compared anew, behind that token.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp

from seer_sgl.seeded_noise import gumbel
from tests.e2e.compare import LOGPROB_TOLERANCE


async def undivided(url: str, bodies: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Returns the tokens of requests that an engine answers directly, without old KV."""
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/flush_cache", params={"timeout": "30"}) as reply:
            assert reply.status == 200
        replies = await asyncio.gather(*(_generate(session, url, each) for each in bodies))
    return [list(reply["output_ids"]) for reply in replies]


async def assert_same_but_for_ties(
    url: str, bodies: Sequence[dict[str, Any]], ours: Sequence[Sequence[int]]
) -> int:
    """Asserts that an engine draws our tokens, but for those that rounding decides; returns their
    number.

    `bodies`: of /generate, at temperature 1, with input ids, a seed and no filters. `ours`: the
    tokens of each, as many as it asks for.
    """
    ties, left = 0, list(zip(bodies, ours, strict=True))
    while left:
        theirs = await undivided(url, [fields for fields, _ in left])
        differ = [
            (fields, tokens, _equal(tokens, again))
            for (fields, tokens), again in zip(left, theirs, strict=True)
            if tokens != again
        ]
        for fields, tokens, place in differ:
            gap = await _behind(url, _after(fields, tokens[:place], 1), tokens[place])
            # No equal tokens: perhaps old weights or old KV.
            where = {"input tokens": len(fields["input_ids"]), "equal tokens": place, "gap": gap}
            assert gap <= LOGPROB_TOLERANCE, where
        ties += len(differ)
        left = [
            (_after(fields, tokens[: place + 1], len(tokens) - place - 1), tokens[place + 1 :])
            for fields, tokens, place in differ
            if place + 1 < len(tokens)
        ]
    return ties


def _after(fields: dict[str, Any], tokens: Sequence[int], limit: int) -> dict[str, Any]:
    params = {**fields["sampling_params"], "max_new_tokens": limit}
    return {"input_ids": [*fields["input_ids"], *tokens], "sampling_params": params}


def _equal(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Returns how many tokens are equal before the first difference, of which there must be one."""
    pairs = enumerate(zip(ours, theirs, strict=True))
    return next(place for place, (one, other) in pairs if one != other)


async def _behind(url: str, fields: dict[str, Any], token: int) -> float:
    """Returns how far a token's score is below that of the token that the engine draws."""
    async with aiohttp.ClientSession() as session:
        logs = {"return_logprob": True, "token_ids_logprob": [token]}
        answer = await _generate(session, url, {**fields, **logs})
    (drawn,), meta = answer["output_ids"], answer["meta_info"]
    ((highest, _, _),) = meta["output_token_logprobs"]
    (((log_prob, of, _),),) = meta["output_token_ids_logprobs"]
    assert of == token
    seed, last = fields["sampling_params"]["sampling_seed"], len(fields["input_ids"]) - 1
    return float(highest - log_prob) + gumbel(seed, last, drawn) - gumbel(seed, last, token)


async def _generate(
    session: aiohttp.ClientSession, url: str, fields: dict[str, Any]
) -> dict[str, Any]:
    async with session.post(f"{url}/generate", json=fields) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found
