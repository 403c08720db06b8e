"""Which targets on a GPU compute a token to the same bits in every kind of step."""

from typing import Any

import pytest

from seer_sgl.plugin.drafting import DECODES
from seer_sgl.plugin.speculation.exactness import Target, obstacles

EXACT = Target(
    deterministic=True,
    backends=("triton", "triton"),
    paths=1,
    window=False,
    recurrent=False,
    quantization=None,
    compiled=False,
    on_policy=False,
    decodes=False,
)


def test_one_kernel_for_all_steps_of_a_chain_is_exact() -> None:
    assert list(obstacles(EXACT)) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deterministic": False}, "it runs without deterministic inference"),
        ({"backends": ("fa3", "triton")}, "its attention backend is fa3, not triton"),
        ({"backends": ("triton", "flashinfer")}, "its attention backend is flashinfer, not triton"),
        ({"decodes": True}, DECODES),
        ({"paths": 4}, "it drafts trees of 4 paths, not chains"),
        ({"window": True}, "its model has a sliding window"),
        ({"recurrent": True}, "its model has recurrent layers (linear attention or Mamba)"),
        ({"quantization": "fp8"}, "its weights are quantized (fp8)"),
        ({"compiled": True}, "torch.compile makes kernels per batch size"),
        ({"on_policy": True}, "rl-on-policy-target replaces kernels"),
    ],
)
def test_what_lets_steps_round_differently_is_named(change: dict[str, Any], reason: str) -> None:
    assert list(obstacles(EXACT._replace(**change))) == [reason]
