"""A Drafter that only records tokens, for tests of its callers."""

from collections.abc import Sequence


class FakeDrafter:
    """The tokens of each (group, sequence), appended as in the real Drafter."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[int, list[int]]] = {}
        self.prompts: dict[str, list[int]] = {}
        self.slots: dict[int, tuple[str, int]] = {}
        self.dead: set[int] = set()  # slots whose group was closed
        self._next = 0

    def open(self, group: str, prompt_ids: Sequence[int]) -> None:
        self.groups.setdefault(group, {})
        self.prompts.setdefault(group, list(prompt_ids))

    def close(self, group: str) -> None:
        self.groups.pop(group, None)
        self.prompts.pop(group, None)
        self.dead |= {slot for slot, (name, _) in self.slots.items() if name == group}

    def append(self, group: str, sequence: int, tokens: Sequence[int]) -> None:
        assert len(tokens)
        self.groups[group].setdefault(sequence, []).extend(tokens)

    def attach(self, group: str, sequence: int) -> int:
        assert group in self.groups
        self.groups[group].setdefault(sequence, [])
        self._next += 1
        self.slots[self._next] = (group, sequence)
        return self._next

    def detach(self, slot: int) -> None:
        del self.slots[slot]

    @property
    def tokens(self) -> int:
        """Tokens of all groups, prompts included."""
        texts = [text for group in self.groups.values() for text in group.values()]
        return sum(map(len, [*self.prompts.values(), *texts]))

    def step(self, slot: int, tokens: Sequence[int]) -> None:
        """Does a decode step of one row: adds its tokens if the group is still open."""
        group, sequence = self.slots[slot]
        if slot not in self.dead:
            self.groups[group][sequence].extend(tokens)
