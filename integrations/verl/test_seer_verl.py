"""veRL's own agent loops on a rollout server, and what goes over the wire."""

import asyncio
import base64
import inspect
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seer_verl
import torch
import verl
from aiohttp import web
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl import DataProto
from verl.utils.import_utils import load_class_from_fqn
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from seer_sgl.engine.launch.process import server_flags
from seer_sgl.processes.child import free_port
from tests.e2e.calls import post
from tests.e2e.conftest import ROOT, SGLANG, servers, two_cores, two_urls
from tests.e2e.moe import LAYERS, TOP_K, moe_model
from tests.e2e.weights import add_weights
from tests.tokenizers.families import FAMILIES

HERE = Path(__file__).parent
PROMPTS = ["The quick brown", "def main(", "12345, 6", "a b c"]
SIBLINGS, LIMIT, CHUNK = 3, 64, 16
FLAGS = server_flags({**SGLANG, "max-total-tokens": 8192, "max-running-requests": 24})
ROLLOUT = {
    "name": "sglang",
    "prompt_length": 10,
    "response_length": 6,
    "max_model_len": 20,
    "custom": {"seer_sgl": {"url": "http://127.0.0.1:1/"}},
}


def section(**changes: Any) -> Any:
    return OmegaConf.create(ROLLOUT | changes)


def whole(model: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Returns veRL's config with changes to its section `rollout`."""
    return OmegaConf.create(
        {"actor_rollout_ref": {"rollout": ROLLOUT | changes, "model": model or {}}}
    )


class Server:
    """One of veRL's SGLang servers, as far as a client asks it."""

    def __init__(self) -> None:
        self.global_steps: int | None = None

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps


class Handle:
    """A Ray handle of a server whose weights are those of step 7."""

    class __ray_call__:  # noqa: N801
        @staticmethod
        async def remote(*, fn: Any) -> Any:
            server = Server()
            await server.set_global_steps(7)
            return fn(server)


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
    body = seer_verl.body_of(section(), 20, list(range(prompt)), sampling)
    assert body["sampling_params"] == {"temperature": 0.5, "max_new_tokens": limit}
    assert body["return_logprob"] is True
    assert "logprobs" in sampling, "veRL uses its dict again"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"custom": None}, "custom.seer_sgl.url: None is not the address"),
        ({"custom": {"seer_sgl": {"url": "a:1"}}}, "'a:1' is not the address"),
        ({"name": "vllm"}, "rollout.name: vllm"),
        ({"model": {"lora_rank": 8, "lora": {"merge": False}}}, "model.lora_rank: 8"),
        ({"model": {"lora": {"rank": 4}}}, "model.lora.rank: 4"),
    ],
)
def test_a_config_that_cannot_work_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        seer_verl.server_url(whole(**changes))


def test_a_merged_adapter_is_not_refused() -> None:
    merged = {"lora_rank": 8, "lora": {"merge": True}}
    assert seer_verl.server_url(whole(merged)) == "http://127.0.0.1:1"


REPLAY = {"enable_rollout_routing_replay": True}


@pytest.mark.parametrize(
    ("kind", "changes", "limits"),
    [
        ("qwen3_moe", {}, (20, None)),
        ("qwen3_moe", {"max_model_len": None}, (32, None)),
        ("qwen3_moe", {"max_model_len": None, **REPLAY}, (32, (3, 2))),
        ("qwen3_moe", REPLAY, (20, (3, 2))),
        ("qwen2", REPLAY, "enable_rollout_routing_replay: the model's config has no"),
        ("bloom", {"max_model_len": None}, "max_model_len: null"),
    ],
)
def test_the_limits_of_the_model(
    tmp_path: Path, kind: str, changes: dict[str, Any], limits: Any
) -> None:
    sizes = {"num_hidden_layers": 3}
    if kind != "bloom":
        sizes["max_position_embeddings"] = 32
    if kind == "qwen3_moe":
        sizes["num_experts_per_tok"] = 2
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind} | sizes))
    config = whole({"path": str(tmp_path)}, **changes)
    if isinstance(limits, str):
        with pytest.raises(ValueError, match=limits):
            seer_verl.model_limits(config)
    else:
        assert seer_verl.model_limits(config) == limits


