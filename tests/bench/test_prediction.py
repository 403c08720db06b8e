"""The simulation of a benchmark."""

from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from bench.full import prediction
from bench.full.prediction import Constants, measure_constants, predict
from bench.full.verification import (
    CASES,
    Verification,
    Verified,
    fitted_verification,
    measured_verification,
)
from seer_sgl.benchmark.arms import BASELINE, EVERY, SEER, Arm
from seer_sgl.benchmark.config import load_ready_bench
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.benchmark.runner import Runner
from seer_sgl.config import SchedulingConfig
from seer_sgl.errors import EngineStartError, EngineUnavailable, PoolError, SeerError
from seer_sgl.report.recorder import Recorder
from seer_sgl.sim.config import EngineConfig, SimConfig
from seer_sgl.sim.source import load_settings
from seer_sgl.types import Prompt
from seer_sgl.what_if.constants import begin_s, fits, fitted_step
from tests.support.rows import row

SIM = Path(prediction.__file__).with_name("cpu.yaml")
CHUNKS = SchedulingConfig(chunk_tokens=256)
ENGINE = EngineConfig(
    count=2,
    kv_tokens=4096,
    max_running_requests=8,
    weights_gb=1e-6,
    active_params_b=1e-9,
    attention_mflop=0,
    kv_bytes_per_token=1536,
    bandwidth_gb_s=5,
    overhead_ms=1,
    row_overhead_us=150,
    draft_overhead_us=0,
    chunk_ms=2,
    prefill_tok_s=20_000,
)
CONSTANTS = Constants(
    engine=ENGINE, pooled_chunk_ms=4, verification=Verification(step_ms=1, draft_us=50, kv_ns=20)
)


def rolled(arm: str, number: int = 0, **changed: Any) -> Measurement:
    """Returns a measurement of two groups of four: one long, one short."""
    prompts = [
        Prompt(prompt_id=name, prompt_ids=array("i", [number] * 10), n=4)
        for number, name in enumerate("ab")
    ]
    lengths = {("a", i): 1000 + i for i in range(4)} | {("b", i): 50 + i for i in range(4)}
    record = Recorder("r", 0, [], [], 0.0)
    return Measurement(row(arm, number, **changed), record, {}, lengths, prompts)


def predicted(*cases: Measurement, **constants: Constants) -> dict[str, Any]:
    """Returns the figures of the arms. `constants`: of the rounds r0, r1, ..."""
    by_round = {int(name[1:]): [one] for name, one in constants.items()}
    arms: dict[str, Any] = predict(load_settings(SIM), by_round, CHUNKS, cases)["arms"]
    return arms


def test_every_arm_is_simulated_on_the_lengths_that_came_out() -> None:
    arms = BASELINE, "router", "context", SEER
    report = predicted(*(rolled(arm, wall_s=2.0) for arm in arms), r0=CONSTANTS)
    assert list(report) == [BASELINE, "context", SEER], "the simulator has no router"
    pinned, divided, drafted = (report[arm]["predicted_wall_s"] for arm in report)
    assert pinned > divided > drafted > 0
    # The pinned engine decodes four rows: overhead, rows, and their KV, 511 tokens each on average.
    step_s = 1e-3 + 4 * 150e-6 + 4 * 511 * 1536 / 5e9
    assert pinned == pytest.approx(1003 * step_s + 4 * 2e-3, rel=0.02)
    assert report[BASELINE]["error"] == pytest.approx(pinned / 2.0 - 1, abs=1e-3)
    assert report[BASELINE]["predicted_forward_steps"] == pytest.approx(1003 + 53, abs=6)
    assert report[BASELINE]["forward_steps"] == 700


def test_a_rollout_is_simulated_with_the_costs_of_its_round() -> None:
    slow = msgspec.structs.replace(ENGINE, overhead_ms=3)
    constants = {"r0": CONSTANTS, "r1": msgspec.structs.replace(CONSTANTS, engine=slow)}
    first, second = rolled(BASELINE, 0, wall_s=2.0), rolled(BASELINE, 1, wall_s=4.0)
    both = predicted(first, second, **constants)[BASELINE]
    alone = predicted(first, **constants)[BASELINE]
    assert both["wall_s"] == 3.0
    more_s = both["predicted_wall_s"] - alone["predicted_wall_s"]
    assert more_s == pytest.approx(1003 * 2e-3 / 2, rel=0.02), "the mean of both rounds"
    assert predicted(rolled(BASELINE, 2), **constants) == {}, "its costs are not known"


