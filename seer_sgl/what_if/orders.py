"""The orders that a what-if compares, simulated on a trace."""

import random
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from seer_sgl.config import with_values
from seer_sgl.sim.outcome import Outcome
from seer_sgl.sim.variants import Scenario
from seer_sgl.traces.trace import Responses

OURS = "seer"  # the row that the answer is about: divided, in our order, without drafts
TODAY = ("request_round_robin", "group_round_robin", "group_least_loaded")
WHOLE = "seer_whole"
CHUNK, CONCURRENCY = "scheduling.chunk_tokens", "engine.max_running_requests"
LABELS = {
    "request_round_robin": "today: single requests in turn",
    "group_round_robin": "today: groups pinned in turn",
    "group_least_loaded": "today: groups to least busy",
    WHOLE: "seer-sgl: order only",
    "fcfs": "seer-sgl: division only",
    OURS: "seer-sgl: order and division",
    "seer+sd": "seer-sgl: + drafts, at best",
    "seer+sd_costly": "seer-sgl: + drafts, at worst",
}
# Chunks that are tried: whole responses, and the longest over these, as powers of two.
CHUNKS_PER_RESPONSE = (32, 16, 8, 4)
LEAST_CHUNK = 64
NEAR = 1.01  # a value this near the fastest is as good; the draw of lengths moves times more
CONCURRENCIES = (16, 32, 64, 128, 256, 512)

Notice = Callable[[str], None]


class OrderRow(msgspec.Struct, frozen=True, kw_only=True):
    """One order. Times in seconds; GPU-hours of the whole fleet. `ratio`: today's fastest order
    over this one; a price is None without a price per GPU-hour."""

    name: str
    label: str
    wall_s: float
    tail_s: float
    idle_share: float
    gpu_hours: float
    idle_gpu_hours: float
    ratio: float
    price: float | None = None
    idle_price: float | None = None


class Try(msgspec.Struct, frozen=True):
    """A value of a setting, and the time that order and division take with it."""

    value: int
    wall_s: float


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """The gain over today's fastest order on other lengths; `source`: a trace, or a resample."""

    source: str
    today_s: float
    ours_s: float
    gain: float


def chunk_sizes(longest: int) -> list[int]:
    """Returns the chunk lengths to try, descending, in tokens."""
    sizes = {1 << (longest // parts).bit_length() >> 1 for parts in CHUNKS_PER_RESPONSE}
    whole = 1 << longest.bit_length()
    return sorted({whole, *(max(LEAST_CHUNK, size) for size in sizes)}, reverse=True)


def altered(scenario: Scenario, values: Mapping[str, int | bool]) -> Scenario:
    """Returns the scenario with other settings."""
    config = with_values(scenario.config, values)
    return Scenario(scenario.name, scenario.responses, config, scenario.prior)


def best_chunk(scenario: Scenario, notice: Notice) -> tuple[int, list[Try]]:
    """Returns the longest chunk that is as fast as the best one, and all that were tried."""
    tries = []
    for size in chunk_sizes(scenario.config.workload.lengths.max):
        notice(f"chunks of {size:,} tokens")
        row = altered(scenario, {CHUNK: size}).alone(OURS)
        tries.append(Try(size, row.wall_s))
    return max(_near(tries)), tries


def concurrencies(scenario: Scenario) -> list[int]:
    """Returns the numbers of running requests per engine to try."""
    count = sum(len(group.lengths) for group in scenario.responses)
    most = min(count // scenario.config.engine.count, scenario.config.engine.max_running_requests)
    return [value for value in CONCURRENCIES if value <= most]


def best_concurrency(scenario: Scenario, notice: Notice) -> tuple[int, list[Try]]:
    """Returns the fewest running requests per engine that are as fast as the engines' own limit,
    and all that were tried; 0 if engines get too few requests for a choice."""
    tries = []
    for value in concurrencies(scenario):
        notice(f"{value} requests at once per engine")
        row = altered(scenario, {CONCURRENCY: value}).alone(OURS)
        tries.append(Try(value, row.wall_s))
    limit = scenario.config.engine.max_running_requests
    if tries and tries[-1].value < limit:
        tries.append(Try(limit, scenario.alone(OURS).wall_s))
    return (min(_near(tries)), tries) if tries else (0, [])


def _near(tries: Sequence[Try]) -> list[int]:
    fastest = min(tried.wall_s for tried in tries)
    return [tried.value for tried in tries if tried.wall_s <= NEAR * fastest]


def compare(scenario: Scenario, gpus: int, price: float | None, notice: Notice) -> list[OrderRow]:
    """Returns every order on the trace. `gpus`: per engine; `price`: per GPU-hour."""
    whole = altered(scenario, {"scheduling.divide": False, "scheduling.kv_ledger": False})
    outcomes = {}
    for name, label in LABELS.items():
        notice(label)
        outcomes[name] = whole.alone(OURS) if name == WHOLE else scenario.alone(name)
    today = min(outcomes[name].wall_s for name in TODAY)
    fleet = gpus * scenario.config.engine.count
    return [_row(name, row, today, fleet, price) for name, row in outcomes.items()]


def _row(name: str, outcome: Outcome, today_s: float, gpus: int, price: float | None) -> OrderRow:
    hours = outcome.wall_s * gpus / 3600
    idle = hours * outcome.idle_fraction
    return OrderRow(
        name=name,
        label=LABELS[name],
        wall_s=round(outcome.wall_s, 3),
        tail_s=round(outcome.tail_s, 3),
        idle_share=outcome.idle_fraction,
        gpu_hours=round(hours, 4),
        idle_gpu_hours=round(idle, 4),
        ratio=round(gain(today_s, outcome.wall_s), 3),
        price=None if price is None else round(price * hours, 2),
        idle_price=None if price is None else round(price * idle, 2),
    )


def gain(before_s: float, after_s: float) -> float:
    """Returns one time over another; 1 if the other is too short to be told from 0."""
    return before_s / after_s if after_s else 1.0


def gain_on(scenario: Scenario) -> Draw:
    """Returns the gain of order and division on one set of lengths."""
    today = min(scenario.alone(name).wall_s for name in TODAY)
    ours = scenario.alone(OURS).wall_s
    return Draw(source=scenario.name, today_s=today, ours_s=ours, gain=round(gain(today, ours), 3))


def resampled(scenario: Scenario, seed: int) -> Scenario:
    """Returns the scenario with as many groups, drawn from its own with replacement."""
    draw = random.Random(seed)
    chosen = draw.choices(scenario.responses, k=len(scenario.responses))
    groups = [
        Responses(f"{group.group_id}/{number}", group.prompt_ids, group.lengths)
        for number, group in enumerate(chosen)
    ]
    name = f"groups drawn again, seed {seed + 1}"
    return Scenario(name, groups, scenario.config, scenario.prior)


def mean_gain(draws: Sequence[Draw]) -> tuple[float, float, float]:
    """Returns mean, least and greatest gain."""
    gains = [draw.gain for draw in draws]
    return round(statistics.mean(gains), 3), min(gains), max(gains)
