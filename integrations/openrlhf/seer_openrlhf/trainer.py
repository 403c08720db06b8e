"""OpenRLHF's actor trainer, which sends its weights to the engines behind the server."""

import logging
import uuid
from collections.abc import Mapping
from typing import Any

import deepspeed
import ray
import torch
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync

from . import process_group
from .buckets import buckets
from .flags import SeerFlags, current_flags
from .ports import free_port

logger = logging.getLogger(__name__)


class WeightError(RuntimeError):
    """The weights did not reach the engines."""


class SeerActorTrainer(ActorPPOTrainer):
    """Replaces vLLM's PyNccl group, which SGLang cannot join, by a torch process group."""

    _seer: SeerFlags
    _group: Any
    _group_name: str
    _version: int

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Makes the group of this rank 0 and every rank of every engine."""
        self._seer, self._version = current_flags(), 0
        front = self.vllm_engines[0]
        host, port = ray.util.get_node_ip_address(), free_port("")
        ranks = self._get(front.ranks.remote(), "/server_info")
        self._group_name = f"openrlhf-{uuid.uuid4().hex}"
        joined = front.control.remote(
            "/init_weights_update_group",
            master_address=host,
            master_port=port,
            rank_offset=1,
            world_size=1 + ranks,
            group_name=self._group_name,
            backend=backend,
        )
        self._group = process_group.join(
            self._group_name,
            backend,
            f"{host}:{port}",
            world_size=1 + ranks,
            timeout_s=self._seer.timeout_s,
        )
        self._control_answer(joined, "/init_weights_update_group")

    def broadcast_to_vllm(self) -> None:
        """Sends all parameters to every engine, under the next version."""
        leads = torch.distributed.get_rank() == 0
        if leads:
            self._version += 1
            self._control("/begin_weight_update")
        for bucket in buckets(self._parameters(), self._bucket_bytes()):
            tensors = [parameter for _, parameter in bucket]
            with self._gathered(tensors):
                if leads:
                    self._send([(name, parameter.data) for name, parameter in bucket])
        if leads:
            self._control("/end_weight_update")
        torch_dist_barrier_and_cuda_sync()

    def _parameters(self) -> list[tuple[str, Any]]:
        return list(self.actor.model.module.named_parameters())

    def _bucket_bytes(self) -> int:
        return current_flags().bucket_mb << 20

    def _gathered(self, parameters: list[Any]) -> Any:
        """Returns a context in which rank 0 has the whole parameters (ZeRO-3, tensor parallel)."""
        ds = self.strategy.args.ds
        if ds.tensor_parallel_size > 1:
            layers = deepspeed.module_inject.layers
            return layers.GatherReplacedLayerParams(
                parameters, self.actor.model.module, enabled=True
            )
        return deepspeed.zero.GatheredParameters(parameters, enabled=ds.zero_stage == 3)

    def _send(self, bucket: list[tuple[str, torch.Tensor]]) -> None:
        """Broadcasts one bucket while the engines receive it."""
        answer = self.vllm_engines[0].control.remote(
            "/update_weights_from_distributed",
            names=[name for name, _ in bucket],
            dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
            shapes=[list(tensor.shape) for _, tensor in bucket],
            group_name=self._group_name,
            weight_version=str(self._version),
        )
        for _, tensor in bucket:
            torch.distributed.broadcast(tensor, src=0, group=self._group)
        self._control_answer(answer, "/update_weights_from_distributed")

    def _control(self, path: str, **fields: Any) -> None:
        self._control_answer(self.vllm_engines[0].control.remote(path, **fields), path)

    def _control_answer(self, reference: Any, path: str) -> None:
        """Raises WeightError if no engine has done what it was asked; a failed one is stale."""
        answer = self._get(reference, path)
        if not answer.get("success", True):
            raise WeightError(f"step {self._version}: {path}: {answer.get('message')}")
        failed = failed_engines(answer)
        if failed:
            logger.warning("step %s: %s failed on %s", self._version, path, ", ".join(failed))

    def _get(self, reference: Any, what: str) -> Any:
        try:
            return ray.get(reference, timeout=self._seer.timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise WeightError(
                f"step {self._version}: {what} has no answer after {self._seer.timeout_s:g} s"
            ) from None


def failed_engines(answer: Mapping[str, Any]) -> list[str]:
    """Returns the engines that a combined answer of the server does not report as successful."""
    engines = answer.get("engines")
    if not isinstance(engines, Mapping):
        return []
    return sorted(
        name
        for name, reply in engines.items()
        if not isinstance(reply, Mapping) or reply.get("status") != 200
    )
