"""The parts of OpenRLHF that seer-openrlhf rebinds, overrides or calls, in one table.

At start the table is compared with the installed package: a difference would otherwise show as an
error in the middle of a run, or as samples that are quietly wrong.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

MADE_FOR = "0.11.2"


@dataclass(frozen=True, kw_only=True)
class Seam:
    """One name of OpenRLHF, with a dot for a method.

    `parameters`: as `parameters_of` writes them. `replacement`: module:name of what is put there.
    """

    module: str
    name: str
    parameters: str
    purpose: str
    replacement: str = ""


TRAINER = (
    "(strategy, actor, ema_model, actor_optim, actor_scheduler, ema_beta=0.992, "
    "micro_train_batch_size=8, buffer_limit=0, buffer_cpu_offload=True, eps_clip=0.2, "
    "tokenizer=None, dataloader_pin_memory=True, vllm_engines=None, **kwargs)"
)
GENERATOR = "(strategy, prompts_dataloader, eval_dataloader, tokenizer, vllm_engines)"
EXECUTE = "(prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None)"
REWARDS = "(queries_list, prompts_list, labels_list)"

SEAMS = (
    Seam(
        module="openrlhf.trainer.ray",
        name="create_vllm_engines",
        parameters="(num_engines, tensor_parallel_size, pretrain, seed, full_determinism, "
        "enable_prefix_caching, enforce_eager, max_model_len, shared_pg=None, "
        "gpu_memory_utilization=None, vllm_enable_sleep=False, logprobs_mode=None, "
        "agent_func_path=None, remote_rm_url=None, max_images_per_prompt=0)",
        purpose="the engines: one Ray actor in front of the server",
        replacement="seer_openrlhf.front:create_engines",
    ),
    Seam(
        module="openrlhf.trainer.ppo_trainer",
        name="SamplesGenerator",
        parameters=GENERATOR,
        purpose="the batches of the synchronous trainer",
        replacement="seer_openrlhf.generator:SeerSamplesGenerator",
    ),
    Seam(
        module="openrlhf.trainer.ppo_trainer_async",
        name="SamplesGenerator",
        parameters=GENERATOR,
        purpose="the batches of the asynchronous trainer",
        replacement="seer_openrlhf.generator:SeerSamplesGenerator",
    ),
    Seam(
        module="openrlhf.trainer.ray.ppo_actor",
        name="ActorPPOTrainer",
        parameters=TRAINER,
        purpose="the trainer that sends its weights",
        replacement="seer_openrlhf.trainer:SeerActorTrainer",
    ),
    Seam(
        module="openrlhf.trainer.ppo_utils.samples_generator",
        name="SamplesGenerator._generate_vllm",
        parameters="(dataloader_iter, num_prompts, dynamic_filtering, **generate_kwargs)",
        purpose="overridden: all prompts of a batch go to the server together",
    ),
    Seam(
        module="openrlhf.trainer.ppo_utils.samples_generator",
        name="SamplesGenerator._dispatch_prompts_to_vllm",
        parameters="(prompts, labels, *, images=None, **generate_kwargs)",
        purpose="overridden: prompts get their places in the batch; some are dispatched ahead",
    ),
    Seam(
        module="openrlhf.trainer.ppo_utils.samples_generator",
        name="SamplesGenerator.generate_eval_samples",
        parameters="(**generate_kwargs)",
        purpose="overridden: evaluations have seeds of their own",
    ),
    Seam(
        module="openrlhf.trainer.ppo_utils.samples_generator",
        name="SamplesGenerator._process_response_into_experience",
        parameters="(response, **generate_kwargs)",
        purpose="it makes `info` of a response's `extra_logs`, where our figures are",
    ),
    Seam(
        module="openrlhf.trainer.ppo_utils.samples_generator",
        name="_collect_prompt_batch",
        parameters="(dataloader_iter, num_prompts)",
        purpose="it draws prompts, from an iterator of ours where some are dispatched ahead",
    ),
    Seam(
        module="torchdata.stateful_dataloader",
        name="StatefulDataLoader.state_dict",
        parameters="()",
        purpose="replaced in the dataloader of prompts: checkpoints keep what is in progress",
    ),
    Seam(
        module="torchdata.stateful_dataloader",
        name="StatefulDataLoader.load_state_dict",
        parameters="(state_dict)",
        purpose="replaced in the dataloader of prompts: checkpoints keep what is in progress",
    ),
    Seam(
        module="openrlhf.trainer.ray.ppo_actor",
        name="ActorPPOTrainer._init_vllm_sync_group",
        parameters="(backend)",
        purpose="overridden: the process group that SGLang's engines join is made with an update",
    ),
    Seam(
        module="openrlhf.trainer.ray.ppo_actor",
        name="ActorPPOTrainer.ppo_train",
        parameters="(kl_ctl)",
        purpose="overridden: the check of weights takes a sample before the training",
    ),
    Seam(
        module="openrlhf.trainer.ray.ppo_actor",
        name="ActorPPOTrainer.broadcast_to_vllm",
        parameters="()",
        purpose="overridden: a weight update in buckets, through the server",
    ),
    Seam(
        module="openrlhf.models.actor",
        name="Actor.forward",
        parameters="(sequences, action_mask=None, attention_mask=None, return_output=False, "
        "allgather_logits=False, return_logprobs=False, ring_attn_group=None, "
        "packed_seq_lens=None, return_entropy=False, **mm_inputs)",
        purpose="called: the trainer's log probabilities for the check of weights",
    ),
    Seam(
        module="openrlhf.utils.deepspeed.deepspeed",
        name="DeepspeedStrategy.save_model",
        parameters="(model, tokenizer, output_dir, **kwargs)",
        purpose="called: the weights for --seer.sync disk",
    ),
    Seam(
        module="openrlhf.trainer.ray.vllm_engine",
        name="RolloutRayActor.generate_responses",
        parameters="(prompt, label, sampling_params, max_length, hf_tokenizer, num_samples=1, "
        "images=None)",
        purpose="OpenRLHF calls it on what create_vllm_engines returns",
    ),
    Seam(
        module="openrlhf.trainer.ray.vllm_engine",
        name="RolloutRayActor.generate",
        parameters="(prompt_token_ids, sampling_params, multi_modal_data=None)",
        purpose="executors call it on their engine",
    ),
    Seam(
        module="openrlhf.trainer.ray.vllm_engine",
        name="_load_agent_executor",
        parameters="(agent_func_path)",
        purpose="called for --train.agent_func_path",
    ),
    Seam(
        module="openrlhf.utils.agent",
        name="SingleTurnAgentExecutor",
        parameters="(remote_rm_url=None)",
        purpose="the base of what is made where there is no --train.agent_func_path",
    ),
    Seam(
        module="openrlhf.utils.agent",
        name="SingleTurnAgentExecutor.execute",
        parameters=EXECUTE,
        purpose="overridden: a reward that is missing is an error",
    ),
    Seam(
        module="openrlhf.utils.agent",
        name="SingleTurnAgentExecutor._fetch_rewards_via_func",
        parameters=REWARDS,
        purpose="overridden: the error of a reward function is kept",
    ),
    Seam(
        module="openrlhf.utils.agent",
        name="SingleTurnAgentExecutor._fetch_rewards_via_http",
        parameters=REWARDS,
        purpose="overridden: the error of a reward endpoint is kept",
    ),
    Seam(
        module="openrlhf.utils.agent",
        name="AgentExecutorBase.execute",
        parameters=EXECUTE,
        purpose="called for every sample",
    ),
)


def problems() -> Iterator[str]:
    """Yields one line for each difference between SEAMS and the installed OpenRLHF.

    Another version, or a module that cannot be imported, is the only line.
    """
    try:
        installed = version("openrlhf")
    except PackageNotFoundError:
        yield f"openrlhf is not installed; seer-openrlhf is made for {MADE_FOR}"
        return
    if installed != MADE_FOR:
        yield f"openrlhf {installed} is installed; seer-openrlhf is made for {MADE_FOR}"
        return
    for seam in SEAMS:
        try:
            module = import_module(seam.module)
        except Exception as error:  # OpenRLHF's own imports: vllm, flash_attn, CUDA
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            yield f"{seam.module} cannot be imported: {reason}"
            return
        yield from _differences(seam, module)


def rebind() -> None:
    """Puts every replacement in its place. Later imports and new Ray actors use them."""
    # All are imported before the first is put in its place: they are subclasses of what was there.
    replacements = [(seam, _named(seam.replacement)) for seam in SEAMS if seam.replacement]
    for seam, replacement in replacements:
        setattr(import_module(seam.module), seam.name, replacement)


def parameters_of(function: Any) -> str:
    """Returns the parameters of a function, method or class as text.

    It leaves out annotations, self, and what Ray adds to the methods of actors.
    """
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "_ray_trace_ctx")
    ]
    return str(inspect.Signature(parameters))


def _differences(seam: Seam, module: Any) -> Iterator[str]:
    found = module
    for name in seam.name.split("."):
        found = getattr(found, name, None)
    if not callable(found):
        yield f"{seam.module}.{seam.name} is missing ({seam.purpose})"
        return
    parameters = parameters_of(found)
    if parameters != seam.parameters:
        yield f"{seam.module}.{seam.name} takes {parameters}, and not {seam.parameters}"


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
