"""The round that the picture of lanes shows: the baseline and seer-sgl on the same requests."""

from collections.abc import Sequence

import msgspec

from seer_sgl.report.lanes import Lanes

from .arms import BASELINE, SEER
from .measure import Measurement


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The two rollouts of one round, as lanes.json has them.

    `rounds`: the rounds that it was chosen from; `gain`: the ratio of the throughputs;
    `identical`: whether both produced the same tokens.
    """

    seed: int
    round: int
    rounds: list[int]
    gain: float
    requests: int
    identical: bool
    baseline: Lanes
    seer: Lanes

    @property
    def finding(self) -> str:
        """The title of the picture."""
        same = "requests and tokens" if self.identical else "requests"
        return (
            f"The same {self.requests} {same} in {self.seer.wall_s:.0f} s "
            f"instead of {self.baseline.wall_s:.0f} s"
        )

    @property
    def details(self) -> str:
        """The line below the title: which round it is, and of which rounds it is the median."""
        chosen = f"Seed {self.seed}, round {self.round}: {self.gain:.2f}x"
        if len(self.rounds) > 1:
            listed = f"{', '.join(map(str, self.rounds[:-1]))} and {self.rounds[-1]}"
            chosen += f", the {'' if len(self.rounds) % 2 else 'lower '}median of rounds {listed}"
        return f"{chosen}."


def typical_pair(measurements: Sequence[Measurement]) -> Pair | None:
    """Returns the round with the (lower) median ratio of throughputs, for the first seed with
    rounds of both arms; None if there are no such rounds."""
    found = {(one.row.arm, one.row.seed, one.row.round): one for one in measurements}
    both = [
        (one, found[SEER, seed, number])
        for (arm, seed, number), one in found.items()
        if arm == BASELINE and one.row.throughput_tok_s and (SEER, seed, number) in found
    ]
    if not both:
        return None
    paired = {baseline.row.seed for baseline, _ in both}
    first = next(one.row.seed for one in measurements if one.row.seed in paired)
    ranked = sorted((pair for pair in both if pair[0].row.seed == first), key=_gain)
    baseline, seer = ranked[(len(ranked) - 1) // 2]
    return Pair(
        seed=first,
        round=baseline.row.round,
        rounds=sorted(one.row.round for one, _ in ranked),
        gain=_gain((baseline, seer)),
        requests=baseline.record.requests,
        identical=baseline.row.identical_share == seer.row.identical_share == 1,
        baseline=Lanes.of(baseline.record),
        seer=Lanes.of(seer.record),
    )


def _gain(pair: tuple[Measurement, Measurement]) -> float:
    baseline, seer = pair
    return seer.row.throughput_tok_s / baseline.row.throughput_tok_s
