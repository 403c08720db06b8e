"""The keys of the report and what they mean; docs/report.md is made of them.

A path has `.` before a key of an object and `[]` behind a list. `*` stands for any key.
"""

from collections.abc import Mapping

KEYS: Mapping[str, str] = {
    "rollout_id": "the rollout's id: its date, its time and a random part",
    "seed": "the seed that every request's seed is derived from",
    "groups": "groups whose samples are complete",
    "unfinished_groups": "groups without all of their samples",
    "samples": "finished samples, without those that have a `failure`",
    "response_tokens": "tokens of the finished samples",
    "wall_s": "seconds until the last sample finished",
    "throughput_tok_s": "`response_tokens` per second of `wall_s`",
    "tail_s": "seconds spent on the last 10 % of the requests; 0 before nine tenths have finished",
    "chunks": "chunks that returned",
    "lost_chunks": "chunks without a token for a sample: the engine failed, or had to give it back",
    "retries": "chunks that were sent because the request's chunk before was lost",
    "respawns": "starts of servers during the rollout, after an end or without room before",
    "failed_requests": "requests that were given up; each has a sample with a `failure`",
    "wasted_tokens": (
        "response tokens that came back and are in no sample; what a lost chunk had decoded is "
        "unknown"
    ),
    "migrations": "chunks on another engine than the one before",
    "fetches": "chunks for which SGLang read KV from the pool",
    "planned_fetches": "chunks that the driver sent to another engine to read their KV there",
    "moved_bytes": "bytes that SGLang read from the pool",
    "store_latency_ms.p50": "median time from a reply until its KV is in the pool, ms",
    "store_latency_ms.p99": "its 99th percentile, ms",
    "unstored_chunks": "chunks some of whose KV never reached the pool",
    "cached_tokens.device": "input tokens found in the engine's KV cache",
    "cached_tokens.host": "input tokens found in the engine's host memory",
    "cached_tokens.storage": "input tokens read from the pool",
    "recomputed_tokens": "tokens of continuations that were prefilled again",
    "kv_wait_s": (
        "request-seconds in engines' queues that were not for room: the engine had a free slot and "
        "free KV, and the request's KV was being read from the pool; counted at the polls of the "
        "engines, two per second"
    ),
    "retractions": "preemptions by SGLang; a request may have several",
    "accept_length": "tokens of chunks with verifications, per verification; null without any",
    "finish_reasons.*": "samples by finish reason: `stop`, `length`, `abort`",
    "response_length.mean": "mean tokens per response",
    "response_length.median": "median tokens per response",
    "response_length.p99": "99th percentile",
    "response_length.max": "the longest",
    "drafting": "grouped speculative decoding in this run; null without it, and during the run",
    "drafting.accept_length": "tokens that a verified row emitted, the target's own included",
    "drafting.plain_steps": "decode steps without drafts",
    "drafting.verified_steps.*": "decode steps with drafts, by the number of nodes per request",
    "drafting.drafted_by_position[]": (
        "how often the first, second, ... draft token was tried: all before it were right"
    ),
    "drafting.accepted_by_position[]": "how often it was right",
    "drafting.sources.prompt": "share of the accepted drafts whose text is from the prompt",
    "drafting.sources.own": "share from the response itself",
    "drafting.sources.here": "share from a sibling on the same engine",
    "drafting.sources.elsewhere": "share from another engine or an earlier epoch",
    "drafting.draft_cpu_s": "seconds that the engines' schedulers spent on drafting",
    "drafting.hub": "the draft hub's part; null while there is no hub",
    "drafting.hub.lag_s.mean": "mean time that tokens stayed in the hub, s; without the network",
    "drafting.hub.lag_s.max": "the longest time since the hub started, s",
    "drafting.hub.tokens_in": "tokens that the hub received",
    "drafting.hub.tokens_out": "tokens that the hub sent",
    "drafting.hub.groups": "groups that began",
    "drafting.engines[]": "one entry per engine that answered before and after the run",
    "drafting.engines[].engine_id": "the engine",
    "drafting.engines[].accept_length": "as above, of this engine",
    "drafting.engines[].plain_steps": "as above",
    "drafting.engines[].verified_steps": "decode steps with drafts, of all widths",
    "drafting.engines[].draft_cpu_s": "as above",
    "drafting.engines[].received_tokens": "tokens received from the hub",
    "drafting.engines[].refused_tokens": (
        "tokens from the hub that were dropped: `draft.memory` had no room, the group had 4,096 "
        "sequences, or they are not in the vocabulary"
    ),
    "drafting.engines[].lost_messages": (
        "messages of the hub that found 16 MiB of others waiting; their tokens are asked for again"
    ),
    "drafting.engines[].wait_s.mean": (
        "mean time until received tokens were in the index, s; an idle engine lets them wait"
    ),
    "drafting.engines[].wait_s.max": "the longest time since the engine started, s",
    "processes[]": "one entry per process of the KV pool and draft hub that was started here",
    "processes[].name": "its name, as in the log",
    "processes[].respawns": "its starts during the rollout, after an end",
    "processes[].quarantine": "why it is not restarted; null if it is",
    "resumed": (
        "what a journal restored; null if the rollout was not resumed. The counts of chunks, moves "
        "and engines are of the last process; samples, tokens and times are of the whole rollout"
    ),
    "resumed.runs": "processes before the last one",
    "resumed.samples": "samples that were restored",
    "resumed.requests": "unfinished requests that continued from their last chunk",
    "resumed.tokens": "response tokens of both",
    "resumed.at_s": "when the last process began, s; the time between two processes is left out",
    "engines[]": "one entry per engine",
    "engines[].engine_id": "the engine",
    "engines[].url": "its address when the run began",
    "engines[].sglang_version": "its SGLang",
    "engines[].plugin": "the version of the plugin in it; null in a stock server",
    "engines[].off.*": (
        "why an ability of the plugin is off ([Versions of SGLang](sglang-versions.md))"
    ),
    "engines[].weight_version": "the name of its weights, from SGLang",
    "engines[].weights": "a digest of its loaded weights; null in a stock server",
    "engines[].chunks": "chunks that returned",
    "engines[].lost_chunks": "its chunks without a token for a sample",
    "engines[].bad_replies": "lost chunks whose reply was unreadable or could not be true",
    "engines[].response_tokens": "tokens that it generated",
    "engines[].throughput_tok_s": (
        "those per second, from `resumed.at_s` to the last sample, or to its last chunk if later"
    ),
    "engines[].retractions": "its preemptions",
    "engines[].kv_capacity": "KV tokens that it can hold",
    "engines[].kv_peak": "the largest share of them in use",
    "engines[].idle_share": "share of `wall_s`, from `resumed.at_s` on, without a chunk in flight",
    "engines[].mean_inflight": "mean chunks in flight",
    "engines[].max_inflight": "most chunks in flight",
    "engines[].mean_running": "mean requests in its batch, those of other clients included",
    "engines[].mean_queued": "mean requests in its queue, new or preempted, that wait for room",
    "engines[].kv_wait_s": "request-seconds in its queue for KV, as above",
    "engines[].states[]": "one entry at the start, and one per change of its state",
    "engines[].states[].at_s": "seconds since the rollout began",
    "engines[].states[].state": (
        "`healthy`, `suspect`, `dead`, `starting`, `stale`, `draining` or `quarantined` "
        "([states](failure.md#states-of-an-engine))"
    ),
    "engines[].states[].why": "the reason; empty while it is healthy",
    "error": (
        "in `report.json` only: the reason why the rollout ended early; null when it is complete"
    ),
}
