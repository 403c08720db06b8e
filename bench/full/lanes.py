"""The picture of lanes: a typical round of the baseline and seer-sgl on the same requests."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from seer_sgl.benchmark.arms import BASELINE, SEER
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.report.lanes import Lane, Lanes, draw_lane, lanes_legend
from seer_sgl.report.style import MUTED, OURS, PLAIN, SMALL, headline, save, styled_figure

IDLE = 0.1  # least share of the baseline's time for a title about its most idle engine
FULL = 0.9  # least share of an engine's KV in use for a sentence about KV


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
        """The title of the picture: why the baseline takes longer if an engine of it idles."""
        same = f"{self.requests} {'requests and tokens' if self.identical else 'requests'}"
        ours, wall = f"{self.seer.wall_s:.0f} s", f"{self.baseline.wall_s:.0f} s"
        idlest = max(self.baseline.engines, key=self.baseline.idle_s)
        idle_s = self.baseline.idle_s(idlest)
        if idle_s < IDLE * self.baseline.wall_s:
            return f"The same {same} in {ours} instead of {wall}"
        return (
            f"With plain SGLang {idlest.engine_id} idles {idle_s:.0f} s of {wall};\n"
            f"seer-sgl takes {ours} for the same {same}"
        )

    @property
    def details(self) -> str:
        """The lines below the title: which round it is, of which rounds it is the median, and
        whether KV limits what runs."""
        chosen = f"Seed {self.seed}, round {self.round}: {self.gain:.2f}x"
        if len(self.rounds) > 1:
            listed = f"{', '.join(map(str, self.rounds[:-1]))} and {self.rounds[-1]}"
            chosen += f", the {'' if len(self.rounds) % 2 else 'lower '}median of rounds {listed}"
        halves = (self.baseline, self.seer)
        if all(max(max(lane.kv) for lane in lanes.engines) >= FULL for lanes in halves):
            chosen += ".\nLong requests fill the KV cache (line), so an engine runs fewer at once"
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
    """Draws the requests and the KV of each engine: the baseline above, seer-sgl below, on one
    time axis.

    All panels are as high as the most requests that ran on an engine. Longer queues are cut off
    there, and a note gives their length: running requests would be low below them.
    """
    halves = (
        (pair.baseline, "Plain SGLang, whole groups pinned", PLAIN),
        (pair.seer, "seer-sgl", OURS),
    )
    count = sum(len(lanes.engines) for lanes, _, _ in halves)
    full = max(lanes.most_running for lanes, _, _ in halves)
    with styled_figure(11, 3.0 + 1.35 * count) as figure:
        headline(figure, pair.finding, pair.details)
        axes = iter(figure.subplots(count, 1, sharex=True, sharey=True, squeeze=False)[:, 0])
        for lanes, name, colour in halves:
            for place, lane in enumerate(lanes.engines):
                axis = next(axes)
                draw_lane(axis, lanes, lane, colour)
                axis.set_title(_queue(lane), loc="right", color=MUTED, fontsize=SMALL)
                if place == 0:
                    axis.set_title(f"{name}: {_times(lanes)}", color=colour, fontweight="bold")
        axis.set_xlim(0, max(lanes.wall_s for lanes, _, _ in halves))
        axis.set_ylim(0, 1.08 * full)
        axis.set_yticks([0, full])
        axis.set_xlabel(
            f"seconds since the rollout began; height: requests on the engine, cut at {full:.0f}"
        )
        waiting = any(lanes.kv_waiting for lanes in (pair.baseline, pair.seer))
        lanes_legend(figure, MUTED, kv_waiting=waiting)
        return save(figure, path)


def _times(lanes: Lanes) -> str:
    return f"{lanes.wall_s:.0f} s, tail {lanes.tail_s:.0f} s"


def _queue(lane: Lane) -> str:
    most = max(lane.queued)
    return f"up to {most:.0f} queued in {lane.engine_id}" if most else "none queued"
