"""The KV ledger: how many tokens of an engine's KV cache are promised to chunks in flight.

A chunk never needs more KV than prompt + generated + its own budget. A chunk is admitted only if
that fits, so SGLang never has to retract a running request (paper section 1). Siblings on one
engine share the full pages of their prompt through the radix cache; these count once.
"""

from collections import Counter

from .feedback import KVFeedback


class KVLedger:
    """Reservations against one engine's KV capacity, in tokens, rounded up to whole pages.

    `capacity`: SGLang's `max_total_num_tokens`; `page_size`: SGLang's page size; `shares_prompts`
    is false for an engine without a radix cache; `draft_tokens`: tokens that a chunk may hold
    beyond its last token while a draft is verified. Groups are identified by uid.
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
        # By group: the tokens of its prompt that count once. They stay as they were reserved:
        # while chunks are in flight, it can turn out how many tokens the images of a prompt have.
        self._counted_once: dict[str, int] = {}
        # The most promised since the last report, and before it: a report may be slightly old.
        self._peak, self._peak_before = 0, 0

    @property
    def free(self) -> int:
        """Tokens that can still be promised. An engine without own chunks takes one regardless of
        its load report; otherwise a request could wait forever for other clients to finish."""
        limit = self.feedback.usable if self.used else self.capacity
        return max(0, limit - self.used)

    @property
    def room(self) -> int:
        """The longest chunk of a new group that fits: prompt + generated + budget, tokens."""
        whole = self.free // self.page_size * self.page_size
        return max(0, whole - self.draft_tokens) if self.used else whole

    def need(self, group_uid: str, total_len: int) -> int:
        """Returns the KV tokens that a chunk would add. The first chunk of a group includes its
        prompt.

        `total_len`: prompt + generated + chunk budget, tokens.
        """
        whole = self._pages(total_len + self.draft_tokens)
        if whole > self.capacity:  # it runs alone, and SGLang does not retract the only request
            whole = max(self.capacity, self._pages(total_len))
        return whole - self._counted_once.get(group_uid, 0)

    def admits(self, group_uid: str, total_len: int) -> bool:
        """Returns whether that chunk fits beside everything already promised."""
        return self.need(group_uid, total_len) <= self.free

    def holds(self, group_uid: str) -> bool:
        """Returns whether a chunk of the group is in flight here: its prompt's KV is here too."""
        return group_uid in self._siblings

    def reserve(self, group_uid: str, prompt_len: int, total_len: int) -> None:
        """Reserves the KV of a chunk. Raises ValueError if it does not fit."""
        need = self.need(group_uid, total_len)
        if need > self.free:
            raise ValueError(f"{total_len} tokens do not fit: {self.used} of {self.capacity} used")
        self.used += need
        self._peak = max(self._peak, self.used)
        self._siblings[group_uid] += 1
        self._counted_once.setdefault(group_uid, self._shared(prompt_len))

    def release(self, group_uid: str, total_len: int) -> None:
        """Releases a reservation of so many tokens. Raises ValueError if the group has no
        reservation."""
        if group_uid not in self._siblings:
            raise ValueError(f"no chunk of group {group_uid} is reserved here")
        self._siblings[group_uid] -= 1
        if not self._siblings[group_uid]:
            del self._siblings[group_uid], self._counted_once[group_uid]
        self.used -= self.need(group_uid, total_len)

    def reported(self, used_tokens: int) -> bool:
        """Applies a load report: `used_tokens` are in use (`/v1/loads`). Returns whether there is
        more room than before."""
        before = self.feedback.usable
        self.feedback.reported(used_tokens, max(self._peak, self._peak_before))
        self._peak, self._peak_before = self.used, self._peak
        return self.feedback.usable > before

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size) * self.page_size

    def _shared(self, prompt_len: int) -> int:
        return prompt_len // self.page_size * self.page_size if self.shares_prompts else 0
