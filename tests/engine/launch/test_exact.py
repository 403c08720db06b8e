"""`engines.exact`: the flags that engines are started with, and the configs that are refused."""

from pathlib import Path
from typing import Any

import pytest

from seer_sgl.config import FleetConfig, parse
from seer_sgl.engine.launch import exact
from seer_sgl.engine.launch.exact import require_exact
from seer_sgl.engine.launch.process import hopper_visible
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import ALGORITHM

DETERMINISTIC = {"enable-deterministic-inference": True}
TRITON = {"attention-backend": "triton"}
FA3 = {"attention-backend": "fa3"}
ROOT_ONLY = {"speculative-algorithm": ALGORITHM, "speculative-num-draft-tokens": 1}
CHAINS = {"scope": "fleet", "paths": 1}


def config(sglang: Any = None, draft: Any = None, **engines: Any) -> FleetConfig:
    tree = {
        "model": {"path": "m"},
        "engines": {"exact": True, "sglang": sglang or {}, **engines},
        "draft": draft or {},
    }
    return parse(tree).fleet


@pytest.mark.parametrize(
    ("settings", "gpu", "hopper", "flags"),
    [
        (config(exact=False), True, True, {}),
        (config(exact=False), False, False, {}),
        (config(), False, False, DETERMINISTIC),
        (config(draft={"scope": "fleet"}), False, False, DETERMINISTIC),
        (config(TRITON), False, False, DETERMINISTIC),
        (config(), True, False, DETERMINISTIC | TRITON | ROOT_ONLY),
        (config(draft=CHAINS), True, False, DETERMINISTIC | TRITON),
        (config(draft={"scope": "fleet"}), True, False, DETERMINISTIC | TRITON),
        (config(), True, True, DETERMINISTIC | FA3),
        (config(draft={"scope": "fleet"}), True, True, DETERMINISTIC | FA3),
        (config(FA3), True, False, DETERMINISTIC | FA3),
        (config(TRITON), True, True, DETERMINISTIC | TRITON | ROOT_ONLY),
        (config({"dtype": "float32"}), True, True, DETERMINISTIC | TRITON | ROOT_ONLY),
    ],
)
def test_a_plain_step_is_a_verification_where_decoding_has_a_kernel_of_its_own(
    settings: FleetConfig,
    gpu: bool,
    hopper: bool,
    flags: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact, "hopper_visible", lambda: hopper)
    require_exact(settings, gpu)
    assert exact.flags(settings, gpu) == flags


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            config({"attention_backend": "fa4"}),
            r"engines\.sglang\.attention-backend: fa4, but engines\.exact needs fa3 or triton on ",
        ),
        (
            config({"decode-attention-backend": "flashinfer"}),
            r"engines\.sglang\.decode-attention-backend: flashinfer, but engines\.exact needs fa3 ",
        ),
        (
            config({**TRITON, "prefill-attention-backend": "fa3"}),
            r"prefill-attention-backend: fa3, .* needs one backend: set .*attention-backend alone$",
        ),
        (
            config({"decode_attention_backend": "triton"}),
            r"decode-attention-backend: triton, .* one",
        ),
        (
            config({"enable-lora": True}),
            r"engines\.sglang\.enable-lora: not with engines\.exact on",
        ),
        (
            config({"lora_paths": "a=b"}),
            r"engines\.sglang\.lora-paths: not with engines\.exact on ",
        ),
        (config({"pp_size": 2}), r"engines\.sglang\.pp-size: above 1, not with engines\.exact on "),
        (config({"pp": 2}), r"engines\.sglang\.pp-size: above 1, not with engines\.exact on "),
        (config(draft={**CHAINS, "paths": 4}), r"draft\.paths: 4 drafts trees, .* needs 1$"),
    ],
)
def test_what_is_exact_on_a_cpu_alone_is_refused_on_a_gpu(
    settings: FleetConfig, complaint: str
) -> None:
    require_exact(settings, gpu=False)
    with pytest.raises(ConfigError, match=complaint) as raised:
        require_exact(settings, gpu=True)
    assert "\n" not in str(raised.value)


def test_what_is_exact_already_may_be_set_too() -> None:
    require_exact(config({**DETERMINISTIC, **TRITON, "decode-attention-backend": "triton"}), True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("echo 9.0; echo 9.0", True),
        ("echo 8.0", False),
        ("echo 9.0; echo 10.0", False),
        ("true", False),
        ("echo 9.0; exit 9", False),
    ],
)
def test_hopper_is_what_nvidias_driver_reports(
    program: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n{program}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert hopper_visible.__wrapped__() is found
