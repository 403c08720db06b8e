"""`engines.exact`: the flags that engines are started with, and the configs that are refused."""

from typing import Any

import pytest

from seer_sgl.config import FleetConfig, parse
from seer_sgl.engine.launch import exact
from seer_sgl.engine.launch.exact import require_exact
from seer_sgl.errors import ConfigError
from seer_sgl.link.contract import ALGORITHM

DETERMINISTIC = {"enable-deterministic-inference": True}
TRITON = {"attention-backend": "triton"}
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
    ("settings", "gpu", "flags"),
    [
        (config(exact=False), True, {}),
        (config(exact=False), False, {}),
        (config(), False, DETERMINISTIC),
        (config(draft={"scope": "fleet"}), False, DETERMINISTIC),
        (config(TRITON), False, DETERMINISTIC),
        (config(), True, DETERMINISTIC),
        (config({"attention_backend": "fa3"}), True, DETERMINISTIC),
        (config(TRITON), True, DETERMINISTIC | ROOT_ONLY),
        (config({"decode-attention-backend": "triton"}), True, DETERMINISTIC | ROOT_ONLY),
        (config(TRITON, CHAINS), True, DETERMINISTIC),
        (config(draft=CHAINS), True, DETERMINISTIC),
        (config(draft={"scope": "fleet"}), True, DETERMINISTIC),
    ],
)
def test_a_plain_step_is_a_verification_where_decoding_has_a_kernel_of_its_own(
    settings: FleetConfig, gpu: bool, flags: dict[str, Any]
) -> None:
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
            r"prefill-attention-backend: fa3, .* needs one backend, and .*backend is triton$",
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
