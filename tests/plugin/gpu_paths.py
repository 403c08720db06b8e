"""A test program: our code for GPUs inside SGLang's own classes, on tensors that hold no data.

Tensors are on torch's meta device, where reading a value raises: what runs here copies nothing to
the host. `python -m tests.plugin.gpu_paths` prints one JSON object.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from seer_sgl.link.contract import ALGORITHM
from seer_sgl.plugin import cpu
from seer_sgl.plugin.speculation.algorithm import REFUSED_VARIABLES
from seer_sgl.plugin.speculation.graphs import requests_of, widths
from seer_sgl.plugin.speculation.node_sampler import ASKED_LOGPROBS
from seer_sgl.plugin.speculation.shapes import save_memory
from tests.e2e.conftest import MODEL

STRIDE, REQUESTS, LAYERS, PASSES = 5, 3, 4, 2
# Deterministic inference with the heads of Qwen2.5-7B, graphs of up to 256 requests.
WIDEST, LARGEST, HEADS, HEAD_DIM, CONTEXT, SPLIT = 17, 256, 28, 128, 32_768, 256


def nowhere(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Returns a tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta")


def sizing_backend(width: int) -> Any:
    """Returns a TritonAttnBackend with the attributes that size its graph buffers."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    one = TritonAttnBackend.__new__(TritonAttnBackend)
    attributes = {
        "num_head": HEADS,
        "v_head_dim": HEAD_DIM,
        "swa_v_head_dim": None,
        "max_context_len": CONTEXT,
        "max_kv_splits": CONTEXT // SPLIT,
        "num_draft_tokens": width,
        "sliding_window_size": None,
        "use_sliding_window_kv_pool": False,
        "kv_index_translator": SimpleNamespace(is_translating=False),
        "enable_deterministic": True,
        "build_unified_kv_indices": None,
        "is_draft_runner": False,
        "skip_prefill": False,
        "lean_total_programs": 1,
        "lean_block_m": 1,
        "device": "meta",
    }
    vars(one).update(attributes)
    return one


def graph_buffers(one: Any) -> Iterator[torch.Tensor]:
    """Yields the graph buffers of a backend."""
    for name, value in vars(one).items():
        if name.startswith("cuda_graph") and isinstance(value, torch.Tensor):
            yield value
    yield one._verify_mask.buffer


def buffer_bytes(saves: bool) -> int:
    """Returns the bytes of the graph buffers of all widths, with or without `save_memory`."""
    widest = sizing_backend(WIDEST)
    backends = []
    for width in reversed(widths(WIDEST, gpu=saves)):
        one = widest if width == WIDEST else sizing_backend(width)
        requests = requests_of(width, LARGEST) if saves else LARGEST
        if saves:
            save_memory(one, lambda: LARGEST, None if one is widest else widest)
        one.init_cuda_graph_state(requests, requests * width)
        assert one.max_kv_splits == CONTEXT // SPLIT, "decoding outside of graphs needs it"
        backends.append(one)
    different = {id(tensor): tensor.nbytes for one in backends for tensor in graph_buffers(one)}
    return sum(different.values())


