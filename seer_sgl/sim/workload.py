"""The workload of a simulation: prompts, and the lengths of their responses."""

import math
from array import array

import numpy as np
import numpy.typing as npt

from seer_sgl.traces.trace import Responses

from .config import LengthsConfig, WorkloadConfig

Floats = npt.NDArray[np.float64]


def sample(config: WorkloadConfig, epoch: int = 0) -> list[Responses]:
    """Returns groups with lengths drawn from the workload's distribution. Equal seeds give equal
    groups; another `epoch` has the same prompts with other responses.
    """
    lengths = draw(config.lengths, config.groups, config.n_samples_per_prompt, epoch)
    return [
        Responses(f"g{i}", array("i", [i]) * config.prompt_tokens, [int(x) for x in row])
        for i, row in enumerate(lengths)
    ]


def draw(config: LengthsConfig, groups: int, n: int, epoch: int = 0) -> Floats:
    """Returns lengths, groups x n: log-normal, `group_share` of the variance between groups."""
    random = np.random.default_rng(config.seed)
    between = random.standard_normal((groups, 1)) * math.sqrt(config.group_share)
    if epoch:
        random = np.random.default_rng([config.seed, epoch])
    within = random.standard_normal((groups, n)) * math.sqrt(1 - config.group_share)
    return _scaled(np.exp(config.sigma * (between + within)), config)


def _scaled(shape: Floats, config: LengthsConfig) -> Floats:
    """Returns `shape` scaled so that its mean after clipping at both ends is `config.mean`."""
    low, high = 0.0, float(config.max) / float(shape.min())
    for _ in range(100):
        middle = (low + high) / 2
        if np.clip(shape * middle, 1, config.max).mean() < config.mean:
            low = middle
        else:
            high = middle
    return np.clip(np.rint(shape * high), 1, config.max)
