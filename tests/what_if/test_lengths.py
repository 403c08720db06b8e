"""What the prompt explains of the lengths."""

import pytest

from seer_sgl.traces.trace import Responses
from seer_sgl.types import token_array
from seer_sgl.what_if.lengths import length_figures


@pytest.mark.parametrize(
    ("groups", "share"),
    [
        ([[100, 100], [900, 900], [30, 30]], 1.0),
        ([[100, 900], [900, 100], [900, 100]], 0.0),
        ([[100, 100], [100, 100]], 0.0),
        ([[100, 200], [800, 1600]], 0.89),  # in powers of 2: within 0.5, between (9 - 0.5) / 2
        ([[100, 900], [50]], None),
    ],
)
def test_the_share_of_the_variance_that_the_prompt_determines(
    groups: list[list[int]], share: float | None
) -> None:
    planned = [
        Responses(str(number), token_array([5, 6]), lengths)
        for number, lengths in enumerate(groups)
    ]
    assert length_figures(planned).group_share == share
