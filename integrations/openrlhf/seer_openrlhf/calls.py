"""Calls of the server's control plane by rank 0 of the trainer, and what engines replied to them.

They go through the front actor, which has the server's tokens and returns failures as answers.
"""

import logging
from collections.abc import Mapping
from typing import Any

import ray

from .failures import one_line

logger = logging.getLogger("openrlhf.weights")  # OpenRLHF shows its own loggers in workers
Json = dict[str, Any]
QUICK_S = 60.0  # for a call in which an engine moves no weights; one that needs longer hangs
SLACK_S = 30.0  # for the answer of the server after its engines' last one
WHY_CHARACTERS = 300  # of one engine's reason: a line may name several


class WeightError(RuntimeError):
    """The weights did not reach the engines, and another attempt would not help."""


class ServerGone(WeightError):
    """The server has ended; the weights can be sent again when it is back."""


class UpdateFailed(RuntimeError):
    """An attempt to send the weights failed; the next one may succeed."""


class EngineGone(RuntimeError):
    """The engine does not answer."""


class Calls:
    """Calls through the front, which is a Ray actor. `timeout_s`: the longest silence."""

    def __init__(self, front: Any, timeout_s: float) -> None:
        self._front = front
        self._timeout_s = timeout_s

    def join(self, rank: int, ranks: int, *, asynchronous: bool) -> None:
        """Lets the front have the weights sent again, by this actor. Every rank calls it."""
        actor = ray.get_runtime_context().current_actor
        ray.get(self._front.join.remote(rank, ranks, actor, asynchronous=asynchronous))

    def start(self, path: str, fields: Json, engine_s: float) -> Any:
        """Starts a call, in which each engine has `engine_s` to answer. Returns its reference."""
        return self._front.update.remote(f"{path}?timeout={engine_s:g}", fields)

    def answer(self, reference: Any, within_s: float) -> Json | None:
        """Returns the answer; None if there is none yet. Raises ServerGone, and WeightError."""
        try:
            answer: Json = ray.get(reference, timeout=within_s)
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayError as error:
            raise WeightError(f"the front has failed: {_last_line(error)}") from None
        if answer.get("lost"):
            raise ServerGone(answer["message"])
        return answer

    def workers(self) -> list[Json]:
        """Returns the server's description of every engine, GET /workers. Raises WeightError."""
        answer = self._require(self._front.update.remote("/workers", None), "/workers")
        found: list[Json] = answer["engines"]
        return found

    def log_probs(self, engine: str, ids: list[int]) -> list[float]:
        """Returns an engine's log probabilities of ids[1:].

        Raises EngineGone, UpdateFailed if the engine refuses, or WeightError.
        """
        found = self._require(self._front.log_probs.remote(engine, ids), "/generate")
        if "log_probs" not in found:
            raise (EngineGone if found["gone"] else UpdateFailed)(found["message"])
        values: list[float] = found["log_probs"]
        return values

    def resume(self) -> None:
        """Ends a pause of generation that an earlier trainer has left. Raises WeightError."""
        try:
            ray.get(self._front.resume_generation.remote(), timeout=self._timeout_s)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayError) as error:
            raise WeightError(f"/continue_generation: {_last_line(error)}") from None

    def until_up(self, why: str) -> None:
        """Returns when a server that has ended is back. Raises WeightError."""
        try:
            ray.get(self._front.until_up.remote(why))
        except ray.exceptions.RayError as error:
            raise WeightError(_last_line(error)) from None

    def _require(self, reference: Any, path: str) -> Json:
        answer = self.answer(reference, self._timeout_s)
        if answer is None:
            raise WeightError(f"{path} has no answer after {self._timeout_s:g} s")
        return answer


def ask(calls: Calls, path: str, fields: Json, engine_s: float) -> Json:
    """Returns the answer to a call. Raises WeightError if the server gives none."""
    answer = calls.answer(calls.start(path, fields, engine_s), engine_s + SLACK_S)
    if answer is None:
        raise WeightError(f"{path} has no answer after {engine_s + SLACK_S:g} s")
    return answer


def done(answer: Mapping[str, Any]) -> list[str]:
    """Returns the engines that did what a call asked for."""
    return sorted(name for name, why in _outcomes(answer).items() if why is None)


def failures(answer: Mapping[str, Any]) -> dict[str, str]:
    """Returns the reasons of the engines that did not do what a call asked for."""
    return {name: why for name, why in sorted(_outcomes(answer).items()) if why is not None}


def named(failed: Mapping[str, str]) -> str:
    """Returns one line about engines that failed."""
    return "; ".join(f"engine {name}: {why}" for name, why in failed.items())


def _outcomes(answer: Mapping[str, Any]) -> dict[str, str | None]:
    engines = answer.get("engines")
    if not isinstance(engines, Mapping):
        return {}
    return {name: _failure(reply) for name, reply in engines.items()}


def _failure(outcome: Mapping[str, Any]) -> str | None:
    status, reply = outcome.get("status"), outcome.get("reply")
    refused = isinstance(reply, Mapping) and reply.get("success") is False
    if status == 200 and not refused:
        return None
    message = reply.get("message") if isinstance(reply, Mapping) else reply
    return one_line(str(message or f"HTTP {status}"), WHY_CHARACTERS)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