MANAGERS = ["SeerAgentLoopManager", "SeerAgentLoopManagerTQ"]


def manager_of(name: str) -> Any:
    return load_class_from_fqn(f"seer_verl.{name}", "AgentLoopManager")


@pytest.mark.parametrize("name", MANAGERS)
def test_a_manager_is_refused_by_the_other_trainer(name: str) -> None:
    config, own = whole(agent={}), name.endswith("TQ")
    config.trainer = {"use_v1": not own, "v1": {"trainer_mode": "sync"}}
    with pytest.raises(ValueError, match=f"{name} is for trainer.use_v1={own}"):
        manager_of(name).create(config=config, llm_client=None)


def test_the_manager_of_the_default_trainer() -> None:
    manager = manager_of("SeerAgentLoopManagerTQ")
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ

    assert issubclass(manager, AgentLoopManagerTQ)
    assert manager.generate_sequences is AgentLoopManagerTQ.generate_sequences
    own = manager_of("SeerAgentLoopManager")._init_agent_loop_workers
    assert manager._init_agent_loop_workers is own
    config = whole(agent={})
    config.trainer = {"use_v1": True, "v1": {"trainer_mode": "colocate_async"}}
    with pytest.raises(ValueError, match="trainer_mode: colocate_async"):
        manager.create(config=config, llm_client=None)


def test_a_reply_becomes_a_token_output() -> None:
    meta = {
        "id": "r",
        "finish_reason": {"type": "stop"},
        "output_token_logprobs": [[-0.5, 7, None], [-1.0, 8, None]],
        "num_retractions": 2,
    }
    output = seer_verl.output_of({"output_ids": [7, 8], "meta_info": meta}, logprobs=True)
    assert (output.token_ids, output.log_probs) == ([7, 8], [-0.5, -1.0])
    assert (output.stop_reason, output.num_preempted) == ("stop", 2)
    with pytest.raises(ValueError, match="other tokens"):
        seer_verl.output_of({"output_ids": [7, 9], "meta_info": meta}, logprobs=True)


def test_a_turn_that_was_aborted_is_no_sample() -> None:
    finish = {"type": "abort", "message": "the server stops"}
    reply = {"output_ids": [7], "meta_info": {"id": "r", "finish_reason": finish}}
    for experts in (None, (2, 3)):
        with pytest.raises(RuntimeError, match="request r: aborted: the server stops"):
            seer_verl.output_of(reply, logprobs=False, experts=experts)


@pytest.mark.parametrize(("params", "log_probs"), [({"logprobs": True}, []), ({}, None)])
def test_a_turn_without_room_is_empty_and_asks_no_engine(
    params: dict[str, Any], log_probs: list[float] | None
) -> None:
    client = seer_verl.SeerClient(whole(), Handle())
    found = asyncio.run(client.generate("a", prompt_ids=[1] * 19, sampling_params=params))
    assert (found.token_ids, found.log_probs, found.stop_reason) == ([], log_probs, "length")
    assert found.extra_fields["min_global_steps"] == 7


