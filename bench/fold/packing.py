"""Packs what requests have left onto as few engines as end all of it in time. Pure.

The requests with the most left come together, on engines with short steps; those with little left
fill other engines, whose steps are long. Each step has a fixed time that its whole batch shares.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from seer_sgl.sim.config import EngineConfig
from seer_sgl.sim.steps import StepTime

from .plan import Left

FULL = 0.95  # of the KV cache, as chunks are admitted by the page
TRIES = 12  # bisections of the time
LEAST_S = 0.01  # to plan with; a rollout that is late has no time left


class Work(NamedTuple):
    """What a request has left. `longest`, `tokens`: to generate at most, and in the mean;
    `attention_s`: the time that its tokens add to steps; `kv`: tokens that it holds at its end."""

    longest: float
    tokens: float
    attention_s: float
    kv: float
    uid: str


class _Pack:
    """What one engine runs, in batches one after the other that fit its KV cache."""

    def __init__(self, packer: "Packer") -> None:
        self._packer = packer
        self.works: list[Work] = []
        self._before_s = self._attention_s = 0.0
        self._longest = self._tokens = self._kv = 0.0  # of the newest batch

    def with_one(self, work: Work) -> tuple[float, bool]:
        """Returns the seconds with one more request, and whether it begins a batch."""
        attention_s = self._attention_s + work.attention_s
        if self._kv and self._kv + work.kv > self._packer.kv_tokens:
            fixed_s = self._fixed_s(self._longest, self._tokens)
            return self._before_s + attention_s + fixed_s + self._fixed_s(
                work.longest, work.tokens
            ), True
        longest = max(self._longest, work.longest)
        fixed_s = self._fixed_s(longest, self._tokens + work.tokens)
        return self._before_s + attention_s + fixed_s, False

    def add(self, work: Work, begins: bool) -> None:
        """Adds a request."""
        if begins:
            self._before_s += self._fixed_s(self._longest, self._tokens)
            self._longest = self._tokens = self._kv = 0.0
        self._attention_s += work.attention_s
        self._longest = max(self._longest, work.longest)
        self._tokens += work.tokens
        self._kv += work.kv
        self.works.append(work)

    def _fixed_s(self, steps: float, tokens: float) -> float:
        return steps * self._packer.fixed_s(tokens / steps) if steps else 0.0


class Packer:
    """Packs for one kind of engine."""

    def __init__(self, engine: EngineConfig) -> None:
        self._step = StepTime(engine)
        self.kv_tokens = FULL * engine.kv_tokens
        self._most = engine.max_running_requests

    def fixed_s(self, batch: float) -> float:
        """Returns the time of a step of so many requests without their attention."""
        return self._step.fixed(min(max(1, round(batch)), self._most))

    def works(self, left: Left, uids: Sequence[str], within_s: float, engines: int) -> list[Work]:
        """Returns the works, the longest first. None is planned with more tokens than an engine
        ends in time beside a fair share of all: all engines would not end it sooner."""
        if not left.kv.size:
            return []
        tokens = left.tokens.mean(axis=0)
        attention_s = tokens * (left.kv + tokens / 2) * self._step.attention()
        spare_s = max(0.1 * within_s, within_s - float(attention_s.sum()) / engines)
        most = spare_s / self.fixed_s(float(tokens.sum()) / engines / max(1.0, tokens.max()))
        longest = left.tokens[0].clip(max=max(1, int(most)))
        return sorted(
            map(
                Work._make,
                zip(
                    longest.tolist(),
                    tokens.tolist(),
                    attention_s.tolist(),
                    (left.kv + tokens).tolist(),
                    uids,
                    strict=True,
                ),
            ),
            reverse=True,
        )

    def packed(
        self, works: Sequence[Work], within_s: float, engines: int
    ) -> tuple[list[list[Work]], float]:
        """Returns a pack for each of as few engines as end the works in time, and the seconds of
        the slowest; if so many engines do not, as soon as they do."""
        within_s = max(within_s, LEAST_S)
        packs, ends_s = self._within(works, within_s)
        low, high = within_s, 2 * within_s
        while len(packs) > engines:
            low, high = high, 2 * high
            packs, ends_s = self._within(works, high / 2)
        for _ in range(TRIES if low > within_s else 0):
            middle = (low + high) / 2
            found, found_s = self._within(works, middle / 2)
            if len(found) > engines:
                low = middle
            else:
                high, packs, ends_s = middle, found, found_s
        return packs, ends_s

    def _within(self, works: Sequence[Work], within_s: float) -> tuple[list[list[Work]], float]:
        packs, ends_s, last_s = [_Pack(self)], 0.0, 0.0
        for work in works:
            seconds, begins = packs[-1].with_one(work)
            if seconds > within_s and packs[-1].works:
                packs.append(_Pack(self))
                seconds, begins = packs[-1].with_one(work)
            packs[-1].add(work, begins)
            last_s = seconds
            ends_s = max(ends_s, last_s)
        return [pack.works for pack in packs], ends_s

    def seconds(self, works: Sequence[Work], engine_of: Mapping[str, str]) -> float:
        """Returns the seconds in which engines end the works that they have."""
        packs: defaultdict[str, _Pack] = defaultdict(lambda: _Pack(self))
        ends_s = 0.0
        for work in works:
            if work.uid in engine_of:
                pack = packs[engine_of[work.uid]]
                seconds, begins = pack.with_one(work)
                pack.add(work, begins)
                ends_s = max(ends_s, seconds)
        return ends_s
