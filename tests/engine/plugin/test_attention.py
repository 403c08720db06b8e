"""Our extend gives the stock result, and its cost follows the new tokens.

Runs against SGLang's own `TorchNativeAttnBackend._run_sdpa_forward_extend`, in a process of its
own, because the CPU engine's switches must be set before SGLang is imported.
"""

import subprocess
import sys

from seer_sgl.engine.process import engine_environment

PROBE = """
import torch
from seer_sgl.engine.plugin import cpu
cpu.prepare()
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from seer_sgl.engine.plugin.cpu.attention import extend_new_rows_only

stock = TorchNativeAttnBackend._run_sdpa_forward_extend
torch.manual_seed(0)
HEADS, KV_HEADS, SIZE, SLOTS, ROOM = 4, 2, 32, 4096, 512
k_cache, v_cache = torch.randn(SLOTS, KV_HEADS, SIZE), torch.randn(SLOTS, KV_HEADS, SIZE)
req_to_token = torch.stack([torch.randperm(SLOTS)[:ROOM] for _ in range(8)]).to(torch.int32)

def compare(prefix, new, **options):
    prefix_lens, new_lens = torch.tensor(prefix), torch.tensor(new)
    rows = torch.randperm(8)[: len(new)]
    query = torch.randn(sum(new), HEADS, SIZE)
    common = (k_cache, v_cache, req_to_token, rows, prefix_lens + new_lens, prefix_lens, new_lens)
    options = {"scaling": SIZE**-0.5, "enable_gqa": True, "causal": True} | options
    ours = extend_new_rows_only(stock, None, query, torch.zeros_like(query), *common, **options)
    theirs = stock(None, query, torch.zeros_like(query), *common, **options)
    return (ours - theirs).abs().max().item()

print(compare([0, 0, 0], [5, 1, 130]))           # prompts
print(compare([300, 7, 0, 511], [40, 1, 16, 1]))  # continuations, with and without a cache hit
print(compare([64], [64], causal=False))          # left to the stock version

calls = []
def counting(*a, **k):
    calls.append(k)
    return stock(*a, **k)

args = (k_cache, v_cache, req_to_token, torch.tensor([0]), torch.tensor([9]), torch.tensor([4]),
        torch.tensor([5]))
q = torch.randn(5, HEADS, SIZE)
extend_new_rows_only(counting, object.__new__(TorchNativeAttnBackend), q, q.clone(), *args,
                     scaling=0.1, enable_gqa=True, causal=True, sliding_window_size=3)
extend_new_rows_only(counting, None, q, q.clone(), *args, scaling=0.1, enable_gqa=True, causal=True)
print(len(calls))
"""


def test_extend_equals_stock_on_prompts_and_continuations() -> None:
    probe = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE],
        env=engine_environment(1),
        capture_output=True,
        text=True,
        check=False,
    )
    assert probe.returncode == 0, probe.stderr[-2000:]
    prompts, continuations, not_causal, stock_calls = map(float, probe.stdout.split()[-4:])
    assert prompts < 1e-6
    assert continuations < 1e-5
    assert not_causal == 0.0
    assert stock_calls == 1, "only the sliding window goes to the stock version"
