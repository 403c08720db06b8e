"""The contract between the driver's side and the plugin inside SGLang.

It has environment variables, keys in SGLang's own messages, and the plugin's report. `engine/` and
`plugin/` never import each other; both import this module.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from seer_sgl.engine_types import EngineWork, rank_id
from seer_sgl.routed_experts import ExpertShape
from seer_sgl.sampling import ORIGIN as ORIGIN  # noqa: PLC0414 (a key of the contract)

MAX_COUNT = 1 << 53  # no true count is above it; journal and series hold eight bytes per number
Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, msgspec.Meta(gt=0, le=MAX_COUNT)]
NULL = msgspec.Raw(b"null")

# Environment variables of a server process.
API_KEY = "SEER_SGL_API_KEY"  # the bearer token that the server requires
LINK_URL = "SEER_SGL_LINK_URL"  # the URL of its driver's link
LINK_TOKEN = "SEER_SGL_LINK_TOKEN"  # the bearer token of driver and draft hub
HUB_URL = "SEER_SGL_HUB_URL"  # the URL of the draft hub; of several hubs separated by commas
INSTANCE = "SEER_SGL_INSTANCE"  # a name for this start of the server; not set: it chooses one
DRAFT = "SEER_SGL_DRAFT"  # DraftSettings as JSON; not set: no drafting
# SGLang's own switch (sglang.srt.utils.is_cpu); the launcher sets it where no GPU is visible.
CPU_SWITCH = "SGLANG_USE_CPU_ENGINE"
OFF = "SEER_SGL_OFF"  # abilities of the plugin that are off, and why, as JSON; set by the plugin

# Abilities of the plugin that a server or a config may demand (plugin/plugin.py has all).
DP_RANKS = "dp-ranks"
DRAFTS = "drafts"
EXACT = "exact"
POOL = "pool"
PORTS = "ports"
SECRETS = "secrets"
IMAGES = "images"

# Keys in SGLang's messages. ORIGIN is in `custom_params`.
NO_READ = "no_read"  # in ORIGIN: true if the call's KV is computed instead of read from the pool
REPORT = "seer_sgl"  # in internal_states[i] of `/server_info`: the PluginReport of a scheduler
EXAMINED = "seer_sgl_examined"  # in `meta_info`: tokens before the last step, once per token
STOP_TOKENS = "seer_sgl_stop_tokens"  # in `meta_info`: of the longest stop string, once per token
EXPERTS = "experts"  # in ORIGIN: the dtype in which the call wants its routed experts
PROMPT_LEN = "prompt_len"  # in ORIGIN: the input tokens that are prompt; the rest is response
LONGEST = "longest"  # in ORIGIN of a call with images: the most tokens of prompt and response
ALGORITHM = "SEER_GROUP"  # SGLang's name of grouped drafting

INDEX_BYTES = 100  # per token, for the draft index and its log
MOST_SIBLINGS = 2048  # that draft from one another: with forks, an index has MAX_SEQUENCES


class DraftSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the config section `draft` that an engine needs."""

    scope: Literal["request", "engine", "fleet"]
    max_draft_tokens: int  # per row, the root not included
    paths: int | None  # None: as the machine of the engine drafts best, see DraftConfig
    memory: int  # bytes for index and tokens
    exact: bool = False  # `engines.exact`

    @property
    def max_tokens(self) -> int:
        """The maximum number of tokens in the index."""
        return self.memory // INDEX_BYTES

    def encoded(self) -> str:
        """Returns the value of the environment variable DRAFT, in JSON."""
        return msgspec.json.encode(self).decode()


class PoolReport(msgspec.Struct):
    """The pool's part of the report. `namespace`: engines with equal ones share pages.

    `broken`: why no KV can be read or written any more; None: it can.
    """

    namespace: str
    kv_bytes_per_token: Natural
    broken: str | None = None


class DraftReport(msgspec.Struct):
    """The constant part of the report on drafting. `draft_tokens`: see EngineInfo."""

    draft_tokens: Natural = 0


class PluginReport(msgspec.Struct):
    """The report of the plugin in a scheduler process, in `/server_info`.

    `missing`: the SGLang names that it could not hook. `off`: abilities of the plugin that it
    switched off, and why. `instance`: a name for this start of the engine. `dp_rank`: which
    data-parallel rank of its server the scheduler is. `weights`: a name for the loaded weights.
    `vocab_size`: the width of the logits. `draft`: a DraftReport and counters
    (report/draft_report.py), or null. `inexact`: the reason why division or drafts can change the
    rounding of the engine's steps; None: they cannot. `waiting`: the ids of queued requests that
    wait for their KV from the pool although there is room. `experts`: the form of routed experts;
    None: the server was started without them. `images`: whether it continues responses behind
    prompts with images.
    """

    version: str
    missing: list[str]
    off: dict[str, str] = {}
    instance: str | None = None
    dp_rank: Natural = 0
    weights: str | None = None
    vocab_size: Positive | None = None
    pool: PoolReport | None = None
    draft: msgspec.Raw = NULL
    inexact: str | None = "the plugin does not report whether its steps round alike"
    work: EngineWork | None = None
    waiting: list[str] = []
    experts: ExpertShape | None = None
    images: bool = False


def draft_group(group: str, index: int) -> str:
    """Returns the name of those requests of a group that draft from one another."""
    part = index // MOST_SIBLINGS
    return f"{group}/{part}" if part else group


def rank_instance(instance: str | None, dp_rank: int, dp_size: int) -> str | None:
    """Returns the name of this start of one data-parallel rank of a server.

    instance: of the server. Each rank has a link, and shares drafts, under a name of its own.
    """
    return None if instance is None else rank_id(instance, dp_rank, dp_size)


def problem(missing: Sequence[Sequence[str] | None]) -> str | None:
    """Returns the reason why a server's plugin does not work; None if it works.

    missing: the `missing` names in each scheduler's report; None: the scheduler has no report.
    """
    for names in missing:
        if names is None:
            return "the seer-sgl plugin was not loaded by SGLang's scheduler"
        if names:
            return f"the seer-sgl plugin could not hook {', '.join(names)}"
    return None
