"""A trainer of one rank that sends its weights to a rollout server, as RL frameworks do.

`python -m tests.e2e.trainer ARGUMENTS`: one JSON object. It knows HTTP and torch only.
"""

import base64
import io
import json
import sys
import threading
import urllib.request
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

TIMEOUT_S = 240.0
GROUP = "trainer"
Weights = list[tuple[str, torch.Tensor]]


def post(url: str, path: str, **fields: Any) -> dict[str, Any]:
    """Returns the JSON answer of a control call, which must succeed."""
    request = urllib.request.Request(
        url + path, json.dumps(fields).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        answer: dict[str, Any] = json.loads(reply.read())
    return answer


class Posted(threading.Thread):
    """A control call in the background, while the trainer takes part in its collective."""

    def __init__(self, url: str, path: str, **fields: Any) -> None:
        super().__init__()
        self._call = (url, path, fields)
        self._answer: dict[str, Any] | Exception = {}
        self.start()

    def run(self) -> None:
        """Makes the call."""
        url, path, fields = self._call
        try:
            self._answer = post(url, path, **fields)
        except Exception as error:
            self._answer = error

    def answer(self) -> dict[str, Any]:
        """Returns the answer. Raises the call's error."""
        self.join()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


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
    """Sends the weights through a process group, in two buckets."""
    port = free_port()
    making = Posted(
        url,
        "/init_weights_update_group",
        master_address="127.0.0.1",
        master_port=port,
        rank_offset=1,
        world_size=1 + ranks,
        group_name=GROUP,
        backend="gloo",
    )
    group = joined(port, 1 + ranks)
    making.answer()
    half = len(weights) // 2
    for bucket in (weights[:half], weights[half:]):
        update = Posted(
            url,
            "/update_weights_from_distributed",
            names=[name for name, _ in bucket],
            dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            shapes=[list(tensor.shape) for _, tensor in bucket],
            group_name=GROUP,
            weight_version=version,
        )
        for _, tensor in bucket:
            torch.distributed.broadcast(tensor, src=0, group=group)
        update.answer()
    leaving = Posted(url, "/destroy_weights_update_group", group_name=GROUP)
    torch.distributed.destroy_process_group(group)
    leaving.answer()


def send_tensors(url: str, weights: Weights, entries: int, version: str | None) -> None:
    """Sends the weights as serialized tensors: one entry per rank."""
    torch.multiprocessing.set_sharing_strategy("file_system")
    serialized = []
    for _ in range(entries):
        pickled = io.BytesIO()
        ForkingPickler(pickled).dump([(name, tensor.clone()) for name, tensor in weights])
        serialized.append(base64.b64encode(pickled.getvalue()).decode())
    post(
        url,
        "/update_weights_from_tensor",
        serialized_named_tensors=serialized,
        weight_version=version,
    )


def main(*, url: str, model: str, kind: str, ranks: int, version: str, session: bool) -> None:
    """Sends the weights in a model's folder."""
    weights = sorted(load_file(f"{model}/model.safetensors").items())
    if session:
        post(url, "/begin_weight_update")
    send = broadcast if kind == "distributed" else send_tensors
    send(url, weights, ranks, version)
    if session:
        post(url, "/end_weight_update")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
