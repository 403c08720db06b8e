"""What is known of how long responses get: from earlier rollouts, and from this one so far."""

import hashlib
from array import array
from collections.abc import Callable

from seer_sgl.types import Group, Request


def prompt_hash(prompt_ids: "array[int]") -> str:
    """The name of a prompt from one rollout to the next, whatever its id."""
    return hashlib.blake2b(prompt_ids.tobytes(), digest_size=16).hexdigest()


class KnownLengths:
    """Response lengths, tokens, of earlier rollouts by prompt and sample index.

    A prompt goes by `prompt_hash`, or by its group id where the source had no token ids.
    """

    def __init__(self) -> None:
        self._by_hash: dict[str, dict[int, int]] = {}
        self._by_group_id: dict[str, dict[int, int]] = {}

    def add(
        self, length: int, *, prompt_ids: "array[int] | None", group_id: str, index: int | None
    ) -> None:
        """Sample `index` (None: the next one) of the prompt had `length` tokens; a later word
        replaces an earlier one."""
        table, key = self._by_group_id, group_id
        if prompt_ids is not None:
            table, key = self._by_hash, prompt_hash(prompt_ids)
        samples = table.setdefault(key, {})
        samples[len(samples) if index is None else index] = length

    def of(self, group: Group) -> dict[int, int]:
        """Lengths by sample index, of the group's prompt; empty when it is new."""
        found = self._by_hash.get(prompt_hash(group.prompt.prompt_ids))
        return found or self._by_group_id.get(group.group_id, {})

    def true_length(self, request: Request) -> int:
        """The length of this very sample; what it may have at most if that is unknown."""
        return self.of(request.group).get(request.index, request.max_response_len)


class Observed:
    """The lengths of one group: of samples that ended (in this rollout, or known from before), and
    how far the others have got. Tokens."""

    def __init__(self, group: Group, known: KnownLengths | None) -> None:
        past = list(known.of(group).values()) if known is not None else []
        self.known = bool(past)
        self.limit = group.requests[0].max_response_len
        self.completed = len(past)
        self.longest_completed = max(past, default=0)
        self.longest_running = 0
        self.left = len(group.requests)  # requests that have not ended

    def ran(self, request: Request) -> None:
        """A request has grown and goes on."""
        self.longest_running = max(self.longest_running, request.generated)

    def ended(self, request: Request) -> None:
        """A request is complete."""
        self.left -= 1
        self.completed += 1
        self.longest_completed = max(self.longest_completed, request.generated)


Estimate = Callable[[Observed], int]


def longest_completed(seen: Observed) -> int:
    """The published estimate: the longest sibling that ended, else what they may have at most."""
    return seen.longest_completed if seen.completed else seen.limit


def survival(seen: Observed) -> int:
    """Counts what still runs as well: a sibling that has survived so many tokens says more than
    one that ended before (a right-censored observation)."""
    if not seen.completed:
        return seen.limit
    return max(seen.longest_completed, seen.longest_running)


ESTIMATES: dict[str, Estimate] = {"max": longest_completed, "survival": survival}
