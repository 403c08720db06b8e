"""The calls of an audit to one SGLang server.

Only `flush` changes the server. Each call names a part of the prefix cache of its own
(`extra_key`), so a call is cold or warm as its key says, and no request of others is affected.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
import msgspec
import numpy as np

from seer_sgl.engine import wire
from seer_sgl.engine.server_calls import GENERATE, REPLY_BYTES, ServerCalls, decode_control
from seer_sgl.engine.session import LateBody
from seer_sgl.errors import BadReply, EngineStartError
from seer_sgl.link.contract import Natural, PluginReport
from seer_sgl.sampling import NEUTRAL
from seer_sgl.timing import DEFAULT, Timing

from .recorded import F64, LEAST, RecordedSample
from .served import ServedModel

CONTROL_S = 30.0
TOKENS = 6000  # of a call that may take twice `Timing.audit_call_s`
BYTES_PER_VALUE = 64  # of a [log probability, id, text] in JSON
# What ends a response early, and what the audit sets itself.
OWN = (
    *("max_new_tokens", "ignore_eos", "stop", "stop_token_ids", "stop_regex", "no_stop_trim"),
    *("skip_special_tokens", "return_routed_experts"),
)


class _State(msgspec.Struct):
    seer_sgl: PluginReport | None = None


class _Info(msgspec.Struct):
    version: str
    internal_states: list[_State] = []
    enable_deterministic_inference: bool = False
    dtype: str | None = None
    attention_backend: str | None = None
    quantization: str | None = None
    speculative_algorithm: str | None = None
    disable_radix_cache: bool = False
    max_req_input_len: int | None = None
    tp_size: int = 1
    dp_size: int = 1
    seer: dict[str, Any] | None = None


class _Entry(msgspec.Struct, array_like=True, gc=False):
    """[log probability, id, text]; the log probability is null for the first input token."""

    log_prob: float | None
    id: int


class _Meta(msgspec.Struct, kw_only=True):
    finish_reason: wire.Finish | None = None
    input_token_logprobs: list[_Entry] | None = None
    input_top_logprobs: list[list[_Entry] | None] | None = None
    output_token_logprobs: list[_Entry] | None = None
    cached_tokens: Natural = 0
    weight_version: str = ""


class _Reply(msgspec.Struct):
    meta_info: _Meta


class Prefilled(NamedTuple):
    """The log probabilities of the response tokens at temperature 1, from a prefill.

    `top` [response tokens, candidates]: those of the likeliest tokens, if they were asked for.
    `cached`: input tokens whose KV was in the prefix cache.
    """

    log_probs: F64
    top: F64
    cached: int


class Generated(NamedTuple):
    """A response that was generated again, with its log probabilities."""

    ids: list[int]
    log_probs: F64
    cached: int


class AuditClient:
    """One SGLang server behind a URL."""

    def __init__(self, session: aiohttp.ClientSession, url: str, timing: Timing = DEFAULT) -> None:
        self._url = url.rstrip("/")
        self._server = ServerCalls(session, self._url, self._url)
        self._timing = timing
        self._calls = itertools.count()

    async def served(self) -> ServedModel:
        """Returns the server's description.

        Raises EngineUnavailable if it does not answer like SGLang, and EngineStartError for a
        rollout server.
        """
        reply = await self._server.call("GET", "/server_info", within_s=CONTROL_S)
        info = decode_control(reply, _Info, f"{self._url}: not an SGLang server")
        if info.seer is not None:
            raise EngineStartError(
                f"{self._url}: a rollout server of seer-sgl; give the URL of one of its engines"
            )
        model = await self._server.get("/model_info", wire.ModelInfo, CONTROL_S)
        plugin = info.internal_states[0].seer_sgl if info.internal_states else None
        return ServedModel(
            url=self._url,
            sglang_version=info.version,
            model_path=model.model_path,
            weight_version=model.weight_version,
            weights=plugin.weights if plugin else None,
            deterministic=info.enable_deterministic_inference,
            dtype=info.dtype,
            attention_backend=info.attention_backend,
            quantization=info.quantization,
            speculative_algorithm=info.speculative_algorithm,
            prefix_cache=not info.disable_radix_cache,
            longest=info.max_req_input_len,
            vocab_size=plugin.vocab_size if plugin else None,
            tp_size=info.tp_size,
            dp_size=info.dp_size,
            plugin=plugin.version if plugin else None,
        )

    async def flush(self) -> None:
        """Drops the KV of the server's prefix cache, once its requests have ended.

        Raises EngineUnavailable, also if they do not end within `flush_s`, or if no answer comes.
        """
        flush_s = self._timing.flush_s
        path = f"/flush_cache?timeout={flush_s:g}"
        await self._server.call("POST", path, within_s=2 * flush_s)

    async def prefill(self, sample: RecordedSample, cache_key: str, top: int) -> Prefilled:
        """Returns the log probabilities of a sample's response, from a prefill of all its tokens.

        SGLang computes every token from `logprob_start_len` on, whatever its cache has. It ignores
        the temperature there. `top`: so many of the likeliest tokens as well, for `rescaled`.
        """
        begin = len(sample.prompt_ids) - 1
        meta = await self._generate(
            {
                "input_ids": [*sample.prompt_ids, *sample.response_ids],
                "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
                "logprob_start_len": begin,
                "top_logprobs_num": top,
            },
            cache_key,
            len(sample.response_ids) * (1 + top),
        )
        entries = (meta.input_token_logprobs or [])[1:]
        if not _of_tokens(entries, sample.response_ids):
            raise self._bad(f"log probabilities of other tokens than those of {sample.name}")
        rows = (meta.input_top_logprobs or [])[1:] if top else [[]] * len(entries)
        if len(rows) != len(entries) or any(row is None or len(row) != top for row in rows):
            raise self._bad(f"not {top} candidates for each token of {sample.name}")
        return Prefilled(
            log_probs=_floored(entries),
            top=np.array([_floored(row or []) for row in rows], np.float64).reshape(len(rows), top),
            cached=meta.cached_tokens,
        )

    async def generate(self, sample: RecordedSample, cache_key: str) -> Generated:
        """Returns a sample's response generated again, with as many tokens.

        No stop ends it, so that every token can be compared.
        """
        params = {
            name: value
            for name, value in msgspec.structs.asdict(sample.sampling).items()
            if name not in OWN and value != getattr(NEUTRAL, name)
        }
        params |= {"max_new_tokens": len(sample.response_ids), "ignore_eos": True}
        params["temperature"] = sample.sampling.temperature
        if "min_new_tokens" in params:  # SGLang refuses a minimum above the call's own limit
            params["min_new_tokens"] = min(params["min_new_tokens"], len(sample.response_ids))
        if sample.seed is not None:
            params["sampling_seed"] = sample.seed
        meta = await self._generate(
            {"input_ids": sample.prompt_ids, "sampling_params": params},
            cache_key,
            len(sample.response_ids),
        )
        entries = meta.output_token_logprobs or []
        if len(entries) != len(sample.response_ids):
            reason = meta.finish_reason.type if meta.finish_reason else "unknown"
            raise self._bad(
                f"{len(entries)} of {len(sample.response_ids)} tokens for {sample.name} "
                f"(finish reason: {reason})"
            )
        return Generated([entry.id for entry in entries], _floored(entries), meta.cached_tokens)

    async def _generate(self, fields: Mapping[str, Any], cache_key: str, values: int) -> _Meta:
        rid = f"{cache_key}-{next(self._calls)}/"  # no rid is the beginning of another one
        body = {**fields, "rid": rid, "return_logprob": True, "extra_key": cache_key}
        tokens = len(fields["input_ids"]) + fields["sampling_params"]["max_new_tokens"]
        reply = await self._server.call(
            "POST",
            GENERATE,
            LateBody(lambda: msgspec.json.encode(body)),
            within_s=self._timing.audit_call_s * (1 + tokens / TOKENS),
            limit=REPLY_BYTES + BYTES_PER_VALUE * values,
        )
        try:
            meta = wire.decode(reply, _Reply).meta_info
        except wire.Unreadable as error:
            raise self._bad(str(error)) from error
        finish = meta.finish_reason
        if finish is not None and finish.type == "abort":
            raise self._bad(finish.message or "the request was aborted")
        return meta

    def _bad(self, reason: str) -> BadReply:
        return BadReply(f"{self._url}/generate: {reason}")


def _of_tokens(entries: Sequence[_Entry], ids: Sequence[int]) -> bool:
    """Returns whether these are the log probabilities of these tokens.

    SGLang 0.5.21 reports the last id of the vocabulary as 0 (logprob_result_processor.py); the log
    probability is that of the token.
    """
    pairs = zip(entries, ids, strict=False)
    return len(entries) == len(ids) and all(entry.id in (token, 0) for entry, token in pairs)


def _floored(entries: Sequence[_Entry]) -> F64:
    values = [LEAST if entry.log_prob is None else entry.log_prob for entry in entries]
    return np.maximum(np.array(values, np.float64), LEAST)