def test_a_turn_has_the_step_of_verls_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def turn(self: Any, conversation: str, body: dict[str, Any]) -> Any:
        meta = {"finish_reason": {"type": "stop"}, "weight_version": "default"}
        return seer_verl.output_of({"output_ids": [7], "meta_info": meta}, logprobs=False)

    monkeypatch.setattr(seer_verl.SeerClient, "_turn", turn)
    client = seer_verl.SeerClient(whole(), Handle())
    found = asyncio.run(client.generate("a", prompt_ids=[1], sampling_params={}))
    names = ("global_steps", "min_global_steps", "max_global_steps")
    assert [found.extra_fields[name] for name in names] == [7, 7, 7]


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_takes_no_turn_now_is_asked_again(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Any] = []

    async def generate(request: web.Request) -> web.Response:
        tries.append(await request.json())
        if len(tries) < 3:
            return web.Response(status=status, headers={"Retry-After": "1"})
        return web.json_response({"output_ids": [7], "meta_info": {"finish_reason": None}})

    async def turn() -> Any:
        app = web.Application()
        app.router.add_post("/generate", generate)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        client = seer_verl.SeerClient(whole(custom={"seer_sgl": {"url": url}}), Handle())
        try:
            return await client.generate("a", prompt_ids=[1], sampling_params={})
        finally:
            await client._session.close()
            await runner.cleanup()

    monkeypatch.setattr(seer_verl, "RETRY_S", 0.0)
    assert asyncio.run(turn()).token_ids == [7]
    assert len(tries) == 3
    assert tries[0] == tries[1] == tries[2]


def test_a_prompt_that_does_not_fit_and_images_are_refused() -> None:
    with pytest.raises(ValueError, match="20 prompt tokens exceed the context of 20"):
        seer_verl.body_of(section(), 20, [1] * 20, {})
    client = seer_verl.SeerClient(whole(), Handle())
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
    del meta["routed_experts"]
    with pytest.raises(ValueError, match="request r: the reply has no routed experts"):
        seer_verl.output_of(reply, logprobs=False, prompt_len=3, experts=(2, 3))
    assert seer_verl.body_of(section(), 20, [1], {}).get("return_routed_experts") is None
    replayed = section(**REPLAY)
    assert seer_verl.body_of(replayed, 20, [1], {})["return_routed_experts"] is True


@pytest.fixture(params=["dense", "experts"])
def experts(request: pytest.FixtureRequest) -> bool:
    """Whether the model is a mixture of experts."""
    return bool(request.param == "experts")


@pytest.fixture
def model(tmp_path: Path, experts: bool) -> Path:
    """The folder of a tiny random Qwen. veRL builds its chats from tokens that a Qwen has."""
    if experts:
        return moe_model(tmp_path)
    return add_weights(next(each for each in FAMILIES if each.name == "qwen2").make(tmp_path))


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
        num_cpus=4,  # to Ray; TransferQueue keeps two
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    try:
        yield ray
    finally:
        ray.shutdown()


def config_of(url: str, model: Path, experts: bool, manager: str) -> Any:
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
        f"+actor_rollout_ref.rollout.agent.agent_loop_manager_class=seer_verl.{manager}",
        f"trainer.use_v1={manager.endswith('TQ')}",
        f"actor_rollout_ref.model.path={model}",
        f"+actor_rollout_ref.rollout.custom.seer_sgl.url={url}",
    ]
    folder = str(Path(verl.__file__).parent / "trainer" / "config")
    with initialize_config_dir(folder, version_base=None):
        return compose("ppo_trainer", overrides=keys)


def metric(url: str, name: str) -> float:
    """Returns the sum of a metric of the server over its labels."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def manager_on(config: Any, urls: list[str], ray: Any) -> Any:
    """Returns the manager of veRL's config on its own load balancer, with weights of step 3."""
    actor = ray.remote(Server)
    handles = {url.removeprefix("http://"): actor.remote() for url in urls}
    ray.get([handle.set_global_steps.remote(3) for handle in handles.values()])
    balancer = ray.remote(GlobalRequestLoadBalancer).remote(handles)
    name = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
    return load_class_from_fqn(name, "AgentLoopManager").create(
        config=config, llm_client=LLMServerClient(config, balancer)
    )


