"""The torch process group of the trainer's rank 0 and the ranks of engines.

SGLang's side of it is `init_custom_process_group` (sglang/srt/utils/common.py): a group beside the
default one, under a name of its own in the store.
"""

import contextlib
import threading
import traceback
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch.distributed
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from .failures import one_line

ERROR_CHARACTERS = 200  # of gloo's and NCCL's own texts, which say at length what is typical
LEAVE_S = 1.0  # a group without a rank that hangs is destroyed within milliseconds


class Group:
    """A group in which this process is rank 0. Every operation has `timeout_s`."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._works: list[Any] = []  # the broadcasts in progress

    @classmethod
    def join(
        cls,
        name: str,
        backend: str,
        address: str,
        *,
        world_size: int,
        join_s: float,
        timeout_s: float,
    ) -> "Group":
        """Returns the group once all have joined. `address`: host and port, where this listens.

        Raises RuntimeError after `join_s`. The ranks that wait for others fail then as well,
        because the store ends.
        """
        try:
            group = _made(
                name,
                backend,
                address,
                world_size=world_size,
                within=timedelta(seconds=join_s),
                timeout=timedelta(seconds=timeout_s),
            )
        except RuntimeError as error:
            why = one_line(str(error))
            traceback.clear_frames(error.__traceback__)  # they have the last references to it
            raise RuntimeError(why) from None
        return cls(group)

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Starts to send tensors to all other ranks."""
        self._works = [
            torch.distributed.broadcast(tensor, src=0, group=self._group, async_op=True)
            for tensor in tensors
        ]

    def error(self) -> str | None:
        """Returns why a broadcast has failed; None if none has."""
        for work in self._works:
            try:
                if work.is_completed():
                    work.wait()
            except RuntimeError as error:
                return one_line(str(error), ERROR_CHARACTERS)
        return None

    def wait(self) -> None:
        """Returns when the broadcasts have ended. Raises RuntimeError for one that failed."""
        for work in self._works:
            work.wait()
        self._works = []

    def leave(self) -> None:
        """Leaves the group, and aborts what is in progress, so that other ranks stop waiting.

        With gloo a send to a rank that hangs ends with the group's timeout only, and the group's
        destructor waits for it: a thread of its own does. A rank that has received a part of a
        tensor is not woken up by gloo: it waits for a timeout of its own.
        """
        last = [self._group, self._works]  # the connections close with the last reference
        self._group, self._works = None, []
        thread = threading.Thread(target=_destroy, args=(last,), daemon=True)
        thread.start()
        thread.join(LEAVE_S)


def _made(
    name: str,
    backend: str,
    address: str,
    *,
    world_size: int,
    within: timedelta,
    timeout: timedelta,
) -> Any:
    store, _, _ = next(rendezvous(f"tcp://{address}", 0, world_size, timeout=within))
    store.set_timeout(within)
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


def _destroy(last: list[Any]) -> None:
    """Destroys a group. `last`: it and its broadcasts, with the last references to them."""
    group = last[0]
    for device in group._device_types:
        with contextlib.suppress(Exception):  # a backend without abort
            group._get_backend(device).abort()
    with contextlib.suppress(Exception):  # what failed before fails here again
        torch.distributed.destroy_process_group(group)
    last.clear()
