"""Figures of the differences between two series of log probabilities."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from .recorded import F64, RecordedSample, labels


class LogProbFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures over tokens. A difference is the server's log probability minus the sample's.

    `mean`, `p99`, `max`: of the absolute differences. `kl`: the k3 estimate of KL(sample || server)
    per token, mean(exp(d) - 1 - d) (Schulman, "Approximating KL divergence"). `clipped`: the share
    of tokens whose importance weight exp(d) is outside of [1 - clip, 1 + clip].
    """

    tokens: int
    mean: float
    p99: float
    max: float
    kl: float
    clipped: float


def log_prob_figures(differences: F64, clip: float) -> LogProbFigures | None:
    """Returns the figures of all differences that are numbers; None if there are none."""
    known = differences[np.isfinite(differences)]
    if not known.size:
        return None
    absolute = np.abs(known)
    weights_off = np.expm1(np.minimum(known, 100.0))
    return LogProbFigures(
        tokens=known.size,
        mean=float(absolute.mean()),
        p99=float(np.percentile(absolute, 99)),
        max=float(absolute.max()),
        kl=float((weights_off - known).mean()),
        clipped=float((np.abs(weights_off) > clip).mean()),
    )


def by_part(
    samples: Sequence[RecordedSample], differences: Iterable[F64], clip: float
) -> dict[str, dict[str, LogProbFigures]]:
    """Returns the figures of each part, by kind of part (recorded.labels).

    `differences`: an array per sample. A kind whose parts are all unknown is left out.
    """
    parts: dict[str, dict[str, list[F64]]] = defaultdict(lambda: defaultdict(list))
    for sample, values in zip(samples, differences, strict=True):
        for kind, names in labels(sample).items():
            named = np.array(names)
            for name in dict.fromkeys(names):
                parts[kind][name].append(values[named == name])
    figures = {
        kind: {
            name: found
            for name, pieces in of_kind.items()
            if (found := log_prob_figures(np.concatenate(pieces), clip)) is not None
        }
        for kind, of_kind in parts.items()
    }
    return {kind: by_name for kind, by_name in figures.items() if set(by_name) - {"unknown"}}
