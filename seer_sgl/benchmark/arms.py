"""The arms of the benchmark: plain SGLang as others drive it, then one technique after the other
on top. Pure."""

from typing import Literal

import msgspec

from seer_sgl.config import UNDIVIDED

Kind = Literal["plain", "pool", "drafting", "ngram"]  # of servers
BASELINE = "group_round_robin"
SEER = "seer"


class Paper(msgspec.Struct, frozen=True):
    """What the paper measured on Qwen2-VL-72B, in multiples of its baseline's."""

    throughput: float
    tail: float


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to roll out. `over`: the arm that its gain is measured against; but for greedy ones,
    it adds one technique to that."""

    name: str
    says: str
    policy: str
    pool: bool = False
    drafts: bool = False
    ngram: bool = False  # SGLang's own n-gram speculation
    router: bool = False
    greedy: bool = False
    over: str | None = None
    paper: Paper | None = None

    @property
    def kind(self) -> Kind:
        """Which servers it needs: arms of a kind share them."""
        if self.ngram:
            return "ngram"
        return "drafting" if self.drafts else "pool" if self.pool else "plain"

    @property
    def whole(self) -> bool:
        """Whether requests are sent in one piece."""
        return self.policy in UNDIVIDED

    @property
    def reference(self) -> str:
        """The arm that it is compared with."""
        return "greedy" if self.greedy else BASELINE


def _by_name(*arms: Arm) -> dict[str, Arm]:
    return {arm.name: arm for arm in arms}


ARMS = _by_name(
    Arm(
        name=BASELINE,
        says="plain SGLang, whole groups pinned in turn, all sent at once",
        policy=BASELINE,
        paper=Paper(1.0, 1.0),
    ),
    Arm(
        name="router",
        says="plain SGLang behind sglang_router, cache_aware, all sent at once",
        policy=BASELINE,
        router=True,
    ),
    Arm(
        name="group_least_loaded",
        says="plain SGLang, whole groups pinned to the least loaded",
        policy="group_least_loaded",
    ),
    Arm(
        name="request_round_robin",
        says="plain SGLang, single requests in turn, all sent at once",
        policy="request_round_robin",
    ),
    Arm(
        name="divided",
        says="divided rollout under a KV ledger",
        policy="no_context",
        over="request_round_robin",
    ),
    Arm(
        name="kv_pool",
        says="+ global KV pool",
        policy="no_context",
        pool=True,
        over="divided",
        paper=Paper(1.42, 0.79),
    ),
    Arm(
        name="context",
        says="+ context-aware scheduling",
        policy="seer",
        pool=True,
        over="kv_pool",
        paper=Paper(1.56, 0.11),
    ),
    Arm(
        name=SEER,
        says="+ grouped speculative decoding",
        policy="seer",
        pool=True,
        drafts=True,
        over="context",
        paper=Paper(2.04, 0.053),
    ),
    Arm(
        name="oracle",
        says="as context, with the true lengths known",
        policy="oracle",
        pool=True,
        over="context",
        paper=Paper(1.63, 0.0),
    ),
)
# Temperature 0, because SGLang's own n-gram speculation is exact at no other.
GREEDY = _by_name(
    Arm(
        name="greedy",
        says="greedy, one sample a prompt: as group_round_robin",
        policy=BASELINE,
        greedy=True,
    ),
    Arm(
        name="greedy_ngram",
        says="greedy, one sample a prompt: the same with SGLang's n-gram speculation",
        policy=BASELINE,
        ngram=True,
        greedy=True,
        over="greedy",
    ),
    Arm(
        name="greedy_seer",
        says="greedy, one sample a prompt, so without siblings: as seer",
        policy="seer",
        pool=True,
        drafts=True,
        greedy=True,
        over="greedy_ngram",
    ),
)
EVERY = ARMS | GREEDY
