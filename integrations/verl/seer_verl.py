"""veRL's agent loops on `seer-sgl serve`: a client, and the managers that put it in place.

veRL 0.9.1 starts the SGLang servers and updates their weights as before; only its `generate` goes
to a rollout server, which orders and divides the requests among the same SGLang servers. Nothing in
veRL's tree changes: `actor_rollout_ref.rollout.agent.agent_loop_manager_class` names the manager.
"""

import asyncio
import base64
import math
import os
import time
from collections.abc import Mapping
from http import HTTPStatus
from operator import attrgetter
from typing import Any

import aiohttp
import numpy as np
from verl.experimental.agent_loop.agent_loop import AgentLoopManager
from verl.utils import normalize_token_ids
from verl.utils.rollout_trace import rollout_trace_op
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

# veRL's key for extensions; `seer_sgl` in it has these.
SECTION = "actor_rollout_ref.rollout.custom.seer_sgl"
ADMIN_KEY, KEY = "SEER_SGL_ADMIN_KEY", "SEER_SGL_SERVER_KEY"
SESSION_HEADER = "X-SMG-Routing-Key"  # the conversation of a request
# With `Retry-After`: too much is in progress, or no engine serves at the moment.
BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
BUSY_S, RETRY_S = 600.0, 1.0  # for how long a server may be busy, and between two tries
Config = Any  # veRL's, whole: an OmegaConf DictConfig


def server_url(config: Config) -> str:
    """Returns the address of the rollout server in veRL's config.

    Raises ValueError if there is none, or if the config asks for what the server cannot do.
    """
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    section = (rollout.get("custom") or {}).get("seer_sgl") or {}
    url = section.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ValueError(f"{SECTION}.url: {url!r} is not the address of `seer-sgl serve`")
    if rollout.name != "sglang":
        raise ValueError(
            f"actor_rollout_ref.rollout.name: {rollout.name}, but seer-sgl is SGLang's"
        )
    lora = model.get("lora") or {}
    for key, rank in (("lora_rank", model.get("lora_rank")), ("lora.rank", lora.get("rank"))):
        if rank and not lora.get("merge"):
            raise ValueError(
                f"actor_rollout_ref.model.{key}: {rank}, but seer-sgl samples without an adapter; "
                "set actor_rollout_ref.model.lora.merge"
            )
    return url.rstrip("/")


