"""Two drivers that share real engines, each without knowledge of the other."""

import asyncio
from typing import Any

import pytest
from typing_extensions import override

from seer_sgl import Rollout
from seer_sgl.types import Chunk
from tests.e2e.compare import Samples, assert_identical, rolled
from tests.e2e.conftest import KV_TOKENS, external
from tests.e2e.rig import Rig
from tests.helpers import Returns

pytestmark = [pytest.mark.shared_engines, pytest.mark.long]
SEEDS = (11, 12)
PROMPTS, SAMPLES = 4, 16


class Watch(Returns):
    """The times at which a driver sent its chunks, and the least KV that it would have used."""

    def __init__(self, rollout: Rollout) -> None:
        self.times: list[float] = []
        self.least_usable = KV_TOKENS
        self._engines = rollout.driver._scheduler.engines

    @override
    def sent(self, chunk: Chunk, now: float) -> None:
        self.times.append(asyncio.get_running_loop().time())
        for slot in self._engines:
            assert slot.ledger is not None
            self.least_usable = min(self.least_usable, slot.ledger.feedback.usable)


def own(seed: int) -> dict[str, Any]:
    """Returns the sections of a driver's config."""
    many = {"seed": seed, "n_samples_per_prompt": SAMPLES}
    return {"sampling": {"max_response_len": 800}, "rollout": many}


async def rolled_beside(urls: list[str], seed: int) -> tuple[Samples, Any, Watch]:
    """Rolls out with a driver of its own."""
    async with Rollout(external(urls, **own(seed), scheduling={"chunk_tokens": 256})) as rollout:
        watch = Watch(rollout)
        return *await rolled(rollout, PROMPTS, [watch]), watch


async def test_two_drivers_on_the_same_engines_get_the_samples_of_one_alone(rig: Rig) -> None:
    undisturbed = [await rig.undivided(PROMPTS, **own(seed)) for seed in SEEDS]
    both = await asyncio.gather(*(rolled_beside(rig.pair, seed) for seed in SEEDS))
    for (samples, report, watch), alone in zip(both, undisturbed, strict=True):
        assert_identical(alone, samples)
        assert report["lost_chunks"] == report["failed_requests"] == report["wasted_tokens"] == 0
        # Alone, a driver has promised what is in use, and would use all of the KV. How much the
        # other one uses when an engine is asked is not theirs to say.
        assert watch.least_usable < KV_TOKENS, "it left room for the other one"
    needed = [len(s.prompt_ids) + s.response_length for found, *_ in both for s in found.values()]
    assert sum(needed) > len(rig.pair) * KV_TOKENS, "more KV than there is, if all ran at once"
    times = [watch.times for *_, watch in both]
    assert max(each[0] for each in times) < min(each[-1] for each in times), "both ran at once"
