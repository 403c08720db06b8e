"""The torch process group of the trainer's rank 0 and all engine ranks.

SGLang's side of it is `init_custom_process_group` (sglang/srt/utils/common.py): a group beside the
default one, under a name of its own in the store.
"""

from datetime import timedelta
from typing import Any

import torch.distributed
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous


def join(name: str, backend: str, address: str, *, world_size: int, timeout_s: float) -> Any:
    """Returns the group, in which this process is rank 0. `address`: host and port.

    Raises RuntimeError after the timeout.
    """
    timeout = timedelta(seconds=timeout_s)
    store, _, _ = next(rendezvous(f"tcp://{address}", 0, world_size, timeout=timeout))
    store.set_timeout(timeout)
    group, _ = distributed_c10d._new_process_group_helper(
        world_size,
        0,
        [],
        distributed_c10d.Backend(backend),
        distributed_c10d.PrefixStore(name, store),
        group_name=distributed_c10d.GroupName(name),
        backend_options=None,
        timeout=timeout,
    )
    distributed_c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
    return group


def leave(group: Any) -> None:
    """Leaves the group."""
    torch.distributed.destroy_process_group(group)
