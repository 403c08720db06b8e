"""Two running engines of a tiny model, on which rollouts follow each other."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.config import FlagValue, parse
from seer_sgl.driver.observer import Observer
from seer_sgl.engine.fleet import Fleet, open_fleet
from tests.e2e.compare import Samples, collected
from tests.support.timing import PATIENT

SIBLINGS = 4
Prompts = list[dict[str, Any]]


class TwoEngines:
    """The engines, and the config of every rollout on them."""

    def __init__(self, config: dict[str, Any], fleet: Fleet) -> None:
        self.config = config
        self.fleet = fleet

    @property
    def urls(self) -> list[str]:
        return [engine.info.url for engine in self.fleet.engines]

    @contextlib.asynccontextmanager
    async def opened(
        self, placement: AlwaysElsewhere | None = None, history: Path | None = None, **more: Any
    ) -> AsyncIterator[Rollout]:
        """Opens a rollout; the engines' own caches begin empty. `more`: of `scheduling`."""
        for engine in self.fleet.engines:
            await engine.flush()
        config = {**self.config, "scheduling": {**self.config["scheduling"], **more}}
        if history is not None:
            config["draft"] = {**config["draft"], "history": str(history)}
        async with Rollout(
            config, fleet=self.fleet, placement=placement, timing=PATIENT
        ) as rollout:
            yield rollout

    async def roll(
        self,
        prompts: Prompts,
        placement: AlwaysElsewhere | None = None,
        observers: Sequence[Observer] = (),
        **options: Any,
    ) -> tuple[Samples, Any]:
        """Returns the samples and the report. `options`: of `opened`."""
        async with self.opened(placement, **options) as rollout:
            return await collected(rollout.run(prompts, observers)), rollout.report()


@contextlib.asynccontextmanager
async def two_engines(
    folder: Path, model: Path, flags: Mapping[str, FlagValue], **sections: Any
) -> AsyncIterator[TwoEngines]:
    """Starts two engines of a model; their logs are in the folder."""
    config = {
        "model": {"path": str(model)},
        "engines": {"count": 2, "cores": "auto", "sglang": dict(flags)},
        "rollout": {"seed": 11, "n_samples_per_prompt": SIBLINGS},
        **sections,
    }
    async with open_fleet(parse(config).fleet, folder / "logs", PATIENT) as fleet:
        yield TwoEngines(config, fleet)
