"""Carries faults out against a running rollout, and checks that each has really happened."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from seer_sgl import Rollout
from seer_sgl.driver.run import Run
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine_types import ServerPhase
from seer_sgl.types import Chunk, Group, Prompt
from tests.support.processes import child

from .ledger import Disturbance, Ledger
from .outside import disturb, kill_process, stop_process
from .plan import Fault
from .waits import Missed, kill, stopped, until
from .wires import Wires

LONG_PROMPT = 6000  # tokens
PREFILL_TOKENS = 512  # of one part of a long prefill
PREFILLED = f"#new-token: {PREFILL_TOKENS}"  # SGLang's log line of one part of a long prefill
UNDER_WAY_S = 0.2  # on real engines
DUTY_S, CYCLE_S = 0.02, 0.1  # of a throttled process
AFTERMATH_S = 1.0  # the driver may send on a connection that has just been closed
TRIES = 3  # of a kill in a prefill: the prompt may go to an engine that is disturbed already


class LongPrompts:
    """The groups of long prompts, which join the run when faults in a prefill are due.

    `begun`: the prompts that did. The run is complete when no fault needs more of them.
    """

    def __init__(self, groups: Sequence[Group], faults: int) -> None:
        self.begun: list[Prompt] = []
        self._run: Run | None = None
        self._groups = list(groups)
        self._faults = faults

    def join(self, run: Run) -> None:
        """Sets the run that the groups join. Without faults it is complete."""
        self._run = run
        if not self._faults:
            run.complete()

    def begin(self) -> str:
        """Submits the next group, and returns its id."""
        assert self._run is not None
        group = self._groups.pop()
        self.begun.append(group.prompt)
        self._run.add([group])
        return group.group_id

    def end(self) -> None:
        """Marks one of the faults as over: it needs no more prompts."""
        assert self._run is not None
        self._faults -= 1
        if not self._faults:
            self._run.complete()


class Strikes:
    """The faults against one rollout. Faults of one target wait for each other.

    `disturbances`: when engines were disturbed. `over`: no chunk will be in flight any more.
    `under_way_s`: a chunk or a write that lasts longer has begun.
    """

    def __init__(
        self,
        rollout: Rollout,
        wires: Wires,
        ledger: Ledger,
        long_prompts: LongPrompts,
        under_way_s: float = UNDER_WAY_S,
    ) -> None:
        self._rollout = rollout
        self._wires = wires
        self._ledger = ledger
        self._long_prompts = long_prompts
        self._under_way_s = under_way_s
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.disturbances: list[Disturbance] = []
        self.over = False

    async def carry_out(self, fault: Fault) -> str:
        """Carries one fault out; returns what shows that it happened. Raises Missed."""
        deeds: dict[str, Callable[[Fault], Coroutine[Any, Any, str]]] = {
            "kill in a chunk": self._kill_in_a_chunk,
            "kill in a prefill": self._kill_in_a_prefill,
            "kill in a write": self._kill_in_a_write,
            "kill at its start": self._kill_at_its_start,
            "kill": kill_process,
            "stop for long": self._stop_engine,
            "throttle": self._throttle,
        }
        at_engine = fault.kind.place == "engine"
        deeds["stop"] = self._stop_engine if at_engine else stop_process
        deed = deeds.get(fault.kind.deed, self._disturb_wire)
        try:
            if fault.kind.deed == "kill in a prefill":  # the scheduler chooses its engine
                return await deed(fault)
            async with self._locks[fault.target]:
                return await deed(fault)
        except (psutil.Error, ProcessLookupError) as error:
            raise Missed(f"no process: {error!r}") from error

    async def _kill_in_a_chunk(self, fault: Fault) -> str:
        await self._until_busy(fault.target)
        in_flight = self._kill(fault.target)
        return f"{in_flight} chunks in flight; {await self._back(fault.target)}"

    async def _kill_in_a_prefill(self, _: Fault) -> str:
        try:
            for attempt in range(TRIES):
                with contextlib.suppress(*[Missed] if attempt < TRIES - 1 else []):
                    target, text = await self._kill_in_the_prefill_of(self._long_prompts.begin())
                    break
        finally:
            self._long_prompts.end()  # first: the rollout may be over before the engine is back
        async with self._locks[target]:
            return f"{target}, {text}; {await self._back(target)}"

    async def _kill_in_the_prefill_of(self, group_id: str) -> tuple[str, str]:
        def chunks() -> list[Chunk]:
            flights = (chunk for chunk, _ in self._ledger.in_flight.values())
            return [chunk for chunk in flights if chunk.request.group.group_id == group_id]

        await until(chunks, "its prompt was not sent")
        target = chunks()[0].engine_id
        log = self._wires.servers[target].log
        before = _parts(log)
        await until(lambda: _parts(log) > before or not chunks(), "its prefill did not begin")
        if not chunks() or self._locks[target].locked():
            raise Missed("its prefill was over, or another fault came first")
        parts, in_flight = _parts(log) - before, self._kill(target)
        whole = -(-LONG_PROMPT // PREFILL_TOKENS)
        return (
            target,
            f"after {parts} of {whole} parts of the prefill; {in_flight} chunks in flight",
        )

    async def _kill_in_a_write(self, fault: Fault) -> str:
        async with self._locks["store"]:
            await self._until_busy(fault.target)
            with stopped(child("store")):  # what is being written stays so
                writes = 0
                while not self.over:
                    began = {
                        uid for uid, name in self._ledger.unwritten.items() if name == fault.target
                    }
                    await asyncio.sleep(self._under_way_s)
                    still = self._ledger.unwritten.items()
                    writes = sum(uid in began and name == fault.target for uid, name in still)
                    if writes:
                        break
                if not writes:
                    raise Missed("no page was being written")
                self._kill(fault.target)
        return f"{writes} requests' pages in writing; {await self._back(fault.target)}"

    async def _kill_at_its_start(self, fault: Fault) -> str:
        await self._until_busy(fault.target)
        in_flight = self._kill(fault.target)
        server = self._engine(fault.target)
        await until(lambda: server.server.phase is ServerPhase.STARTING, "it was not restarted")
        await asyncio.sleep(fault.seconds)
        if server.server.phase is not ServerPhase.STARTING:
            raise Missed("it was up before the second kill")
        starts = server.server.starts
        self._kill(fault.target)
        await until(lambda: server.server.starts > starts, "it was not started twice")
        back = await self._back(fault.target)
        again = f"again {fault.seconds:.1f} s into its start"
        return f"{in_flight} chunks in flight, and {again}; {back}"

    async def _stop_engine(self, fault: Fault) -> str:
        await self._until_busy(fault.target)
        engine = fault.target
        with self._disturbed(engine):
            in_flight = len(self._ledger.on(engine))
            with stopped(psutil.Process(self._wires.servers[engine].pid)):
                await asyncio.sleep(fault.seconds)
                away = not self._rollout.driver.available(engine)
            await self._until_serving(engine)
        if fault.kind.deed == "stop for long" and not away:
            raise Missed("nobody noticed")
        return f"{in_flight} chunks in flight"

    async def _throttle(self, fault: Fault) -> str:
        await self._until_busy(fault.target)
        loop, cycles = asyncio.get_running_loop(), 0
        process = psutil.Process(self._wires.servers[fault.target].pid)
        end = loop.time() + fault.seconds
        with self._disturbed(fault.target):
            while loop.time() < end:
                with stopped(process):
                    await asyncio.sleep(CYCLE_S - DUTY_S)
                await asyncio.sleep(DUTY_S)
                cycles += 1
            await self._until_serving(fault.target)
        return f"stopped {cycles} times"

    async def _disturb_wire(self, fault: Fault) -> str:
        wire, http = self._wires.of(fault.target), fault.kind.place == "http"
        if http:
            await self._until_busy(fault.target)
        else:
            await until(lambda: len(wire) > 0, "nothing is connected")
        before, in_flight = wire.counts["connections"], len(self._ledger.on(fault.target))
        with contextlib.ExitStack() as stack:
            if http:
                stack.enter_context(self._disturbed(fault.target))
            evidence = await disturb(wire, fault)
            if http:
                await self._until_serving(fault.target)
            elif fault.kind.deed in ("reset", "half-close"):
                await until(lambda: wire.counts["connections"] > before, "nothing connected again")
        return evidence + (f", {in_flight} chunks in flight" if http else "")

    def _kill(self, engine_id: str) -> int:
        """Kills an engine's processes. Returns the chunks in flight there."""
        now = asyncio.get_running_loop().time()
        in_flight = len(self._ledger.on(engine_id))
        self.disturbances.append(Disturbance(engine_id=engine_id, began=now))
        kill(psutil.Process(self._wires.servers[engine_id].pid))
        return in_flight

    async def _back(self, engine_id: str) -> str:
        """Waits until a killed engine serves again, and has returned a chunk.

        Its first batch takes long, on a busy machine as long as a stall.
        """
        loop, ledger = asyncio.get_running_loop(), self._ledger
        began, driver = loop.time(), self._rollout.driver
        await until(lambda: not driver.available(engine_id), "nobody noticed")
        await self._until_serving(engine_id)
        served_at = loop.time()
        await until(
            lambda: self.over or ledger.newest.get(engine_id, 0.0) > served_at, "it returns nothing"
        )
        for each in self.disturbances:
            if each.engine_id == engine_id and each.ended is None:
                each.ended = loop.time()
        return f"back after {served_at - began:.0f} s"

    @contextlib.contextmanager
    def _disturbed(self, engine_id: str) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        disturbance = Disturbance(engine_id=engine_id, began=loop.time())
        self.disturbances.append(disturbance)
        yield
        disturbance.ended = loop.time() + AFTERMATH_S

    async def _until_serving(self, engine_id: str) -> None:
        await until(lambda: self._rollout.driver.available(engine_id), "it does not serve again")

    async def _until_busy(self, engine_id: str) -> None:
        """Waits until a chunk is under way on an engine that serves."""
        loop = asyncio.get_running_loop()

        def busy() -> bool:
            if self.over:
                raise Missed("the rollout was over")
            flights = self._ledger.in_flight.values()
            return self._rollout.driver.available(engine_id) and any(
                chunk.engine_id == engine_id and loop.time() - sent_at > self._under_way_s
                for chunk, sent_at in flights
            )

        await until(busy, "no chunk was in flight there")

    def _engine(self, engine_id: str) -> HttpEngine:
        return next(
            engine for engine in self._rollout.fleet.engines if engine.info.engine_id == engine_id
        )


def _parts(log: Path) -> int:
    return log.read_text(errors="replace").count(PREFILLED)
