"""KV that nobody uses at the moment but an engine still has: SGLang's radix cache, simplified."""

from collections import OrderedDict


class IdleCache:
    """Sequences by request uid, least recently used first; evicted when the room is needed."""

    def __init__(self) -> None:
        self.tokens = 0
        self._lengths: OrderedDict[str, int] = OrderedDict()

    def put(self, uid: str, length: int) -> None:
        """The request has left the batch, its KV stays for now."""
        self.tokens += length - self._lengths.pop(uid, 0)
        self._lengths[uid] = length

    def length(self, uid: str) -> int:
        """Tokens of the request that are here."""
        return self._lengths.get(uid, 0)

    def take(self, uid: str) -> int:
        """The request runs again: its KV is in use, no longer idle."""
        length = self._lengths.pop(uid, 0)
        self.tokens -= length
        return length

    def shrink(self, room: float) -> None:
        """Evict until no more than `room` tokens are left."""
        while self._lengths and self.tokens > room:
            _, length = self._lengths.popitem(last=False)
            self.tokens -= length
