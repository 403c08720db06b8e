"""The limits that a user sets with `--fail`, and which of them an audit exceeds. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from seer_sgl.errors import ConfigError

from .audit_report import PassReport
from .served import Provenance

FIGURES = ("mean", "p99", "max", "kl", "clipped")  # of log probabilities, in a prefill
COUNTS = ("changed", "versions")
NAMES = (*FIGURES, *COUNTS)


def read_limits(options: Iterable[str]) -> dict[str, float]:
    """Returns the limits of `--fail NAME=VALUE`. Raises ConfigError."""
    limits = {}
    for option in options:
        name, equals, text = option.partition("=")
        if name not in NAMES or not equals:
            raise ConfigError(
                f"--fail {option}: expected NAME=VALUE, NAME one of {', '.join(NAMES)}"
            )
        try:
            limits[name] = float(text)
        except ValueError as error:
            raise ConfigError(f"--fail {option}: not a number") from error
        if not limits[name] >= 0:
            raise ConfigError(f"--fail {option}: expected a number of at least 0")
    return limits


def exceeded(
    limits: Mapping[str, float], passes: Iterable[PassReport], weights: Provenance
) -> list[str]:
    """Returns a line for each limit that is exceeded, or that nothing was measured for."""
    measured = dict(_measured(list(passes), weights))
    lines = []
    for name, limit in limits.items():
        value = measured.get(name)
        if value is None:
            lines.append(f"{name}: nothing was compared that it could limit")
        elif value > limit:
            lines.append(f"{name}: {value:.3g}, more than {limit:g}")
    return lines


def _measured(passes: list[PassReport], weights: Provenance) -> Iterator[tuple[str, float]]:
    """Yields the worst value of each figure over the passes."""
    scored = [
        report.log_probs for report in passes if report.same_samples is None and report.log_probs
    ]
    if scored:
        for name in FIGURES:
            yield name, max(getattr(figures, name) for figures in scored)
    counted = [report.changed for report in passes if report.same_samples is not None]
    if counted:
        yield "changed", max(counted)
    yield "versions", max(weights.other_samples, int(weights.same_digest is False))
