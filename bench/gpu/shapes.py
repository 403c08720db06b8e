"""Writes the inputs of the GPU benchmark for a machine without a checkpoint and a data set.

`python -m bench.gpu.shapes --out out/gpu/inputs` writes these inputs.

model/: the shape of a real model (config.json of a dense Qwen2.5) without weights or tokenizer.
SGLang's `--load-format dummy` fills it with random numbers: a step costs as much as a step of that
model, and the text is noise. Prompts are token ids, so no tokenizer is needed.

trace.jsonl: one group per line, `{"group_id", "prompt_ids", "lengths"}`, the format of
`bench.workload` and `seer-sgl simulate --trace`. The lengths are drawn from the distribution fitted
to the paper's Qwen2-VL-72B (configs/sim), scaled down so that a rollout takes minutes.

text.npz, plugin/: recorded responses of these lengths, which engines give out instead of the noise
if they have the variables of `bench.gpu.imposed.environment`.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.draft_streams import recorded
from seer_sgl.sim.source import load_settings, workload_file
from seer_sgl.sim.workload import draw

from .imposed import write_plugin
from .text import compose

SPREAD_OF = "qwen2-vl-72b"  # the paper's workload with 16 samples per prompt
BF16 = 2  # bytes per number
TEXT, PLUGIN = "text.npz", "plugin"  # in the folder of the inputs

# As published by Qwen. The 1.5B model shares one matrix for the embedding and the output.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "1.5b": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "7b": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    # Of no model: for rehearsals on a CPU.
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 1024,
        "tie_word_embeddings": True,
    },
}
# Ids from here on are Qwen's special tokens (<|endoftext|>, <|im_start|>, ...) and padding.
TEXT_IDS = 151643
EOS, BOS = 151645, 151643


def model_config(size: str) -> dict[str, Any]:
    """Returns the config.json of a model of that size."""
    last = int(SIZES[size]["vocab_size"]) - 1
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **SIZES[size],
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_sliding_window": False,
        "use_cache": True,
        "bos_token_id": min(BOS, last),
        "eos_token_id": min(EOS, last),
        "torch_dtype": "bfloat16",
    }


def parameters(config: Mapping[str, Any]) -> int:
    """Returns the number of parameters of such a model."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = config["num_key_value_heads"] * (hidden // config["num_attention_heads"])
    attention = 2 * hidden * hidden + 2 * hidden * kv + hidden + 2 * kv  # q, o; k, v; biases
    layer = attention + 3 * hidden * inner + 2 * hidden  # gate, up, down; two norms
    ends = config["vocab_size"] * hidden * (1 if config["tie_word_embeddings"] else 2)
    return int(config["num_hidden_layers"] * layer + ends + hidden)


def kv_bytes(config: Mapping[str, Any]) -> int:
    """Returns the KV bytes per token, in bf16."""
    head = config["hidden_size"] // config["num_attention_heads"]
    return int(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head * BF16)


def write_model(folder: Path, size: str) -> dict[str, Any]:
    """Writes the model's folder. Returns its config."""
    config = model_config(size)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("config", config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    return config


def draw_lengths(
    groups: int, n: int, mean: float, longest: int, seed: int | None
) -> list[list[int]]:
    """Returns the lengths of `n` responses per group, in tokens. `seed` None: the seed of the
    fitted workload, a typical draw."""
    fitted = load_settings(workload_file(SPREAD_OF)).workload.lengths
    spread = msgspec.structs.replace(
        fitted, mean=mean, max=longest, seed=fitted.seed if seed is None else seed
    )
    return [[int(length) for length in row] for row in draw(spread, groups, n)]


def write_trace(
    file: Path, lengths: Sequence[Sequence[int]], prompt_tokens: int, vocabulary: int
) -> None:
    """Writes the trace: for each group a prompt of random ids and the response lengths."""
    ids = random.Random(1)
    with file.open("w") as lines:
        for number, of_group in enumerate(lengths):
            prompt = [ids.randrange(min(TEXT_IDS, vocabulary)) for _ in range(prompt_tokens)]
            line = {"group_id": name_of(number), "prompt_ids": prompt, "lengths": of_group}
            lines.write(json.dumps(line) + "\n")


def name_of(group: int) -> str:
    """Returns the id of a group of the trace, by its number."""
    return f"g{group}"


def write_text(
    folder: Path, lengths: Sequence[Sequence[int]], prompt_tokens: int, seeds: Sequence[int]
) -> None:
    """Writes the text of the trace's responses, in benchmarks with these seeds, and its plugin."""
    by_group = {name_of(number): of_group for number, of_group in enumerate(lengths)}
    compose(recorded(), by_group, prompt_tokens, seeds).save(folder / TEXT)
    write_plugin(folder / PLUGIN)


def main() -> None:
    """Writes the inputs; prints one JSON object with their properties."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for model/ and trace.jsonl")
    parser.add_argument("--size", choices=SIZES, default="1.5b", help="parameters of the model")
    parser.add_argument("--groups", type=int, default=32, help="prompts")
    parser.add_argument("--n", type=int, default=16, help="responses per prompt")
    parser.add_argument("--mean", type=float, default=1500.0, help="response tokens")
    parser.add_argument("--longest", type=int, default=8192, help="response tokens")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, help="seed of the lengths; default: the workload's")
    parser.add_argument("--text-seeds", default="1", help="bench.seeds, comma-separated")
    options = parser.parse_args()
    counts = (options.groups, options.n, options.prompt_tokens)
    if min(counts) < 1 or not 1 <= options.mean <= options.longest:
        parser.error("counts and lengths must be at least 1, and the mean below the longest")
    try:
        seeds = [int(seed) for seed in options.text_seeds.split(",")]
    except ValueError:
        parser.error(f"--text-seeds: no whole numbers: {options.text_seeds}")
    lengths = draw_lengths(options.groups, options.n, options.mean, options.longest, options.seed)
    try:
        config = write_model(options.out / "model", options.size)
        trace, words = options.out / "trace.jsonl", config["vocab_size"]
        write_trace(trace, lengths, options.prompt_tokens, words)
        write_text(options.out, lengths, options.prompt_tokens, seeds)
    except OSError as error:
        parser.error(f"--out {options.out}: {error.strerror}")
    every = [length for row in lengths for length in row]
    facts = {
        "model": str(options.out / "model"),
        "parameters": parameters(config),
        "kv_bytes_per_token": kv_bytes(config),
        "workload": str(trace),
        "groups": len(lengths),
        "samples": len(every),
        "response_tokens": sum(every),
        "mean": round(sum(every) / len(every), 1),
        "longest": max(every),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
