"""What config, model and engines allow together; refused in one line before any chunk is sent."""

from collections.abc import Iterator, Sequence

from seer_sgl.config import DraftConfig, KvPoolConfig
from seer_sgl.errors import ConfigError
from seer_sgl.types import EngineInfo, Prompt, Sampling

# SGLang takes inputs up to max_total_num_tokens - 6 (TpModelWorker.get_worker_info); a limit that
# close to the KV capacity comes from it, any other from the model's context length.
KV_LIMIT_SLACK = 8


def check_engines(pool: KvPoolConfig, draft: DraftConfig, engines: Sequence[EngineInfo]) -> None:
    """Raise ConfigError for engines that do not fit together, or lack what the config asks for."""
    problem = differences(engines)
    if problem is not None:
        raise ConfigError(problem)
    for info in engines:
        if pool.backend != "none" and info.pool is None:
            raise ConfigError(
                f"kv_pool.backend: engine {info.engine_id} ({info.url}) runs without a KV pool; "
                "start it with `seer-sgl engine --fleet` and this config"
            )
        if draft.scope != "none" and not info.draft_tokens:
            raise ConfigError(
                f"draft.scope: engine {info.engine_id} ({info.url}) drafts nothing; start it with "
                "`seer-sgl engine --fleet` and this config"
            )


def differences(engines: Sequence[EngineInfo]) -> str | None:
    """Returns what keeps engines from serving the same requests; None if nothing does."""
    versions = {info.weight_version: info.engine_id for info in engines}
    if len(versions) > 1:
        serving = ", ".join(f"{engine}: {version}" for version, engine in versions.items())
        return f"engines: they serve different weight versions ({serving})"
    sizes = {info.page_size for info in engines if info.pool is not None}
    if len(sizes) > 1:
        pages = ", ".join(map(str, sorted(sizes)))
        return f"engines: their KV pool pages differ in size ({pages})"
    return None


def unservable(
    sampling: Sampling, engines: Sequence[EngineInfo], tokenizer: bool
) -> Iterator[tuple[str, str]]:
    """Yields (parameter, complaint) for what the engines, or this process, cannot serve.

    tokenizer: whether this process has one.
    """
    if sampling.stops() and not tokenizer:
        yield "stop", "stop strings need a tokenizer: set model.path"
    for info in engines:
        if sampling.min_p > 0 and info.deterministic and info.plugin is None:
            yield (
                "min_p",
                f"engine {info.engine_id} runs with deterministic inference, where stock SGLang "
                "fails; start it with `seer-sgl engine`",
            )
        for key, wanted in (
            ("stop", bool(sampling.stops())),
            ("stop_regex", bool(sampling.stop_regex)),
            ("min_new_tokens", sampling.min_new_tokens > 0),
        ):
            if wanted and not info.has_tokenizer:
                yield (
                    key,
                    f"engine {info.engine_id} runs with --skip-tokenizer-init, where SGLang "
                    "refuses it",
                )


def check_pool(pool: KvPoolConfig, chunk: int, kv_bytes_per_token: int | None) -> None:
    """Raise ConfigError for a local KV pool that could not hold the KV of a chunk of so many
    tokens."""
    if pool.backend != "mooncake" or pool.master is not None or kv_bytes_per_token is None:
        return
    if pool.memory_bytes() * pool.stores < kv_bytes_per_token * chunk * pool.replicas:
        raise ConfigError(
            f"kv_pool.memory: {pool.stores} x {pool.memory} cannot hold the KV of one chunk of "
            f"{chunk} tokens of this model"
        )


def mismatches(engines: Sequence[EngineInfo]) -> list[str]:
    """What differs between engines that should be alike; a mistake more often than not."""
    warnings = []
    for name, what in (
        ("model_path", "model paths"),
        ("deterministic", "settings of enable-deterministic-inference"),
        ("sglang_version", "versions of SGLang"),
        ("pool", "names of their KV in the pool, which cannot move between them"),
    ):
        values = {str(getattr(info, name)) for info in engines}
        if len(values) > 1:
            warnings.append(f"the engines have different {what}: {', '.join(sorted(values))}")
    return warnings


class LengthLimits:
    """How long a request may get on every one of the engines."""

    def __init__(self, engines: Sequence[EngineInfo]) -> None:
        self._least = min(engines, key=lambda info: info.max_request_len)

    @property
    def longest_prompt(self) -> int:
        """Prompt tokens that still leave room for one response token."""
        return self._least.max_request_len - 1

    def response_limit(self, prompt: Prompt, wanted: int) -> int:
        """Returns the response tokens this prompt may get: those wanted, or what the context
        leaves.

        The prompt is no longer than `longest_prompt`. Raises ConfigError when it is the KV cache
        that cannot hold a whole request.
        """
        left = self._least.max_request_len - len(prompt.prompt_ids)
        capacity = self._least.max_total_num_tokens
        if left < wanted and self._least.max_request_len + KV_LIMIT_SLACK >= capacity:
            raise ConfigError(
                f"sampling.max_new_tokens: {wanted} tokens after the "
                f"{len(prompt.prompt_ids)} of prompt {prompt.prompt_id!r} do not fit into the KV "
                f"cache of engine {self._least.engine_id} ({capacity} tokens)"
            )
        return min(wanted, left)
