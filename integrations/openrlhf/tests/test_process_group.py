"""A real gloo group, whose other ranks end or hang in the middle of a broadcast."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import group_peer
import pytest
import torch
from seer_openrlhf.ports import free_port
from seer_openrlhf.process_group import Group

TESTS = Path(__file__).parent
COUNT = 40
Peers = list["subprocess.Popen[str]"]


def join(port: int, world_size: int, join_s: float = 60.0, timeout_s: float = 60.0) -> Group:
    return Group.join(
        group_peer.NAME,
        "gloo",
        f"127.0.0.1:{port}",
        world_size=world_size,
        join_s=join_s,
        timeout_s=timeout_s,
    )


@contextlib.contextmanager
def peers(port: int, *counts: int) -> Iterator[Peers]:
    """Starts ranks 1 and up, which receive so many tensors each."""
    world = str(len(counts) + 1)
    with contextlib.ExitStack() as stack:
        found: Peers = []
        for rank, count in enumerate(counts, 1):
            command = [sys.executable, str(TESTS / "group_peer.py"), str(port), world]
            process = subprocess.Popen(
                [*command, str(rank), str(count)], stdout=subprocess.PIPE, text=True
            )
            found.append(stack.enter_context(process))
            stack.callback(process.kill)
        assert [line(each) for each in found] == ["joining"] * len(found)
        yield found


def line(peer: "subprocess.Popen[str]") -> str:
    assert peer.stdout is not None
    return peer.stdout.readline().strip()


def ones(count: int = COUNT) -> list[torch.Tensor]:
    return [torch.ones(group_peer.NUMBERS) for _ in range(count)]


@pytest.mark.long
def test_every_rank_receives_the_tensors() -> None:
    port = free_port("127.0.0.1")
    with peers(port, COUNT, COUNT) as both:
        group = join(port, 3)
        group.broadcast(ones())
        group.wait()
        for peer in both:
            lines = [line(peer), line(peer), line(peer)]
            assert lines == ["joined", "first", f"end {float(group_peer.NUMBERS)}"]
        group.leave()


def test_a_killed_rank_is_an_error_and_the_other_rank_stops_waiting() -> None:
    """The other rank waits for a whole tensor: one that has a part of it gloo does not wake up."""
    port = free_port("127.0.0.1")
    with peers(port, -1, COUNT) as (first, other):
        group = join(port, 3)
        assert (line(first), line(other)) == ("joined", "joined")
        group.broadcast(ones(1))
        assert line(other) == "first"
        first.kill()
        while group.error() is None:
            pass
        group.leave()
        assert line(other) == "failed"


@pytest.mark.long
def test_a_rank_that_hangs_holds_nothing_for_longer_than_the_timeout() -> None:
    port = free_port("127.0.0.1")
    with peers(port, -1, COUNT) as (first, other):
        group = join(port, 3, timeout_s=2.0)
        assert (line(first), line(other)) == ("joined", "joined")
        group.broadcast(ones(1))
        assert line(other) == "first"
        group.leave()  # returns although the broadcast continues
        assert line(other) == "failed"


@pytest.mark.long
def test_ranks_that_wait_for_another_one_fail_with_the_first() -> None:
    port = free_port("127.0.0.1")
    with peers(port, COUNT) as (only,):
        with pytest.raises(RuntimeError):
            join(port, 3, join_s=3.0)
        assert only.wait() == 1, "it has failed"


ABANDONED = """
import sys
sys.path[:0] = sys.argv[1:3]
from test_process_group import join, line, ones, peers, free_port
port = free_port("127.0.0.1")
with peers(port, -1) as (only,):
    group = join(port, 2, timeout_s=600.0)
    line(only)
    group.broadcast(ones())
    only.kill()
    while group.error() is None:
        pass
    group.leave()
print("left")
"""


def test_a_process_ends_after_it_has_left_a_broken_group() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ABANDONED, str(TESTS), str(TESTS.parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
