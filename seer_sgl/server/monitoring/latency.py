"""Latency histograms of requests, and of the tails of rollouts."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Histogram

from seer_sgl.server.generation import CALLER
from seer_sgl.types import Request

FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
REQUEST_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Latencies:
    """The histograms of one server. Seconds since the driver received a request."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._first_token = Histogram(
            "seer_time_to_first_token_seconds",
            "Time from a streamed request's submission until its first tokens arrived.",
            buckets=FIRST_TOKEN_S,
            registry=registry,
        )
        request = Histogram(
            "seer_request_seconds",
            "Time from a request's submission until it finished; none of one that was refused, "
            "aborted or given up. kind: single (a request of its own, also one that passed "
            "through) or rollout.",
            ["kind"],
            buckets=REQUEST_S,
            registry=registry,
        )
        self._tail = Histogram(
            "seer_rollout_tail_seconds",
            "Time that a rollout spent on the last 10 % of its requests; none of one that ended "
            "before them.",
            buckets=REQUEST_S,
            registry=registry,
        )
        self._single, self._rollout = request.labels("single"), request.labels("rollout")
        self._awaited: set[str] = set()  # streamed requests without a token, by uid

    def submitted(self, requests: Sequence[Request]) -> None:
        self._awaited.update(request.uid for request in requests if request.streaming)

    def streamed(self, request: Request, now: float) -> None:
        if request.uid in self._awaited:
            self._awaited.discard(request.uid)
            self._first_token.observe(max(0.0, now - request.submitted_at))

    def finished(self, request: Request, now: float) -> None:
        """Records that a request has all its tokens."""
        single = request.group.caller == CALLER
        histogram = self._single if single else self._rollout
        histogram.observe(max(0.0, now - request.submitted_at))

    def forget(self, request: Request) -> None:
        """Records that no more tokens of a request follow."""
        self._awaited.discard(request.uid)

    def tail(self, seconds: float) -> None:
        self._tail.observe(seconds)
