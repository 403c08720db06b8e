"""The requests that an engine decodes, with the sums over them that a step needs.

Every decode step gives each request the same number of tokens, so a sum over them is
`count * progress + a constant`. Entering and leaving cost O(log count); a step costs O(1).
"""

from collections import Counter
from collections.abc import Iterable

from seer_sgl.scheduling.updatable_queue import UpdatableQueue

from .job import Job

EPSILON = 1e-6  # tokens; progress is a float when drafts are accepted


class RunningSet:
    """Jobs being decoded, and the KV they hold; siblings share the KV of their prompt."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}  # by rid
        self.progress = 0.0  # tokens given to every sequence since the engine started
        self.steps = 0
        self._by_end: UpdatableQueue[Job] = UpdatableQueue()
        self._by_output: UpdatableQueue[Job] = UpdatableQueue()  # least output first
        self._siblings: Counter[str] = Counter()
        self._length_base = 0.0
        self._output_base = 0.0
        self._shared_again = 0  # prompt tokens that `context` counts more than once
        self._max_new = 0
        self._alpha = 0.0

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def context(self) -> float:
        """Tokens that a step attends to, the sum over all sequences."""
        return len(self.jobs) * self.progress + self._length_base

    @property
    def held(self) -> float:
        """KV tokens in use."""
        return self.context - self._shared_again

    @property
    def alpha(self) -> float:
        """Mean acceptance rate."""
        return self._alpha / len(self.jobs) if self.jobs else 0.0

    def holds(self, group: str) -> bool:
        """Returns whether the KV of the group's prompt is in use."""
        return self._siblings[group] > 0

    def enter(self, job: Job) -> None:
        """Adds a job that has its KV and the first token, which its prefill sampled."""
        job.length_base = job.context + 1 - self.progress
        job.output_base = job.produced + 1 - self.progress
        job.first_step = self.steps
        self.jobs[job.rid] = job
        self._by_end.put(job, job.tokens - job.output_base)
        self._by_output.put(job, job.output_base, -job.prompt_len)
        self._count(job, +1)

    def leave(self, job: Job) -> None:
        """Removes a job that is done, retracted or aborted."""
        del self.jobs[job.rid]
        self._by_end.remove(job)
        self._by_output.remove(job)
        self._count(job, -1)
        job.steps += self.steps - job.first_step

    def step(self, count: int, tokens: float) -> None:
        """Advances by `count` decode steps of `tokens` per sequence."""
        self.steps += count
        self.progress += count * tokens

    def length(self, job: Job) -> float:
        """Returns the tokens of the job: prompt, earlier chunks and this one."""
        return self.progress + job.length_base

    def output(self, job: Job) -> int:
        """Returns the tokens that the job has written."""
        return min(job.tokens, int(self.progress + job.output_base))

    def to_first_end(self) -> float:
        """Returns the tokens per sequence until the first job is done; 0 without a job."""
        first = self._by_end.first()
        return 0.0 if first is None else self._left(first)

    def done(self) -> Iterable[Job]:
        """Removes and yields the jobs that have all their tokens."""
        while (job := self._by_end.first()) is not None and self._left(job) <= EPSILON:
            self.leave(job)
            yield job

    def retract(self) -> Job:
        """Removes and returns the job that SGLang would retract: least output, then longest prompt
        (`ScheduleBatch._get_decode_retraction_order`)."""
        job = self._by_output.first()
        assert job is not None
        job.produced = int(self.progress + job.output_base)
        self.leave(job)
        return job

    def reserved(self, most: int) -> float:
        """Returns the tokens that the jobs may still write, at most `most` each."""
        used = self.progress
        return sum(min(job.max_new - used - job.output_base, most) for job in self.jobs.values())

    def output_share(self, ahead: int) -> float:
        """Returns the output so far plus `ahead` tokens per job, as a share of their maximum."""
        count = len(self.jobs)
        output = count * self.progress + self._output_base
        return min(1.0, (output + ahead * count) / (self._max_new + 1))

    def _left(self, job: Job) -> float:
        """Returns the tokens that the job has yet to write."""
        return job.tokens - job.output_base - self.progress

    def _count(self, job: Job, sign: int) -> None:
        self._length_base += sign * job.length_base
        self._output_base += sign * job.output_base
        self._max_new += sign * job.max_new
        self._alpha += sign * job.alpha
        before = self._siblings[job.group]
        self._siblings[job.group] = before + sign
        if min(before, before + sign) > 0:
            self._shared_again += sign * job.prompt_len
        elif before + sign == 0:
            del self._siblings[job.group]
