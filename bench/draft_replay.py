"""Replays recorded responses on two modelled engines that draft from siblings.

`python -m bench.draft_replay [--json]` decodes groups of the reasoner's recorded responses with the
engines' own drafter, acceptance and draft policy, at several minimum probabilities of a draft. Only
the time of a step is modelled: as measured on a CPU, bound by memory, and bound by compute. It
prints microseconds of engine time per token, tokens per row of a step, and per row of a step with
drafts its tokens and the drafts that it verifies, padding included. Drafting itself takes no time
here; `bench.draft_index` measures it.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.draft_streams import Siblings, recorded
from seer_sgl.draft.acceptance import Acceptance
from seer_sgl.draft.drafter import Drafter, Drafts
from seer_sgl.draft.policy import DraftPolicy
from seer_sgl.draft.steps import StepTimes
from seer_sgl.draft.tree import followed

Tokens = NDArray[np.int32]
PROBABILITIES = (0.1, 0.05, 0.03, 0.02, 0.01)
MOST, RESERVED = 16, 128  # drafts per step; tokens kept free for each response
GROUPS, SEEDS, ENGINES = 8, (1, 2, 3, 4), 2
NOTHING = np.empty(0, np.int32)


class Steps(Protocol):
    """The time of a step."""

    def seconds(self, batch: int, drafts: int, kv: int) -> float:
        """Returns the time of a step with so many rows, draft tokens and KV tokens."""


class Cost(NamedTuple):
    """Seconds of a step: fixed, per row, per draft, per KV token, and of any verification."""

    fixed: float
    row: float
    draft: float
    kv: float
    verification: float

    def seconds(self, batch: int, drafts: int, kv: int) -> float:
        """Returns the time of a step with so many rows, draft tokens and KV tokens."""
        verified = self.verification if drafts else 0.0
        return self.fixed + self.row * batch + self.draft * drafts + self.kv * kv + verified


COSTS = {
    "cpu": Cost(2.3e-3, 1.5e-4, 2.2e-5, 2.7e-7, 1.7e-3),  # of the CPU benchmark
    "memory": Cost(8e-3, 2e-5, 2e-6, 5e-8, 1e-3),
    "compute": Cost(2.3e-3, 1.5e-4, 1.5e-4, 1.9e-7, 3e-4),  # a draft costs as much as a row
}


@dataclass
class Row:
    """A response that an engine decodes. `new`: tokens that the index lacks."""

    prompt_len: int
    text: Tokens
    slot: int
    new: Tokens
    done: int = 1  # the prefill samples the first token

    def advance(self, count: int) -> None:
        """Adds the next tokens of the response."""
        self.new = np.concatenate([self.new, self.text[self.done : self.done + count]])
        self.done += count


@dataclass
class Engine:
    """A modelled engine with the draft policy of a real one."""

    policy: DraftPolicy
    now_s: float = 0.0
    rows: list[Row] = field(default_factory=list)


class Setup(NamedTuple):
    """What all engines have in common. batch: the most rows of a step. context: KV tokens of a
    request beside its recorded prompt and response. choice: of the drafts to verify, by the
    engines' policy, or the best for known costs: equally many per row, or as many as pay in each.
    """

    cost: Steps
    widths: Sequence[int] = (1, 3, 5, 9, 17)
    paths: int = 4
    batch: int = 16
    kv_tokens: int = 8192
    context: int = 0
    choice: Literal["policy", "even", "ragged"] = "policy"

    def times(self) -> StepTimes:
        """Returns the times that an engine measures when it starts."""
        sizes = [1 << i for i in range(self.batch.bit_length())]
        return StepTimes(
            {
                (batch, width): self.cost.seconds(
                    batch, batch * (width - 1), batch * (self.context + 450)
                )
                for batch in sizes
                for width in self.widths
            }
        )


class Totals(NamedTuple):
    """Sums over all steps of all engines. `verified_tokens`, `verified_rows`: of the steps with
    drafts; `drafts`: what these verify, padding included."""

    seconds: float
    tokens: int
    rows: int
    verified_tokens: int
    verified_rows: int
    drafts: int


def best_counts(setup: Setup, policy: DraftPolicy, drafts: Drafts, kv: int) -> NDArray[np.int32]:
    """Returns the drafts of each row with the most expected tokens per second, int32 [n].

    More than an engine can reach: the time of every choice is known before the step.
    """
    expected = policy.acceptance.expected(drafts)
    count, most = expected.shape
    exists = np.arange(most) < drafts.counts[:, None]
    if setup.choice == "even":
        gained = np.cumsum(np.where(exists, expected, 0.0).sum(axis=0))
        taken = _best(setup, count, gained, count, kv)
        return np.minimum(drafts.counts, taken)
    # A node counts as much as the best node after it, because rows are cut to their first drafts.
    worth = np.maximum.accumulate(np.where(exists, expected, 0.0)[:, ::-1], axis=1)[:, ::-1]
    rows, nodes = np.nonzero(exists)
    order = np.lexsort((nodes, -worth[rows, nodes]))
    taken = _best(setup, count, np.cumsum(expected[rows, nodes][order]), 1, kv)
    return np.bincount(rows[order[:taken]], minlength=count).astype(np.int32)


def _best(setup: Setup, rows: int, gained: NDArray[np.float64], each: int, kv: int) -> int:
    """Returns the number of choices with the most tokens per second. gained: expected tokens by
    number. each: draft tokens of a choice."""
    seconds = [setup.cost.seconds(rows, each * taken, kv) for taken in range(len(gained) + 1)]
    return int(np.argmax((np.concatenate([[0.0], gained]) + rows) / np.array(seconds)))


def step(engine: Engine, drafter: Drafter, setup: Setup) -> Totals:
    """Decodes one step of the engine's batch."""
    rows, policy = engine.rows, engine.policy
    kv = sum(setup.context + row.prompt_len + row.done for row in rows)
    width, verified = 1, 0
    written = np.ones(len(rows), np.int32)  # tokens per row
    drafts: Drafts | None = None
    if setup.choice != "policy" or not policy.resting():
        left = [min(MOST, len(row.text) - row.done - 1) for row in rows]
        drafts = drafter.step(
            np.array([row.slot for row in rows]),
            np.concatenate([row.new for row in rows]),
            np.array([len(row.new) for row in rows], np.int32),
            np.maximum(left, 0).astype(np.int32),
            setup.paths,
        )
        for row in rows:
            row.new = NOTHING
        if drafts.counts.any():
            if setup.choice == "policy":
                width = policy.width(drafts)
                counts = np.minimum(drafts.counts, width - 1)
            else:
                counts = best_counts(setup, policy, drafts, kv)
                width = int(counts.max()) + 1
            ragged = setup.choice == "ragged"
            verified = int(counts.sum()) if ragged else (width - 1) * len(rows)
            drafts = drafts._replace(counts=counts)
    if drafts is not None and width > 1:
        texts = [row.text[row.done : row.done + width] for row in rows]
        ends = np.cumsum([len(text) for text in texts])
        starts = np.concatenate([[0], ends[:-1]])
        drafts, accepted = followed(drafts, np.concatenate(texts), starts, ends - starts)
        policy.acceptance.observe(drafts, accepted, width)
        written = accepted.counts
    seconds = setup.cost.seconds(len(rows), verified, kv)
    if setup.choice == "policy":
        policy.times.observe(len(rows), width, seconds)
    for row, found in zip(rows, written.tolist(), strict=True):
        row.advance(found)
    engine.now_s += seconds
    tokens, count = int(written.sum()), len(rows)
    verifies = verified > 0
    return Totals(seconds, tokens, count, tokens * verifies, count * verifies, verified)


