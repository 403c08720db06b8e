"""What is done before a request: the server is up, with the trainer's weights."""

import asyncio
from typing import Any

import pytest
from mortal_fleet import START, MortalFleet
from seer_openrlhf import revival
from seer_openrlhf.client import ServerError, ServerLost
from seer_openrlhf.front import Front
from seer_openrlhf.revival import SENDS, Revival, behind
from seer_openrlhf.weight_clock import WeightClock

LOST = ServerLost("/rollout: it has ended")


class Looking:
    """A revival, what it sends, and its pauses. `sends`: whether the weights arrive."""

    def __init__(self, fleet: MortalFleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fleet = fleet
        self.sent = 0
        self.pauses: list[float] = []
        self.arrive = True
        self.sending = asyncio.Event()
        weights = WeightClock()
        weights.sent = 3
        self.revival = Revival(fleet, weights, 20.0, self.send)
        monkeypatch.setattr(revival, "sleep", self.sleep)
        monkeypatch.setattr(revival, "clock", lambda: sum(self.pauses))

    async def send(self) -> None:
        self.sent += 1
        self.sending.set()
        await asyncio.sleep(0)
        if self.arrive:
            self.fleet.version = "3"

    async def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        await asyncio.sleep(0)


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Looking:
    return Looking(MortalFleet(), monkeypatch)


@pytest.mark.parametrize(
    ("version", "oldest", "found"),
    [
        ("3", 3, False),
        ("4", 3, False),
        ("2", 3, True),
        (START, 0, True),
        ("", 0, True),
        ("²", 0, True),
        (START, None, False),
    ],
)
def test_weights_are_the_trainers_from_the_last_sent_step_on(
    version: str, oldest: int | None, found: bool
) -> None:
    assert behind(version, oldest) is found


async def test_weights_are_sent_once_for_all_that_wait(looking: Looking) -> None:
    looking.fleet.end()
    found = await asyncio.gather(*(looking.revival.ready(LOST) for _ in range(5)))
    assert found == [True] * 5
    assert (looking.sent, looking.fleet.version) == (1, "3")
    assert await looking.revival.ready() is True
    assert looking.sent == 1


async def test_a_caller_that_leaves_does_not_end_the_sending(looking: Looking) -> None:
    first = asyncio.create_task(looking.revival.ready())
    await looking.sending.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert first.cancelled()
    assert await looking.revival.ready() is True
    assert (looking.sent, looking.fleet.version) == (1, "3")


async def test_a_server_that_is_not_back_in_time_is_an_error(looking: Looking) -> None:
    looking.fleet.away = 10**6
    looking.fleet.end()
    with pytest.raises(ServerError) as caught:
        await looking.revival.ready()
    assert str(caught.value) == "the server does not answer; the server was not back after 20 s"
    assert not isinstance(caught.value, ServerLost)
    assert looking.pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert looking.sent == 0


async def test_weights_that_do_not_arrive_are_an_error(looking: Looking) -> None:
    looking.arrive = False
    with pytest.raises(ServerError, match=f"not ready after {SENDS} attempts: it has other "):
        await looking.revival.ready()
    assert looking.sent == SENDS


async def test_an_engine_that_the_server_does_not_use_may_have_other_weights(
    looking: Looking,
) -> None:
    async def outcome(path: str, body: Any) -> tuple[int, Any]:
        meta = {"weight_version": START, "stale": "it missed an update"}
        return 200, {"engines": [{"id": "e0", "metadata": meta}]}

    vars(looking.fleet)["outcome"] = outcome
    assert await looking.revival.ready() is True
    assert looking.sent == 0


async def test_before_the_first_send_any_weights_will_do() -> None:
    fleet = MortalFleet()
    server: Any = fleet
    assert await Front(server, None)._revival.ready() is True


async def test_several_asynchronous_ranks_do_not_send_again() -> None:
    server: Any = MortalFleet()
    front = Front(server, None)
    front.join(0, 2, None, asynchronous=True)
    front._weights.sent = 1
    with pytest.raises(ServerError, match="several asynchronous ranks"):
        await front._revival.ready()
