"""The reasoner's GRPO run: its dataset, reward, command line, model and tokenizer fit OpenRLHF."""

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from reasoner import grpo, prompts
from reasoner.reward import reward_func
from transformers import AutoConfig, AutoModelForCausalLM

THOUGHT = "<bos> gcd 2 1 0 , 8 8 5 ? <think> take 8 8 5 and 2 1 0 . </think> answer 2 1 0"


def from_file(path: Path) -> ModuleType:
    """Returns a module of the checkout, which this environment has not installed."""
    spec = importlib.util.spec_from_file_location(f"of_checkout_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    prompts.write(grpo.PROMPTS / "train.jsonl", path, 8, most_steps=20)
    return path


def test_the_dataset_has_the_keys_that_openrlhf_reads(dataset: Path) -> None:
    rows = [json.loads(line) for line in dataset.read_text().splitlines()]
    assert len(rows) == 8
    assert all(set(row) == {"input", "label", "datasource"} for row in rows)
    assert rows[0]["input"].startswith("<bos> gcd ")
    assert int(rows[0]["label"]) >= 1


def test_a_source_with_too_few_prompts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 0 such prompts, not 8"):
        prompts.write(grpo.PROMPTS / "train.jsonl", tmp_path / "none", 8, most_steps=1)


@pytest.mark.parametrize(
    ("query", "label"),
    [
        (f"{THOUGHT} <eos>", "12"),
        (f"{THOUGHT}<eos>", "12"),
        (THOUGHT, "12"),
        (f"{THOUGHT} <eos>", "13"),
        (f"{THOUGHT} . <eos>", "12"),
        (THOUGHT.removesuffix(" 0"), "12"),
        ("", "12"),
    ],
)
def test_the_reward_is_the_one_of_the_benchmark(query: str, label: str) -> None:
    expected = from_file(grpo.ROOT / "bench" / "reasoner" / "reward.py").reward(query, int(label))
    found = reward_func([query], ["<bos> gcd 2 1 0 , 8 8 5 ? <think>"], [label])
    assert found["rewards"] == found["scores"] == expected
    assert set(found["extra_logs"]) == {"guessed", "finished"}


def test_the_command_line_is_openrlhfs(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = parsed(grpo.arguments(grpo.Run(dataset, tmp_path, zero_stage=3)), monkeypatch)
    assert args.ds.zero_stage == 3
    assert args.vllm.sync_backend == "gloo"
    assert args.algo.advantage.estimator == "group_norm"
    assert args.critic.model_name_or_path is None
    assert args.reward.remote_url == [str(grpo.REWARD)]
    assert Path(args.actor.model_name_or_path, "config.json").is_file()
    assert grpo.ENGINES.is_file()
    assert grpo.COMMAND.is_file()


def test_a_dataset_of_two_batches_gives_two_optimizer_steps(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from openrlhf.trainer.ppo_trainer import prepare_datasets
    from openrlhf.utils import get_strategy, get_tokenizer

    args = parsed(grpo.arguments(grpo.Run(dataset, tmp_path)), monkeypatch)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    tokenizer = get_tokenizer(args.actor.model_name_or_path, None)
    batches, _, steps = prepare_datasets(get_strategy(args), tokenizer)
    assert steps == 2
    _, (prompt,), (label,), _ = next(iter(batches))
    assert prompt.endswith("? <think>")
    assert isinstance(label, str)


def parsed(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what OpenRLHF's own parser makes of the flags; its training does not begin."""

    class ParsedError(Exception):
        pass

    def get_strategy(args: SimpleNamespace) -> None:
        raise ParsedError(args)

    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr(sys, "argv", ["train_ppo_ray", *argv])
    with monkeypatch.context() as patch, pytest.raises(ParsedError) as caught:
        patch.setattr("openrlhf.utils.get_strategy", get_strategy)
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
    return caught.value.args[0]


def test_the_tokenizer_gives_the_ids_that_the_model_was_trained_on() -> None:
    from openrlhf.utils import get_tokenizer

    tokenizer = get_tokenizer(str(grpo.MODEL), None)
    text = f"{THOUGHT} <eos>"
    ids = from_file(grpo.ROOT / "bench" / "reasoner" / "task.py").encode(text)
    assert tokenizer(text=text, add_special_tokens=False)["input_ids"] == ids
    assert tokenizer(text=text)["input_ids"] == ids
    found = reward_func([tokenizer.decode(ids, skip_special_tokens=False)], [""], ["12"])
    assert found["rewards"] == found["extra_logs"]["finished"] == 1.0
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)


def test_the_checkpoint_loads_as_openrlhf_loads_it() -> None:
    from openrlhf.models import Actor

    actor = Actor(str(grpo.MODEL), attn_implementation="eager", param_dtype="bf16")
    assert not actor.is_vlm
    assert sum(weight.numel() for weight in actor.model.parameters()) == 747_136
    assert {weight.dtype for weight in actor.model.parameters()} == {torch.bfloat16}


def test_the_model_answers_in_transformers() -> None:
    from openrlhf.utils import get_tokenizer

    assert AutoConfig.from_pretrained(grpo.MODEL).model_type == "qwen2"
    model = AutoModelForCausalLM.from_pretrained(grpo.MODEL, dtype=torch.float32)
    tokenizer = get_tokenizer(str(grpo.MODEL), None)
    prompt = "<bos> gcd 2 1 0 , 6 3 0 ? <think>"  # of 12 and 36
    ids = tokenizer(text=prompt, add_special_tokens=False, return_tensors="pt")
    query = tokenizer.decode(model.generate(**ids, max_new_tokens=200, do_sample=False)[0])
    assert reward_func([query], [prompt], ["12"])["rewards"] == 1.0, query
