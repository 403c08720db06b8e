"""A trainer of one rank that sends its weights to a rollout server, as RL frameworks do.

`python -m tests.e2e.trainer ARGUMENTS`: one JSON object. It knows HTTP and torch only.
"""

import base64
import io
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from safetensors.torch import load_file
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from seer_sgl.processes.child import free_port
from tests.e2e.calls import post

TIMEOUT_S = 240.0
GROUP = "trainer"
Weights = list[tuple[str, torch.Tensor]]


def joined(port: int, world_size: int) -> Any:
    """Returns the process group in which the trainer is rank 0."""
    timeout = timedelta(seconds=TIMEOUT_S)
    address = f"tcp://127.0.0.1:{port}"
    store, _, _ = next(rendezvous(address, 0, world_size, timeout=timeout))
    store = distributed_c10d.PrefixStore(GROUP, store)
    group, _ = distributed_c10d._new_process_group_helper(
        world_size,
        0,
        [],
        distributed_c10d.Backend("gloo"),
        store,
        group_name=distributed_c10d.GroupName(GROUP),
        backend_options=None,
        timeout=timeout,
    )
    distributed_c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world_size)}
    return group


def broadcast(url: str, weights: Weights, ranks: int, version: str | None) -> None:
    """Sends the weights through a process group, in two buckets.

    The calls wait in the background, while the trainer takes part in their collectives.
    """
    port = free_port()
    with ThreadPoolExecutor() as calls:
        making = calls.submit(
            post,
            f"{url}/init_weights_update_group",
            master_address="127.0.0.1",
            master_port=port,
            rank_offset=1,
            world_size=1 + ranks,
            group_name=GROUP,
            backend="gloo",
        )
        group = joined(port, 1 + ranks)
        making.result()
        half = len(weights) // 2
        for bucket in (weights[:half], weights[half:]):
            update = calls.submit(
                post,
                f"{url}/update_weights_from_distributed",
                names=[name for name, _ in bucket],
                dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
                shapes=[list(tensor.shape) for _, tensor in bucket],
                group_name=GROUP,
                weight_version=version,
            )
            for _, tensor in bucket:
                torch.distributed.broadcast(tensor, src=0, group=group)
            update.result()
        leaving = calls.submit(post, f"{url}/destroy_weights_update_group", group_name=GROUP)
        torch.distributed.destroy_process_group(group)
        leaving.result()


def send_tensors(url: str, weights: Weights, entries: int, version: str | None) -> None:
    """Sends the weights as serialized tensors: one entry per rank."""
    torch.multiprocessing.set_sharing_strategy("file_system")
    serialized = []
    for _ in range(entries):
        pickled = io.BytesIO()
        ForkingPickler(pickled).dump([(name, tensor.clone()) for name, tensor in weights])
        serialized.append(base64.b64encode(pickled.getvalue()).decode())
    post(
        f"{url}/update_weights_from_tensor",
        serialized_named_tensors=serialized,
        weight_version=version,
    )


def main(*, url: str, model: str, kind: str, ranks: int, version: str, session: bool) -> None:
    """Sends the weights in a model's folder."""
    weights = sorted(load_file(f"{model}/model.safetensors").items())
    if session:
        post(f"{url}/begin_weight_update")
    send = broadcast if kind == "distributed" else send_tensors
    send(url, weights, ranks, version)
    if session:
        post(f"{url}/end_weight_update")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
