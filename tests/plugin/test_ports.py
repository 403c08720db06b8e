"""The ranks of a server meet on loopback if all of them are on this machine."""

import threading
from datetime import timedelta
from typing import Any

import psutil

from seer_sgl.plugin.ports import rendezvous
from seer_sgl.processes.child import free_port
from tests.listening import listeners

TIMEOUT = timedelta(seconds=60)


def test_ranks_meet_at_a_store_that_listens_on_loopback_whatever_the_host() -> None:
    port = free_port()
    url = f"seer-loopback://0.0.0.0:{port}?rank={{}}&world_size=2"
    met: dict[int, Any] = {}

    def meet(number: int) -> None:
        met[number], rank, world_size = next(rendezvous(url.format(number), TIMEOUT))
        assert (rank, world_size) == (number, 2)

    second = threading.Thread(target=meet, args=(1,))  # the first one waits for it
    second.start()
    meet(0)
    second.join()
    met[1].set("key", "value")
    assert met[0].get("key") == b"value"
    (listener,) = [each for each in listeners([psutil.Process()]) if each.port == port]
    assert listener.ip == "127.0.0.1"
