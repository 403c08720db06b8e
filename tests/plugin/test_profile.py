"""The line of an engine's log with the times of its steps."""

from seer_sgl.plugin.speculation.profile import described


def test_the_times_of_the_smallest_and_the_largest_batch_are_said_by_width() -> None:
    seconds = {(b, w): 1e-3 * (5 + b * w) for b in (1, 8, 120) for w in (1, 5)}
    assert described(seconds) == (
        "steps of [1, 5] nodes per request take [6.0, 10.0] ms for 1 request, "
        "[125.0, 605.0] ms for 120"
    )
