"""OpenRLHF's actor trainer, which sends its weights to the engines behind the server.

Every step is taken on all ranks, because parameters of ZeRO-3 are gathered by all. Rank 0 does what
concerns the engines, and shares the outcome.
"""

import contextlib
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import deepspeed
import ray
import torch
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync
from transformers.core_model_loading import revert_weight_conversion

from . import probe
from .broadcasts import BroadcastSender
from .buckets import buckets
from .calls import Calls, ServerGone, UpdateFailed, WeightError, logger
from .check import Check, Probe
from .disk import DiskSender
from .flags import current_flags
from .own_log_probs import own_log_probs, sample_ids
from .ports import free_port
from .versions import Versions, checkpoint_step

T = TypeVar("T")
ATTEMPTS = 3  # to send the weights of one step


class SeerActorTrainer(ActorPPOTrainer):
    """Sends weights through the server, where OpenRLHF has a process group with vLLM's engines."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seer = seer = current_flags()
        ckpt = self.args.ckpt
        folder = Path(ckpt.path, "_actor")
        self._versions = Versions(checkpoint_step(folder) if ckpt.load_enable else 0)
        self._calls = Calls(self.vllm_engines[0], seer.timeout_s)
        self._broadcasts = BroadcastSender(
            self._calls, self.args.vllm.sync_backend, seer.timeout_s, _address
        )
        self._disk = DiskSender(self._calls, Path(seer.sync_dir).absolute(), seer.timeout_s)
        self._check = Check(self._calls, seer.timeout_s)
        self._ids: list[int] = []  # of the probe
        self._old: list[float] | None = None  # its log probabilities with the weights sent last
        self._calls.join(
            torch.distributed.get_rank(),
            torch.distributed.get_world_size(),
            asynchronous=self.args.train.async_enable,
        )
        # Engines may hold other weights, of an earlier run for example, and a send that cannot
        # work is found before the first rollout.
        self._shared(self._calls.resume)
        self.broadcast_to_vllm()

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Does nothing: the group is made with an update, of the engines that answer then."""

    def ppo_train(self, kl_ctl: float) -> Any:
        """Trains (ActorPPOTrainer.ppo_train), after it has computed what the check compares."""
        if self._seer.check == "on" and len(self.replay_buffer.items) and self._old is None:
            items = self.replay_buffer.items
            self._ids = self._shared(lambda: sample_ids(items[0], probe.TOKENS))
            self._old = self._log_probs()
        return super().ppo_train(kl_ctl)

    def broadcast_to_vllm(self) -> None:
        """Sends all parameters to every engine that answers, and checks that they have them.

        Raises WeightError, which names the step and the engines.
        """
        step = self._versions.next(self.actor.model.global_steps)
        try:
            for _ in range(ATTEMPTS - 1):
                try:
                    self._send_and_check(step)
                    break
                except ServerGone as error:
                    self._shared(functools.partial(self._calls.until_up, str(error)))
            else:
                self._send_and_check(step)
        except WeightError as error:
            raise WeightError(f"step {step}: {error}") from None
        torch_dist_barrier_and_cuda_sync()

    def _send_and_check(self, step: int) -> None:
        """Sends the weights, and compares the engines' with them. Raises WeightError."""
        begun = time.monotonic()
        engines = self._send(step)
        sent_s = time.monotonic() - begun
        if self._seer.check == "on":
            self._require_equal(step, engines)
        if self._leads:
            line = "step %s: weights sent to %s in %.1f s, %.1f s with the check%s"
            names, both_s = ", ".join(engines), time.monotonic() - begun
            logger.info(line, step, names, sent_s, both_s, self._check.figures)

    def _send(self, step: int) -> list[str]:
        """Sends the weights, and returns the engines that have them. Raises WeightError."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._on_disk(step) if self._seer.sync == "disk" else self._broadcast(step)
            except UpdateFailed as error:
                if attempt == ATTEMPTS:
                    raise WeightError(f"{error} (attempt {attempt})") from None
                if self._leads:
                    logger.warning("step %s: sending the weights again: %s", step, error)
        raise AssertionError("unreachable")

    def _broadcast(self, step: int) -> list[str]:
        self._shared(lambda: self._broadcasts.begin(step))
        failure: UpdateFailed | WeightError | None = None
        for bucket in buckets(self._parameters(), self._seer.bucket_mb << 20):
            with self._gathered([parameter for _, parameter in bucket]):
                if self._leads and failure is None:
                    try:
                        self._broadcasts.send(self._as_saved(bucket))
                    except (UpdateFailed, WeightError) as error:
                        failure = error
        return self._shared(lambda: self._broadcasts.end(failure))

    def _on_disk(self, step: int) -> list[str]:
        self.strategy.save_model(self.actor, self.tokenizer, str(self._disk.folder(step)))
        return self._shared(lambda: self._disk.load(step))

    def _require_equal(self, step: int, engines: list[str]) -> None:
        """Sends the weights once more if an engine does not have them. Raises WeightError."""
        if not self._ids:
            config = self.actor.model.module.config.get_text_config()
            self._ids = probe.first_ids(config.vocab_size)
        found = Probe(self._ids, self._log_probs(), self._old)
        self._old = None
        problems = self._shared(lambda: self._check.problems(step, engines, found))
        if problems:
            if self._leads:
                logger.warning("step %s: sending the weights again: %s", step, "; ".join(problems))
            engines = self._send(step)
            problems = self._shared(lambda: self._check.problems(step, engines, found))
        if problems:
            raise WeightError("; ".join(problems))

    def _log_probs(self) -> list[float]:
        return own_log_probs(self.actor, self._ids, self.strategy.ring_attn_group)

    def _parameters(self) -> list[tuple[str, Any]]:
        return list(self.actor.model.module.named_parameters())

    def _as_saved(self, bucket: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Returns whole parameters with the names that the model's files have for them.

        Engines know no others, and skip them without an error: transformers has the experts of a
        layer in two parameters of its own.
        """
        module, data = self.actor.model.module, {name: each.data for name, each in bucket}
        # With ZeRO-3 transformers lists conversions too that the files did not need.
        module._weight_conversions = [c for c in module._weight_conversions if c.was_used()]
        saved = revert_weight_conversion(module, data)
        return [(name, tensor.contiguous()) for name, tensor in saved.items()]

    def _gathered(self, parameters: list[Any]) -> Any:
        """Returns a context in which rank 0 has the whole parameters (ZeRO-3, tensor parallel)."""
        ds = self.strategy.args.ds
        if ds.tensor_parallel_size > 1:
            gather = deepspeed.module_inject.layers.GatherReplacedLayerParams
            stack = contextlib.ExitStack()
            for each in parameters:  # DeepSpeed has the layer of the first one gather all of a call
                stack.enter_context(gather([each], self.actor.model.module, enabled=True))
            return stack
        return deepspeed.zero.GatheredParameters(parameters, enabled=ds.zero_stage == 3)

    @property
    def _leads(self) -> bool:
        rank: int = torch.distributed.get_rank()
        return rank == 0

    def _shared(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns on rank 0, on every rank; raises its error on every rank."""
        outcome: list[Any] = [None, None]
        if self._leads:
            try:
                outcome[0] = work()
            except (UpdateFailed, WeightError) as error:
                outcome[1] = error
        torch.distributed.broadcast_object_list(outcome, src=0)
        result, failure = outcome
        if failure is not None:
            raise failure
        found: T = result
        return found


def _address() -> tuple[str, int]:
    return ray.util.get_node_ip_address(), free_port("")
