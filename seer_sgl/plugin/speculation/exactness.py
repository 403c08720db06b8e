"""Whether all steps of an engine on a GPU round alike, for `engines.exact` (docs/exactness.md).

With deterministic inference FlashAttention 3 has one kernel for all steps, Triton one for all but
decoding.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from seer_sgl.link.contract import ALGORITHM
from seer_sgl.plugin.sglang_types import SglModelRunner, SglServerArgs

from .shapes import has_state, has_window

FA3, TRITON = "fa3", "triton"
HOPPER = 9  # major compute capability
# Flags of SGLang with which steps were not compared.
UNCOMPARED = (
    "enable_lora",
    "enable_dp_attention",
    "enable_mixed_chunk",
    "enable_two_batch_overlap",
)
BACKEND = "engines.sglang.attention-backend"
DECODES = (
    f"its plain steps do not run the attention kernel of its prefill; set {BACKEND}: {TRITON} in "
    "the config, and start it with `seer-sgl engine --fleet`"
)


class Target(NamedTuple):
    """What decides about the kernels of an engine on a GPU.

    backends: of the attention in prefill and in decoding. paths: the maximum of continuations per
    node of a draft. window, recurrent: layers with a sliding window, or with a state. decodes:
    whether plain steps are decode steps. flags: others that were not compared.
    """

    hopper: bool
    deterministic: bool
    backends: tuple[str, str]
    paths: int
    window: bool
    recurrent: bool
    quantization: str | None
    compiled: bool
    on_policy: bool
    decodes: bool
    flags: tuple[str, ...]


def obstacle(runner: SglModelRunner, paths: int, *, decodes: bool) -> str | None:
    """Returns the first reason why division or drafts can change a bit; None if they cannot.

    runner: a loaded target. paths, decodes: see Target.
    """
    return next(obstacles(target_of(runner, paths, decodes)), None)


def needs_verifications(runner: SglModelRunner) -> bool:
    """Returns whether plain steps must be verifications to round like them: decoding has a kernel
    of its own."""
    return runner.decode_attention_backend_str != FA3


def obstacles(target: Target) -> Iterator[str]:
    """Yields the reasons why division or drafts can change the rounding of a step."""
    if not target.deterministic:
        yield "it runs without deterministic inference"
    prefill, decode = target.backends
    if prefill != decode:
        yield f"its attention backends differ: {prefill} in prefill, {decode} in decoding"
    elif prefill not in (FA3, TRITON):
        yield f"its attention backend is {prefill}; set {BACKEND}: {TRITON}"
    elif prefill == FA3 and not target.hopper:
        yield f"{FA3} was compared on Hopper only; set {BACKEND}: {TRITON}"
    elif prefill == TRITON and target.decodes:
        yield DECODES
    if target.paths > 1:
        yield f"it drafts trees of {target.paths} paths, not chains"
    if target.window:
        # The kernel's blocks begin at the window of the first token that it computes.
        yield "its model has a sliding window"
    if target.recurrent:
        # A prefill sums over pieces of the prompt, a step over tokens.
        yield "its model has recurrent layers (linear attention or Mamba)"
    if target.quantization is not None:
        # SGLang's batch-invariant products are of unquantized weights.
        yield f"its weights are quantized ({target.quantization})"
    if target.compiled:
        yield "torch.compile makes kernels per batch size"
    if target.on_policy:
        yield "rl-on-policy-target replaces kernels"
    for flag in target.flags:
        yield f"it runs with {flag}"


def target_of(runner: SglModelRunner, paths: int, decodes: bool) -> Target:
    """Returns the properties of a loaded target."""
    from sglang.srt.runtime_context import get_exec

    execution = get_exec()
    return Target(
        hopper=on_hopper(),
        deterministic=execution.deterministic.enable_deterministic_inference,
        backends=(runner.prefill_attention_backend_str, runner.decode_attention_backend_str),
        paths=paths,
        window=has_window(runner),
        recurrent=has_state(runner),
        quantization=runner.model_config.quantization,
        compiled=execution.graph.enable_torch_compile,
        on_policy=execution.deterministic.rl_on_policy_target is not None,
        decodes=decodes,
        flags=tuple(flags_of(runner.server_args)),
    )


def flags_of(args: SglServerArgs) -> Iterator[str]:
    """Yields the flags of a server with which steps were not compared."""
    for name in UNCOMPARED:
        if getattr(args, name, False):
            yield f"--{name.replace('_', '-')}"
    if args.pp_size > 1:
        yield "--pp-size"
    if args.speculative_algorithm not in (None, ALGORITHM):
        yield "--speculative-algorithm"


def on_hopper() -> bool:
    """Returns whether this process sees an NVIDIA GPU of that generation."""
    if torch.version.cuda is None or not torch.cuda.is_available():  # AMD's capabilities differ
        return False
    return torch.cuda.get_device_capability()[0] == HOPPER
