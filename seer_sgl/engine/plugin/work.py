"""What the engine has computed since it started: batches, and tokens that it prefilled."""

from collections.abc import Callable
from typing import Any

_prefilled = 0  # tokens; one scheduler a process


def hooks() -> list[tuple[str, Callable[..., Any], str]]:
    """The hooks as (SGLang target, function, kind of hook)."""
    return [("sglang.srt.managers.scheduler.Scheduler.run_batch", batch_begins, "before")]


def batch_begins(self: Any, batch: Any, *_: Any, **__: Any) -> None:
    """Before `Scheduler.run_batch`."""
    global _prefilled  # noqa: PLW0603 (one scheduler a process)
    if batch.forward_mode.is_extend():
        _prefilled += batch.extend_num_tokens or 0


def facts(scheduler: Any) -> dict[str, int]:
    """What the plugin says of it in `/server_info`. scheduler: SGLang's."""
    return {"forward_steps": scheduler.forward_ct, "prefilled_tokens": _prefilled}
