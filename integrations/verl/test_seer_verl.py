"""veRL's own agent loops on a rollout server, and what goes over the wire."""

import asyncio
import base64
import inspect
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seer_verl
import torch
import verl
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl import DataProto
from verl.utils.import_utils import load_class_from_fqn
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from seer_sgl.processes.child import free_port
from tests.e2e.conftest import ROOT, servers, two_cores, two_urls
from tests.e2e.moe import LAYERS, TOP_K, moe_model
from tests.tokenizers.families import FAMILIES

HERE = Path(__file__).parent
PROMPTS = ["The quick brown", "def main(", "12345, 6", "a b c"]
SIBLINGS, LIMIT, CHUNK = 3, 64, 16
FLAGS = ["--dtype", "float32", "--max-total-tokens", "8192", "--max-running-requests", "24"]
FLAGS += ["--enable-deterministic-inference", "--skip-server-warmup"]
ROLLOUT = {
    "name": "sglang",
    "prompt_length": 10,
    "response_length": 6,
    "max_model_len": 20,
    "custom": {"seer_sgl": {"url": "http://127.0.0.1:1/"}},
}


def section(**changes: Any) -> Any:
    return OmegaConf.create(ROLLOUT | changes)


def test_the_client_takes_what_verls_own_takes() -> None:
    own = inspect.signature(LLMServerClient.generate).parameters
    assert list(inspect.signature(seer_verl.SeerClient.generate).parameters) == list(own)


@pytest.mark.parametrize(
    ("prompt", "params", "limit"),
    [
        (4, {}, 6),  # response_length
        (12, {}, 4),  # prompt and response together
        (15, {"max_tokens": 9}, 4),  # the context
        (4, {"max_tokens": 9}, 9),
        (4, {"max_new_tokens": 3, "max_tokens": 9}, 3),
        (19, {"max_tokens": 9}, 0),
    ],
)
def test_the_limits_are_those_of_verls_server(
    prompt: int, params: dict[str, Any], limit: int
) -> None:
    sampling = {"temperature": 0.5, "logprobs": True, **params}
    body = seer_verl.body_of(section(), list(range(prompt)), sampling)
    assert body["sampling_params"] == {"temperature": 0.5, "max_new_tokens": limit}
    assert body["return_logprob"] is True
    assert "logprobs" in sampling, "veRL uses its dict again"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"custom": None}, "custom.seer_sgl.url: None is not the address"),
        ({"custom": {"seer_sgl": {"url": "a:1"}}}, "'a:1' is not the address"),
        ({"name": "vllm"}, "rollout.name: vllm"),
    ],
)
def test_a_config_that_cannot_work_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        seer_verl.server_url(section(**changes))


def test_a_reply_becomes_a_token_output() -> None:
    meta = {
        "id": "r",
        "finish_reason": {"type": "stop"},
        "output_token_logprobs": [[-0.5, 7, None], [-1.0, 8, None]],
        "num_retractions": 2,
        "weight_version": "12",
    }
    output = seer_verl.output_of({"output_ids": [7, 8], "meta_info": meta}, logprobs=True)
    assert (output.token_ids, output.log_probs) == ([7, 8], [-0.5, -1.0])
    assert (output.stop_reason, output.num_preempted) == ("stop", 2)
    assert output.extra_fields["global_steps"] == 12
    with pytest.raises(ValueError, match="other tokens"):
        seer_verl.output_of({"output_ids": [7, 9], "meta_info": meta}, logprobs=True)


def test_a_prompt_that_does_not_fit_and_images_are_refused() -> None:
    with pytest.raises(ValueError, match="20 prompt tokens exceed the context of 20"):
        seer_verl.body_of(section(), [1] * 20, {})
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": ROLLOUT}})
    client = seer_verl.SeerClient(config)
    with pytest.raises(ValueError, match="text prompts"):
        asyncio.run(client.generate("a", prompt_ids=[1], sampling_params={}, image_data=["x"]))


def test_routed_experts_are_rows_of_all_tokens_but_the_last() -> None:
    rows = np.arange(4 * 2 * 3, dtype=np.int32)
    meta = {"id": "r", "routed_experts": base64.b64encode(rows.tobytes()).decode()}
    reply = {"output_ids": [7, 8], "meta_info": meta}
    output = seer_verl.output_of(reply, logprobs=False, prompt_len=3, experts=(2, 3))
    assert output.routed_experts.shape == (4, 2, 3)
    assert output.routed_experts.flatten().tolist() == rows.tolist()
    with pytest.raises(ValueError, match="routed experts of other tokens or layers"):
        seer_verl.output_of(reply, logprobs=False, prompt_len=4, experts=(2, 3))
    assert seer_verl.body_of(section(), [1], {}).get("return_routed_experts") is None
    replayed = section(enable_rollout_routing_replay=True)
    assert seer_verl.body_of(replayed, [1], {})["return_routed_experts"] is True


