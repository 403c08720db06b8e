"""Which targets on a GPU compute a token to the same bits in every kind of step."""

from typing import Any

import pytest

from seer_sgl.plugin.speculation.exactness import DECODES, Target, obstacles

EXACT = Target(
    hopper=True,
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


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"hopper": False},
        {"backends": ("fa3", "fa3")},
        {"backends": ("fa3", "fa3"), "decodes": True},
    ],
)
def test_one_kernel_for_all_steps_of_a_chain_is_exact(change: dict[str, Any]) -> None:
    assert list(obstacles(EXACT._replace(**change))) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"deterministic": False}, "it runs without deterministic inference"),
        (
            {"backends": ("fa3", "triton")},
            "its attention backends differ: fa3 in prefill, triton in decoding",
        ),
        (
            {"backends": ("flashinfer", "flashinfer")},
            "its attention backend is flashinfer; set engines.sglang.attention-backend: triton",
        ),
        (
            {"backends": ("fa3", "fa3"), "hopper": False},
            "fa3 was compared on Hopper only; set engines.sglang.attention-backend: triton",
        ),
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
