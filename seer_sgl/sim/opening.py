"""Builds a scenario from the command line's options."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from seer_sgl.errors import ConfigError
from seer_sgl.rollout.lengths import read_lengths
from seer_sgl.scheduling.lengths import KnownLengths

from .config import SimConfig
from .source import load_settings, workload_file
from .trace import facts, read_trace
from .variants import Scenario
from .workload import sample


class SimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a simulation: a workload by name or a trace, and overriding settings."""

    workload: str | None = None
    trace: Path | None = None
    config: Path | None = None
    overrides: Sequence[str] = ()

    def open(self, *overrides: str) -> Scenario:
        """Returns the scenario with more overrides. Raises ConfigError if the input is invalid."""
        if (self.workload is None) == (self.trace is None):
            raise ConfigError("give exactly one of --workload and --trace")
        return self._traced(overrides) if self.trace else self._named(overrides)

    def _named(self, overrides: Sequence[str]) -> Scenario:
        name = self.workload or ""
        files = [workload_file(name), *self._config_file()]
        config = load_settings(*files, overrides=[*self.overrides, *overrides])
        return Scenario(name, sample(config.workload), config, _prior(config))

    def _traced(self, overrides: Sequence[str]) -> Scenario:
        assert self.trace is not None
        groups = read_trace(self.trace)
        config = load_settings(
            *self._config_file(), overrides=[*self.overrides, *overrides], known=facts(groups)
        )
        limit = config.workload.lengths.max
        longest = max(max(group.lengths) for group in groups)
        if longest > limit:
            raise ConfigError(
                f"workload.lengths.max: {limit} is less than the longest response in {self.trace} "
                f"({longest} tokens)"
            )
        return Scenario(self.trace.name, groups, config, _prior(config))

    def _config_file(self) -> list[Path]:
        return [] if self.config is None else [self.config]


def _prior(config: SimConfig) -> KnownLengths | None:
    lengths = config.scheduling.lengths
    return None if lengths is None else read_lengths(Path(lengths))
