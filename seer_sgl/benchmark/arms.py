"""The arms of the benchmark: plain SGLang as other systems drive it, then each technique added in
turn. Pure."""

from typing import Literal

import msgspec

from seer_sgl.config import UNDIVIDED

Kind = Literal["plain", "pool", "drafting", "ngram"]  # of servers
BASELINE = "group_round_robin"
SEER = "seer"


class Paper(msgspec.Struct, frozen=True):
    """The paper's measurements on Qwen2-VL-72B, as multiples of its baseline's."""

    throughput: float
    tail: float


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One way to roll out. `label`: its name in a picture, in lines. `compared_with`: the arm that
    its gain is measured against. Except for greedy arms, it adds one technique to that arm."""

    name: str
    label: str
    description: str
    policy: str
    pool: bool = False
    drafts: bool = False
    ngram: bool = False  # SGLang's own n-gram speculation
    greedy: bool = False
    compared_with: str | None = None
    paper: Paper | None = None

    @property
    def kind(self) -> Kind:
        """The kind of servers that it needs. Arms of a kind share servers."""
        if self.ngram:
            return "ngram"
        return "drafting" if self.drafts else "pool" if self.pool else "plain"

    @property
    def undivided(self) -> bool:
        """Whether requests are sent undivided."""
        return self.policy in UNDIVIDED

    @property
    def reference(self) -> str:
        """The arm whose samples and times it is compared with."""
        return "greedy" if self.greedy else BASELINE


SEER_IN_PAPER = Paper(2.04, 0.053)


def _by_name(*arms: Arm) -> dict[str, Arm]:
    return {arm.name: arm for arm in arms}


ARMS = _by_name(
    Arm(
        name=BASELINE,
        label="plain SGLang,\ngroups pinned to engines",
        description="plain SGLang, whole groups pinned in turn, all sent at once",
        policy=BASELINE,
        paper=Paper(1.0, 1.0),
    ),
    Arm(
        name="group_least_loaded",
        label="plain SGLang, groups to\nthe least loaded engine",
        description="plain SGLang, whole groups pinned to the least loaded",
        policy="group_least_loaded",
    ),
    Arm(
        name="request_round_robin",
        label="plain SGLang,\nsingle requests in turn",
        description="plain SGLang, single requests in turn, all sent at once",
        policy="request_round_robin",
    ),
    Arm(
        name="divided",
        label="divided rollout,\nwithout KV pool",
        description="divided rollout under a KV ledger",
        policy="fcfs",
        compared_with="request_round_robin",
    ),
    Arm(
        name="kv_pool",
        label="+ KV pool",
        description="+ global KV pool",
        policy="fcfs",
        pool=True,
        compared_with="divided",
        paper=Paper(1.42, 0.79),
    ),
    Arm(
        name="context",
        label="+ context-aware order",
        description="+ context-aware scheduling",
        policy="seer",
        pool=True,
        compared_with="kv_pool",
        paper=Paper(1.56, 0.11),
    ),
    Arm(
        name=SEER,
        label="+ grouped speculation:\nseer-sgl",
        description="+ grouped speculative decoding",
        policy="seer",
        pool=True,
        drafts=True,
        compared_with="context",
        paper=SEER_IN_PAPER,
    ),
    Arm(
        name="oracle",
        label="context-aware order,\nlengths known",
        description="as context, with the true lengths known",
        policy="oracle",
        pool=True,
        compared_with="context",
        paper=Paper(1.63, 0.0),
    ),
    Arm(
        name="seer_published",
        label="seer-sgl with the\npaper's order",
        description="as seer, with the paper's order: probes, longest estimate first",
        policy="seer_published",
        pool=True,
        drafts=True,
        compared_with="seer",
    ),
)
# Temperature 0, because SGLang's own n-gram speculation is exact at temperature 0 only.
GREEDY = _by_name(
    Arm(
        name="greedy",
        label="greedy, plain SGLang",
        description="greedy, one sample per prompt: as group_round_robin",
        policy=BASELINE,
        greedy=True,
    ),
    Arm(
        name="greedy_ngram",
        label="greedy, SGLang's NGRAM",
        description="greedy, one sample per prompt: the same with SGLang's n-gram speculation",
        policy=BASELINE,
        ngram=True,
        greedy=True,
        compared_with="greedy",
    ),
    Arm(
        name="greedy_seer",
        label="greedy, seer-sgl",
        description="greedy, one sample per prompt, so without siblings: as seer",
        policy="seer",
        pool=True,
        drafts=True,
        greedy=True,
        compared_with="greedy_ngram",
    ),
)
EVERY = ARMS | GREEDY
