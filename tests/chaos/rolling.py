"""A rollout on three real engines with pool and drafts: undisturbed, and with faults."""

import contextlib
import itertools
import random
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from seer_sgl import Rollout, WeightUpdate
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.types import Group, Prompt, Sample, Sampling
from tests.e2e.conftest import HELD_OUT
from tests.e2e.pools import SGLANG, local, pooled
from tests.e2e.weights import other_weights

from .conductor import Happened, Tell, conducted
from .ledger import Disturbance, Key, Ledger
from .plan import STALL_TIMEOUT_S, Fault
from .strikes import LONG_PROMPT, PREFILL_TOKENS, TRIES, UNDER_WAY_S, LongPrompts, Strikes
from .wires import Wires, wired

ENGINES = 3
SAMPLES = 8
CHUNK_TOKENS = 64
MOST_TOKENS = 600
WARM_UP = 4  # prompts
SHORT = Sampling(max_new_tokens=48)  # of long prompts
SEED = 7
runs = itertools.count()


def config() -> dict[str, Any]:
    """Returns the config of the fleet: three engines, Mooncake, drafts of the whole fleet."""
    own = local(
        ENGINES,
        kv_pool=pooled("mooncake"),
        draft={"scope": "fleet", "memory": "64mb"},
        scheduling={"chunk_tokens": CHUNK_TOKENS},
        sampling={"max_response_len": MOST_TOKENS},
        rollout={
            "seed": SEED,
            "n_samples_per_prompt": SAMPLES,
            "max_engine_kills": 1000,  # the kills are not the requests' fault
        },
    )
    prefill = {"max-running-requests": 16, "chunked-prefill-size": PREFILL_TOKENS}
    limits = {"stall_timeout_s": STALL_TIMEOUT_S, "recovery_timeout_s": 300.0}
    own["engines"] |= {"sglang": SGLANG | prefill, **limits}
    return own


class Rolled(msgspec.Struct):
    """The result of a rollout. `samples`: by group and index; `doubled`: those that came twice."""

    samples: dict[Key, Sample]
    doubled: list[Key]
    report: dict[str, Any]
    ledger: Ledger


class Chaotic(msgspec.Struct):
    """A rollout with faults."""

    rolled: Rolled
    happened: list[Happened]
    disturbances: list[Disturbance]
    long_prompts: list[Prompt]


class Stage:
    """An open rollout whose engines are behind proxies. `under_way_s`: see Strikes."""

    def __init__(self, rollout: Rollout, wires: Wires, under_way_s: float = UNDER_WAY_S) -> None:
        self.rollout = rollout
        self.wires = wires
        self.under_way_s = under_way_s

    def prompts(self, count: int) -> list[Prompt]:
        return self.rollout.read_prompts(HELD_OUT)[:count]

    async def undisturbed(self, prompts: Sequence[Prompt]) -> Rolled:
        """Rolls the prompts out. The same prompts have the same seeds every time."""
        return (await self.chaotic(prompts, [], 1)).rolled

    async def chaotic(
        self,
        prompts: Sequence[Prompt],
        plan: Sequence[Fault],
        tokens: int,
        tell: Tell = lambda _: None,
        seed: int = 0,
    ) -> Chaotic:
        """Rolls the prompts out with the faults of a plan. `tokens`: of the fault-free run.

        `tell` receives a line per fault. The prefill faults have long prompts, drawn from `seed`.
        """
        rollout, name, began = self.rollout, f"run{next(runs)}", time.monotonic()
        prefills = sum(fault.kind.deed == "kill in a prefill" for fault in plan)
        long_prompts = [long_prompt(seed, number) for number in range(prefills * TRIES)]
        maker, groups = GroupMaker(name, SEED), list[Group]()
        for prompt in [*prompts, *long_prompts]:
            sampling = prompt.sampling or rollout.config.sampling
            groups.append(maker.group(prompt, sampling, sampling.max_new_tokens, began))
        record = Recorder(name, SEED, rollout.engines, groups, began)
        late = LongPrompts(groups[len(prompts) :], prefills)
        ledger = Ledger()
        strikes = Strikes(rollout, self.wires, ledger, late, self.under_way_s)
        async with conducted(plan, tokens, strikes, tell) as conductor:
            run = rollout.driver.open_run(
                [record, ledger, conductor], rollout_id=name, started_at=began
            )
            with contextlib.closing(run):
                run.add(groups[: len(prompts)])
                late.join(run)
                ended = [group async for group in run]
            strikes.over = True
        samples = [sample for group in ended for sample in group.samples if sample.failure is None]
        counts = Counter((sample.group_id, sample.index) for sample in samples)
        doubled = sorted(key for key, count in (counts | ledger.finishes).items() if count > 1)
        keyed = {(sample.group_id, sample.index): sample for sample in samples}
        rolled = Rolled(keyed, doubled, report(record), ledger)
        return Chaotic(rolled, conductor.happened, strikes.disturbances, late.begun)


def long_prompt(seed: int, number: int) -> Prompt:
    """Returns a prompt whose prefill takes a while, and which no engine has cached."""
    draws = random.Random(f"{seed} {number}")
    ids = array("i", [1, *(draws.randrange(3, 60) for _ in range(LONG_PROMPT - 1))])
    return Prompt(prompt_id=f"long {seed} {number}", prompt_ids=ids, n=1, sampling=SHORT)


@contextlib.asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """Starts the fleet behind proxies, with logs in `folder`, and updates its weights from disk.

    So an engine that is restarted must load the update: its own weights give other tokens.
    All are warm: an engine compiles the draft index at its first use, which can take as long as a
    stall.
    """
    async with wired() as wires, Rollout(config(), log_dir=folder) as rollout:
        weights = other_weights(folder / "weights", 1.1)
        await rollout.backend.update_weights(WeightUpdate.from_disk(str(weights), version="v2"))
        opened = Stage(rollout, wires)
        await opened.undisturbed(opened.prompts(WARM_UP))
        yield opened
