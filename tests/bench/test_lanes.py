"""The choice of the round whose lanes are drawn."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.full import lanes
from bench.full.lanes import Pair, draw_pair, typical_pair
from seer_sgl.benchmark.measure import Measurement
from seer_sgl.engine_types import EngineLoad
from seer_sgl.report.lanes import CELLS
from seer_sgl.report.recorder import Recorder
from tests.helpers import make_group
from tests.support.infos import info
from tests.support.rows import row

BUSY = EngineLoad(used_tokens=20, progress=(), running=2, queued=1)


def rolled(
    arm: str, number: int, speed: float, *, last: EngineLoad = BUSY, **changed: Any
) -> Measurement:
    """Returns a rollout of 2 s. `last`: the load of the second engine in its last second."""
    record = Recorder("r", 1, [info("a"), info("b")], [make_group(n=2)], started_at=0.0)
    for engine_id in record.engines:
        for at in (0.25, 0.75, 1.25, 1.75):
            later = at > 1 and engine_id == "b"
            record.loaded(engine_id, last if later else BUSY, at)
    record.finished_at.extend([1.0, 2.0])
    return Measurement(row(arm, number, throughput_tok_s=speed, **changed), record, {}, {}, [])


def rounds(*speeds: float, first: int = 0, seed: int = 1) -> list[Measurement]:
    """Returns rounds with Seer at these tokens per second and the baseline at 100."""
    return [
        rolled(arm, number, speed, seed=seed)
        for number, ours in enumerate(speeds, first)
        for arm, speed in (("group_round_robin", 100.0), ("seer", ours))
    ]


def chosen(some: list[Measurement]) -> tuple[int, int] | None:
    """Seed and round."""
    pair = typical_pair(some)
    return None if pair is None else (pair.seed, pair.round)


@pytest.mark.parametrize(
    ("speeds", "number"),
    [((150.0, 120.0, 300.0), 0), ((300.0, 120.0), 1), ((400.0, 200.0, 300.0, 100.0), 1)],
)
def test_the_round_drawn_is_the_median_one_the_lower_of_two(
    speeds: tuple[float, ...], number: int
) -> None:
    assert chosen(rounds(*speeds)) == chosen(rounds(*speeds)[::-1]) == (1, number)


def test_a_round_counts_by_its_ratio() -> None:
    some = [
        rolled("group_round_robin", 0, 50.0),
        rolled("seer", 0, 150.0),
        *rounds(200.0, 250.0, first=1),
    ]
    assert chosen(some) == (1, 2), "of 3.0, 2.0 and 2.5"


def test_the_first_seed_that_has_both_arms_is_drawn() -> None:
    alone = [rolled("seer", 0, 500.0, seed=6), rolled("group_round_robin", 1, 100.0, seed=6)]
    assert chosen([*alone, *rounds(200.0, first=2, seed=5), *rounds(300.0, first=3)]) == (5, 2)
    assert chosen(alone) is None
    assert chosen([]) is None


def paired(some: list[Measurement]) -> Pair:
    pair = typical_pair(some)
    assert pair is not None
    return pair


def test_a_pair_names_the_rounds_that_it_was_chosen_from() -> None:
    assert paired(rounds(212.0)).details == "Seed 1, round 0: 2.12x."
    assert paired(rounds(212.0, 300.0)).details == (
        "Seed 1, round 0: 2.12x, the lower median of rounds 0 and 1."
    )
    assert paired(rounds(212.0, 300.0, 100.0)).details.endswith("the median of rounds 0, 1 and 2.")


def test_other_tokens_are_not_called_the_same() -> None:
    base = rolled("group_round_robin", 0, 100.0)
    same, others = (rolled("seer", 0, 200.0, identical_share=share) for share in (1.0, 0.99))
    assert paired([base, same]).finding == "The same 2 requests and tokens in 2 s instead of 2 s"
    assert paired([base, others]).finding == "The same 2 requests in 2 s instead of 2 s"


def test_the_title_names_an_engine_of_the_baseline_that_idles() -> None:
    idle = EngineLoad(used_tokens=0, progress=())
    base = rolled("group_round_robin", 0, 100.0, last=idle)
    assert paired([base, rolled("seer", 0, 200.0)]).finding == (
        "With plain SGLang b idles 1 s of 2 s;\n"
        "seer-sgl takes 2 s for the same 2 requests and tokens"
    )
    ours = paired([rolled("group_round_robin", 0, 100.0), rolled("seer", 0, 200.0, last=idle)])
    assert ours.finding.startswith("The same 2 requests"), "only seer-sgl's engine idles"


def test_kv_is_named_where_it_is_full_in_both() -> None:
    full = EngineLoad(used_tokens=info("b").max_total_num_tokens, progress=(), running=1)
    both = [rolled(arm, 0, 100.0, last=full) for arm in ("group_round_robin", "seer")]
    assert paired(both).details.endswith(
        ".\nLong requests fill the KV cache (line), so an engine runs fewer at once."
    )
    assert "KV" not in paired([both[0], rolled("seer", 0, 200.0)]).details


def test_a_pair_has_what_each_engine_ran_and_queued() -> None:
    pair = paired(rounds(150.0))
    assert [lane.engine_id for lane in pair.seer.engines] == ["a", "b"]
    assert set(pair.baseline.engines[0].running) == {2.0}
    assert set(pair.baseline.engines[0].queued) == {1.0}
    again = msgspec.json.decode(msgspec.json.encode(pair), type=Pair)
    assert again == pair, "as lanes.json has it"


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw_pair(paired(rounds(150.0, 120.0)), tmp_path / "lanes")
    assert {path.name for path in tmp_path.iterdir()} == {"lanes.png", "lanes.svg"}


def test_panels_are_as_high_as_what_runs_and_have_the_kv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(lanes, "save", lambda figure, _: drawn.append(figure))
    draw_pair(paired(rounds(150.0)), tmp_path / "lanes")
    panels, kv = drawn[0].axes[:4], drawn[0].axes[4:]
    assert [axis.get_ylim() for axis in panels] == [(0.0, 1.08 * 2)] * 4, "one scale for all"
    assert {axis.get_title(loc="right") for axis in panels} == {
        "up to 1 queued in a",
        "up to 1 queued in b",
    }
    share = 100 * 20 / info("a").max_total_num_tokens
    filled = [list(axis.lines[0].get_ydata()) for axis in kv]
    assert filled == [pytest.approx([share] * CELLS)] * 4
