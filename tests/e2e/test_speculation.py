"""Drafted responses end where plain ones end, for every pair of ways to stop.

tests/e2e/fleet has the other kinds of sampling. One engine drafts chains, the other one trees.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from seer_sgl import Rollout
from seer_sgl.rollout.samples import encode_sample
from seer_sgl.types import Sample
from tests.e2e.compare import accepted_drafts, assert_identical, collected, has_accepted_draft
from tests.e2e.held_out import texts, tokenizer
from tests.e2e.rig import WHOLE, Rig

pytestmark = pytest.mark.shared_engines

PROMPTS = 2  # per kind
LONGEST = 256
ENOUGH = 300  # accepted drafts
TWO_WORDS = "a stop string of two tokens"


def kinds_of_stop(samples: Iterable[Sample]) -> Mapping[str, dict[str, Any]]:
    """Returns a grammar, and kinds of stop whose two stops often come one after the other."""
    pairs: Counter[tuple[int, int]] = Counter()
    for sample in samples:
        ids = list(sample.response_ids)[:LONGEST]
        first = {token: ids.index(token) for token in set(ids)}
        pairs.update(pair for pair in pairwise(ids) if first[pair[0]] + 1 == first[pair[1]] > 8)
    [((earlier, later), _)] = pairs.most_common(1)
    decode = tokenizer().decode
    x, y = (decode([token]).strip() for token in (earlier, later))
    return {
        "stop: [later, earlier]": {"stop": [y, x]},
        "stop: [earlier, later]": {"stop": [x, y]},
        "stop_token_ids before stop": {"stop_token_ids": [earlier], "stop": [y]},
        "stop before stop_token_ids": {"stop_token_ids": [later], "stop": [x]},
        "no_stop_trim": {"stop": [y, x], "no_stop_trim": True},
        "stop_regex": {"stop_regex": [y, f"{x}|{y} ."], "stop_token_ids": [later]},
        "min_new_tokens": {"stop_token_ids": [later], "stop": [y], "min_new_tokens": 40},
        TWO_WORDS: {"stop": [f"{x} {y}"]},
        "grammar": {"regex": "( [0-9]){30} ok"},  # token by token
    }


def prompts(kinds: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns PROMPTS prompts of each kind, eight samples each."""
    return [
        {
            "prompt": text,
            "id": f"{kind} {i}",
            "n": 8,
            "sampling": {"max_new_tokens": LONGEST, **own},
        }
        for kind, own in kinds.items()
        for i, text in enumerate(texts(PROMPTS))
    ]


@pytest.mark.parametrize(
    ("chunk_tokens", "with_history"),
    [
        (3, True),
        (64, False),
        pytest.param(3, False, marks=pytest.mark.long),
        pytest.param(64, True, marks=pytest.mark.long),
    ],
)
async def test_two_ways_to_stop_end_a_drafted_response_where_they_end_a_plain_one(
    rig: Rig, tmp_path: Path, chunk_tokens: int, with_history: bool
) -> None:
    earlier = (await rig.undivided(sampling=WHOLE)).values()
    kinds = kinds_of_stop(earlier)
    whole = await rig.undivided(prompts(kinds))
    history = tmp_path / "history.jsonl"
    history.write_bytes(b"\n".join(map(encode_sample, earlier)))
    draft = {"history": str(history)} if with_history else {}
    config = rig.fleet(scheduling={"chunk_tokens": chunk_tokens}, draft=draft)
    async with Rollout(config) as rollout:
        parts = await collected(rollout.run(prompts(kinds)))
        report = rollout.report()
    assert_identical(whole, parts)
    assert [one["engine_id"] for one in report["drafting"]["engines"]] == ["e0", "e1"]
    # In chunks of 3 tokens the drafts are what siblings happen to have written by then.
    many = with_history or chunk_tokens > 3
    assert accepted_drafts(report) > (ENOUGH if many else 0)
    for kind, own in kinds.items():
        found = [sample for (group, _), sample in parts.items() if group.startswith(kind)]
        undivided = {"stop_regex", "regex"} & own.keys()
        assert sum(sample.chunks for sample in found) > len(found) or undivided, kind
        stopped = [sample for sample in found if sample.finish_reason == "stop"]
        assert len(stopped) > len(found) / 3, kind
        if many and "regex" not in own:
            assert any(map(has_accepted_draft, found)), kind
    assert {type(sample.matched) for sample in parts.values()} >= {int, str}
    spanning = [
        sample
        for (group, _), sample in parts.items()
        if group.startswith(TWO_WORDS) and isinstance(sample.matched, str)
        if sample.response_length % chunk_tokens == 1
    ]
    assert spanning or chunk_tokens > 3, "some stops begin in one chunk and end in the next"
