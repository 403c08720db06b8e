"""Known response lengths, from earlier rollouts and from the current one."""

import hashlib
from array import array

from seer_sgl.types import Group, Request


def prompt_hash(prompt_ids: "array[int]") -> str:
    """Returns a hash that identifies a prompt across rollouts, independent of its id."""
    return hashlib.blake2b(prompt_ids.tobytes(), digest_size=16).hexdigest()


class KnownLengths:
    """Response lengths of earlier rollouts, in tokens, by prompt and sample index.

    The key of a prompt is its `prompt_hash`, or its group id if the source had no token ids.
    """

    def __init__(self) -> None:
        self._by_hash: dict[str, dict[int, int]] = {}
        self._by_group_id: dict[str, dict[int, int]] = {}

    def add(
        self, length: int, *, prompt_ids: "array[int] | None", group_id: str, index: int | None
    ) -> None:
        """Stores the length of sample `index` (None: the next index) of a prompt. A later value
        replaces an earlier one."""
        table, key = self._by_group_id, group_id
        if prompt_ids is not None:
            table, key = self._by_hash, prompt_hash(prompt_ids)
        samples = table.setdefault(key, {})
        samples[len(samples) if index is None else index] = length

    def of(self, group: Group) -> dict[int, int]:
        """Returns the lengths of the group's prompt by sample index; empty if it is unknown."""
        lengths = self._by_hash.get(prompt_hash(group.prompt.prompt_ids))
        return lengths or self._by_group_id.get(group.group_id, {})

    def true_length(self, request: Request) -> int:
        """Returns the length of this sample; its maximum response length if unknown."""
        return self.of(request.group).get(request.index, request.max_response_len)


class GroupLengths:
    """The known response lengths of one group. `estimate`: the length in tokens by which the rest
    of the group is scheduled.

    Only finished samples count. Estimates that also use the lengths of unfinished samples (maximum,
    censored mean, population mean beyond it) are no better in simulation.
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
        """Whether no length is known, from an earlier rollout or from a finished sample."""
        return not self._ended

    @property
    def estimate(self) -> int:
        """The longest finished sibling, else the maximum response length (the paper's rule).

        With lengths of an earlier rollout: the mean of all samples, earlier and current. A maximum
        is cautious for one or two samples, but over many samples it follows the noise.
        """
        if self.known:
            return self._sum // self._ended
        return self._longest if self._ended else self._limit

    def ended(self, request: Request) -> None:
        """Adds the length of a complete request."""
        self._ended += 1
        self._sum += request.generated
        self._longest = max(self._longest, request.generated)
