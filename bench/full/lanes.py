"""The picture of lanes: a typical round of the baseline and seer-sgl on the same requests."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from seer_sgl.benchmark.arms import BASELINE, SEER
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.report.lanes import Lanes, draw_lane, lanes_legend, shade_tail
from seer_sgl.report.style import MUTED, OURS, PLAIN, headline, save, styled_figure


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


def draw_pair(pair: Pair, path: Path) -> list[Path]:
    """Draws the requests on each engine: the baseline above, seer-sgl below, on one time axis."""
    halves = (
        (pair.baseline, "Plain SGLang, whole groups pinned to engines", PLAIN),
        (pair.seer, "seer-sgl", OURS),
    )
    count = sum(len(lanes.engines) for lanes, _, _ in halves)
    with styled_figure(11, 2.6 + 1.35 * count) as figure:
        headline(figure, pair.finding, pair.details)
        axes = iter(figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0])
        for lanes, name, colour in halves:
            for place, lane in enumerate(lanes.engines):
                axis = next(axes)
                draw_lane(axis, lanes, lane, colour)
                shade_tail(axis, lanes)
                if place == 0:
                    axis.set_title(f"{name}: {_times(lanes)}", color=colour, fontweight="bold")
        axis.set_xlim(0, max(lanes.wall_s for lanes, _, _ in halves))
        axis.set_ylim(0, 1.08 * max(lanes.most for lanes, _, _ in halves))
        axis.set_xlabel("seconds since the rollout began; height: requests on the engine")
        waiting = any(lanes.kv_waiting for lanes in (pair.baseline, pair.seer))
        lanes_legend(figure, MUTED, kv_waiting=waiting)
        return save(figure, path)


def _times(lanes: Lanes) -> str:
    return f"{lanes.wall_s:.1f} s, {lanes.tail_s:.1f} s of it for the last 10 % of the requests"