def body_of(
    rollout: Any, context: int, prompt_ids: list[int], sampling_params: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the body of SGLang's `/generate` for a call of veRL's client.

    With the limits of veRL's own server (`SGLangHttpServer.generate`). rollout: the section of
    veRL's config. context: tokens of prompt and response. Raises ValueError if the prompt does not
    fit.
    """
    params = dict(sampling_params)  # veRL uses its own again
    room = context - len(prompt_ids) - 1
    if room < 0:
        raise ValueError(f"{len(prompt_ids)} prompt tokens exceed the context of {context}")
    limit = params.pop("max_tokens", None)
    limit = params.pop("max_new_tokens", limit)
    if limit is None:
        left = rollout.prompt_length + rollout.response_length - len(prompt_ids)
        limit = min(rollout.response_length, left)
    logprobs = bool(params.pop("logprobs", False))
    params["max_new_tokens"] = max(0, min(limit, room))
    body = {"input_ids": prompt_ids, "sampling_params": params, "return_logprob": logprobs}
    if rollout.get("enable_rollout_routing_replay"):
        body["return_routed_experts"] = True
    return body


def model_limits(config: Config) -> tuple[int, tuple[int, int] | None]:
    """Returns the tokens of a context, and the layers and experts of a token if veRL replays them.

    As veRL's server reads them, from its config and the model's. Raises ValueError if they are not
    there.
    """
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    context, replay = rollout.max_model_len, rollout.get("enable_rollout_routing_replay")
    if context and not replay:
        return context, None
    from transformers import AutoConfig

    found = AutoConfig.from_pretrained(
        model.path, trust_remote_code=bool(model.get("trust_remote_code"))
    )
    context = context or getattr(found.get_text_config(), "max_position_embeddings", None)
    if not context:
        raise ValueError(
            "actor_rollout_ref.rollout.max_model_len: null, and the model's config has no "
            "max_position_embeddings"
        )
    if not replay:
        return context, None
    layers, top_k = (
        getattr(found, name, None) for name in ("num_hidden_layers", "num_experts_per_tok")
    )
    if not layers or not top_k:
        raise ValueError(
            "actor_rollout_ref.rollout.enable_rollout_routing_replay: the model's config has no "
            "num_experts_per_tok"
        )
    return context, (layers, top_k)


def output_of(
    reply: Mapping[str, Any],
    logprobs: bool,
    prompt_len: int = 0,
    experts: tuple[int, int] | None = None,
) -> TokenOutput:
    """Returns a reply of `/generate` as veRL has it.

    experts: layers and experts of a token; then `routed_experts` is int32 [prompt + response - 1,
    layers, experts]. Raises RuntimeError if the server ended the request before its end, and
    ValueError if the reply contradicts itself.
    """
    meta, ids = reply["meta_info"], list(reply["output_ids"])
    finish = meta.get("finish_reason") or {}
    if finish.get("type") == "abort":
        raise RuntimeError(f"request {meta.get('id')}: aborted: {finish.get('message')}")
    found = None
    if logprobs:
        entries = meta["output_token_logprobs"]
        if [entry[1] for entry in entries] != ids:
            raise ValueError(f"request {meta.get('id')}: log probs of other tokens")
        found = [float(entry[0]) for entry in entries]
    rows = None
    if experts is not None:
        if meta.get("routed_experts") is None:
            raise ValueError(f"request {meta.get('id')}: the reply has no routed experts")
        rows = np.frombuffer(base64.b64decode(meta["routed_experts"]), np.int32)
        shape = (prompt_len + len(ids) - 1, *experts)
        if rows.size != math.prod(shape):
            raise ValueError(f"request {meta.get('id')}: routed experts of other tokens or layers")
        rows = rows.reshape(shape)
    return TokenOutput(
        token_ids=ids,
        log_probs=found,
        routed_experts=rows,
        stop_reason=finish.get("type"),
        num_preempted=meta.get("num_retractions"),
        extra_fields={"weight_versions": meta.get("weight_versions")},
    )


class SeerClient(LLMServerClient):
    """veRL's client, whose `generate` goes to a rollout server.

    The n requests of a prompt have equal ids, by which the server knows that they are siblings.
    """

    def __init__(self, config: Config, server: Any) -> None:
        """server: a Ray handle of one of veRL's SGLang servers, which knows the step of the
        weights. Raises ValueError as `server_url` and `model_limits`."""
        super().__init__(config)
        self._url = server_url(config)
        self._context, self._experts = model_limits(config)
        self._server = server
        self._session: aiohttp.ClientSession | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A client is sent to every worker, without the connections."""
        return self.__dict__ | {"_session": None}

    @rollout_trace_op
    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        audio_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> TokenOutput:
        """Returns the tokens of one turn. request_id: of the conversation.

        Without room for a token there are none. What veRL only hands to other servers (`priority`)
        has no effect. Raises ValueError for what the server cannot do, and RuntimeError if it
        refuses or aborts the request, or is BUSY for BUSY_S.
        """
        if image_data or video_data or audio_data:
            raise ValueError("seer-sgl takes the text prompts of veRL only")
        ids = normalize_token_ids(prompt_ids)
        body = body_of(self.config.actor_rollout_ref.rollout, self._context, ids, sampling_params)
        if body["sampling_params"]["max_new_tokens"]:
            output = await self._turn(str(request_id), body)
        else:  # SGLang's reply would have the log prob of a token that is not there
            log_probs = [] if body["return_logprob"] else None
            output = TokenOutput(token_ids=[], log_probs=log_probs, stop_reason="length")
        # No weights change during a rollout, so that every server has the same step.
        step = await self._server.__ray_call__.remote(fn=attrgetter("global_steps"))
        steps = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), step)
        output.extra_fields = output.extra_fields | steps
        return output

    async def _turn(self, conversation: str, body: dict[str, Any]) -> TokenOutput:
        """Has the rollout server generate a turn. Raises as `generate`."""
        headers = {SESSION_HEADER: conversation} | _token(os.environ.get(KEY))
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
            )
        url, deadline = self._url + "/generate", time.monotonic() + BUSY_S
        while True:
            async with self._session.post(url, json=body, headers=headers) as reply:
                busy = reply.status in BUSY and "Retry-After" in reply.headers
                if not busy or time.monotonic() >= deadline:
                    found = await _read(reply)
                    break
            await asyncio.sleep(RETRY_S)
        return output_of(found, body["return_logprob"], len(body["input_ids"]), self._experts)

    async def join(self, addresses: list[str]) -> None:
        """Has the server use these SGLang servers (host:port) and no others."""
        headers = _token(os.environ.get(ADMIN_KEY) or os.environ.get(KEY))
        wanted = {f"http://{address}" for address in addresses}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(f"{self._url}/workers") as reply:
                there = {each["url"]: each["id"] for each in (await _read(reply))["engines"]}
            for gone in there.keys() - wanted:
                async with session.delete(f"{self._url}/workers/{there[gone]}") as reply:
                    await _read(reply)
            for url in sorted(wanted - there.keys()):
                async with session.post(f"{self._url}/workers", json={"url": url}) as reply:
                    await _read(reply)


