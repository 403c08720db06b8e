"""The names of vllm that openrlhf 0.11.2 imports where no vLLM engine is made."""

from dataclasses import dataclass

from stand_in import refuse_if_installed

refuse_if_installed("vllm", "vllm")

__version__ = "0.29.0"  # what openrlhf 0.11.2 asks for


@dataclass
class SamplingParams:
    """The sampling parameters that openrlhf sets, with vLLM's defaults."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int | None = 16
    min_tokens: int = 0
    skip_special_tokens: bool = True
    logprobs: int | None = None
