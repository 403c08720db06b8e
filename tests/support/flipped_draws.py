"""A plugin of tests: the second rank of an engine draws other tokens than the first, at every node.

Rounding does so on GPUs, once in many thousand draws; here it is certain.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = "SEER_TEST_FLIPPED"  # environment variable of the engine: a file with a byte per flip
VOCABULARY = 64


def flipping(
    agree: Callable[[Any], Any], rank: Callable[[], int], file: Path
) -> Callable[..., Any]:
    """Returns `agree` for draws that differ on the second rank."""

    def agreed(draws: Any) -> Any:
        if rank() != 1:
            return agree(draws)
        with file.open("ab") as flips:
            flips.write(b".")
        return agree((draws + 1) % VOCABULARY)

    return agreed


def load() -> None:
    """Installs it in this process; called by SGLang's `load_plugins`."""
    from seer_sgl.plugin.speculation import ranks

    ranks.agree_on_draws = flipping(
        ranks.agree_on_draws, lambda: int(ranks.tp_group().rank_in_group), Path(os.environ[FILE])
    )
