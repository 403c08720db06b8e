"""What config, model and engines allow together; refused in one line before any chunk is sent."""

from collections.abc import Sequence

from seer_sgl.config import Config
from seer_sgl.errors import ConfigError
from seer_sgl.types import EngineInfo, Prompt

# SGLang takes inputs up to max_total_num_tokens - 6 (TpModelWorker.get_worker_info); a limit that
# close to the KV capacity comes from it, any other from the model's context length.
KV_LIMIT_SLACK = 8


def check_engines(config: Config, engines: Sequence[EngineInfo]) -> None:
    """Raise ConfigError for sampling parameters an engine cannot serve."""
    sampling = config.sampling
    for info in engines:
        if sampling.min_p > 0 and info.deterministic:
            raise ConfigError(
                f"sampling.min_p: engine {info.engine_id} runs with deterministic inference, "
                "where SGLang refuses it"
            )
        for key, wanted in (
            ("stop", bool(sampling.stops())),
            ("stop_regex", bool(sampling.stop_regex)),
            ("min_new_tokens", sampling.min_new_tokens > 0),
        ):
            if wanted and not info.has_tokenizer:
                raise ConfigError(
                    f"sampling.{key}: engine {info.engine_id} runs with --skip-tokenizer-init, "
                    "where SGLang refuses it"
                )


def response_limit(config: Config, engines: Sequence[EngineInfo], prompt: Prompt) -> int:
    """Response tokens this prompt may get: max_response_len, or what the context leaves.

    Raises ConfigError when a whole request would not fit into an engine's KV cache.
    """
    wanted = config.sampling.max_response_len
    limit = wanted
    for info in engines:
        room = info.max_request_len - len(prompt.prompt_ids)
        kv_bound = info.max_request_len + KV_LIMIT_SLACK >= info.max_total_num_tokens
        if room < wanted and kv_bound:
            raise ConfigError(
                f"sampling.max_response_len: {wanted} tokens after prompt {prompt.prompt_id!r} of "
                f"{len(prompt.prompt_ids)} do not fit into the KV cache of engine "
                f"{info.engine_id} ({info.max_total_num_tokens} tokens)"
            )
        limit = min(limit, room)
    if limit < 1:
        raise ConfigError(
            f"prompt {prompt.prompt_id!r}: {len(prompt.prompt_ids)} tokens; the engines take "
            f"{min(info.max_request_len for info in engines) - 1}"
        )
    return limit
