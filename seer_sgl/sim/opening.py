"""Builds a scenario from the command line's options."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from seer_sgl.errors import ConfigError
from seer_sgl.rollout.lengths import read_lengths
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.traces.reading import read_trace
from seer_sgl.traces.trace import Responses, Trace

from .config import SimConfig
from .source import load_settings, workload_file
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
        trace = read_trace(self.trace)
        return open_trace(trace, *self._config_file(), overrides=[*self.overrides, *overrides])

    def _config_file(self) -> list[Path]:
        return [] if self.config is None else [self.config]


def open_trace(
    trace: Trace,
    *files: Path,
    overrides: Sequence[str] = (),
    engines: Mapping[str, Any] | None = None,
) -> Scenario:
    """Returns the scenario of a trace; `files` override `engines`, `overrides` override both.

    Raises ConfigError if a value is invalid, or a limit is below the longest response.
    """
    known = {**(engines or {}), **facts(trace.groups)}
    config = load_settings(*files, overrides=overrides, known=known)
    limit = config.workload.lengths.max
    longest = max(max(group.lengths) for group in trace.groups)
    if longest > limit:
        raise ConfigError(
            f"workload.lengths.max: {limit} is less than the longest response in {trace.name} "
            f"({longest} tokens)"
        )
    return Scenario(trace.name, trace.groups, config, _prior(config))


def facts(groups: Sequence[Responses]) -> dict[str, dict[str, object]]:
    """Returns the workload of a trace as a tree of settings."""
    lengths = [length for group in groups for length in group.lengths]
    return {
        "workload": {
            "groups": len(groups),
            "n_samples_per_prompt": max(len(group.lengths) for group in groups),
            "prompt_tokens": max(len(group.prompt_ids) for group in groups),
            "lengths": {"mean": sum(lengths) / len(lengths), "max": max(lengths)},
        }
    }


def _prior(config: SimConfig) -> KnownLengths | None:
    lengths = config.scheduling.lengths
    return None if lengths is None else read_lengths(Path(lengths))
