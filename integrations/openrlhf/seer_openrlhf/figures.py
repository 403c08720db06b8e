"""Figures of samples and batches. Pure.

They become `info` of every sample, always under the same keys. OpenRLHF logs the mean of each key
over a step's samples. A figure of the batch is the same number in all its samples.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

TAIL_SHARE = 0.1  # as in the report of seer-sgl: the last 10 % of the responses
VERSIONS = ("seer_oldest_version", "seer_newest_version")


class SampleFigures:
    """The figures of one sample: of all responses that its executor has asked for."""

    def __init__(self) -> None:
        self._tokens = 0
        self._steps = 0.0  # verifications, if no chunk was without
        self._migrations = 0
        self._spans: list[tuple[int, int]] = []  # (weight version, tokens)

    def add(self, response: Mapping[str, Any]) -> None:
        """Adds a response: fields `response_ids`, `accept_length`, `engines`, `weight_spans`."""
        tokens, engines = len(response["response_ids"]), response["engines"]
        self._tokens += tokens
        self._steps += tokens / (response["accept_length"] or 1.0)
        self._migrations += sum(a != b for a, b in itertools.pairwise(engines))
        spans = response["weight_spans"]
        self._spans += [(version_number(span["version"]), span["tokens"]) for span in spans]

    def logs(self) -> dict[str, float]:
        """Returns the figures. Tokens are in order of versions: the older ones come first."""
        versions = {version for version, _ in self._spans}
        newest = max(versions, default=0)
        older = sum(tokens for version, tokens in self._spans if version < newest)
        return {
            "seer_migrations": float(self._migrations),
            "seer_accept_length": self._tokens / self._steps if self._steps else 1.0,
            "seer_weight_versions": float(len(versions)),
            "seer_oldest_version": float(min(versions, default=0)),
            "seer_newest_version": float(newest),
            "seer_older_tokens": float(older),
            "seer_newest_tokens": float(self._tokens - older),
        }


class BatchFigures:
    """The figures of a batch. Times in seconds of one clock."""

    def __init__(self) -> None:
        self.repeated_groups = 0
        self.restored_tokens = 0  # by the journal of the server
        self._began: float | None = None
        self._ends: list[float] = []
        self._tokens = 0

    def sent(self, now: float) -> None:
        """Records that requests were sent."""
        if self._began is None:
            self._began = now

    def finished(self, tokens: int, now: float) -> None:
        """Records a finished response."""
        self._ends.append(now)
        self._tokens += tokens

    def logs(self, now: float) -> dict[str, float]:
        """Returns the figures of a batch that ends now.

        The tail begins when 90 % of the responses are finished. What follows the last response is
        waiting for rewards.
        """
        rollout_s = tail_s = reward_wait_s = 0.0
        if self._began is not None and self._ends:
            before_tail = math.ceil(len(self._ends) * (1 - TAIL_SHARE))
            rollout_s = self._ends[-1] - self._began
            tail_s = self._ends[-1] - self._ends[max(before_tail, 1) - 1]
            reward_wait_s = now - self._ends[-1]
        return {
            "seer_rollout_s": rollout_s,
            "seer_tail_s": tail_s,
            "seer_reward_wait_s": reward_wait_s,
            "seer_tokens_per_s": self._tokens / rollout_s if rollout_s else 0.0,
            "seer_repeated_groups": float(self.repeated_groups),
            "seer_restored_tokens": float(self.restored_tokens),
        }


def staleness(trainer_version: int, sample: Mapping[str, float]) -> float:
    """Returns how many updates the oldest tokens of a sample are behind the trainer's weights."""
    newest = max(float(trainer_version), sample["seer_newest_version"])
    return newest - sample["seer_oldest_version"]


def version_number(name: str) -> int:
    """Returns the trainer's step in the name of weights; 0 for names that are not a trainer's."""
    return int(name) if name.isascii() and name.isdigit() else 0
