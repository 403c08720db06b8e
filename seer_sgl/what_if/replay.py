"""Replays a trace on real servers: today's orders and ours in turn, with the recorded lengths.

Every rollout has the same prompt lengths and response lengths. Prompts are random token ids, other
ones in every rollout, so that no cache of an earlier rollout helps. The scheduler knows the longest
length only: a response is ended at its own length in the call to the engine.
"""

import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence

import aiohttp
import msgspec
from typing_extensions import override

from seer_sgl.config import SchedulingConfig
from seer_sgl.config.tree import PolicyName
from seer_sgl.driver.driver import Driver
from seer_sgl.driver.groups import GroupMaker
from seer_sgl.driver.settings import Settings
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import ConfigError, RolloutError
from seer_sgl.link.hub import HubClient
from seer_sgl.link.server import LinkServer
from seer_sgl.report.recorder import Recorder
from seer_sgl.report.report import report
from seer_sgl.sampling import Sampling
from seer_sgl.sim.draws import DrawnFigure
from seer_sgl.traces.trace import Responses
from seer_sgl.types import Chunk, ChunkReply, Group, OnTokens, Prompt, token_array

from .orders import OURS, Notice, OrderRow, gain
from .timed_calls import TOKENS

REPLAYED: tuple[PolicyName, ...] = ("request_round_robin", "group_round_robin", "seer")
WARM_UP_TOKENS = 8


class ReplayedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout on the servers. `tail_s`: of the last 10 % of the requests, seconds."""

    order: str
    round: int
    wall_s: float
    tail_s: float
    tokens: int


class ReplayedRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Today's order over order and division, round by round, and in simulation. A tail ratio is
    None where a tail took no time."""

    order: str
    wall: DrawnFigure | None
    simulated_wall: float
    tail: DrawnFigure | None
    simulated_tail: float | None


class ImposedEngine(HttpEngine):
    """A server whose responses end at given lengths. `lengths`: tokens by request uid."""

    def __init__(
        self, info: EngineInfo, session: aiohttp.ClientSession, lengths: Mapping[str, int]
    ) -> None:
        super().__init__(info, session)
        self._lengths = lengths

    @override
    async def generate(self, chunk: Chunk, on_tokens: OnTokens | None = None) -> ChunkReply:
        left = self._lengths[chunk.request.uid] - chunk.request.generated
        if left > chunk.max_new_tokens:
            return await super().generate(chunk, on_tokens)
        spared = chunk.max_new_tokens - left
        last = msgspec.structs.replace(
            chunk, max_new_tokens=left, kv_tokens=chunk.kv_tokens - spared
        )
        reply = await super().generate(last, on_tokens)
        return msgspec.structs.replace(reply, finish="stop") if len(reply.ids) == left else reply


class ImposedFleet:
    """Servers that already run, without pool and drafts: no plugin connects to their link."""

    def __init__(self, engines: Sequence[ImposedEngine]) -> None:
        self.engines = engines
        self.link = LinkServer()
        self.drafts: HubClient | None = None


class Replayer:
    """Replays groups on servers. `chunk_tokens`: of our order."""

    def __init__(
        self,
        infos: Sequence[EngineInfo],
        session: aiohttp.ClientSession,
        groups: Sequence[Responses],
        chunk_tokens: int,
    ) -> None:
        """Raises ConfigError if a response does not fit into a server."""
        self._infos = infos
        self._session = session
        self._groups = groups
        self._chunk_tokens = chunk_tokens
        self._limit = max(max(group.lengths) for group in groups)
        self._numbers = 0
        longest = max(len(group.prompt_ids) + max(group.lengths) for group in groups)
        for info in infos:
            if longest >= info.max_request_len:
                raise ConfigError(
                    f"--replay: a request of {longest} tokens; {info.url} takes less than "
                    f"{info.max_request_len}"
                )

    async def rounds(self, count: int, notice: Notice) -> AsyncIterator[ReplayedRollout]:
        """Yields each rollout. Every order runs once per round; each round reverses the orders.

        Raises RolloutError if a request fails for good.
        """
        some = [
            Responses(group.group_id, group.prompt_ids, [WARM_UP_TOKENS] * 2)
            for group in self._groups[: len(self._infos)]
        ]
        await self._rollout("seer", -1, some)
        for number in range(count):
            for order in REPLAYED if number % 2 == 0 else REPLAYED[::-1]:
                notice(f"round {number + 1} of {count}, {order}")
                yield await self._rollout(order, number, self._groups)

    async def _rollout(
        self, order: PolicyName, number: int, planned: Sequence[Responses]
    ) -> ReplayedRollout:
        groups, lengths = self._make(planned)
        fleet = ImposedFleet([ImposedEngine(i, self._session, lengths) for i in self._infos])
        scheduling = SchedulingConfig(policy=order, chunk_tokens=self._chunk_tokens)
        recorder = Recorder("replayed", 0, self._infos, groups, time.monotonic())
        async with Driver.over(fleet, Settings(scheduling=scheduling)) as driver:
            async for group in driver.submit(groups, [recorder], started_at=recorder.started_at):
                if group.failure is not None:
                    raise RolloutError(f"--replay: {group.failure.message}")
        figures = report(recorder)
        return ReplayedRollout(
            order=order,
            round=number,
            wall_s=figures["wall_s"],
            tail_s=figures["tail_s"],
            tokens=figures["response_tokens"],
        )

    def _make(self, planned: Sequence[Responses]) -> tuple[list[Group], dict[str, int]]:
        """Returns groups with new random prompts, and the lengths by request uid."""
        self._numbers += 1
        maker = GroupMaker(f"replay{time.time_ns()}", self._numbers)
        draw = random.Random(time.time_ns())
        sampling = Sampling(max_new_tokens=self._limit, ignore_eos=True)
        groups, now = list[Group](), time.monotonic()
        lengths: dict[str, int] = {}
        for responses in planned:
            ids = token_array(draw.choices(range(*TOKENS), k=len(responses.prompt_ids)))
            prompt = Prompt(prompt_id=responses.group_id, prompt_ids=ids, n=len(responses.lengths))
            group = maker.group(prompt, sampling, self._limit, now)
            lengths |= {r.uid: n for r, n in zip(group.requests, responses.lengths, strict=True)}
            groups.append(group)
        return groups, lengths


def ratios(rollouts: Sequence[ReplayedRollout], rows: Sequence[OrderRow]) -> list[ReplayedRatio]:
    """Returns today's orders over ours, measured and simulated. `rows`: the simulation."""
    by_name = {row.name: row for row in rows}
    ours = {rollout.round: rollout for rollout in rollouts if rollout.order == OURS}
    found = []
    for order in REPLAYED[:-1]:
        pairs = [(rollout, ours[rollout.round]) for rollout in rollouts if rollout.order == order]
        today, after = by_name[order], by_name[OURS]
        tails = [one.tail_s / other.tail_s if other.tail_s else None for one, other in pairs]
        found.append(
            ReplayedRatio(
                order=order,
                wall=DrawnFigure.of([one.wall_s / other.wall_s for one, other in pairs]),
                simulated_wall=round(gain(today.wall_s, after.wall_s), 3),
                tail=DrawnFigure.of(tails),
                simulated_tail=round(today.tail_s / after.tail_s, 3) if after.tail_s else None,
            )
        )
    return found
