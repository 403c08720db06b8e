"""What the target can verify, by what SGLang 0.5.21's attention backends do with drafts.

On GPUs this is known from reading, from Triton's interpreter, and for chains with FlashAttention 3
from an H200 (docs/gpu.md).
"""

from typing import NamedTuple

from seer_sgl.plugin.sglang_types import SglModelRunner

from .shapes import has_state, has_window, on_gpu

TREE_BACKENDS = frozenset({"torch_native", "triton", "flashinfer"})  # others ignore a draft's mask
CHUNKED = frozenset({"fa3", "fa4"})  # they attend within chunks, but not in a graph of drafts


class Verifier(NamedTuple):
    """The part of an engine that verifies drafts.

    backend: of the attention of verifications. window, recurrent: whether the model has layers with
    a sliding window, or with a state. chunked: whether layers attend within chunks of the context
    (Llama 4). latent: whether its KV is that of multi-head latent attention.
    """

    gpu: bool
    backend: str
    deterministic: bool
    window: bool
    recurrent: bool
    chunked: bool
    latent: bool


def verifies_trees(verifier: Verifier) -> bool:
    """Returns whether a node attends to its ancestors only; if not, drafts must be chains."""
    if verifier.backend not in TREE_BACKENDS:
        return False
    # For latent attention flashinfer has another kernel, to which SGLang passes no mask.
    if verifier.latent and verifier.backend == "flashinfer":
        return False
    # On a GPU, the positions of a window are those of the nodes' numbers, not of their depths, and
    # recurrent layers run through all nodes in a row.
    return not (verifier.gpu and (verifier.window or verifier.recurrent))


def obstacle(verifier: Verifier) -> str | None:
    """Returns why a draft could change tokens; None if it cannot.

    With a sliding window, flashinfer reads the KV at the beginning of the context, and Triton's
    kernel of deterministic inference reads the rows of a mask at the wrong place
    (`extend_attention_fwd_unified`). FlashAttention's CUDA graphs hold the chunks of a decode step
    only (`_maybe_update_local_attn_metadata_for_capture`): in a graph that verifies, all layers
    attend to the whole context.
    """
    if verifier.gpu and verifier.chunked and verifier.backend in CHUNKED:
        return (
            f"{verifier.backend} verifies drafts of a model that attends within chunks wrongly; "
            "set draft.scope: none"
        )
    wrong = verifier.backend == "flashinfer" or (
        verifier.backend == "triton" and verifier.deterministic
    )
    if not (verifier.gpu and verifier.window and wrong):
        return None
    return (
        f"{verifier.backend} verifies drafts of a model with a sliding window wrongly; "
        "set engines.sglang.attention-backend: fa3, or draft.scope: none"
    )


def refuse_ngrams(runner: SglModelRunner) -> None:
    """Raises ValueError if the embedding of a token depends on the tokens before it.

    LongCat Flash Lite and DeepSeek V4.1 look these tokens up in a table that a verification does
    not fill (`NgramEmbeddingManager`).
    """
    config = runner.model_config
    if getattr(config, "use_ngram_embedding", False) or getattr(config, "use_engram", False):
        raise ValueError(
            "draft.scope: SGLang verifies drafts of a model that embeds n-grams wrongly; set none "
            "(and leave out engines.exact)"
        )


def verifier_of(runner: SglModelRunner) -> Verifier:
    """Returns the facts of a loaded target."""
    from sglang.srt.runtime_context import get_exec, get_spec

    decodes = get_spec().speculative_attention_mode == "decode"
    return Verifier(
        gpu=on_gpu(runner),
        backend=runner.decode_attention_backend_str
        if decodes
        else runner.prefill_attention_backend_str,
        deterministic=get_exec().deterministic.enable_deterministic_inference,
        window=has_window(runner),
        recurrent=has_state(runner),
        chunked=runner.model_config.is_local_attention_model,
        latent=runner.use_mla_backend,
    )