@pytest.fixture(params=["dense", "experts"])
def experts(request: pytest.FixtureRequest) -> bool:
    """Whether the model is a mixture of experts."""
    return bool(request.param == "experts")


@pytest.fixture
def model(tmp_path: Path, experts: bool) -> Path:
    """The folder of a tiny random Qwen. veRL builds its chats from tokens that a Qwen has."""
    if experts:
        return moe_model(tmp_path)
    folder = next(each for each in FAMILIES if each.name == "qwen2").make(tmp_path)
    command = [sys.executable, "-m", "tests.tokenizers.weights", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture
def urls(model: Path, tmp_path: Path, experts: bool) -> Iterator[list[str]]:
    """Two plain engines."""
    urls, flags = two_urls(), ["--model-path", str(model), *FLAGS]
    if experts:
        flags.append("--enable-return-routed-experts")
    with servers(urls, [flags] * 2, tmp_path, cores=two_cores()):
        yield urls


@pytest.fixture
def server(model: Path) -> Iterator[str]:
    """The URL of a rollout server without engines."""
    port = free_port()
    keys = ["engines.launch=external", f"scheduling.chunk_tokens={CHUNK}", f"model.path={model}"]
    sets = [part for key in keys for part in ("--set", key)]
    command = [sys.executable, "-m", "seer_sgl", "serve", "--port", str(port), *sets]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "serving 0 engines" in process.stderr.readline()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture
def ray_of_this_machine() -> Iterator[Any]:
    import ray

    path = os.pathsep.join([str(HERE), str(ROOT)])
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    try:
        yield ray
    finally:
        ray.shutdown()


def config_of(url: str, model: Path, experts: bool) -> Any:
    """Returns veRL's default config with the keys of the README."""
    rollout = {
        "name": "sglang",
        "prompt_length": 32,
        "response_length": LIMIT,
        "max_model_len": 512,
        "calculate_log_probs": True,
        "temperature": 0,
        "n": SIBLINGS,
        "agent.num_workers": 2,
        "enable_rollout_routing_replay": experts,
    }
    keys = [f"actor_rollout_ref.rollout.{key}={value}" for key, value in rollout.items()]
    keys += [
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=seer_verl.SeerAgentLoopManager",
        f"actor_rollout_ref.model.path={model}",
        f"+actor_rollout_ref.rollout.custom.seer_sgl.url={url}",
    ]
    folder = str(Path(verl.__file__).parent / "trainer" / "config")
    with initialize_config_dir(folder, version_base=None):
        return compose("ppo_trainer", overrides=keys)


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def metric(url: str, name: str) -> float:
    """Returns the sum of a metric of the server over its labels."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_verls_agent_loops_get_the_samples_of_its_engines(
    urls: list[str], server: str, model: Path, experts: bool, ray_of_this_machine: Any
) -> None:
    config, ray = config_of(server, model, experts), ray_of_this_machine
    addresses = dict.fromkeys(url.removeprefix("http://") for url in urls)
    balancer = ray.remote(GlobalRequestLoadBalancer).remote(addresses)
    name = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
    manager = load_class_from_fqn(name, "AgentLoopManager").create(
        config=config, llm_client=LLMServerClient(config, balancer)
    )
    raw = np.empty(len(PROMPTS) * SIBLINGS, dtype=object)
    for i in range(len(raw)):
        raw[i] = [{"role": "user", "content": PROMPTS[i // SIBLINGS]}]
    batch = DataProto.from_dict(
        tensors={"unused": torch.zeros(len(raw), 1)},
        non_tensors={"raw_prompt": raw, "index": np.arange(len(raw))},
        meta_info={"global_steps": 1},
    )
    found = manager.generate_sequences(batch)
    for i in range(len(raw)):
        prompt_mask = found.batch["attention_mask"][i][: found.batch["prompts"].shape[1]].bool()
        prompt = found.batch["prompts"][i][prompt_mask].tolist()
        response = found.batch["responses"][i][found.batch["response_mask"][i].bool()].tolist()
        params = {"temperature": 0, "max_new_tokens": LIMIT}
        body = {"input_ids": prompt, "sampling_params": params, "return_routed_experts": experts}
        alone = post(f"{urls[0]}/generate", body)
        assert response == alone["output_ids"]
        if experts:
            text = alone["meta_info"]["routed_experts"]
            rows = np.frombuffer(base64.b64decode(text), np.int32).reshape(-1, LAYERS, TOP_K)
            begin = found.batch["prompts"].shape[1] - len(prompt)
            whole = found.batch["routed_experts"][i][begin:][: len(rows)]
            assert len(rows) == len(prompt) + len(response) - 1
            assert np.array_equal(whole.numpy(), rows)
        assert found.batch["rollout_log_probs"][i][: len(response)].max() <= 0
    assert metric(server, "seer_chunks_total") >= 2 * len(raw)
