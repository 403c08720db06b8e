"""Rollouts on fake servers that outlive their driver."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from seer_sgl import Rollout
from seer_sgl.driver.journal.folder import JournalFolder
from seer_sgl.driver.journal.records import Ended, Returned
from seer_sgl.driver.journal.stored import read, records
from seer_sgl.rollout.trajectories import Client
from seer_sgl.types import Group, Prompt, Sample
from tests.fake_sglang import FakeSGLang, response_of, serving

CHUNK = 8
LONGEST = 60
LIMIT = 50
N = 4
SEED = 3
TURNS = 3  # of a trajectory
RESULT = [7, 8, 9]  # tokens of a tool
PROMPTS: list[dict[str, Any]] = [{"id": f"p{i}", "prompt_ids": [5] * (3 + i)} for i in range(6)]


@dataclass(eq=False)
class Logging(FakeSGLang):
    """A fake that logs its calls beside those of others."""

    log: list[dict[str, Any]] = field(default_factory=list)

    @override
    def fault_of(self, call: dict[str, Any]) -> str:
        self.log.append(call)
        return super().fault_of(call)


@dataclass(eq=False)
class Refusing(Logging):
    """Refuses the calls with `refused_length` input tokens, which are those of one prompt.

    It also refuses the requests with some seeds, which all such servers share.
    """

    refused_length: int = 0
    refused_seeds: set[int] = field(default_factory=set)

    @override
    def fault_of(self, call: dict[str, Any]) -> str:
        fault, seed = super().fault_of(call), call["sampling_params"].get("sampling_seed")
        refused = len(call["input_ids"]) == self.refused_length or seed in self.refused_seeds
        return "400" if refused else fault


class Fakes(NamedTuple):
    """Fake servers, all of their calls in order, and the config of rollouts on them."""

    servers: Sequence[FakeSGLang]
    calls: list[dict[str, Any]]
    config: dict[str, Any]

    def config_with(self, **changed: Any) -> dict[str, Any]:
        """Returns the config with other values in its sections."""
        tree = {name: dict(section) for name, section in self.config.items()}
        for name, section in changed.items():
            tree.setdefault(name, {}).update(section)
        return tree

    def seeds(self) -> list[int]:
        """Returns the seed of every chunk so far, in order: it names the request."""
        chunks = (call for call in self.calls if "." in call["rid"])  # not what ends orphans
        return [call["sampling_params"]["sampling_seed"] for call in chunks]


@contextlib.asynccontextmanager
async def fakes(
    count: int = 2, kind: type[Logging] = Logging, **options: Any
) -> AsyncIterator[Fakes]:
    """Serves fakes that share their knowledge of where a response begins."""
    async with contextlib.AsyncExitStack() as stack:
        lens: dict[int, int] = {}
        calls: list[dict[str, Any]] = []
        options |= {"prompt_lens": lens, "log": calls, "longest": LONGEST}
        servers = [kind(**options) for _ in range(count)]
        urls = [await stack.enter_async_context(serving(fake)) for fake in servers]
        config = {
            "engines": {"launch": "external", "urls": urls},
            "scheduling": {"chunk_tokens": CHUNK},
            "sampling": {"max_new_tokens": LIMIT},
            "rollout": {"n_samples_per_prompt": N, "seed": SEED},
        }
        yield Fakes(servers, calls, config)


Key = tuple[str, int]


async def rolled(
    config: dict[str, Any],
    prompts: Sequence[Any] = PROMPTS,
    *,
    resume: Path | None = None,
    groups: int | None = None,
    **options: Any,
) -> tuple[list[Group], dict[str, Any]]:
    """Rolls out, or continues; leaves after `groups` groups. Returns the groups and the report."""
    done: list[Group] = []
    async with Rollout(config) as rollout:
        if resume is None:
            running = rollout.run(prompts, **options)
        else:
            running = rollout.resume(resume, prompts, **options)
        async with contextlib.aclosing(running):
            async for group in running:
                done.append(group)
                if len(done) == groups:
                    break
        return done, rollout.report()


async def collect(running: AsyncIterator[Group], done: list[Group]) -> None:
    """Appends the groups of a rollout, which may fail after some."""
    async for group in running:
        done.append(group)  # noqa: PERF401 (a list would be lost with the error)


def samples_of(groups: Iterable[Group]) -> dict[Key, Sample]:
    """Returns the samples by group and index; fails if one is there twice."""
    samples = [sample for group in groups for sample in group.samples]
    found = {(sample.group_id, sample.index): sample for sample in samples}
    assert len(found) == len(samples)
    return found


def whole(sample: Sample) -> list[int]:
    """Returns the response of an undivided call."""
    return response_of(sample.seed, len(sample.prompt_ids), LONGEST)[:LIMIT]


def check(samples: dict[Key, Sample], prompts: Sequence[Any] = PROMPTS, n: int = N) -> None:
    """Fails unless every sample is there, with the tokens of an undivided call."""
    assert samples.keys() == {(prompt["id"], i) for prompt in prompts for i in range(n)}
    for sample in samples.values():
        assert sample.response_ids.tolist() == whole(sample)
        assert len(sample.rollout_log_probs) == sample.response_length == len(whole(sample))
        assert sum(span.tokens for span in sample.weight_spans) == sample.response_length
        assert sum(sample.chunk_lengths) == sample.response_length
        assert len(sample.chunk_lengths) == len(sample.engines) == sample.chunks


class JournalNow(NamedTuple):
    """What a journal has of the requests, by seed."""

    finished: set[int]
    begun: set[int]
    tokens: int


def journal_now(path: Path) -> JournalNow:
    """Reads a journal that no process uses."""
    finished, begun, tokens = set(), set(), 0
    with JournalFolder(path, create=False) as folder:
        stored = read(folder)
        assert stored is not None
        for record in records(folder, stored):
            assert not isinstance(record, Ended)
            if isinstance(record, Returned):
                begun.add(record.seed)
                tokens += len(record.ids) // 4
                if record.finish is not None:
                    finished.add(record.seed)
    return JournalNow(finished, begun, tokens)


async def turns(prompt: Prompt, client: Client) -> list[Sample]:
    """Generates some turns, each followed by the result of a tool; extends the prompt in place."""
    samples, ids = list[Sample](), prompt.prompt_ids
    for _ in range(TURNS):
        samples.append(await client.generate(ids))
        ids.extend([*samples[-1].response_ids, *RESULT])
    return samples
