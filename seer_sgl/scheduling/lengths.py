"""What is known of how long responses get: from earlier rollouts, and from this one so far."""

import hashlib
from array import array

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


class GroupLengths:
    """What is known of one group's response lengths; `estimate` is the length, tokens, that the
    rest of the group is scheduled by.

    Only samples that ended count. Estimates that also used how far the others had got (their
    maximum, a censored mean, the population's mean beyond it) were no better in simulation.
    """

    def __init__(self, group: Group, known: KnownLengths | None) -> None:
        past = list(known.of(group).values()) if known is not None else []
        self.known = bool(past)  # from an earlier rollout
        self._limit = group.requests[0].max_response_len
        self._ended = len(past)
        self._sum = sum(past)
        self._longest = 0

    @property
    def unknown(self) -> bool:
        """Whether nothing is known, from before or from a sample that ended."""
        return not self._ended

    @property
    def estimate(self) -> int:
        """Published: the longest sibling that ended, else what a response may have at most.

        With an earlier rollout the mean of all, then and now: the maximum is there to be careful
        with one or two samples, and over many it only follows the noise.
        """
        if self.known:
            return self._sum // self._ended
        return self._longest if self._ended else self._limit

    def ended(self, request: Request) -> None:
        """A request is complete."""
        self._ended += 1
        self._sum += request.generated
        self._longest = max(self._longest, request.generated)
