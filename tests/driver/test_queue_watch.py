"""A queue that stands although its engine has room is found, and no other one is."""

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web
from typing_extensions import override

from seer_sgl.driver.queue_watch import QueueWatch
from seer_sgl.engine_types import EngineLoad
from seer_sgl.scheduling.ledger import KVLedger
from seer_sgl.scheduling.placement import EngineSlot
from seer_sgl.timing import Timing
from tests.fake_sglang import FakeSGLang
from tests.support.fleets import all_groups, check, rolling
from tests.support.waiting import until

LOAD = EngineLoad(used_tokens=50, progress=(), running=2, queued=3, requests=5, prefilled_tokens=7)

STANDING_S = 10.0


def slot(*, ledger: bool = True) -> EngineSlot:
    made = EngineSlot("e0", KVLedger(100) if ledger else None, 10)
    made.inflight = 5
    return made


def seen(loads: list[EngineLoad], engine: EngineSlot | None = None) -> list[int]:
    watch, engine = QueueWatch(STANDING_S), engine or slot()
    return [watch.standing(0.5 * poll, engine, load) for poll, load in enumerate(loads)]


def test_a_queue_that_stands_is_reported_once() -> None:
    found = seen([LOAD] * 100)
    first = int(STANDING_S / 0.5)
    assert found == [0] * first + [3] + [0] * (99 - first)


def test_a_queue_that_stands_again_is_reported_again() -> None:
    empty = msgspec.structs.replace(LOAD, queued=0, requests=2)
    assert sum(seen([*[LOAD] * 50, empty, *[LOAD] * 50])) == 6


@pytest.mark.parametrize(
    "changes",
    [
        {"queued": 0, "kv_waiting": 3},
        {"used_tokens": 51},
        {"requests": 6},  # one of another client
        {"requests": None},
    ],
    ids=["for KV", "for room", "others", "unknown"],
)
def test_requests_that_wait_for_a_known_reason_do_not_stand(changes: dict[str, Any]) -> None:
    assert not any(seen([msgspec.structs.replace(LOAD, **changes)] * 100))


def test_a_queue_in_front_of_prefills_does_not_stand() -> None:
    loads = [msgspec.structs.replace(LOAD, prefilled_tokens=poll // 10) for poll in range(100)]
    assert not any(seen(loads))


def test_without_a_ledger_a_queue_is_no_surprise() -> None:
    assert not any(seen([LOAD] * 100, slot(ledger=False)))


class Holding(FakeSGLang):
    """Holds its calls in the queue until they are woken."""

    @override
    def fault_of(self, call: dict[str, Any]) -> str:
        return "stall"

    @override
    async def loads(self, _: web.Request) -> web.Response:
        return self._control("/v1/loads", {"loads": [{"num_waiting_reqs": self.running}]})


async def test_the_log_names_an_engine_whose_queue_stands(caplog: pytest.LogCaptureFixture) -> None:
    fake = Holding()
    async with rolling(fake, timing=Timing(poll_s=0.02, queue_standing_s=0.1)) as rollout:
        rolled = asyncio.create_task(all_groups(rollout))
        await until(lambda: "a reason that it does not report: 16" in caplog.text)
        fake.wake_stalled()
        check(await rolled)
        assert rollout.report()["lost_chunks"] == 0
