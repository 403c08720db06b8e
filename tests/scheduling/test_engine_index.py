"""The engine index gives the same decisions as a scan of all engines."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from seer_sgl.scheduling.attempts import Attempts
from seer_sgl.scheduling.engine_index import EngineIndex, EngineSlot, Extremes
from seer_sgl.scheduling.ledger import KVLedger
from seer_sgl.scheduling.placement import CacheAware, Placed, Wait
from seer_sgl.types import Move, Request
from tests.helpers import make_group, make_reply


def rule(
    request: Request, total_len: int, fleet: EngineIndex, limit: int
) -> tuple[Any, Any] | None:
    """Returns (engine, its cached tokens) by the published rule, with a scan of all engines."""
    last = request.engines[-1] if request.engines else None

    def cached(slot: EngineSlot) -> int:
        if slot.engine_id == last:
            return request.total_len
        holds = slot.ledger is not None and slot.ledger.holds(request.group.uid)
        return request.prompt_len if holds else 0

    up = [slot for slot in fleet if slot.available]
    able = [slot for slot in up if slot.admits(request, total_len)]
    if not able:
        return None
    loads = [slot.inflight for slot in up]
    if max(loads) - min(loads) <= limit:
        best = min(able, key=lambda slot: (-cached(slot), slot.inflight))
    else:
        best = min(able, key=lambda slot: (slot.inflight, -cached(slot)))
    return best, cached(best)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["run"] * 6 + ["end"] * 3 + ["toggle", "join", "busy elsewhere"]),
        st.integers(0, 1000),
        st.integers(1, 60),
    ),
    min_size=20,
    max_size=80,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 3), st.sampled_from([1, 16]))
def test_placement_equals_the_rule_applied_to_every_engine(
    steps: list[tuple[str, int, int]], limit: int, page_size: int
) -> None:
    fleet, placement = EngineIndex(), CacheAware(max_spread=limit)
    groups = [make_group(f"g{i}", n=6, prompt_len=20 + 7 * i) for i in range(4)]
    requests = [request for group in groups for request in group.requests]
    running: list[tuple[EngineSlot, Request, int]] = []

    def join(number: int) -> None:
        ledger = (
            None if number % 5 == 4 else KVLedger(100 + number % 300, page_size, number % 2 == 0)
        )
        fleet.add(EngineSlot(f"e{len(fleet)}", ledger, 1 + number % 8))

    for number in (105, 206, 307, 151):
        join(number)
    for step, number, budget in steps:
        slots = list(fleet)
        if step == "join":
            join(number)
        elif step == "toggle":
            slot = slots[number % len(slots)]
            slot.available = not slot.available
            fleet.changed(slot)
        elif step == "busy elsewhere":
            slot = slots[number % len(slots)]
            if slot.ledger is not None:
                slot.ledger.reported(number)
                fleet.changed(slot)
        elif step == "end" and running:
            slot, request, total_len = running.pop(number % len(running))
            fleet.end(slot, request, total_len)
            request.append(make_reply(1))
            request.engines.append(slot.engine_id)
        elif step == "run":
            request = requests[number % len(requests)]
            if any(other is request for _, other, _ in running):
                continue
            total_len = request.total_len + budget
            expected = rule(request, total_len, fleet, limit)
            chosen = placement.choose(Attempts(request, rid="c1"), total_len, fleet)
            if expected is None:
                assert chosen is Wait.FOR_ROOM
                continue
            assert isinstance(chosen, Placed)
            assert chosen.slot is expected[0]
            stays = not request.engines or chosen.slot.engine_id == request.engines[-1]
            assert chosen.move is (Move.STAY if stays else Move.PREFILL)
            fleet.start(chosen.slot, request, total_len)
            running.append((chosen.slot, request, total_len))
        up = [slot for slot in fleet if slot.available]
        loads = [slot.inflight for slot in up] or [0]
        assert fleet.spread == max(loads) - min(loads)
        assert fleet.most_inflight == max(loads)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30))
def test_extremes_are_those_of_what_is_there_also_after_all_has_left(
    steps: list[tuple[bool, int]],
) -> None:
    extremes, there = Extremes(), list[int]()
    for joins, number in steps:
        if joins:
            extremes.add(number)
            there.append(number)
        elif there:
            extremes.remove(there.pop(number % len(there)))
        assert (extremes.least, extremes.most) == (min(there, default=0), max(there, default=0))
