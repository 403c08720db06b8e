"""The work of the engine since it started: batches and prefilled tokens."""

from seer_sgl.engine_types import EngineWork

from .hook import SCHEDULER, Hook
from .sglang_types import SglScheduleBatch, SglScheduler


class Work:
    """The counter of prefilled tokens of one scheduler."""

    def __init__(self) -> None:
        self._prefilled = 0  # tokens

    def hooks(self) -> list[Hook]:
        return [
            Hook(
                f"{SCHEDULER}.run_batch",
                self.batch_begins,
                "before",
                "SGLang reports no total of the tokens that it prefilled; the report needs one.",
                "The total of prefilled tokens in `/v1/loads` counts every batch.",
            )
        ]

    def batch_begins(
        self, scheduler: object, batch: SglScheduleBatch, *_: object, **__: object
    ) -> None:
        """Hook before `Scheduler.run_batch`: counts the tokens of a prefill, without those of
        requests that decode in it (mixed chunks, DP attention)."""
        if batch.forward_mode.is_extend():
            self._prefilled += (batch.extend_num_tokens or 0) - len(batch.decoding_reqs or ())

    def report(self, scheduler: SglScheduler) -> EngineWork:
        return EngineWork(forward_steps=scheduler.forward_ct, prefilled_tokens=self._prefilled)
