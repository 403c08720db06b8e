"""Runs the passes of an audit on a server, one after the other."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from seer_sgl.errors import first_error

from .client import AuditClient, Generated, Prefilled
from .plan import PASSES, AuditPlan, Pass
from .recorded import F64, RecordedSample

T = TypeVar("T")
OnCall = Callable[[Pass, int], None]  # receives the pass and the tokens of each call that returned


class Answers(NamedTuple):
    """The server's answers: by name of the pass, one per sample; None: not generated.

    `probes`: log probabilities of new tokens, as they were generated and from a prefill.
    """

    prefilled: dict[str, list[Prefilled]]
    generated: dict[str, list[Generated | None]]
    probes: list[tuple[F64, F64]]


async def run_passes(
    client: AuditClient,
    plan: AuditPlan,
    *,
    top: Callable[[RecordedSample], int],
    batch: int,
    flush: bool,
    on_call: OnCall,
) -> Answers:
    """Returns the answers of all passes.

    `top`: the candidates that a prefill of a sample returns. `batch`: calls at a time. `flush`:
    before each cold pass the server drops its cache. Raises EngineError.
    """
    answers = Answers({}, {}, [])
    run = uuid.uuid4().hex  # no earlier audit has used the same part of the cache

    async def prefill(of: Pass, index: int) -> Prefilled:
        sample = plan.samples[index]
        answer = await client.prefill(sample, f"audit-{run}-{of.cache}-{index}", top(sample))
        on_call(of, sample.tokens)
        return answer

    async def generate(of: Pass, index: int) -> Generated | None:
        if not plan.generated[index]:
            return None
        sample = plan.samples[index]
        answer = await client.generate(sample, f"audit-{run}-{of.cache}-{index}")
        on_call(of, sample.tokens)
        return answer

    for audit_pass in PASSES:
        if audit_pass.kind == "generate" and not any(plan.generated):
            continue
        if flush and not audit_pass.warm:
            await client.flush()
        count, name = len(plan.samples), audit_pass.name
        if audit_pass.kind == "prefill":
            answers.prefilled[name] = await _every(count, prefill, audit_pass, batch)
        else:
            answers.generated[name] = await _every(count, generate, audit_pass, batch)
    for number, probe in enumerate(plan.probes):
        again = await client.generate(probe, f"audit-{run}-probe-{number}")
        on_call(PASSES[-1], probe.tokens)
        replaced = msgspec.structs.replace(probe, response_ids=again.ids)
        prefilled = await client.prefill(replaced, f"audit-{run}-probed-{number}", 0)
        on_call(PASSES[0], probe.tokens)
        answers.probes.append((again.log_probs, prefilled.log_probs))
    return answers


async def _every(
    count: int, call: Callable[[Pass, int], Awaitable[T]], of: Pass, batch: int
) -> list[T]:
    """Returns the results of all calls, which run one by one or `batch` at a time."""
    room = asyncio.Semaphore(batch if of.batch else 1)

    async def one(index: int) -> T:
        async with room:
            return await call(of, index)

    tasks: Sequence[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(index)) for index in range(count)]
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    return [task.result() for task in tasks]
