"""The estimate that is logged while orders are simulated."""

from seer_sgl.what_if.estimate import progress


def said(seconds: float) -> list[str]:
    lines, times = list[str](), iter([0.0, seconds])
    notice = progress(20, lines.append, lambda: next(times))
    for step in ("a", "b", "c"):
        notice(step)
    return lines


def test_a_long_answer_is_announced_behind_its_first_simulation() -> None:
    steps = [f"simulating: {step}" for step in "abc"]
    assert said(1.0) == steps
    estimate = "about 40 s for 20 simulations; --groups N takes less"
    assert said(2.0) == [steps[0], estimate, *steps[1:]]