def chats(times: int) -> np.ndarray[Any, Any]:
    """Returns each prompt so many times, as veRL's datasets have them."""
    raw = np.empty(len(PROMPTS) * times, dtype=object)
    for i in range(len(raw)):
        raw[i] = [{"role": "user", "content": PROMPTS[i // times]}]
    return raw


def alone(url: str, prompt: list[int], experts: bool) -> Any:
    """Returns an engine's own reply."""
    params = {"temperature": 0, "max_new_tokens": LIMIT}
    body = {"input_ids": prompt, "sampling_params": params, "return_routed_experts": experts}
    return post(f"{url}/generate", **body)


def test_verls_agent_loops_get_the_samples_of_its_engines(
    urls: list[str], server: str, model: Path, experts: bool, ray_of_this_machine: Any
) -> None:
    config = config_of(server, model, experts, "SeerAgentLoopManager")
    manager = manager_on(config, urls, ray_of_this_machine)
    raw = chats(SIBLINGS)
    batch = DataProto.from_dict(
        tensors={"unused": torch.zeros(len(raw), 1)},
        non_tensors={"raw_prompt": raw, "index": np.arange(len(raw))},
        meta_info={"global_steps": 4},
    )
    found = manager.generate_sequences(batch)
    assert found.non_tensor_batch["min_global_steps"].tolist() == [3] * len(raw)
    assert found.non_tensor_batch["max_global_steps"].tolist() == [3] * len(raw)
    for i in range(len(raw)):
        prompt_mask = found.batch["attention_mask"][i][: found.batch["prompts"].shape[1]].bool()
        prompt = found.batch["prompts"][i][prompt_mask].tolist()
        response = found.batch["responses"][i][found.batch["response_mask"][i].bool()].tolist()
        reply = alone(urls[0], prompt, experts)
        assert response == reply["output_ids"]
        if experts:
            text = reply["meta_info"]["routed_experts"]
            rows = np.frombuffer(base64.b64decode(text), np.int32).reshape(-1, LAYERS, TOP_K)
            begin = found.batch["prompts"].shape[1] - len(prompt)
            replayed = found.batch["routed_experts"][i][begin:][: len(rows)]
            assert len(rows) == len(prompt) + len(response) - 1
            assert np.array_equal(replayed.numpy(), rows)
        assert found.batch["rollout_log_probs"][i][: len(response)].max() <= 0
    assert metric(server, "seer_chunks_total") >= 2 * len(raw)


@pytest.mark.parametrize("experts", [False])
def test_verls_agent_loops_get_the_samples_by_way_of_its_transfer_queue(
    urls: list[str], server: str, model: Path, experts: bool, ray_of_this_machine: Any
) -> None:
    import transfer_queue as queue
    from verl.utils import tensordict_utils

    config = config_of(server, model, experts, "SeerAgentLoopManagerTQ")
    config.transfer_queue.enable = True
    config.transfer_queue.backend.SimpleStorage.num_data_storage_units = 1
    queue.init(config.transfer_queue)
    try:
        manager = manager_on(config, urls, ray_of_this_machine)
        names = [f"prompt{i}" for i in range(len(PROMPTS))]
        batch = tensordict_utils.get_tensordict(
            {"raw_prompt": chats(1), "index": np.arange(len(names)), "uid": np.array(names, object)}
        )
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", 4)
        manager.generate_sequences(batch)
        while True:  # the workers answer before their turns end
            there = queue.kv_list("train").get("train", {})
            states = {there.get(name, {}).get("status") for name in names}
            assert "failure" not in states
            if states == {"finished"}:
                break
            time.sleep(0.5)
        keys = sorted(there.keys() - set(names))
        assert keys == sorted(f"{name}_{i}_0" for name in names for i in range(SIBLINGS))
        for key in keys:
            assert (there[key]["min_global_steps"], there[key]["max_global_steps"]) == (3, 3)
            fields = ["prompts", "responses", "rollout_log_probs"]
            row = queue.kv_batch_get(key, "train", fields)[0]
            prompt, response = row["prompts"].tolist(), row["responses"].tolist()
            assert response == alone(urls[0], prompt, experts)["output_ids"]
            assert len(row["rollout_log_probs"]) == len(response)
    finally:
        queue.close()
