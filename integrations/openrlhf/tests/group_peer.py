"""Ranks of a process group that stand in for engines: python group_peer.py PORT WORLD RANK COUNT.

It receives COUNT tensors, and prints `first` after one and `end` after all; `failed` if it is
disconnected before. With COUNT -1 it joins and then hangs, as an engine that receives nothing.
"""

import sys
import time
from datetime import timedelta

import torch.distributed
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

NUMBERS = 1 << 20
NAME = "test"


def main(port: int, world_size: int, rank: int, count: int) -> None:
    """Joins as SGLang does, without a timeout of its own."""
    timeout = timedelta(seconds=600)
    print("joining", flush=True)
    store, _, _ = next(rendezvous(f"tcp://127.0.0.1:{port}", rank, world_size, timeout=timeout))
    group, _ = distributed_c10d._new_process_group_helper(
        world_size,
        rank,
        [],
        distributed_c10d.Backend("gloo"),
        distributed_c10d.PrefixStore(NAME, store),
        group_name=distributed_c10d.GroupName(NAME),
        backend_options=None,
        timeout=timeout,
    )
    distributed_c10d._world.pg_group_ranks[group] = {each: each for each in range(world_size)}
    print("joined", flush=True)
    if count < 0:
        time.sleep(600)
    tensor = torch.empty(NUMBERS)
    for done in range(count):
        try:
            torch.distributed.broadcast(tensor, src=0, group=group)
        except RuntimeError:
            print("failed", flush=True)
            return
        if not done:
            print("first", flush=True)
    print("end", float(tensor.sum()), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
