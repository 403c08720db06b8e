"""Which targets on a GPU compute a token to the same bits in every kind of step."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seer_sgl.link.contract import ALGORITHM
from seer_sgl.plugin import drafting
from seer_sgl.plugin.speculation import start
from seer_sgl.plugin.speculation.exactness import (
    DECODES,
    Target,
    flags_of,
    obstacles,
    on_hopper,
)

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
    flags=(),
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),  # one kernel for all steps of a chain
        ({"hopper": False}, None),
        ({"backends": ("fa3", "fa3")}, None),
        ({"backends": ("fa3", "fa3"), "decodes": True}, None),
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
        ({"flags": ("--enable-lora",)}, "it runs with --enable-lora"),
    ],
)
def test_what_lets_steps_round_differently_is_named(
    change: dict[str, Any], reason: str | None
) -> None:
    assert list(obstacles(EXACT._replace(**change))) == ([] if reason is None else [reason])


@pytest.mark.parametrize(
    ("cuda", "available", "capability", "found"),
    [
        ("13.0", True, (9, 0), True),
        ("13.0", True, (8, 0), False),
        (None, True, (9, 4), False),  # AMD
        ("13.0", False, None, False),
    ],
)
def test_hopper_is_a_gpu_of_nvidia_with_that_capability(
    cuda: str | None,
    available: bool,
    capability: tuple[int, int] | None,
    found: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert on_hopper() is found


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"speculative_algorithm": ALGORITHM}, []),
        ({"speculative_algorithm": "EAGLE"}, ["--speculative-algorithm"]),
        ({"pp_size": 2}, ["--pp-size"]),
        (
            {"enable_lora": True, "enable_mixed_chunk": True},
            ["--enable-lora", "--enable-mixed-chunk"],
        ),
    ],
)
def test_what_was_not_compared_is_named(changes: dict[str, Any], found: list[str]) -> None:
    args: Any = SimpleNamespace(**{"pp_size": 1, "speculative_algorithm": None} | changes)
    assert list(flags_of(args)) == found


@pytest.mark.parametrize(
    ("backend", "stride", "exact", "verifies"),
    [
        ("triton", 1, False, True),  # the root alone
        ("triton", 17, False, False),
        ("triton", 17, True, True),
        ("fa3", 1, False, False),
        ("fa3", 17, True, False),
    ],
)
def test_plain_steps_are_verifications_for_exact_engines_with_triton(
    backend: str, stride: int, exact: bool, verifies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SimpleNamespace(exact=exact)
    monkeypatch.setattr(drafting, "settings", lambda: settings)
    runner: Any = SimpleNamespace(decode_attention_backend_str=backend)
    assert start.exact(runner, stride) is verifies