def test_costs_from_before_and_after_a_round_count_equally() -> None:
    slow = msgspec.structs.replace(CONSTANTS, engine=msgspec.structs.replace(ENGINE, overhead_ms=3))
    alone = [predicted(rolled(SEER), r0=one)[SEER] for one in (CONSTANTS, slow)]
    around = {0: [CONSTANTS, slow]}
    both = predict(load_settings(SIM), around, CHUNKS, [rolled(SEER)])["arms"][SEER]
    for figure in ("predicted_wall_s", "predicted_tail_s", "predicted_forward_steps"):
        assert both[figure] == pytest.approx((alone[0][figure] + alone[1][figure]) / 2, abs=2e-3)
    assert alone[1]["predicted_wall_s"] > 1.3 * alone[0]["predicted_wall_s"]


def test_chunks_and_verifications_take_what_was_measured() -> None:
    def wall_s(arm: str, constants: Constants) -> float:
        return float(predicted(rolled(arm), r0=constants)[arm]["predicted_wall_s"])

    dear_chunks = msgspec.structs.replace(CONSTANTS, pooled_chunk_ms=40)
    dear_drafts = msgspec.structs.replace(CONSTANTS, verification=Verification(9, 500, 20))
    dear_kv = msgspec.structs.replace(CONSTANTS, verification=Verification(1, 50, 2000))
    for arm, chunks_count, drafts_count in (
        ("divided", False, False),  # without a pool
        ("context", True, False),
        (SEER, True, True),
    ):
        usual = wall_s(arm, CONSTANTS)
        assert (wall_s(arm, dear_chunks) > 1.05 * usual) == chunks_count
        assert (wall_s(arm, dear_drafts) > 1.05 * usual) == drafts_count
        assert (wall_s(arm, dear_kv) > 1.05 * usual) == drafts_count


def test_the_report_says_what_the_simulation_assumes() -> None:
    sim = load_settings(SIM)
    report = predict(sim, {0: [CONSTANTS]}, SchedulingConfig(), [])
    assert report["constants"] == {0: [msgspec.to_builtins(CONSTANTS)]}
    assert report["speculation"] == msgspec.to_builtins(sim.speculation)


@pytest.mark.parametrize("path", sorted(SIM.parent.glob("*.yaml")), ids=lambda path: path.name)
def test_a_simulation_has_what_a_measurement_does_not_bring(path: Path) -> None:
    settings = load_settings(path)
    own = msgspec.structs.replace(settings.engine, reserve_tokens=EngineConfig().reserve_tokens)
    assert own == EngineConfig(), "step times are measured"
    assert settings.workload == SimConfig().workload, "lengths are measured"


