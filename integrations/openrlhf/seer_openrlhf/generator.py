"""OpenRLHF's sample generator, which hands the prompts of a batch over together."""

import itertools
from typing import Any

import ray
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

STEP_SEEDS = 1_000_003  # a prime: runs of neighbouring seeds share no seed of a batch


class SeerSamplesGenerator(SamplesGenerator):
    """Begins and ends the batches of the front; the rest is OpenRLHF's."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._batches = itertools.count()

    def _generate_vllm(self, *arguments: Any, **options: Any) -> Any:
        """Generates the samples of one batch (SamplesGenerator._generate_vllm)."""
        front, number = self.vllm_engines[0], next(self._batches)
        name = f"openrlhf-{ray.get_runtime_context().get_job_id()}-{number}"
        seed = (int(self.args.train.seed) * STEP_SEEDS + number) % (1 << 31)
        ray.get(front.open_batch.remote(name, seed))
        try:
            return super()._generate_vllm(*arguments, **options)
        finally:
            ray.get(front.close_batch.remote())

    def _dispatch_prompts_to_vllm(self, prompts: Any, *arguments: Any, **options: Any) -> Any:
        """Sends prompts to the front (SamplesGenerator._dispatch_prompts_to_vllm)."""
        ray.get(self.vllm_engines[0].expect.remote(len(prompts)))
        return super()._dispatch_prompts_to_vllm(prompts, *arguments, **options)
