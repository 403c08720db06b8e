"""OpenRLHF's sample generator, which hands the prompts of a batch over together."""

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from .ahead import Ahead, Columns, columns_of, places_of, reserve_of
from .figures import VERSIONS, staleness
from .flags import current_flags
from .groups import PLACE, placed
from .progress import Progress
from .seeds import derived_seed


class SeerSamplesGenerator(SamplesGenerator):
    """Begins and ends the batches of the front; the rest is OpenRLHF's."""

    vllm_engines: list[Any]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._front = self.vllm_engines[0]  # of create_engines
        self._over_sampling = current_flags().over_sampling
        self._progress = Progress()
        self._progress.join(self.prompts_dataloader)
        # Of every run its own: a server may still have a rollout of a trainer that was lost, and
        # Ray gives the first run of every cluster the same job id.
        self._run = uuid.uuid4().hex[:8]
        self._names = itertools.count()
        self._places = itertools.count()  # of prompts, in a batch
        self._ahead: Ahead | None = None  # of the batch in progress
        self._evaluation: Iterator[int] | None = None  # numbers of batches, during an evaluation

    def generate_eval_samples(self, **generate_kwargs: Any) -> Any:
        """Generates the samples of an evaluation (SamplesGenerator.generate_eval_samples)."""
        self._evaluation = itertools.count()
        try:
            return super().generate_eval_samples(**generate_kwargs)
        finally:
            self._evaluation = None

    def _generate_vllm(
        self,
        dataloader_iter: Any,
        num_prompts: int,
        dynamic_filtering: bool,
        **generate_kwargs: Any,
    ) -> Any:
        """Generates the samples of one batch (SamplesGenerator._generate_vllm).

        They are in the order of the prompts, and have the batch's figures in their `info`.
        """
        if self._evaluation is None:
            part = ("train", self._progress.next_batch())
            prompts = self._with_left_over(dataloader_iter, num_prompts, dynamic_filtering)
        else:
            part = ("eval", next(self._evaluation))  # the same seeds in every evaluation
            prompts = dataloader_iter
        self._begin(derived_seed(int(self.args.train.seed), *part))
        try:
            samples, *others = super()._generate_vllm(
                prompts, num_prompts, dynamic_filtering, **generate_kwargs
            )
        finally:
            ended = ray.get(self._front.close_batch.remote())
            ahead, self._ahead = self._ahead, None
        if ahead is not None:
            self._progress.left_over = ahead.left_over(ended["left"])
        consumed, exhausted = others
        if exhausted and self._evaluation is None:
            self._progress.end()
        return in_order(samples, ended["figures"], ended["version"]), consumed, exhausted

    def _dispatch_prompts_to_vllm(
        self, prompts: Sequence[str], labels: Any, *, images: Any = None, **generate_kwargs: Any
    ) -> Any:
        """Sends prompts to the front (SamplesGenerator._dispatch_prompts_to_vllm).

        With prompts ahead, each reference is for the responses of the group that ends next.
        """
        if self._ahead is None:
            places = itertools.islice(self._places, len(prompts))
            columns = (prompts, labels, images)
            return self._send("generate_responses", places, columns, generate_kwargs)
        drawn, new = self._ahead.dispatch()
        self._send("start_responses", iter(places_of(new)), columns_of(new), generate_kwargs)
        return [
            self._front.next_responses.remote()
            if each.responses is None
            else ray.put([placed(response, each.place) for response in each.responses])
            for each in drawn
        ]

    def _with_left_over(self, iterator: Any, num_prompts: int, dynamic_filtering: bool) -> Any:
        """Returns the iterator of a training batch."""
        left_over, self._progress.left_over = self._progress.left_over, []
        reserve = 0
        if dynamic_filtering:
            reserve = reserve_of(num_prompts, self._over_sampling)
        if not left_over and not reserve:
            return iterator
        self._ahead = Ahead(left_over, self._progress.read(iterator), reserve)
        return self._ahead

    def _begin(self, seed: int) -> None:
        name = f"openrlhf-{self._run}-{next(self._names)}"
        self._places = itertools.count()
        ray.get(self._front.open_batch.remote(name, seed))

    def _send(
        self, method: str, places: Iterator[int], columns: Columns, generate_kwargs: Any
    ) -> Any:
        """Calls a method of the front for each prompt, through OpenRLHF's own dispatch."""
        prompts, labels, images = columns
        ray.get(self._front.expect.remote(len(prompts)))
        self.vllm_engines = [
            SimpleNamespace(
                get_num_unfinished_requests=self._front.get_num_unfinished_requests,
                generate_responses=_Placing(getattr(self._front, method), places),
            )
        ]
        return super()._dispatch_prompts_to_vllm(prompts, labels, images=images, **generate_kwargs)


class _Placing:
    """A method of the front whose calls get the prompts' places. Ray keeps no order of calls."""

    def __init__(self, method: Any, places: Iterator[int]) -> None:
        self._method = method
        self._places = places

    def remote(self, **call: Any) -> Any:
        return self._method.remote(**call, place=next(self._places))


def in_order(samples: Sequence[Any], figures: Mapping[str, float], version: int) -> list[Any]:
    """Returns a batch's Experiences in the order of their prompts, with its figures in `info`.

    `version`: of the trainer's newest weights.
    """
    for sample in samples:
        own = {name: sample.info[name].item() for name in VERSIONS}
        more = {**figures, "seer_staleness": staleness(version, own)}
        sample.info.update({name: torch.tensor([value]) for name, value in more.items()})
    return sorted(samples, key=lambda sample: int(sample.info.pop(PLACE)))