def replay(groups: Sequence[Siblings], setup: Setup, probability: float) -> Totals:
    """Decodes all responses of the groups, first responses first, then group after group."""
    drafter = Drafter(min_probability=probability)
    for number, group in enumerate(groups):
        drafter.open(str(number), group.prompt)
    engines = [
        Engine(DraftPolicy(setup.widths, setup.times(), Acceptance(MOST))) for _ in range(ENGINES)
    ]
    siblings = range(len(groups[0].responses))
    queue = [(g, 0) for g in range(len(groups))]
    queue += [(g, i) for g in range(len(groups)) for i in siblings[1:]]
    sums = [Totals(0.0, 0, 0, 0, 0, 0)]
    while busy := [engine for engine in engines if engine.rows or queue]:
        engine = min(busy, key=lambda engine: engine.now_s)
        while queue and len(engine.rows) < setup.batch:
            number, index = queue[0]
            prompt, text = groups[number].prompt, groups[number].responses[index]
            used = sum(row.prompt_len + row.done + RESERVED for row in engine.rows)
            if used + len(prompt) + RESERVED > setup.kv_tokens:
                break
            del queue[0]
            slot = drafter.attach(str(number), index)
            engine.rows.append(Row(len(prompt), text, slot, text[:1]))
        engine.rows, ended = (
            [row for row in engine.rows if (row.done < len(row.text)) is going]
            for going in (True, False)
        )
        for row in ended:
            count, none = np.array([len(row.new)], np.int32), np.zeros(1, np.int32)
            drafter.step(np.array([row.slot]), row.new, count, none, 1)
            drafter.detach(row.slot)
        if engine.rows:
            sums.append(step(engine, drafter, setup))
    return Totals(*(sum(column) for column in zip(*sums, strict=True)))


def main() -> None:
    """Replays at every probability; prints one JSON object last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    options = parser.parse_args()
    texts = recorded()
    table: dict[str, dict[float, dict[str, float]]] = {}
    for name, cost in COSTS.items():
        for probability in PROBABILITIES:
            runs = [
                replay(random.Random(seed).sample(texts, GROUPS), Setup(cost), probability)
                for seed in SEEDS
            ]
            sums = Totals(*(sum(column) for column in zip(*runs, strict=True)))
            figures = {
                "us_a_token": round(1e6 * sums.seconds / sums.tokens, 1),
                "tokens_a_row": round(sums.tokens / sums.rows, 2),
                "tokens_a_verified_row": round(sums.verified_tokens / sums.verified_rows, 2),
                "drafts_a_verified_row": round(sums.drafts / sums.verified_rows, 2),
            }
            table.setdefault(name, {})[probability] = figures
            if not options.json:
                print(name, probability, figures, flush=True)
    print(json.dumps(table))


if __name__ == "__main__":
    main()
