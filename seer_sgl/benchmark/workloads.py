"""The workloads of the arms: prompts drawn by a seed, or a trace with its lengths."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from seer_sgl.errors import ConfigError
from seer_sgl.rollout.rollout import Rollout
from seer_sgl.scheduling.lengths import KnownLengths
from seer_sgl.sim.simulate import truth
from seer_sgl.traces.plain_files import read_lines
from seer_sgl.traces.trace import Responses, TracedResponse, grouped
from seer_sgl.types import Prompt

from .config import BenchConfig
from .measure import Workload

GREEDY_PROMPTS = 64  # of the greedy arms, with one response each


class Source:
    """Draws the workloads of a benchmark. Raises InputError if a file is invalid."""

    def __init__(self, config: BenchConfig) -> None:
        self._most = config.rollout.max_prompts
        self._limits: KnownLengths | None = None
        if config.bench.workload is not None:
            groups = _groups(Path(config.bench.workload), config.sampling.max_new_tokens)
            self._prompts = [
                Prompt(prompt_id=group.group_id, prompt_ids=group.prompt_ids, n=len(group.lengths))
                for group in groups
            ]
            self._limits = truth(groups)
        else:
            everything = msgspec.structs.replace(config.rollout, max_prompts=None)
            reader = Rollout(msgspec.structs.replace(config, rollout=everything))
            self._prompts = reader.read_prompts(Path(config.rollout.prompts or ""))

    def draw(self, seed: int) -> Workload:
        """Returns the groups of a seed: `rollout.max_prompts` of all prompts."""
        return Workload(seed, self._drawn(seed, self._most), self._limits)

    def draw_single(self, seed: int) -> Workload:
        """Returns one response per prompt, for greedy decoding: all samples of a prompt would be
        equal."""
        drawn = self._drawn(seed, GREEDY_PROMPTS)
        prompts = [msgspec.structs.replace(prompt, n=1) for prompt in drawn]
        return Workload(seed, prompts, self._limits)

    def _drawn(self, seed: int, most: int | None) -> list[Prompt]:
        if most is None or most >= len(self._prompts):
            return self._prompts
        return random.Random(seed).sample(self._prompts, most)


def _groups(path: Path, max_response_len: int) -> list[Responses]:
    imported = read_lines(path, "bench.workload")
    imported = msgspec.structs.replace(imported, responses=_with_prompts(imported.responses))
    groups = grouped(path.name, imported).groups
    longest = max(max(group.lengths) for group in groups)
    if longest > max_response_len:
        raise ConfigError(
            f"sampling.max_response_len: {max_response_len}, but {path} has a response of "
            f"{longest} tokens"
        )
    return groups


def _with_prompts(responses: Iterable[TracedResponse]) -> Iterator[TracedResponse]:
    for response in responses:
        if not response.prompt_ids:
            raise ConfigError(
                f"{response.place}: prompt_ids: missing; a benchmark needs the prompts"
            )
        yield response
