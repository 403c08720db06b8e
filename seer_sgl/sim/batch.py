"""The continuous batch of one engine, simulated by event instead of by step. Pure: `now` is given.

It follows SGLang's scheduler. Prefill goes before decode. A waiting request is admitted if its
input and the estimated output of all requests fit (`PrefillAdder`). After a request that does not
fit, no request is tried until the batch shrinks (`batch_is_full`). If the next step does not fit,
the request with the least output is retracted and prefilled again later.

Between two events the batch is constant and the KV grows linearly, so a whole stretch of steps is
one event (steps.py). Simplifications: a page is one token; requests do not decode between the
passes of a long prefill; the quadratic part of attention in prefill is ignored.
"""

from collections import deque

from .cache import IdleCache
from .config import EngineConfig
from .job import Job
from .running_set import RunningSet
from .speculation import Pace, Speculation
from .steps import StepTime, Stretch

# SGLang's defaults, under SGLang's names.
MAX_PREFILL_TOKENS = 16384
RETRACT_DECODE_STEPS = 20
INIT_NEW_TOKEN_RATIO = 0.7
MIN_NEW_TOKEN_RATIO = 0.7 * 0.14
NEW_TOKEN_RATIO_DECAY = (INIT_NEW_TOKEN_RATIO - MIN_NEW_TOKEN_RATIO) / 600
# The delay before the next pass after replies. By then the driver has sent the next chunks (the
# virtual clock does not advance while a task runs), and one pass admits all of them.
ANSWER_S = 1e-6


