"""JSON lines of other frameworks, told apart by their keys.

- veRL's `trainer.rollout_data_dir`, a file per step: `_write_generations` in
  verl/trainer/ppo/ray_trainer.py and verl/trainer/ppo/v1/trainer_base.py (verl-project/verl
  1dda039).
- NeMo-RL's `train_data_step*.jsonl`: `grpo_train` in nemo_rl/algorithms/grpo.py and
  `log_batched_dict_as_jsonl` in nemo_rl/utils/logger.py (NVIDIA-NeMo/RL 7ea279a).
- The traces of tpu-inference's agentic benchmark: `load_trace` in
  scripts/vllm/benchmarking/agentic_benchmark/benchmark_agentic.py (vllm-project/tpu-inference
  b8692ff).

OpenRLHF writes no rollouts to files (OpenRLHF/OpenRLHF 3c3be62).
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from seer_sgl.bounds import Natural, TokenId
from seer_sgl.errors import ConfigError
from seer_sgl.rollout.jsonl import read_jsonl

from .trace import Imported, TracedResponse

CHARACTERS_PER_TOKEN = 4  # of English text, without its tokenizer
Count = Callable[[str], int]  # of the tokens of a text
Reader = Callable[[Path, str, Count | None], Imported]


class VerlLine(msgspec.Struct, kw_only=True):
    """A sample of veRL: texts without special tokens. `uid`, of the trainer v1:
    `{prompt}_{rollout}_{output}`."""

    input: str
    output: str
    uid: str | None = None


class NemoLine(msgspec.Struct, kw_only=True):
    """A sample of NeMo-RL: batches of one. Tokens of prompt, turns and tools, padded behind
    `input_lengths`; `token_loss_mask` is 1 for those that the model generated."""

    token_ids: tuple[list[TokenId]]
    token_loss_mask: tuple[list[float]]
    input_lengths: tuple[Natural]


class TpuLine(msgspec.Struct, kw_only=True):
    """A trajectory: tokens of the prompt, and of what the model generates in each turn."""

    group: str | int
    stream: Natural = 0
    prompt_len: Natural
    out_lens: list[Natural]


def reader_of(keys: set[str]) -> Reader | None:
    """Returns the reader of a file whose lines have these keys; None if it is none of these."""
    for needed, reader in _READERS:
        if needed <= keys:
            return reader
    return None


def _verl(path: Path, source: str, count: Count | None) -> Imported:
    decoder = msgspec.json.Decoder(VerlLine)
    tokens = count or _estimate

    def responses() -> Iterator[TracedResponse]:
        for place, line in read_jsonl(path, source, decoder, "samples"):
            yield TracedResponse(
                place=place,
                length=tokens(line.output),
                group=line.input if line.uid is None else line.uid.rsplit("_", 2)[0],
                prompt_tokens=tokens(line.input),
            )

    how = (
        "tokens are those of --tokenizer"
        if count
        else f"{CHARACTERS_PER_TOKEN} characters count as a token; --tokenizer counts them"
    )
    return Imported(
        format="veRL's rollout data",
        responses=responses(),
        assumed=[f"The file has texts without special tokens: {how}."],
    )


def _estimate(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def _nemo(path: Path, source: str, count: Count | None) -> Imported:
    decoder = msgspec.json.Decoder(NemoLine)

    def responses() -> Iterator[TracedResponse]:
        for place, line in read_jsonl(path, source, decoder, "samples"):
            (tokens,), (mask,), (size,) = line.token_ids, line.token_loss_mask, line.input_lengths
            if len(mask) != len(tokens) or size > len(tokens):
                raise ConfigError(f"{place}: token_ids, token_loss_mask: of different lengths")
            generated = [number for number in range(size) if mask[number]]
            prompt = tokens[: generated[0]] if generated else None
            yield TracedResponse(place=place, length=len(generated), prompt_ids=prompt)

    return Imported(
        format="NeMo-RL's training data",
        responses=responses(),
        assumed=["Tokens of tools and environments are left out; turns count as one response."],
    )


def _tpu(path: Path, source: str, count: Count | None) -> Imported:
    decoder = msgspec.json.Decoder(TpuLine)

    def responses() -> Iterator[TracedResponse]:
        for place, line in read_jsonl(path, source, decoder, "trajectories"):
            yield TracedResponse(
                place=place,
                length=sum(line.out_lens),
                group=str(line.group),
                index=line.stream,
                prompt_tokens=line.prompt_len,
            )

    return Imported(
        format="a trace of tpu-inference",
        responses=responses(),
        assumed=["Observations are left out; turns count as one response."],
    )


_READERS: tuple[tuple[set[str], Reader], ...] = (
    ({"input", "output", "score", "step"}, _verl),
    ({"token_ids", "token_loss_mask", "input_lengths"}, _nemo),
    ({"group", "prompt_len", "out_lens"}, _tpu),
)
