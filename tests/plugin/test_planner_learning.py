"""The planner finds out what drafts cost and gain, whatever was measured at the start."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from seer_sgl.draft.drafter import Drafts
from seer_sgl.draft.policy import EXPLORE_EVERY
from seer_sgl.draft.tree import Accepted
from tests.draft.drafts import drafts

from .device import Device, Text, number_of

Made = Callable[..., Device]
NOISE = np.random.default_rng(1).integers(10, 20, (400, 5000)).tolist()


def times(batch: int, width: int) -> float:
    return 1e-3 * (6 + 0.1 * batch * width)


def repeats(number: int, place: int) -> int:
    """Writes what is easy to guess, but for every seventh token or so."""
    return 20 + number if (place * 2654435761 + number) % 7 == 0 else 7 + place % 3


def noise(number: int, place: int) -> int:
    """Writes what nobody guesses."""
    return int(NOISE[number][place])


def three_letters(number: int, place: int) -> int:
    """Writes what a third of the drafts guess."""
    return 10 + noise(number, place) % 3


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Made:
    def made(text: Text, measured: Callable[[int, int], float] = times, **named: Any) -> Device:
        return Device(monkeypatch, **{"times": times, "measured": measured, "text": text, **named})

    return made


def drafted(widths: list[int]) -> int:
    return sum(width > 1 for width in widths)


def test_what_few_requests_have_taught_does_not_hide_the_time_of_many(make: Made) -> None:
    device = make(repeats, lambda b, w: times(b, w) * (3 if w > 1 and b >= 8 else 1))
    device.add(2)
    assert drafted(device.run(600)) > 500
    device.add(14)
    device.run(500)
    assert drafted(device.run(100)) > 70
    assert device.times.predict(16, 5) == pytest.approx(times(16, 5), rel=0.1)


def test_what_many_requests_have_taught_does_not_make_the_drafts_of_few_free(make: Made) -> None:
    texts = [noise, repeats]  # the last one is written

    def text(number: int, place: int) -> int:
        return texts[-1](number, place)

    device = make(text, lambda b, w: times(b, w) * (3 if w > 1 else 1))
    device.add(32)
    device.run(300)
    assert drafted(device.run(50)) > 40
    texts.pop()
    device.drop(30)
    device.run(300)
    assert drafted(device.run(200)) < 10
    for width in (1, 5):
        assert device.times.predict(2, width) == pytest.approx(times(2, width), rel=0.1)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_draft_that_was_measured_too_long_is_found_out_while_the_engine_decodes_plainly(
    make: Made, overlaps: bool
) -> None:
    device = make(
        repeats, lambda b, w: times(b, w) * (5 if w > 1 else 1), widths=(1, 3, 5), overlaps=overlaps
    )
    device.add(2)
    assert drafted(device.run(EXPLORE_EVERY // 2)) == 0, "drafting seems not to pay"
    device.run(7 * EXPLORE_EVERY)
    assert drafted(device.run(EXPLORE_EVERY)) > EXPLORE_EVERY // 2


def test_drafts_that_have_become_good_are_found_out_while_the_engine_decodes_plainly(
    make: Made,
) -> None:
    device = make(repeats, overlaps=False)
    refused = Accepted(np.zeros((1, 2), np.int32), np.ones(1, np.int32))
    for match in (1, 2, 4, 8, 16, 32):
        for _ in range(1000):
            device.acceptance.observe(drafts([[(-1, 0.9)]], match), refused, 2)
    device.add(2)
    assert drafted(device.run(EXPLORE_EVERY // 2)) == 0, "drafting seems not to pay"
    device.run(39 * EXPLORE_EVERY)
    assert drafted(device.run(EXPLORE_EVERY)) > EXPLORE_EVERY // 2


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_plain_step_that_was_measured_too_long_is_found_out_while_the_engine_drafts(
    make: Made, overlaps: bool
) -> None:
    def dear(batch: int, width: int) -> float:
        return 1e-3 * (6 + 0.3 * batch * width)

    device = make(
        three_letters,
        lambda b, w: dear(b, w) * (4 if w == 1 and b >= 4 else 1),
        times=dear,
        widths=(1, 5, 17),
        overlaps=overlaps,
    )
    device.add(1)
    device.run(10)
    device.add(7)
    assert drafted(device.run(60)) > 40, "drafting seems to pay"
    device.run(700)
    assert drafted(device.run(200)) < 10
    assert device.times.predict(8, 1) == pytest.approx(dear(8, 1), rel=0.1)


def test_tries_that_no_time_was_learnt_from_come_again_soon(make: Made) -> None:
    chance = random.Random(4)
    device = make(repeats, lambda b, w: times(b, w) * (4 if w > 1 else 1))
    device.add(4)
    widths = []
    for _ in range(600):  # the batch changes in most steps
        if chance.random() < 0.6:
            device.drop(1)
            device.add(1)
        widths += device.run(1)
    assert drafted(widths[-100:]) > 50


def test_a_try_that_hung_is_repeated_soon(make: Made) -> None:
    tries = [0]

    def hang(batch: int, width: int) -> float:
        tries[0] += width > 1
        return times(batch, width) * (20 if width > 1 and tries[0] == 1 else 1)

    device = make(repeats, lambda b, w: times(b, w) * (3 if w > 1 else 1), times=hang)
    device.add(4)
    device.run(800)
    assert drafted(device.run(100)) > 90


def test_overlapped_steps_with_nothing_to_draft_rarely_wait_for_the_device(make: Made) -> None:
    for text, plain in ((repeats, True), (lambda _, place: 10 + place, False)):
        device = make(text)
        device.add(4)
        assert drafted(device.run(300, plain=plain)) == 0
        assert device.waits < 75


def test_drafts_are_compared_with_what_their_own_request_has_written(make: Made) -> None:
    """Whatever else happens: requests come, go, change their order and are preempted."""
    compared = 0
    for seed in range(12):
        chance = random.Random(seed)
        device = make(
            three_letters,
            lambda b, w: 1e-3 * (6 + 1.5 * b * w),  # drafts do not pay
            overlaps=seed % 2 == 0,
            paths=1 + 3 * (seed % 3),
        )
        seen = watched(device)
        device.add(5)
        away: list[Any] = []
        for _ in range(200):
            change(device, chance, away)
            device.run(1)
        compared += sum(seen)
    assert compared > 100


def change(device: Device, chance: random.Random, away: list[Any]) -> None:
    """Lets something happen to the requests, or nothing."""
    one = chance.choice(device.reqs)
    match chance.randrange(20):
        case 0:
            device.add(1)
        case 1 if len(device.reqs) > 2:
            device.drop(1)
        case 2:
            chance.shuffle(device.reqs)
        case 3 if len(device.reqs) > 2:  # preempted
            device.reqs.remove(one)
            away.append(one)
        case 4 if away:
            device.reqs.append(away.pop())
        case 5 if len(one.output_ids) > 2:  # a token is taken back
            one.output_ids.pop()
        case _:
            return
    device.changed()


def watched(device: Device) -> list[int]:
    """Checks what the acceptance learns without a verification; returns the rows of each time."""
    rows: list[int] = []
    planner, observe = device.planner, device.acceptance.observe
    left: list[Any] = [None]
    learn = planner._learn_from

    def learn_from(*given: Any) -> None:
        left[0] = planner._unverified
        learn(*given)

    def observed(drafts: Drafts, path: Accepted, width: int, *, verified: bool = True) -> None:
        observe(drafts, path, width, verified=verified)
        if not verified:
            rows.append(sum(right(left[0], drafts, path, row) for row in range(len(path.counts))))

    def right(before: Any, drafts: Drafts, path: Accepted, row: int) -> bool:
        count = int(path.counts[row])
        number, place = number_of(before.rids[row]), int(before.lengths[row]) - 3
        nodes = path.nodes[row, :count].tolist()
        for depth, node in enumerate(nodes[1:]):
            assert drafts.parents[row, node - 1] == nodes[depth] - 1
            assert drafts.tokens[row, node - 1] == three_letters(number, place + depth)
        wanted = three_letters(number, place + count - 1)
        for k in range(int(drafts.counts[row])) if count else ():
            missed = drafts.parents[row, k] == nodes[-1] - 1 and drafts.tokens[row, k] == wanted
            assert not missed, "the path continues"
        return count > 0

    planner._learn_from = learn_from  # type: ignore[method-assign, assignment]
    device.acceptance.observe = observed  # type: ignore[method-assign, assignment]
    return rows
