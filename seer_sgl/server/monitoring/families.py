"""The metrics that are read when Prometheus asks: a snapshot in, metric families out. Pure."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric, SummaryMetricFamily

from seer_sgl.report.draft_report import FleetDraftCounters, HubCounts

from .counts import PASSTHROUGH, ServerCounts
from .engine_families import engine_families
from .series import counters, gauge, gauges, known
from .snapshot import Snapshot

# Present from the start, so that a rate over them has a beginning.
REASONS = ("stop", "length", "abort", PASSTHROUGH, "refused", "lost", "killed", "left")
ERRORS = (
    "unavailable",
    "died",
    "bad_reply",
    "aborted",
    "interrupted",
    "stalled",
    "recalled",
    "rejected",
    "other",
)


def families(snapshot: Snapshot) -> Iterator[Metric]:
    yield from _requests(snapshot)
    yield from _work(snapshot.counts)
    yield from engine_families(snapshot.engines)
    yield from _drafting(snapshot.drafts)


def _requests(snapshot: Snapshot) -> Iterator[Metric]:
    counts, tails = snapshot.counts, snapshot.counts.tails
    pending = counts.pending
    yield gauges(
        "seer_requests",
        "Unfinished requests. state: pending (the queue: no chunk in flight) or running.",
        ("state",),
        [(("pending",), pending), (("running",), len(counts.unfinished) - pending)],
    )
    yield counters(
        "seer_requests_ended",
        "Requests that have ended. reason: the finish reason stop, length or abort; passthrough "
        "(answered by the engine unread); or why it was given up: refused, lost, killed, left.",
        ("reason",),
        known(counts.ends, REASONS),
    )
    yield counters(
        "seer_passthrough_requests",
        "Requests that passed through to one engine unmodified, by the field or parameter that "
        "cannot cross a chunk.",
        ("reason",),
        [((reason,), count) for reason, count in snapshot.passthrough.items()],
    )
    yield gauge(
        "seer_tail_seconds",
        "Seconds since only the last 10 % of the submitted requests of a rollout are unfinished: "
        "the longest such time of all rollouts in progress; 0 if none is in its tail. Single "
        "requests have no tail: see seer_oldest_request_seconds.",
        tails.longest_s(snapshot.now),
    )
    yield gauge(
        "seer_oldest_request_seconds",
        "Age of the oldest unfinished request, single or of a rollout; 0 without any.",
        counts.oldest_s(),
    )
    yield gauge("seer_rollouts", "Rollouts in progress.", len(tails.rollouts))
    yield gauge("seer_groups_in_progress", "Groups with an unfinished request.", len(counts.groups))
    yield gauge(
        "seer_open_groups", "Groups that more single requests may join.", snapshot.open_groups
    )
    yield gauge("seer_sessions", "Conversations whose KV is kept.", snapshot.sessions)
    yield gauge(
        "seer_paused", "1 while no chunk is sent: paused, or weights change.", snapshot.paused
    )


def _work(counts: ServerCounts) -> Iterator[Metric]:
    for name, text, value in (
        (
            "generated_tokens",
            "Response tokens of the chunks that came back; without requests that were sent "
            "passed through, whose answers are not read.",
            counts.totals.tokens,
        ),
        ("chunks", "Chunks that came back with a reply.", counts.totals.chunks),
        (
            "migrations",
            "Chunks that ran on another engine than the one before.",
            counts.totals.migrations,
        ),
        ("fetched_tokens", "Input tokens whose KV came from the pool.", counts.totals.storage),
        ("fetched_bytes", "The same in bytes.", counts.totals.moved_bytes),
        (
            "recomputed_tokens",
            "Input tokens of continuations that an engine computed again.",
            counts.totals.recomputed,
        ),
        ("retractions", "Preemptions inside the engines.", counts.totals.retractions),
        (
            "verify_steps",
            "Verifications of drafts, one per request and step.",
            counts.totals.verify_steps,
        ),
        (
            "speculated_tokens",
            "Response tokens of chunks with verifications; per verification: the accept length.",
            counts.totals.speculated,
        ),
    ):
        yield counters(f"seer_{name}", text, (), [((), value)])
    yield counters(
        "seer_chunk_errors",
        "Chunks that came back with an error. kind: unavailable, died, bad_reply, aborted (by "
        "another client of the engine), interrupted, stalled, recalled (by the server: abort, "
        "pause, drain), rejected, other.",
        ("kind",),
        known(counts.errors, ERRORS),
    )


def _drafting(drafts: FleetDraftCounters) -> Iterator[Metric]:
    parts, label = drafts.engines.items(), ("engine",)
    for name, text, rows in (
        ("drafted_tokens", "Tokens that were drafted.", [((e,), p.drafted) for e, p in parts]),
        ("accepted_tokens", "Drafted tokens accepted.", [((e,), p.accepted) for e, p in parts]),
        (
            "verified_tokens",
            "Tokens that verifications generated.",
            [((e,), p.verified_tokens) for e, p in parts],
        ),
        ("verifications", "Verified rows.", [((e,), p.verified_rows) for e, p in parts]),
        ("cpu_seconds", "CPU time of drafting.", [((e,), p.draft_s) for e, p in parts]),
    ):
        yield counters(f"seer_draft_{name}", f"{text} Since the engine's start.", label, rows)
    hub = drafts.hub or HubCounts()
    yield SummaryMetricFamily(
        "seer_draft_hub_lag_seconds",
        "Time that a message's oldest token waited in the draft hub, per message.",
        count_value=hub.lag.count,
        sum_value=hub.lag.sum_s,
    )
    yield gauge(
        "seer_draft_hub_lag_max_seconds",
        "The longest such time since the hub's start.",
        hub.lag.max_s,
    )
    yield counters(
        "seer_draft_hub_tokens",
        "Tokens through the draft hub. direction: in (from engines) or out (to engines).",
        ("direction",),
        [(("in",), hub.tokens_in), (("out",), hub.tokens_out)],
    )
