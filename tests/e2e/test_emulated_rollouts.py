"""Rollouts on emulated engines: chunks that move, pages of a pool, requests that are retracted."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.elsewhere import AlwaysElsewhere
from seer_sgl import Rollout
from seer_sgl.config import FlagValue
from tests.e2e.compare import Samples, accepted_drafts, assert_identical, roll, rolled
from tests.e2e.conftest import MODEL, SGLANG
from tests.emulation.generate import facts
from tests.emulation.server import EXACT, FLAGS, STRIDE, Settings, environment
from tests.support.timing import PATIENT

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

CPU: Mapping[str, FlagValue] = {**SGLANG, "max-total-tokens": 16384, "max-running-requests": 32}
# The interpreter is slow: few short responses with Triton, and more on a CPU's attention.
INTERPRETED, NATIVE = Settings(every_width=True), Settings(every_width=True, triton=False)
PROMPTS = {True: 1, False: 8}
LONGEST = {True: 96, False: 256}
PAGE = 16
DRAFT = {"scope": "fleet", "max_draft_tokens": STRIDE - 1}


def config(count: int, flags: Mapping[str, FlagValue], **sections: Any) -> dict[str, Any]:
    """Returns a config that starts its own engines."""
    flags = {name: value for name, value in flags.items() if name != "model-path"}
    return {
        "model": {"path": str(MODEL)},
        "engines": {"count": count, "cores": "auto", "sglang": flags},
        "sampling": {"temperature": 1.0},
        "rollout": {"seed": 5},
        **sections,
    }


def undivided(triton: bool, folder: Path) -> Samples:
    """Returns the samples of a plain CPU engine."""
    plain = config(1, CPU, scheduling={"divide": False})
    plain["sampling"]["max_response_len"] = LONGEST[triton]
    samples, _ = asyncio.run(roll(plain, PROMPTS[triton], log_dir=folder))
    return samples


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Mapping[bool, Samples]:
    """Returns the reference for both settings, by `Settings.triton`."""
    return {triton: undivided(triton, tmp_path_factory.mktemp("whole")) for triton in (True, False)}


async def emulate(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    chosen: Settings,
    setup: dict[str, Any],
    placement: AlwaysElsewhere | None = None,
) -> tuple[Samples, Any]:
    """Returns the samples of emulated engines and their report."""
    for name, value in environment(folder / "plugin", chosen).items():
        monkeypatch.setenv(name, value)
    setup["sampling"]["max_response_len"] = LONGEST[chosen.triton]
    async with Rollout(
        setup, placement=placement, log_dir=folder / "logs", timing=PATIENT
    ) as rollout:
        samples, report = await rolled(rollout, PROMPTS[chosen.triton])
        for engine in report["engines"]:
            found = await facts(engine["url"])
            assert found.emulation["loops"] == {"event_loop_overlap": 1}
            assert bool(found.emulation["replayed"]) == chosen.triton
    return samples, report


@pytest.mark.parametrize("chosen", [INTERPRETED, NATIVE], ids=["triton", "torch_native"])
@pytest.mark.parametrize("pool", ["none", "mooncake"])
async def test_no_token_changes_when_every_chunk_moves_between_overlapped_drafting_engines(
    pool: str,
    chosen: Settings,
    whole: Mapping[bool, Samples],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = {**FLAGS, **EXACT} if chosen.triton else CPU
    setup = config(
        2,
        flags,
        scheduling={"chunk_tokens": LONGEST[chosen.triton] // 3},
        draft=DRAFT,
        kv_pool={"backend": pool, "page_size": PAGE, "memory": "256mb"},
    )
    moves = AlwaysElsewhere(fetch=pool != "none")
    parts, report = await emulate(monkeypatch, tmp_path, chosen, setup, moves)
    assert_identical(whole[chosen.triton], parts)
    assert report["migrations"] == report["chunks"] - report["samples"] > 0
    assert (report["cached_tokens"]["storage"] > 0) == (pool != "none")
    assert accepted_drafts(report) > 0


@pytest.mark.parametrize("chosen", [INTERPRETED, NATIVE], ids=["triton", "torch_native"])
async def test_no_token_changes_when_requests_are_retracted_between_overlapped_drafts(
    chosen: Settings,
    whole: Mapping[bool, Samples],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, tokens = ({**FLAGS, **EXACT}, 192) if chosen.triton else (CPU, 3072)
    setup = config(
        1,
        # SGLang admits more requests than there is room for.
        {**engine, "max-total-tokens": tokens, "schedule-conservativeness": 0.1},
        scheduling={"divide": False, "kv_ledger": False},
        draft={**DRAFT, "scope": "engine"},
    )
    samples, report = await emulate(monkeypatch, tmp_path, chosen, setup)
    assert_identical(whole[chosen.triton], samples)
    assert report["retractions"] > 0
    assert accepted_drafts(report) > 0


async def test_plain_engines_with_triton_and_graphs_continue_chunks_of_each_other(
    whole: Mapping[bool, Samples], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Decoding and prefill differ by rounding here (test_kernels.py). In these few samples of
    # float32 no draw is that close.
    setup = config(2, {**FLAGS, **EXACT}, scheduling={"chunk_tokens": 32})
    parts, report = await emulate(monkeypatch, tmp_path, INTERPRETED, setup, AlwaysElsewhere())
    assert_identical(whole[True], parts)
    assert report["migrations"] == report["chunks"] - report["samples"] > 0
