"""Our attention computes what SGLang's own does on a CPU, and leaves other layers to it."""

import pytest

from .probe import run_probe

pytestmark = pytest.mark.process

PROBE = """
from types import SimpleNamespace
import torch
from seer_sgl.plugin import cpu
cpu.prepare()
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend as Stock
from seer_sgl.plugin.cpu.attention import decode_grouped, extend_new_rows_only
from seer_sgl.plugin.cpu.tree_attention import attend_to_trees, plan_trees

torch.manual_seed(0)
HEADS, KV_HEADS, SIZE, SLOTS, ROOM = 6, 2, 32, 4096, 512
k_cache, v_cache = torch.randn(SLOTS, KV_HEADS, SIZE), torch.randn(SLOTS, KV_HEADS, SIZE)
req_to_token = torch.stack([torch.randperm(SLOTS)[:ROOM] for _ in range(8)]).to(torch.int32)
backend = object.__new__(Stock)  # the methods under test use nothing of it
stock_calls = []

def compare(hook, stock, tokens, *lengths, **options):
    def counted(*args, **kwargs):
        stock_calls.append(kwargs)
        return stock(*args, **kwargs)
    query = torch.randn(tokens, HEADS, SIZE)
    rows = torch.randperm(8)[: len(lengths[0])]
    common = (k_cache, v_cache, req_to_token, rows, *lengths)
    options = {"scaling": SIZE**-0.5, "enable_gqa": True} | options
    hooked = hook(counted, backend, query, torch.zeros_like(query), *common, **options)
    expected = stock(backend, query, torch.zeros_like(query), *common, **options)
    return (hooked - expected).abs().max().item()

def extend(prefix, new, **options):
    prefix, new = torch.tensor(prefix), torch.tensor(new)
    lengths = (prefix + new, prefix, new)
    options = {"causal": True} | options
    stock = Stock._run_sdpa_forward_extend
    return compare(extend_new_rows_only, stock, int(new.sum()), *lengths, **options)

def decode(lengths, **options):
    stock = Stock._run_sdpa_forward_decode
    return compare(decode_grouped, stock, len(lengths), torch.tensor(lengths), **options)

def verify(length, nodes, window):
    # A chain of draft tokens against a continuation with the same tokens.
    row, chain = torch.tensor([5]), torch.ones((nodes, nodes), dtype=torch.bool).tril()
    layer = SimpleNamespace(
        layer_id=0,
        tp_q_head_num=HEADS,
        tp_k_head_num=KV_HEADS,
        qk_head_dim=SIZE,
        v_head_dim=SIZE,
        scaling=SIZE**-0.5,
        sliding_window_size=window,
    )
    ours = SimpleNamespace(
        token_to_kv_pool=SimpleNamespace(
            get_key_buffer=lambda _: k_cache, get_value_buffer=lambda _: v_cache
        ),
        req_to_token_pool=SimpleNamespace(req_to_token=req_to_token),
    )
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(is_target_verify=lambda: True),
        spec_info=SimpleNamespace(draft_token_num=nodes, custom_mask=chain.view(-1)),
        seq_lens=torch.tensor([length]),
        req_pool_indices=row,
    )
    query = torch.randn(nodes, HEADS, SIZE)
    plan_trees(None, ours, batch)
    verified = attend_to_trees(None, ours, query.view(nodes, -1), None, None, layer, batch)
    expected = Stock._run_sdpa_forward_extend(
        backend,
        query,
        torch.zeros_like(query),
        k_cache,
        v_cache,
        req_to_token,
        row,
        torch.tensor([length + nodes]),
        torch.tensor([length]),
        torch.tensor([nodes]),
        scaling=SIZE**-0.5,
        enable_gqa=True,
        causal=True,
        sliding_window_size=window,
    )
    return (verified.view_as(query) - expected).abs().max().item()

close = {
    "verification": verify(20, 6, -1),
    "verification window": verify(20, 6, 4),
    "verification long window": verify(3, 6, 8),
    "prompts": extend([0, 0, 0], [5, 1, 130]),
    "continuations": extend([300, 7, 0, 511], [40, 1, 16, 1]),
    "decode": decode([1, 2, 77, 512]),
}
assert all(gap < 1e-5 for gap in close.values()), close
assert close["prompts"] < 1e-6
assert not stock_calls, "none of these layers needs the stock version"
assert extend([64], [64], causal=False) == 0.0
assert extend([20], [30], sliding_window_size=8) == 0.0
assert decode([50, 3], sliding_window_size=8) == 0.0
assert len(stock_calls) == 3
"""


def test_attention_equals_stock_and_leaves_other_layers_to_it() -> None:
    run_probe("-c", PROBE)