def lists() -> dict[str, Any]:
    """Counts how often the lists of KV slots are built, and whether each layer gets its pass's."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    from seer_sgl.plugin.speculation.pass_lists import PassLists

    backend = TritonAttnBackend.__new__(TritonAttnBackend)
    built: list[object] = []
    used: list[object] = []

    def build(*_: object) -> tuple[object, object, torch.Tensor]:
        built.append(object())
        return None, built[-1], nowhere(1)

    attributes = {
        "device": "meta",
        "page_size": 1,
        "build_unified_kv_indices": build,
        "extend_attention_fwd_unified": lambda *args, **_: used.append(args[8]),
        "token_to_kv_pool": SimpleNamespace(get_key_buffer=repr, get_value_buffer=repr),
        "forward_metadata": SimpleNamespace(
            kv_indptr=nowhere(2),
            kv_indices=nowhere(7),
            qo_indptr=None,
            max_extend_len=1,
            custom_mask=None,
            mask_indptr=None,
            out_cache_loc_full_physical=None,
        ),
    }
    vars(backend).update(attributes)
    PassLists(backend)
    layer = {
        "sliding_window_size": -1,
        "k_scale": None,
        "v_scale": None,
        "tp_q_head_num": 1,
        "qk_head_dim": 1,
        "v_head_dim": 1,
        "scaling": 1.0,
        "xai_temperature_len": -1,
    }
    # A graph's warm-up and capture run with one batch and one metadata.
    batch = SimpleNamespace(
        batch_size=1,
        out_cache_loc=nowhere(1),
        extend_prefix_lens=None,
        extend_seq_lens=None,
        extend_start_loc=None,
        forward_mode=SimpleNamespace(is_target_verify=lambda: True),
    )
    for _ in range(PASSES):
        for number in range(LAYERS):
            one = SimpleNamespace(layer_id=number, **layer)
            backend._forward_extend_unified(
                nowhere(1), nowhere(1), one, batch, True, logits_soft_cap=0.0, sinks=None
            )
    own = [entry is built[at // LAYERS] for at, entry in enumerate(used)]
    return {"built": len(built), "used": len(used), "own": all(own)}


def steps() -> dict[str, list[str]]:
    """Returns the order of publishing lengths and running the target, by kind of step."""
    from seer_sgl.plugin.speculation import verify
    from seer_sgl.plugin.speculation import worker as module
    from seer_sgl.plugin.speculation.planner import PLAIN

    order: list[str] = []

    def forward(*_: object, **__: object) -> Any:
        order.append("forward")
        ids = nowhere(REQUESTS)
        return SimpleNamespace(
            next_token_ids=ids,
            logits_output=None,
            can_run_cuda_graph=True,
            routed_experts_output=None,
        )

    def published(_: torch.Tensor) -> None:
        order.append("publish")

    draws = SimpleNamespace(draw=lambda *_: nowhere(REQUESTS, dtype=torch.int32))
    for owner, name, stand_in in (
        (module, "prepare_mamba_track_for_verify", lambda *_: None),
        (module, "commit_mamba_states_after_verify", lambda *_: None),
        (module, "assign_extend_cache_locs_func", lambda **_: nowhere(REQUESTS)),
        (verify, "NodeSampler", lambda *_: draws),
    ):
        setattr(owner, name, stand_in)
    kind_of_worker: Any = module.GroupedWorker
    one = kind_of_worker.__new__(kind_of_worker)
    one._stride, one.device, one._planner, one.model_runner = STRIDE, "meta", None, None
    one._shapes = SimpleNamespace(of=lambda _: contextlib.nullcontext())
    one._target_worker = SimpleNamespace(forward_batch_generation=forward)
    kinds: dict[str, Callable[[Any], object]] = {
        "prefill": lambda batch: one._prefill(batch, published),
        "decode": lambda batch: one._decode(batch, published),
        "root": lambda batch: one._verify(batch, one._plan(batch), published),
    }
    found = {}
    for kind, run in kinds.items():
        batch: Any = SimpleNamespace(
            reqs=[None] * REQUESTS,
            spec_info=SimpleNamespace(
                accept_tokens=nowhere(REQUESTS * STRIDE, dtype=torch.int32),
                accept_lens=nowhere(REQUESTS, dtype=torch.int32),
            ),
            seq_lens=nowhere(REQUESTS),
            seq_lens_cpu=torch.full((REQUESTS,), 9),
            orig_seq_lens=nowhere(REQUESTS),
            req_pool_indices=nowhere(REQUESTS),
            req_to_token_pool=SimpleNamespace(req_to_token=nowhere(8, 64, dtype=torch.int32)),
            sampling_info=SimpleNamespace(),
            return_logprob=False,
        )
        assert one._plan(batch) == PLAIN
        run(batch)
        found[kind] = list(order)
        order.clear()
    return found


def reserved() -> dict[str, Any]:
    """Returns SGLang's share of a GPU for weights and KV, and what a refused variable says."""
    import os

    from sglang.srt.arg_groups import memory_hook
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    load_plugins()
    memory_hook.get_device_memory_capacity = lambda _: 80 * 1024
    plain: dict[str, Any] = {"model_path": str(MODEL), "device": "cpu"}
    drafting = {
        **plain,
        "speculative_algorithm": ALGORITHM,
        "speculative_num_draft_tokens": 17,
    }
    found: dict[str, Any] = {}

    def share(**given: Any) -> Any:
        args = ServerArgs(**given)
        args.resolve_once()
        return resolving_view(args).mem_fraction_static

    found["plain"], found["drafting"] = share(**plain), share(**drafting)
    found["given"] = share(**drafting, mem_fraction_static=0.5)
    for variable in REFUSED_VARIABLES:
        os.environ[variable] = "1"
        try:
            share(**drafting)
        except ValueError as error:
            found[variable] = str(error)
        del os.environ[variable]
    return found


def measured() -> dict[str, Any]:
    """Returns what the measurement of step times runs: forward passes and draws, by nodes.

    The requests are on the CPU. Slots that nobody wrote give logits that are no numbers.
    """
    from sglang.srt import runtime_context
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from seer_sgl.plugin.speculation import profile, ranks

    words, calls = 7, []
    deterministic = SimpleNamespace(enable_deterministic_inference=True)
    seeded = SimpleNamespace(deterministic=deterministic)

    def forward(batch: Any) -> Any:
        verifies = batch.forward_mode is ForwardMode.TARGET_VERIFY
        calls.append(f"{'verify' if verifies else 'decode'} {len(batch.input_ids)}")
        logits = torch.full((len(batch.input_ids), words), float("nan"))
        asked = dict.fromkeys(ASKED_LOGPROBS)
        return SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits, **asked))

    def sampler(output: Any, info: Any, logprobs: bool, *rest: Any) -> torch.Tensor:
        probs = output.next_token_logits.softmax(-1)
        output.next_token_logprobs = probs.log()[:, 0]
        assert not torch.is_grad_enabled()
        assert logprobs and len(info.sampling_seed) == len(info.temperatures) == len(rest[2])
        calls.append(f"draw {len(probs)}")
        return torch.multinomial(probs, 1).view(-1).int()

    runner: Any = SimpleNamespace(
        device="cpu",
        max_running_requests=2,
        max_total_num_tokens=64,
        model_config=SimpleNamespace(context_len=32, vocab_size=words, model_is_mrope=False),
        req_to_token_pool=SimpleNamespace(req_to_token=torch.zeros((3, 32), dtype=torch.int32)),
        spec_algorithm=None,
        forward=forward,
        sampler=sampler,
    )
    shapes: Any = SimpleNamespace(
        plain_decodes=True, most_nodes=64, of=lambda _: contextlib.nullcontext()
    )
    profile.ROUNDS = 1
    with (
        mock.patch.object(runtime_context, "get_exec", lambda: seeded),
        mock.patch.object(ranks, "agree_on_draws", lambda draws: draws),
    ):
        found = profile.step_seconds(runner, shapes, [1, 3])
    return {"calls": calls, "measured": list(found), "positive": min(found.values()) > 0}


def main() -> None:
    """Prints all figures."""
    cpu.prepare()
    found: dict[str, Any] = {"measured": measured()}  # first: other parts replace the sampler
    found["buffers"] = [buffer_bytes(saves) for saves in (False, True)]
    found |= {"lists": lists(), "steps": steps(), "reserved": reserved()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
