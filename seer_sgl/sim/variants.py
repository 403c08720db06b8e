"""The variants to compare: scheduling policies, and `seer` with speculation."""

import functools
from collections.abc import Sequence
from typing import Any

import msgspec

from seer_sgl.config import with_values
from seer_sgl.errors import ConfigError
from seer_sgl.report.recorder import Recorder
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.traces.trace import Responses

from .bound import lower_bound_s
from .config import SimConfig
from .outcome import Outcome, outcome
from .simulate import Simulated, simulate

BASELINE, ORACLE = "group_round_robin", "oracle"
DRAFTS = "speculation.enabled"


def _policy(name: str, drafts: bool = False, **costs: float) -> dict[str, Any]:
    speculation = {f"speculation.{key}": value for key, value in costs.items()}
    return {"scheduling.policy": name, DRAFTS: drafts, **speculation}


# By name: the config values of the variant, by key path.
VARIANTS: dict[str, dict[str, Any]] = {
    BASELINE: _policy(BASELINE),
    "group_least_loaded": _policy("group_least_loaded"),
    "request_round_robin": _policy("request_round_robin"),
    "fcfs": _policy("fcfs"),
    "seer_published": _policy("seer_published"),
    "seer": _policy("seer"),
    ORACLE: _policy(ORACLE),
    "seer+sd": _policy("seer", drafts=True),
    # The other end of a range: a guess at a path whose CPU work no GPU work hides.
    "seer+sd_costly": _policy("seer", drafts=True, step_cpu_ms=8.0, draft_cpu_us=24.0),
}
DESCRIPTIONS = {
    BASELINE: "whole groups pinned to engines in turn (the paper's baseline)",
    "group_least_loaded": "whole groups to the least loaded engine (OpenRLHF)",
    "request_round_robin": "whole requests to engines in turn (veRL, routers)",
    "fcfs": "divided rollout only",
    "seer_published": "divided rollout, the paper's order: probes, longest estimate first",
    "seer": "divided rollout, the most tokens possible first",
    ORACLE: "divided rollout, true lengths known",
    "seer+sd": "seer with grouped speculative decoding",
    "seer+sd_costly": "the same, with CPU work that nothing hides: 8 ms per step, 24 us per draft",
}

LABELS = {  # names in a picture, in lines
    BASELINE: "plain SGLang,\ngroups pinned to engines",
    "group_least_loaded": "plain SGLang, groups to\nthe least loaded engine",
    "request_round_robin": "plain SGLang,\nsingle requests in turn",
    "fcfs": "divided rollout",
    "seer_published": "the paper's order",
    "seer": "context-aware order",
    ORACLE: "context-aware order,\nlengths known",
    "seer+sd": "context-aware order,\ngrouped speculation",
    "seer+sd_costly": "grouped speculation,\ncostly",
}


class Scenario:
    """A workload with its settings; runs each of its variants once."""

    def __init__(
        self,
        name: str,
        responses: Sequence[Responses],
        config: SimConfig,
        prior: KnownLengths | None = None,
    ) -> None:
        self.name = name
        self.responses = responses
        self.config = config
        self.prior = prior
        self._runs: dict[str, Simulated] = {}

    def record(self, variant: str) -> Recorder:
        """Returns the recorder of the variant's run."""
        return self._run(variant).record

    def outcome(self, variant: str, *, with_oracle: bool = True) -> Outcome:
        """Returns the variant's figures, with ratios to baseline and oracle."""
        own_s = self._wall_s(variant)
        return msgspec.structs.replace(
            self.alone(variant),
            ratio_to_baseline=_ratio(self._wall_s(BASELINE), own_s),
            ratio_to_oracle=_ratio(self._wall_s(ORACLE), own_s) if with_oracle else None,
            share_of_bound=None if VARIANTS[variant][DRAFTS] else _ratio(self._bound_s, own_s),
        )

    @functools.cached_property
    def _bound_s(self) -> float:
        return lower_bound_s(self.responses, self.config)

    def alone(self, variant: str) -> Outcome:
        """Returns the variant's figures without ratios."""
        run = self._run(variant)
        peak_gb = run.pool_peak * self.config.engine.kv_bytes_per_token / 1e9
        return outcome(self.name, variant, run.record, pool_peak_gb=round(peak_gb, 3))

    def _wall_s(self, variant: str) -> float:
        """Returns the variant's time, which an Outcome has in milliseconds only."""
        return self.record(variant).finished_at[-1]

    def _run(self, variant: str) -> Simulated:
        if variant not in self._runs:
            config = with_values(self.config, VARIANTS[variant])
            self._runs[variant] = simulate(self.responses, config, self.prior)
        return self._runs[variant]


def check_variant(name: str) -> None:
    """Raises ConfigError if there is no variant of that name."""
    if name not in VARIANTS:
        raise ConfigError(f"--policy {name}: unknown; known: {', '.join(VARIANTS)}")


def _ratio(seconds: float, own_s: float) -> float:
    return round(seconds / own_s, 4) if own_s else 1.0
