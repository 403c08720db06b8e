"""A plugin for SGLang, of benchmarks only: engines give out a recorded text instead of their draws.

SGLang's sampler draws as always. Then the draw of a request, known by its seed, is replaced by the
token that its recorded response has at that position. This holds for the nodes of a draft too: at
a node behind a rejected draft the token does not matter. So plain and drafting engines do all their
work, and give out the same text. Log probabilities stay those of the draws.

It needs `enable-deterministic-inference`, without which SGLang's sampler gets no seeds. With
SEER_BENCH_KERNELS=usual the engine has seeds, and the kernels that SGLang runs without that flag:
those products that PyTorch chooses, and FlashAttention 3 with splits.
"""

import os
from pathlib import Path
from typing import Any

import torch

from bench import engine_plugin

from .text import Text

NAME = "seer_sgl_imposed_text"
FILE = "SEER_BENCH_TEXT"  # environment variable of the engine: a file of text.py
KERNELS = "SEER_BENCH_KERNELS"  # environment variable of the engine
USUAL = "usual"
SAMPLER = "sglang.srt.layers.sampler.Sampler.forward"
INVARIANT = "sglang.srt.model_executor.model_runner.ModelRunner.maybe_enable_batch_invariant_mode"
FLASH = "sglang.srt.layers.attention.flashattention_backend.FlashAttentionBackend.__init__"


class Imposed:
    """A text on the device of the draws."""

    def __init__(self, text: Text) -> None:
        self._fields = [torch.from_numpy(field) for field in text]

    def replace(
        self, draws: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Returns the text's tokens; the draws of requests that it does not have, or behind its
        end. All [n]; positions: of the tokens before the draws. Waits for nothing."""
        if self._fields[0].device != draws.device:
            self._fields = [field.to(draws.device) for field in self._fields]
        known_seeds, prompts, begins, tokens = self._fields
        row = torch.searchsorted(known_seeds, seeds).clamp_(max=len(known_seeds) - 1)
        at = begins[row] + positions + 1 - prompts[row]
        inside = (known_seeds[row] == seeds) & (at >= begins[row]) & (at < begins[row + 1])
        return torch.where(inside, tokens[at.clamp(0, len(tokens) - 1)].to(draws.dtype), draws)

    def hook(
        self,
        draws: torch.Tensor,
        _sampler: Any,
        _output: Any,
        sampling: Any,
        _return_logprob: bool,
        _top_logprobs_nums: Any,
        _token_ids_logprobs: Any,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Follows SGLang's `Sampler.forward`, whose arguments come after its result."""
        if sampling.sampling_seed is None:
            return draws
        return self.replace(draws, sampling.sampling_seed, positions)


def load() -> None:
    """Installs the text in this process; called by SGLang's `load_plugins`."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    imposed = Imposed(Text.load(Path(os.environ[FILE])))
    HookRegistry.register(SAMPLER, imposed.hook, HookType.AFTER)
    if os.environ.get(KERNELS) == USUAL:
        HookRegistry.register(INVARIANT, leave, HookType.REPLACE)
        HookRegistry.register(FLASH, split, HookType.AFTER)


def leave(_runner: Any) -> None:
    """Stands in for what replaces PyTorch's products and norms."""


def split(_result: None, backend: Any, *_: Any, **__: Any) -> None:
    """Follows the start of a FlashAttention backend, and lets it choose its splits."""
    backend.num_splits = backend.decode_num_splits = 0


def environment(folder: Path, text: Path) -> dict[str, str]:
    """Returns the variables of an engine that gives out this text. `folder`: of the plugin."""
    return engine_plugin.variables(folder) | {FILE: str(text)}


def write_plugin(folder: Path) -> None:
    """Writes what makes SGLang load this module in engines with that environment."""
    engine_plugin.write(folder, NAME, f"{__name__}:load")
