"""veRL's agent loops on `seer-sgl serve`: a client, and a manager that puts it in place.

veRL 0.9.1 starts the SGLang servers and updates their weights as before; only its `generate` goes
to a rollout server, which orders and divides the requests among the same SGLang servers. Nothing in
veRL's tree changes: `actor_rollout_ref.rollout.agent.agent_loop_manager_class` names the manager.
"""

import base64
import math
import os
from collections.abc import Mapping
from http import HTTPStatus
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
Rollout = Any  # veRL's section actor_rollout_ref.rollout: an OmegaConf DictConfig


def server_url(rollout: Rollout) -> str:
    """Returns the address of the rollout server in veRL's config.

    Raises ValueError if there is none, or if the config asks for what the server cannot do.
    """
    section = (rollout.get("custom") or {}).get("seer_sgl") or {}
    url = section.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ValueError(f"{SECTION}.url: {url!r} is not the address of `seer-sgl serve`")
    if rollout.name != "sglang":
        raise ValueError(
            f"actor_rollout_ref.rollout.name: {rollout.name}, but seer-sgl is SGLang's"
        )
    return url.rstrip("/")


def body_of(
    rollout: Rollout, prompt_ids: list[int], sampling_params: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the body of SGLang's `/generate` for a call of veRL's client.

    With the limits of veRL's own server (`SGLangHttpServer.generate`). Raises ValueError if the
    prompt does not fit.
    """
    params = dict(sampling_params)  # veRL uses its own again
    room = rollout.max_model_len - len(prompt_ids) - 1 if rollout.max_model_len else None
    if room is not None and room < 0:
        raise ValueError(
            f"{len(prompt_ids)} prompt tokens exceed the context of {rollout.max_model_len}"
        )
    limit = params.pop("max_tokens", None)
    limit = params.pop("max_new_tokens", limit)
    if limit is None:
        left = rollout.prompt_length + rollout.response_length - len(prompt_ids)
        limit = min(rollout.response_length, left)
    if room is not None:
        limit = min(limit, room)
    logprobs = bool(params.pop("logprobs", False))
    params["max_new_tokens"] = max(0, limit)
    body = {"input_ids": prompt_ids, "sampling_params": params, "return_logprob": logprobs}
    if rollout.get("enable_rollout_routing_replay"):
        body["return_routed_experts"] = True
    return body


def experts_shape(config: Any) -> tuple[int, int]:
    """Returns the layers of a mixture of experts and the experts of a token, as veRL's server reads
    them from the model's config. Raises ValueError for another model."""
    from transformers import AutoConfig

    model = config.actor_rollout_ref.model
    found = AutoConfig.from_pretrained(
        model.path, trust_remote_code=bool(model.get("trust_remote_code"))
    )
    layers, top_k = (
        getattr(found, name, None) for name in ("num_hidden_layers", "num_experts_per_tok")
    )
    if not layers or not top_k:
        raise ValueError(
            "actor_rollout_ref.rollout.enable_rollout_routing_replay: the model's config has no "
            "num_experts_per_tok"
        )
    return layers, top_k


def output_of(
    reply: Mapping[str, Any],
    logprobs: bool,
    prompt_len: int = 0,
    experts: tuple[int, int] | None = None,
) -> TokenOutput:
    """Returns a reply of `/generate` as veRL has it. Raises ValueError if it contradicts itself.

    experts: layers and experts of a token; then `routed_experts` is int32 [prompt + response - 1,
    layers, experts].
    """
    meta, ids = reply["meta_info"], list(reply["output_ids"])
    found = None
    if logprobs:
        entries = meta["output_token_logprobs"]
        if [entry[1] for entry in entries] != ids:
            raise ValueError(f"request {meta.get('id')}: log probs of other tokens")
        found = [float(entry[0]) for entry in entries]
    rows = None
    if experts is not None:
        rows = np.frombuffer(base64.b64decode(meta["routed_experts"]), np.int32)
        shape = (prompt_len + len(ids) - 1, *experts)
        if rows.size != math.prod(shape):
            raise ValueError(f"request {meta.get('id')}: routed experts of other tokens or layers")
        rows = rows.reshape(shape)
    version = meta.get("weight_version")
    step = int(version) if isinstance(version, str) and version.isdecimal() else None
    extra = {"global_steps": step, "min_global_steps": step, "max_global_steps": step}
    return TokenOutput(
        token_ids=ids,
        log_probs=found,
        routed_experts=rows,
        stop_reason=(meta.get("finish_reason") or {}).get("type"),
        num_preempted=meta.get("num_retractions"),
        extra_fields=extra | {"weight_versions": meta.get("weight_versions")},
    )


class SeerClient(LLMServerClient):
    """veRL's client, whose `generate` goes to a rollout server.

    The n requests of a prompt have equal ids, by which the server knows that they are siblings.
    """

    def __init__(self, config: Any) -> None:
        """config: veRL's, whole. Raises ValueError as `server_url`."""
        super().__init__(config)
        rollout = config.actor_rollout_ref.rollout
        self._url = server_url(rollout)
        replay = rollout.get("enable_rollout_routing_replay")
        self._experts = experts_shape(config) if replay else None
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

        What veRL only hands to other servers (`priority`) has no effect. Raises ValueError for what
        the server cannot do, and RuntimeError if it refuses the request.
        """
        if image_data or video_data or audio_data:
            raise ValueError("seer-sgl takes the text prompts of veRL only")
        ids = normalize_token_ids(prompt_ids)
        body = body_of(self.config.actor_rollout_ref.rollout, ids, sampling_params)
        headers = {SESSION_HEADER: str(request_id)}
        headers |= _token(os.environ.get(KEY))
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
            )
        async with self._session.post(self._url + "/generate", json=body, headers=headers) as reply:
            return output_of(await _read(reply), body["return_logprob"], len(ids), self._experts)

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


class SeerAgentLoopManager(AgentLoopManager):
    """veRL's manager, whose agent loops generate on a rollout server.

    It hands the addresses of veRL's SGLang servers to the server, and `SeerClient` to its workers.
    """

    async def _init_agent_loop_workers(self) -> None:
        balancer = self.llm_client._load_balancer
        addresses = await balancer.get_all_servers.remote()
        self.llm_client = SeerClient(self.config)
        await self.llm_client.join(list(addresses))
        await super()._init_agent_loop_workers()