class SimulatedBatch:
    """Turns jobs into tokens. Its owner calls `turn` at `wake_at`."""

    def __init__(self, engine: EngineConfig, step: StepTime, speculation: Speculation) -> None:
        self.wake_at: float | None = None
        self.running = RunningSet()
        self.idle_cache = IdleCache()
        self.prefilled = 0  # input tokens that were computed
        self._prefills = 0  # passes that began chunks
        self._capacity = engine.kv_tokens
        self._max_running = engine.max_running_requests
        self._reserve = engine.reserve_tokens
        self._step = step
        self._speculation = speculation
        self._waiting: deque[Job] = deque()
        self.full = False  # no job is admitted before another one ends: SGLang's batch_is_full
        self._ratio = INIT_NEW_TOKEN_RATIO
        # The current stretch of decode steps, if any: its begin, number of steps and pace.
        self._began = 0.0
        self._steps = 0
        self._stretch = Stretch(1.0, 0.0)
        self._pace = Pace(1.0, 0.0, 0.0)

    @property
    def forward_steps(self) -> int:
        """Passes so far: decode steps, and prefills."""
        return self.running.steps + self._prefills

    @property
    def waiting(self) -> int:
        """Jobs that wait for admission, new or retracted."""
        return len(self._waiting)

    def held(self, now: float) -> float:
        """Returns the KV tokens in use at `now`, also in the middle of a stretch."""
        if not self._steps:
            return self.running.held
        done = min(self._steps, self._stretch.steps(now - self._began))
        return self.running.held + done * self._pace.tokens * len(self.running)

    def add(self, job: Job, now: float) -> None:
        """Adds a chunk that has arrived."""
        self._waiting.append(job)
        if not self.full:
            self._interrupt(now)

    def abort(self, rid: str, now: float) -> int:
        """Removes an aborted chunk; its KV stays until eviction. Returns the tokens that it had
        written."""
        self._interrupt(now)
        self._settle()
        job = self.running.jobs.get(rid)
        if job is not None:
            written = self.running.output(job)
            self._release(job)
            self.full = False
            return written
        waiting, self._waiting = self._waiting, deque[Job]()
        for job in waiting:
            if job.rid != rid:
                self._waiting.append(job)
        return sum(job.produced for job in waiting if job.rid == rid)

    def written(self, now: float) -> int:
        """Returns the tokens that all present chunks have written."""
        self._interrupt(now)
        self._settle()
        running = sum(map(self.running.output, self.running.jobs.values()))
        return running + sum(job.produced for job in self._waiting)

    def turn(self, now: float) -> list[Job]:
        """Ends the current pass. Returns the finished jobs; if there are none, begins the next
        pass."""
        self._settle()
        done = list(self.running.done())
        for job in done:
            self.idle_cache.put(job.uid, job.input_len + job.tokens)
        if done:
            self.full = False
            self.wake_at = now + ANSWER_S
            return done
        if self._waiting and not self.full:
            seconds = self._prefill()
            if seconds:
                self.wake_at = now + seconds
                return []
        if not self.running:
            self.wake_at = None
            return []
        self._pace = self._next_pace()
        if self._retract():
            self._pace = self._next_pace()
        self._decode(now)
        return []

    def _interrupt(self, now: float) -> None:
        """Ends the current stretch after its current step, so that a change takes effect."""
        if self._steps:
            self._steps = min(self._steps, self._stretch.steps(now - self._began))
            self.wake_at = max(now, self._began + self._stretch.seconds(self._steps))
        elif self.wake_at is None:
            self.wake_at = now

    def _settle(self) -> None:
        """Accounts for the steps of the finished stretch."""
        self.running.step(self._steps, self._pace.tokens)
        self._ratio = max(MIN_NEW_TOKEN_RATIO, self._ratio - self._steps * NEW_TOKEN_RATIO_DECAY)
        self._steps = 0
        self.idle_cache.shrink(self._capacity - self.running.held)

    def _prefill(self) -> float:
        """Admits the jobs that fit into one pass. Returns its seconds, 0 if no job fits."""
        running, cost = self.running, 0
        left = self._capacity - running.held
        # An upper bound of the running jobs' output; counted exactly only if it matters.
        reserved, exact = len(running) * self._reserve * self._ratio, False
        admitted: list[Job] = []
        while self._waiting and cost < MAX_PREFILL_TOKENS:
            job = self._waiting[0]
            need = job.context - self._in_use(job) + min(job.max_new, self._reserve)
            if need >= left - reserved and not exact:
                reserved, exact = running.reserved(self._reserve) * self._ratio, True
            others = len(running) + len(admitted)
            # A single job runs regardless of the estimate.
            if others >= self._max_running or (need >= left - reserved and others):
                self.full = True
                break
            self._waiting.popleft()
            left -= need
            cost += job.context - self._hit(job)
            admitted.append(job)
        self.prefilled += cost
        for job in admitted:
            self.idle_cache.take(job.uid)
            running.enter(job)
        self.idle_cache.shrink(self._capacity - running.held)
        if not admitted:
            return 0.0
        self._prefills += 1
        return self._step.prefill(cost, len(admitted))

    def _hit(self, job: Job) -> int:
        """Returns the input tokens that need no prefill; the last token always needs it."""
        device = max(self.idle_cache.length(job.uid), self._in_use(job))
        if job.retractions:  # SGLang frees a retracted request's KV for good
            return min(device, job.context - 1)
        job.device = min(device, job.context - 1)
        job.storage = max(0, min(job.fetched, job.context - 1) - job.device)
        # KV that was evicted while the job waited returns from host memory; the copy overlaps.
        job.host = max(0, job.context - 1 - job.device - job.storage) if job.pooled else 0
        return job.device + job.storage + job.host

    def _in_use(self, job: Job) -> int:
        """Returns the tokens of the job whose KV a running sibling holds."""
        return job.prompt_len if self.running.holds(job.group) else 0

    def _next_pace(self) -> Pace:
        running = self.running
        return self._speculation.pace(len(running), running.alpha, running.context)

    def _retract(self) -> bool:
        """Retracts jobs until the next step fits. Returns whether any job was retracted."""
        running, before = self.running, len(self.running)
        while len(running) > 1:
            if running.held + len(running) * self._pace.tokens <= self._capacity:
                break
            job = running.retract()
            job.retractions += 1
            self._waiting.append(job)
        if len(running) == before:
            return False
        self._ratio = running.output_share(RETRACT_DECODE_STEPS)
        self.full = False
        return True

    def _decode(self, now: float) -> None:
        """Begins the longest stretch of decode steps without an event."""
        running, tokens = self.running, self._pace.tokens
        growth = len(running) * tokens
        to_end = -int(-(running.to_first_end() - 1e-6) // tokens)
        to_full = int((self._capacity - running.held) // growth)
        # If a waiting job may be admitted, SGLang tries again after every step.
        self._steps = 1 if self._waiting and not self.full else max(1, min(to_end, to_full))
        first_s = self._pace.seconds(running.context)
        self._stretch = Stretch(first_s, growth * self._pace.kv_token_s)
        self._began = now
        self.wake_at = now + self._stretch.seconds(self._steps)

    def _release(self, job: Job) -> None:
        length = int(self.running.length(job))
        self.running.leave(job)
        self.idle_cache.put(job.uid, length)
