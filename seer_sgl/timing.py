"""The constants of time of the driver, the engines' clients, the fleet and the server.

They are no settings: their values hold for every machine and every model. The code that opens a
fleet, a driver or a server hands them on, so that a test can choose others.
"""

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, by the part that uses them."""

    # The driver's monitor, which counts time in polls.
    poll_s: float = 0.5
    # The most polls per second of all engines together: one costs the driver some 0.4 ms, so from
    # 200 engines on each is polled less often.
    most_polls_per_s: float = 400.0
    # So long engines may serve different versions without an update of ours: a trainer may be
    # updating them itself, one after another.
    mixed_weights_s: float = 10.0
    # The longest pause before the next try of an engine that serves nothing.
    readmission_most_s: float = 8.0
    # A queue that stands for longer than one prefill takes is reported: SGLang divides long inputs.
    queue_standing_s: float = 10.0

    # Chunks that wait in an engine's queue for KV from the pool.
    kv_notice_s: float = 2.0  # a wait of this length is logged: a read usually takes milliseconds
    # The shortest wait that is too long. A busy machine may stop the reading threads for seconds.
    kv_least_s: float = 5.0
    # The time without reads doubles each time, because a trial costs the chunks of kv_least_s.
    kv_first_pause_s: float = 30.0
    kv_longest_pause_s: float = 480.0

    # The driver's loop and its scheduler.
    # How long an engine has to return the tokens of a recalled chunk; then the chunk is dropped.
    recall_s: float = 5.0
    settle_s: float = 3.0  # at the end of a driver; a little longer than an abort may take
    # The longest wait of a request that should move for its KV to be stored; usually 4 to 30 ms.
    store_patience_s: float = 1.0

    # The KV pool.
    # Until a process of Mooncake, or one that is already running, answers: a busy machine is slow.
    pool_start_s: float = 60.0
    # A read of KV that takes longer than this, and a second per 1,024 tokens, ends; what it has
    # not read is computed. The time begins when SGLang receives the request: reads are one after
    # the other, so most of it is the queue of reads.
    pool_read_s: float = 3.0

    # How long a block of the journal gathers records. Twenty syncs per second cost little, and a
    # killed driver loses no older chunk, unless the disk is slower.
    journal_gather_s: float = 0.05
    # How long the end of a journal waits for its disk. A busy disk may need half a minute for a
    # sync; one that hangs must not hold up the end of the process, which no signal would end then.
    journal_close_s: float = 60.0

    # The HTTP client of an engine.
    # Between two checks of a serving engine's weights; a trainer may update them at any time.
    refresh_every_s: float = 10.0
    control_timeout_s: float = 10.0  # a reply to anything but /generate
    abort_timeout_s: float = 2.0
    flush_s: float = 30.0  # an engine waits so long for running requests before it drops its KV
    draft_read_s: float = 10.0  # counters of engines and hubs, at both ends of a rollout

    # The fleet and the processes that it starts.
    join_timeout_s: float = 10.0  # the server is up; this only covers a short network failure
    link_timeout_s: float = 60.0  # an engine's plugin tries twice a second; a busy machine is slow
    start_remind_s: float = 15.0  # between two log lines about an engine that is not ready
    watch_s: float = 0.5  # between two looks whether a process has ended
    # The longest pause before a process is restarted: that of as many failures in a row as are
    # remembered (processes/restarts.py), so that only a smaller value shortens pauses.
    restart_most_s: float = 8.0
    ray_room_s: float = 10.0  # an engine that Ray has not placed by then has no room for now
    ray_store_s: float = 30.0  # until a node has room for the memory of a store node

    # The plugin inside an engine.
    reconnect_s: float = 0.5  # between two tries of a link to connect
    # Between two checks whether the pages of a call are stored, then twice as long each time.
    pool_first_check_s: float = 0.01
    # After a wait of this length (about 5 s in total) missing pages count as not stored. The number
    # of checks decides, not the clock: a process that was suspended for seconds still checks again.
    pool_longest_wait_s: float = 2.5
    pool_rates_s: float = 2.0  # between two reports of the measured rates
    # Until a page that was just looked up or read can be removed: a second longer than Mooncake's
    # lease (its default_kv_lease_ttl).
    pool_lease_s: float = 11.0

    # Images of prompts.
    fetch_s: float = 10.0  # the whole answer of an address

    # Commands.
    # One call of an audit, and as much more per 6,000 tokens of input and output.
    audit_call_s: float = 600.0
    compare_least_s: float = 60.0  # the shortest limit of the plain rollout of `--compare`
    progress_s: float = 0.5  # between two pictures of the progress on a terminal
    progress_line_s: float = 5.0  # between two lines of it elsewhere
    # After a signal; an event loop that is not blocked reacts much sooner.
    unnoticed_s: float = 1.0

    # The server.
    # A client that sends its body byte by byte holds a socket no longer than this.
    body_timeout_s: float = 120.0
    # A connection without a request is closed: an idle one, or one whose header comes byte by byte.
    idle_s: float = 75.0
    health_timeout_s: float = 20.0  # SGLang's own (SGLANG_HEALTH_CHECK_TIMEOUT)
    ended_rollout_s: float = 3600.0  # how long the state of an ended rollout can be read
    abort_again_s: float = 1.0  # between two aborts of a request that an engine has not ended
    quick_call_s: float = 60.0  # a call that only changes what an engine's scheduler does


DEFAULT = Timing()
