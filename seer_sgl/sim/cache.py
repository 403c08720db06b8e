"""Cached KV that no running request uses: an engine's own (SGLang's radix cache, simplified), and
the fleet's pool."""

from collections import OrderedDict

from typing_extensions import override


class IdleCache:
    """Sequences by request uid, least recently used first; evicted if the space is needed."""

    def __init__(self) -> None:
        self.tokens = 0
        self._lengths: OrderedDict[str, int] = OrderedDict()

    def put(self, uid: str, length: int) -> None:
        """Adds the KV of a request that has left the batch."""
        self.tokens += length - self._lengths.pop(uid, 0)
        self._lengths[uid] = length

    def length(self, uid: str) -> int:
        """Returns the cached tokens of the request."""
        return self._lengths.get(uid, 0)

    def take(self, uid: str) -> int:
        """Removes the KV of a request that runs again. Returns its tokens."""
        length = self._lengths.pop(uid, 0)
        self.tokens -= length
        return length

    def shrink(self, room: float) -> None:
        """Evicts until at most `room` tokens are left."""
        while self._lengths and self.tokens > room:
            _, length = self._lengths.popitem(last=False)
            self.tokens -= length


class SimulatedPool(IdleCache):
    """The KV pool of a fleet: what unfinished requests have written, prompt included. A write
    beyond `capacity` tokens evicts the KV that was written longest ago, by whole requests."""

    def __init__(self, capacity: float) -> None:
        super().__init__()
        self.peak = 0  # the most tokens at once
        self._capacity = capacity

    @override
    def put(self, uid: str, length: int) -> None:
        super().put(uid, length)
        self.shrink(self._capacity)
        self.peak = max(self.peak, self.tokens)
