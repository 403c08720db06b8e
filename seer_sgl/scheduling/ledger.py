"""The KV ledger: how many tokens of an engine's KV cache are promised to chunks in flight.

A chunk can never need more KV than prompt + generated + its own budget, so admitting a chunk only
when that fits means that SGLang never has to retract a running request (paper section 1). Siblings
on one engine share the full pages of their prompt through the radix cache: counted once.
"""

from collections import Counter


class KVLedger:
    """Reservations against one engine's KV capacity, in tokens, rounded up to whole pages.

    `capacity`: SGLang's `max_total_num_tokens`; `page_size`: SGLang's page size; `shares_prompts`
    is false for an engine without a radix cache. Groups are told apart by their uid.
    """

    def __init__(self, capacity: int, page_size: int = 1, shares_prompts: bool = True) -> None:
        self.capacity = capacity
        self.page_size = page_size
        self.shares_prompts = shares_prompts
        self.used = 0
        self._siblings: Counter[str] = Counter()  # chunks in flight of each group

    def need(self, group_uid: str, prompt_len: int, total_len: int) -> int:
        """KV tokens that one more chunk would add: its own part, and the prompt if it is first.

        `total_len`: prompt + generated + chunk budget, tokens.
        """
        shared = self._shared(prompt_len)
        own = self._own(prompt_len, total_len)
        return own if self._siblings[group_uid] else own + shared

    def admits(self, group_uid: str, prompt_len: int, total_len: int) -> bool:
        """Whether that chunk fits beside everything already promised."""
        return self.used + self.need(group_uid, prompt_len, total_len) <= self.capacity

    def holds(self, group_uid: str) -> bool:
        """Whether a chunk of the group is in flight here, and with it the KV of its prompt."""
        return self._siblings[group_uid] > 0

    def reserve(self, group_uid: str, prompt_len: int, total_len: int) -> None:
        """Promise the chunk its KV. Raises ValueError beyond the capacity."""
        if not self.admits(group_uid, prompt_len, total_len):
            raise ValueError(f"{total_len} tokens do not fit: {self.used} of {self.capacity} used")
        self.used += self.need(group_uid, prompt_len, total_len)
        self._siblings[group_uid] += 1

    def release(self, group_uid: str, prompt_len: int, total_len: int) -> None:
        """Take the promise back, with the numbers it was made with."""
        if not self._siblings[group_uid]:
            raise ValueError(f"no chunk of group {group_uid} is reserved here")
        self._siblings[group_uid] -= 1
        if not self._siblings[group_uid]:
            del self._siblings[group_uid]
            self.used -= self._shared(prompt_len)
        self.used -= self._own(prompt_len, total_len)

    def _shared(self, prompt_len: int) -> int:
        return prompt_len // self.page_size * self.page_size if self.shares_prompts else 0

    def _own(self, prompt_len: int, total_len: int) -> int:
        pages = -(-total_len // self.page_size)
        return pages * self.page_size - self._shared(prompt_len)
