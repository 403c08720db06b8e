"""Which calls are siblings: responses to one prompt, which are drafted from one another. Pure.

A wrong guess costs speed and never a token: a request keeps its own prompt, sampling and seed in
any group.
"""

import itertools
import zlib
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from seer_sgl.types import Group, Request

from .calls import Call

# A group that gets more requests than this is closed, and a new one begins: a group keeps the
# tokens of all its responses.
MOST_SIBLINGS = 512
MOST_NAMED = 2048  # the same limit for a group whose client gave its size
MOST_CANDIDATES = 8  # groups that are compared with a call: its tokens are read for each
FACTOR = 0x9E3779B97F4A7C15  # odd, so that none of its powers is 0 modulo 2 ** 64


class OpenGroup:
    """A group that more calls may join.

    `holds`: sessions whose last turn it has; they keep its KV in the pool. `interrupted`: a client
    has aborted a response of it, and may continue it after a training step.
    """

    def __init__(self, group: Group, group_id: str | None, size: int | None, now: float) -> None:
        self.group = group
        self.group_id = group_id
        self.size = size
        self.active_at = now
        self.key: tuple[int, int] | None = None  # in `Siblings._by_prompt`
        self.holds = 0
        self.interrupted = False

    @property
    def full(self) -> bool:
        """Whether no more calls join it."""
        most = MOST_SIBLINGS if self.size is None else min(self.size, MOST_NAMED)
        return len(self.group.requests) >= most

    def busy(self) -> bool:
        """Returns whether one of its requests is unfinished and will be sent."""
        return not (self.group.withdrawn or self.group.finished)


class Siblings:
    """The open groups.

    `window_s`: how long a group stays open without an unfinished request. `interrupted_s`: how long
    one that was interrupted does.
    """

    def __init__(self, window_s: float, interrupted_s: float) -> None:
        self._window_s = window_s
        self._interrupted_s = max(window_s, interrupted_s)
        self._open: dict[str, OpenGroup] = {}  # by uid
        self._by_id: dict[str, OpenGroup] = {}
        # By length and checksum of the prompt and its images; equal prompts with different ids are
        # kept apart.
        self._by_prompt: dict[tuple[int, int], OpenGroup] = {}
        self._lengths: dict[int, int] = {}  # prompt length -> number of groups in `_by_prompt`
        self._powers = np.empty(0, np.uint64)  # of FACTOR, as many as the longest prompt needs

    def __len__(self) -> int:
        return len(self._open)

    def find(self, call: Call) -> "OpenGroup | None":
        """Returns the group that a call joins; None: it begins a new one."""
        if call.group_id is not None:
            named = self._by_id.get(call.group_id)
            if named is not None and _begins_with(call, named.group):
                return named
            return None
        for candidate in self._prefixes(call):
            if _joins(call.prompt_ids, candidate.group):
                return candidate
        return None

    def opened(self, group: Group, call: Call, now: float) -> OpenGroup:
        """Adds a growing group that begins with a call."""
        opened = OpenGroup(group, call.group_id, call.group_size, now)
        self._open[group.uid] = opened
        if call.group_id is not None:
            self._by_id[call.group_id] = opened
        elif self._window_s > 0:
            prompt, length = group.prompt, len(group.prompt.prompt_ids)
            checksums = self._checksums(prompt.prompt_ids, prompt.image_data)
            opened.key = (length, int(checksums[-1]))
            if opened.key not in self._by_prompt:
                self._lengths[length] = self._lengths.get(length, 0) + 1
            self._by_prompt[opened.key] = opened
        return opened

    def of(self, group: Group) -> OpenGroup | None:
        """Returns the open group of a driver's group."""
        return self._open.get(group.uid)

    def close(self, opened: OpenGroup) -> None:
        """Removes a group: no call joins it any more."""
        self._open.pop(opened.group.uid, None)
        if opened.group_id is not None and self._by_id.get(opened.group_id) is opened:
            del self._by_id[opened.group_id]
        if opened.key is not None and self._by_prompt.get(opened.key) is opened:
            del self._by_prompt[opened.key]
            length = opened.key[0]
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]

    def expired(self, now: float) -> list[OpenGroup]:
        """Returns the groups that were idle for their window and that no session holds."""
        expired = []
        for opened in self._open.values():
            window_s = self._interrupted_s if opened.interrupted else self._window_s
            if opened.busy():
                opened.active_at = now
            elif not opened.holds and now - opened.active_at >= window_s:
                expired.append(opened)
        return expired

    def _prefixes(self, call: Call) -> Iterator[OpenGroup]:
        """Yields the groups whose prompt is a prefix of the call's, the longest first."""
        if not self._lengths:
            return iter(())
        ids = call.prompt_ids
        lengths = np.sort(np.fromiter(self._lengths, np.intp))[::-1]
        lengths = lengths[lengths <= len(ids)]
        checksums = self._checksums(ids, call.images.urls)[lengths - 1]
        keys = zip(lengths.tolist(), checksums.tolist(), strict=True)
        found = filter(None, map(self._by_prompt.get, keys))
        candidates = itertools.islice(found, MOST_CANDIDATES)
        return (group for group in candidates if _begins_with(call, group.group))

    def _checksums(self, ids: "array[int]", images: Sequence[str]) -> NDArray[np.uint64]:
        """Returns the checksum of each prefix of a prompt with its images, the shortest first."""
        checksum = 0
        for image in images:
            checksum = zlib.crc32(image.encode(), checksum)
        if len(ids) > len(self._powers):
            factors = np.full(2 * len(ids), FACTOR, np.uint64)
            self._powers = np.cumprod(factors, out=factors)
        # In place: the pages of new arrays would take most of the time of a long prompt.
        values = np.frombuffer(ids, np.int32).astype(np.uint64)
        values += np.uint64(1)
        values *= self._powers[: len(ids)]
        np.cumsum(values, out=values)
        values ^= np.uint64(checksum)
        return values


def _begins_with(call: Call, group: Group) -> bool:
    """Returns whether a call's prompt begins with that of a group, and has the same images."""
    prefix = group.prompt.prompt_ids
    same = memoryview(call.prompt_ids)[: len(prefix)] == memoryview(prefix)
    return same and call.images.urls == group.prompt.image_data


def _joins(ids: "array[int]", group: Group) -> bool:
    """Returns whether `ids` are the group's prompt, or continue it as one of its requests did."""
    rest = ids[len(group.prompt.prompt_ids) :]
    return not rest or continued(group, rest) is not None


def continued(group: Group, rest: "array[int]") -> Request | None:
    """Returns the newest request of the group whose response begins with `rest`."""
    view = memoryview(rest)  # without copies: in a large group almost all differ soon
    for request in reversed(group.requests):
        if memoryview(request.response_ids)[: len(rest)] == view:
            return request
    return None