async def _read(reply: aiohttp.ClientResponse) -> Any:
    """Returns the JSON of a reply. Raises RuntimeError with the server's words for any other."""
    if reply.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise RuntimeError(f"{reply.url}: HTTP {reply.status}: {(await reply.text())[:500]}")
    return await reply.json(content_type=None)


def _token(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


class _OnRolloutServer:
    """What makes a manager of veRL one whose agent loops generate on a rollout server.

    It hands the addresses of veRL's SGLang servers to the server, and `SeerClient` to its workers.
    """

    use_v1: bool  # of the trainer whose manager it is
    config: Config
    llm_client: LLMServerClient

    async def _init_agent_loop_workers(self) -> None:
        """Raises ValueError for a config that is not for this manager, and as `SeerClient`."""
        trainer = self.config.trainer
        if bool(trainer.use_v1) != self.use_v1:
            raise ValueError(
                "actor_rollout_ref.rollout.agent.agent_loop_manager_class: "
                f"{type(self).__name__} is for trainer.use_v1={self.use_v1}"
            )
        if self.use_v1 and trainer.v1.trainer_mode != "sync":
            raise ValueError(f"trainer.v1.trainer_mode: {trainer.v1.trainer_mode}, only sync works")
        addresses = await self.llm_client._load_balancer.get_all_servers.remote()
        name, server = await self.llm_client._acquire_server("seer_sgl")
        self.llm_client._release_server(name, "seer_sgl")
        self.llm_client = SeerClient(self.config, server)
        await self.llm_client.join(list(addresses))
        await super()._init_agent_loop_workers()


class SeerAgentLoopManager(_OnRolloutServer, AgentLoopManager):
    """The manager of veRL's legacy trainer (`trainer.use_v1=False`)."""

    use_v1 = False


try:
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
except ImportError:  # without TransferQueue there is only the legacy trainer
    pass
else:

    class SeerAgentLoopManagerTQ(_OnRolloutServer, AgentLoopManagerTQ):
        """The manager of veRL's default trainer, whose workers write to its TransferQueue."""

        use_v1 = True
