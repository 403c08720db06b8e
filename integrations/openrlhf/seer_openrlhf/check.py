"""The check after a weight update: every engine has the trainer's weights. On rank 0."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .calls import Calls, EngineGone, UpdateFailed, ask, done, failures, logger, named
from .probe import difference, problem

CHECKSUMS = "/weights_checker"


@dataclass(frozen=True)
class Probe:
    """Tokens, and the trainer's log probabilities of all but the first: new and previous weights.

    `old`: None if they are unknown.
    """

    ids: list[int]
    new: list[float]
    old: list[float] | None


class Check:
    """Asks the engines for what shows their weights. `timeout_s`: for their checksums."""

    def __init__(self, calls: Calls, timeout_s: float) -> None:
        self._calls = calls
        self._timeout_s = timeout_s
        self._checksums = True  # until an engine has none
        self._largest = 0.0  # mean difference of an engine's log probabilities
        self.figures = ""  # of the last check, for the log

    def problems(self, step: int, engines: Sequence[str], probe: Probe) -> list[str]:
        """Returns a line for each engine that does not have the weights. Raises WeightError.

        `engines`: those that took part in the update. One that has ended since is no problem.
        """
        own = "" if probe.old is None else f"; by the step {difference(probe.new, probe.old):.2g}"
        self._largest = 0.0
        found = [
            *self._other_versions(step, engines),
            *self._other_checksums(),
            *self._other_log_probs(step, engines, probe),
        ]
        self.figures = f" (log probabilities differ by {self._largest:.2g}{own})"
        return found

    def _other_versions(self, step: int, engines: Sequence[str]) -> Iterator[str]:
        for worker in self._calls.workers():
            version = worker["metadata"]["weight_version"]
            if worker["id"] in engines and version != str(step):
                yield f"engine {worker['id']}: its weights have the version {version}"

    def _other_checksums(self) -> Iterator[str]:
        """Yields what differs between engines. SGLang computes checksums on CUDA only."""
        if not self._checksums:
            return
        answer = ask(self._calls, CHECKSUMS, {"action": "checksum"}, self._timeout_s)
        if answer.get("success"):
            return
        if done(answer):
            yield str(answer.get("message"))
        else:
            self._checksums = False
            logger.info("engines have no checksums: %s", named(failures(answer)))

    def _other_log_probs(self, step: int, engines: Sequence[str], probe: Probe) -> Iterator[str]:
        for engine in engines:
            try:
                found = self._calls.log_probs(engine, probe.ids)
            except EngineGone as error:
                logger.warning("step %s: engine %s is not checked: %s", step, engine, error)
            except UpdateFailed as error:
                yield f"engine {engine}: {error}"
            else:
                why = problem(found, probe.new, probe.old)
                if why is None:
                    self._largest = max(self._largest, difference(found, probe.new))
                if why is not None:
                    yield f"engine {engine}: {why}"
