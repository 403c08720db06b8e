"""The names that an abort is for: as in SGLang, all that begin with one of its own."""

from collections.abc import Iterable


class Prefixes:
    """A set of prefixes. An empty one is of every name.

    A look-up takes a step per length of a prefix, however many of one length there are.
    """

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._prefixes = frozenset(prefixes)
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})

    def match(self, name: str) -> bool:
        """Returns whether a name begins with one of the prefixes."""
        return any(
            name[:length] in self._prefixes for length in self._lengths if length <= len(name)
        )


EVERY = Prefixes([""])
