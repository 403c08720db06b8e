"""Small cases for the simulator's tests."""

from collections.abc import Sequence

from seer_sgl.report.recorder import Recorder
from seer_sgl.sim import simulate
from seer_sgl.sim.config import SimConfig
from seer_sgl.sim.source import load_settings
from seer_sgl.sim.workload import sample
from seer_sgl.traces.trace import Responses

SMALL = {
    "workload": {
        "groups": 16,
        "prompt_tokens": 200,
        "lengths": {"mean": 800, "max": 6000, "sigma": 1.0},
    },
    "engine": {"count": 4, "kv_tokens": 60_000},
    "scheduling": {"chunk_tokens": 1000},
}
# Requests move often here, so engines read KV from the pool.
CROWDED = ("engine.kv_tokens=12000", "engine.count=6", "scheduling.max_spread=0")


def small(*overrides: str) -> SimConfig:
    """Returns a config of 16 groups of 8 on four engines, with changes."""
    return load_settings(overrides=overrides, known=SMALL)


def rolled(config: SimConfig, responses: Sequence[Responses] | None = None) -> Recorder:
    """Returns the record of one simulated rollout."""
    return simulate.simulate(responses or sample(config.workload), config).record
