"""The KV ledger: how many tokens of an engine's KV cache are promised to chunks in flight.

A chunk can never need more KV than prompt + generated + its own budget, so admitting a chunk only
when that fits means that SGLang never has to retract a running request (paper section 1). Siblings
on one engine share the full pages of their prompt through the radix cache: counted once.
"""

from collections import Counter

from .feedback import KVFeedback


class KVLedger:
    """Reservations against one engine's KV capacity, in tokens, rounded up to whole pages.

    `capacity`: SGLang's `max_total_num_tokens`; `page_size`: SGLang's page size; `shares_prompts`
    is false for an engine without a radix cache; `draft_tokens`: what a chunk may hold beyond its
    last token while a draft is verified. Groups are told apart by their uid.
    """

    def __init__(
        self,
        capacity: int,
        page_size: int = 1,
        shares_prompts: bool = True,
        draft_tokens: int = 0,
    ) -> None:
        self.capacity = capacity
        self.draft_tokens = draft_tokens
        self.page_size = page_size
        self.shares_prompts = shares_prompts
        self.used = 0
        self.feedback = KVFeedback(capacity)
        self._siblings: Counter[str] = Counter()  # chunks in flight of each group
        # Most promised since the last report, and before it: a report may be a little old.
        self._peak, self._peak_before = 0, 0

    @property
    def free(self) -> int:
        """Tokens still to promise. An engine without a chunk of ours takes one whatever it reports
        of itself: else a request could wait for ever for strangers to leave."""
        limit = self.feedback.usable if self.used else self.capacity
        return max(0, limit - self.used)

    @property
    def room(self) -> int:
        """The longest chunk (prompt + generated + budget) of a group not yet here that fits."""
        whole = self.free // self.page_size * self.page_size
        return max(0, whole - self.draft_tokens) if self.used else whole

    def need(self, group_uid: str, prompt_len: int, total_len: int) -> int:
        """KV tokens that one more chunk would add: its own part, and the prompt if it is first.

        `total_len`: prompt + generated + chunk budget, tokens.
        """
        whole = self._pages(total_len + self.draft_tokens)
        if whole > self.capacity:  # it runs alone, and what runs alone is not retracted
            whole = max(self.capacity, self._pages(total_len))
        return whole - self._shared(prompt_len) if group_uid in self._siblings else whole

    def admits(self, group_uid: str, prompt_len: int, total_len: int) -> bool:
        """Whether that chunk fits beside everything already promised."""
        return self.need(group_uid, prompt_len, total_len) <= self.free

    def holds(self, group_uid: str) -> bool:
        """Whether a chunk of the group is in flight here, and with it the KV of its prompt."""
        return group_uid in self._siblings

    def reserve(self, group_uid: str, prompt_len: int, total_len: int) -> None:
        """Promise the chunk its KV. Raises ValueError beyond the capacity."""
        need = self.need(group_uid, prompt_len, total_len)
        if need > self.free:
            raise ValueError(f"{total_len} tokens do not fit: {self.used} of {self.capacity} used")
        self.used += need
        self._peak = max(self._peak, self.used)
        self._siblings[group_uid] += 1

    def release(self, group_uid: str, prompt_len: int, total_len: int) -> None:
        """Take the promise back, with the numbers it was made with."""
        if group_uid not in self._siblings:
            raise ValueError(f"no chunk of group {group_uid} is reserved here")
        self._siblings[group_uid] -= 1
        if not self._siblings[group_uid]:
            del self._siblings[group_uid]
        self.used -= self.need(group_uid, prompt_len, total_len)

    def reported(self, used_tokens: int) -> bool:
        """The engine has so many tokens in use (`/v1/loads`). Returns whether there is more room
        than before."""
        before = self.feedback.usable
        self.feedback.reported(used_tokens, max(self._peak, self._peak_before))
        self._peak, self._peak_before = self.used, self._peak
        return self.feedback.usable > before

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size) * self.page_size

    def _shared(self, prompt_len: int) -> int:
        return prompt_len // self.page_size * self.page_size if self.shares_prompts else 0