class Servers:
    """A runner whose servers run, or fail to start with an error per arm."""

    config = load_ready_bench(gpu=False)
    arms = (EVERY[BASELINE], EVERY[SEER])
    own_servers = True

    def __init__(self, **broken: SeerError) -> None:
        self.fleets = self
        self._broken = broken

    async def of(self, arm: Arm) -> Any:
        if arm.name in self._broken:
            raise self._broken[arm.name]
        return SimpleNamespace(engines=[SimpleNamespace(info=None)])


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the measurements."""

    def replaced(name: str, value: object) -> None:
        async def measured(*_: Any) -> object:
            return value

        monkeypatch.setattr(prediction, name, measured)

    replaced("measured_engine", CONSTANTS.engine)
    replaced("measured_chunk_ms", CONSTANTS.pooled_chunk_ms)
    replaced("measured_verification", CONSTANTS.verification)


async def test_costs_of_servers_that_come_up(log_lines: list[str]) -> None:
    assert await measure_constants(cast(Runner, Servers())) == CONSTANTS
    assert log_lines == ["measuring step times"]


@pytest.mark.parametrize(
    "error", [EngineStartError("no"), PoolError("no"), EngineUnavailable("no")]
)
async def test_servers_that_do_not_come_up_end_no_benchmark(
    error: SeerError, log_lines: list[str]
) -> None:
    found = await measure_constants(cast(Runner, Servers(seer=error)))
    assert found == Constants(engine=ENGINE)
    assert log_lines[1:] == ["simulating without the cost of verifications: no"]
    log_lines.clear()
    assert await measure_constants(cast(Runner, Servers(**{BASELINE: error}))) is None
    assert log_lines[1:] == ["skipping the simulation: no"]


def test_what_a_step_consists_of() -> None:
    steps = [
        (rows, rows * tokens, 2e-3 + 1e-4 * rows + 3e-7 * rows * tokens)
        for rows in (1, 4, 16)
        for tokens in (64.0, 548.0, 1548.0)
    ]
    assert fitted_step(steps) == pytest.approx((2e-3, 1e-4, 3e-7))
    rows, tokens, slowest = steps[-1]
    overhead, _, _ = fitted_step([*steps[:-1], (rows, tokens, 1.1 * slowest)])
    assert overhead == pytest.approx(2e-3, rel=0.1), "one long step does not shift the short ones"


def test_what_a_chunk_adds_when_it_begins() -> None:
    assert begin_s([(batch, 5e-3 + 3e-3 * batch) for batch in (1, 2, 8)]) == pytest.approx(3e-3)
    assert begin_s([(1, 5e-3), (8, 4e-3)]) == 0.0


def test_what_a_verification_adds_to_a_step() -> None:
    def row(batch: int, context: float) -> Verified:
        drafts = 16 - batch / 8
        plain_s = 1e-3 + batch * 150e-6 + batch * context * 1536 / 5e9
        more_s = 2e-3 + batch * drafts * (40e-6 + context * 30e-9)
        return Verified(batch, context, drafts, plain_s + more_s)

    rows = [row(batch, context) for batch in (1, 4, 8) for context in (500, 2000)]
    found = fitted_verification(rows, ENGINE)
    assert msgspec.structs.astuple(found) == pytest.approx((2, 40, 30), rel=1e-3)
    short = [row(batch, 500) for batch in (1, 4, 8)]
    alone = fitted_verification(short, ENGINE)
    assert msgspec.structs.astuple(alone) == pytest.approx((2, 40 + 500 * 30e-3, 0), rel=1e-3)


def test_a_term_that_would_be_negative_does_not_make_the_others_dear() -> None:
    rows = [
        Verified(
            batch, context, 10.0, more_s + 1e-3 + batch * 150e-6 + batch * context * 1536 / 5e9
        )
        for batch, context, more_s in ((1, 500, 2e-3), (8, 500, 6e-3), (1, 3000, 1e-3))
    ]
    found = fitted_verification(rows, ENGINE)
    assert found.kv_ns == 0
    assert 0.9 < found.step_ms + 10 * found.draft_us * 1e-3 < 2, "between the steps of one row"


class DraftingServer:
    """An engine that counts the steps of calls as if it drafted `drafts` per sequence."""

    def __init__(self, drafts: int) -> None:
        self.drafts = drafts
        self.info = SimpleNamespace(
            url="http://e", max_running_requests=4, max_request_len=4000, max_total_num_tokens=8192
        )
        self.calls: list[Any] = []  # the bodies of each

    async def drafting(self) -> dict[str, Any]:
        tokens = sum(
            max(body["sampling_params"]["max_new_tokens"] for body in bodies) - 1
            for bodies in self.calls
        )
        return {"steps": {str(1 + self.drafts): tokens // (1 + self.drafts)}}

    async def seconds(self, *given: Any) -> float:
        (bodies,) = given[2]
        self.calls.append(bodies)
        return 0.1 + 0.01 * float(bodies[0]["sampling_params"]["max_new_tokens"] - 1)


async def test_equal_responses_are_drafted_and_their_steps_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = DraftingServer(drafts=16)
    monkeypatch.setattr("bench.full.verification.seconds", server.seconds)
    await measured_verification([cast(Any, server)], ENGINE)
    for bodies in server.calls:
        seeds = [body["sampling_params"]["sampling_seed"] for body in bodies]
        origins = [body["sampling_params"]["custom_params"]["seer_sgl"] for body in bodies]
        assert seeds == list(range(len(bodies))), "the same for every sample"
        assert len({origin["group"] for origin in origins}) == len(bodies)
        assert [origin["prompt_len"] for origin in origins] == [
            len(body["input_ids"]) for body in bodies
        ]
    called = {(len(bodies), len(bodies[0]["input_ids"])) for bodies in server.calls}
    assert called == {case for case in CASES if case[0] <= 4}, "the server's limit"
    with pytest.raises(EngineUnavailable, match="verifies no drafts"):
        await measured_verification([cast(Any, DraftingServer(drafts=0))], ENGINE)


def test_what_fits_into_all_servers() -> None:
    small, large = (
        cast(
            Any,
            SimpleNamespace(
                max_running_requests=8, max_request_len=3000, max_total_num_tokens=tokens
            ),
        )
        for tokens in (1000, 8000)
    )
    assert fits([large], 8, 999) and not fits([large], 9, 10) and not fits([large], 1, 3000)
    assert fits([small, large], 4, 249) and not fits([small, large], 4, 250)
