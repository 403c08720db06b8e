"""What the engine has computed since it started: batches, and tokens that it prefilled."""

from typing import Any

from seer_sgl.types import EngineWork

from .hook import SCHEDULER, Hook

_prefilled = 0  # tokens; one scheduler a process


def hooks() -> list[Hook]:
    """Returns the hooks of this file."""
    return [
        Hook(
            f"{SCHEDULER}.run_batch",
            batch_begins,
            "before",
            "SGLang reports no total of the tokens that it prefilled; the report needs one.",
        )
    ]


def batch_begins(self: Any, batch: Any, *_: Any, **__: Any) -> None:
    """Before `Scheduler.run_batch`."""
    global _prefilled  # noqa: PLW0603 (one scheduler a process)
    if batch.forward_mode.is_extend():
        _prefilled += batch.extend_num_tokens or 0


def report(scheduler: Any) -> EngineWork:
    """Returns the work's part of the plugin's report. scheduler: SGLang's."""
    return EngineWork(forward_steps=scheduler.forward_ct, prefilled_tokens=_prefilled)
