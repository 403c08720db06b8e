"""The answer in words: whether it is worth the work. Pure."""

import statistics
from collections.abc import Sequence

import msgspec

from .orders import OURS, TODAY, Draw, OrderRow, gain, mean_gain

# Below: not worth the work, as it is less than what another draw of lengths moves.
SMALL_GAIN = 1.05
# The simulated gain of order and division is up to 13 % off published and measured ones.
CLEAR_GAIN = 1.15
SHORT_S = 5.0  # a rollout that is sooner by less is no reason to change a trainer
CALIBRATION = (
    "Two CPU engines: mean times of three rollouts were 9 % off at most for order and division, "
    "single ones up to 35 %; with drafts 17 % too short (docs/benchmark.md).",
    "Three published rollouts on 32 to 256 GPUs: their order and division gained 1.66, 1.68 and "
    "1.11 over pinned groups in simulation; published are 1.47, 1.56 and 1.27.",
    "No time of this page was measured on a GPU. With drafts, the acceptance is the published one.",
)


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """`answer`: no, perhaps or yes; `reasons`: in sentences."""

    answer: str
    headline: str
    reasons: list[str]


def advice(
    rows: Sequence[OrderRow], bound_s: float, alone_s: float, draws: Sequence[Draw]
) -> Advice:
    """Returns the advice on order and division. `alone_s`: the least time of the longest response;
    `draws`: the trace itself is the first."""
    by_name = {row.name: row for row in rows}
    today = min((by_name[name] for name in TODAY), key=lambda row: row.wall_s)
    mean, least, most = mean_gain(draws)
    reasons = [
        f"Today's fastest order takes {today.wall_s:,.0f} s, order and division "
        f"{by_name[OURS].wall_s:,.0f} s. Over {len(draws)} sets of lengths the gain is {mean:.2f} "
        f"({least:.2f} to {most:.2f}).",
        f"Engines are idle for {today.idle_share:.0%} of today's time. No order can be faster than "
        f"{bound_s:,.0f} s; the longest response alone takes {alone_s:,.0f} s.",
    ]
    pinned = gain(by_name["group_round_robin"].wall_s, by_name["request_round_robin"].wall_s)
    if pinned > SMALL_GAIN:
        reasons.append(
            f"If you pin groups: single requests in turn bring {pinned:.2f}, without seer-sgl."
        )
    best = min(by_name["seer+sd"].wall_s, by_name["seer+sd_costly"].wall_s)
    worst = max(by_name["seer+sd"].wall_s, by_name["seer+sd_costly"].wall_s)
    drafts = (
        f"Drafts are another matter: {gain(today.wall_s, worst):.2f} to "
        f"{gain(today.wall_s, best):.2f} in simulation, "
        "if siblings resemble each other as published."
    )
    saved_s = statistics.mean(draw.today_s - draw.ours_s for draw in draws)
    without = sum(draw.gain <= 1 for draw in draws)
    if mean < SMALL_GAIN:
        headline = "Do not bother: order and division bring nothing here."
        return Advice(answer="no", headline=headline, reasons=[*reasons, drafts])
    if saved_s < SHORT_S:
        headline = f"Do not bother: order and division save {max(0, saved_s):.1f} s per rollout."
        return Advice(answer="no", headline=headline, reasons=[*reasons, drafts])
    if without:
        headline = f"Perhaps: no gain on {without} of {len(draws)} sets of lengths."
        return Advice(answer="perhaps", headline=headline, reasons=[*reasons, drafts])
    if mean < CLEAR_GAIN:
        headline = "Perhaps: the gain is smaller than the error of the simulation."
        return Advice(answer="perhaps", headline=headline, reasons=[*reasons, drafts])
    headline = f"Worth a try: order and division save {1 - 1 / mean:.0%} of the rollout."
    return Advice(answer="yes", headline=headline, reasons=[*reasons, drafts])
