"""Checks that config, model and engines fit together, before the driver sends any chunk.

Each check reports a problem in one line.
"""

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from seer_sgl.config import FleetConfig, KvPoolConfig, bytes_of
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import ConfigError, PromptError
from seer_sgl.link.contract import DRAFTS, EXACT, POOL, PORTS, SECRETS
from seer_sgl.types import Group, Prompt

# SGLang accepts inputs of up to max_total_num_tokens - 6 (TpModelWorker.get_worker_info). A limit
# this close to the KV capacity comes from that rule; any other comes from the context length.
KV_LIMIT_SLACK = 8
# What a model may make of a small image beyond what its size lets us assume, in tokens: Gemma 3
# makes 256 of any image (`mm_tokens_per_image`).
IMAGE_SLACK = 256
START_WITH = "start it with `seer-sgl engine --fleet` and this config"


def check_engines(config: FleetConfig, engines: Sequence[EngineInfo]) -> None:
    """Raises ConfigError if the engines do not fit together or lack a configured feature."""
    problem = differences(engines)
    if problem is not None:
        raise ConfigError(problem)
    pool, draft = config.kv_pool, config.draft
    for info in engines:
        name = f"engine {info.engine_id} ({info.url})"
        for key, ability in _demands(config, info):
            if ability in info.off:
                raise ConfigError(f"{key}: {name} runs without `{ability}`: {info.off[ability]}")
        if config.engines.exact and info.inexact is not None:
            raise ConfigError(f"engines.exact: {name}: {info.inexact}")
        if pool.backend != "none" and info.pool is None:
            raise ConfigError(f"kv_pool.backend: {name} runs without a KV pool; {START_WITH}")
        if draft.scope != "none" and not info.draft_tokens:
            raise ConfigError(f"draft.scope: {name} has no speculative decoding; {START_WITH}")


def _demands(config: FleetConfig, info: EngineInfo) -> Iterator[tuple[str, str]]:
    """Yields the abilities that a config needs of an engine, each with the key that needs it."""
    if config.engines.exact:
        yield "engines.exact", EXACT
    if info.deterministic:
        yield "enable-deterministic-inference", EXACT
    if config.kv_pool.backend != "none":
        yield "kv_pool.backend", POOL
    if config.draft.scope != "none":
        yield "draft.scope", DRAFTS
    if config.engines.api_key is not None:
        yield "engines.api_key", SECRETS
        yield "engines.api_key", PORTS


def differences(engines: Sequence[EngineInfo]) -> str | None:
    """Returns the reason why the engines cannot serve the same requests; None if they can."""
    versions = {info.weight_version: info.engine_id for info in engines}
    if len(versions) > 1:
        serving = ", ".join(f"{engine}: {version}" for version, engine in versions.items())
        return f"engines: the engines serve different weight versions ({serving})"
    sizes = {info.page_size for info in engines if info.pool is not None}
    if len(sizes) > 1:
        pages = ", ".join(map(str, sorted(sizes)))
        return f"engines: the KV pool pages of the engines differ in size ({pages})"
    if len({info.experts for info in engines}) > 1:
        return "engines: only some of the engines return routed experts, or in different forms"
    if len({(info.reads_images, info.continues_images) for info in engines}) > 1:
        return "engines: only some of the engines read images, or continue responses behind them"
    return None


def same_server(one: EngineInfo, other: EngineInfo) -> bool:
    """Returns whether two URLs lead to one server, for example by two names of its host.

    The start of a stock server is named by its startup time alone, so the ports must agree too.
    """
    ports = [urlsplit(info.url).port for info in (one, other)]
    return one.instance is not None and one.instance == other.instance and ports[0] == ports[1]


def check_pool(pool: KvPoolConfig, chunk: int, kv_bytes_per_token: int | None) -> None:
    """Raises ConfigError if a local KV pool is too small for the KV of one chunk.

    chunk: tokens.
    """
    if pool.backend != "mooncake" or pool.master is not None or kv_bytes_per_token is None:
        return
    if bytes_of(pool.memory) * pool.stores < kv_bytes_per_token * chunk:
        raise ConfigError(
            f"kv_pool.memory: {pool.stores} x {pool.memory} cannot hold the KV of one chunk of "
            f"{chunk} tokens of this model"
        )


def cut_fetches(free: float, engines: Sequence[EngineInfo], longest: int) -> Iterator[str]:
    """Yields one warning per engine that may be unable to fetch the KV of a long request.

    free: host KV tokens per device KV token that hold no copy of the device's. longest: tokens of
    a response.
    """
    for info in engines:
        room, most = int(free * info.max_total_num_tokens), info.max_request_len
        if room < min(longest, most):
            yield (
                f"kv_pool.host_ratio: engine {info.engine_id} has host memory to fetch {room} KV "
                f"tokens, but a response may have {min(longest, most)}; what it cannot fetch is "
                "computed again"
            )


def mismatches(engines: Sequence[EngineInfo]) -> list[str]:
    """Returns one warning per property that differs between engines; usually a mistake."""
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
    """The request lengths, in tokens, that every one of the engines accepts."""

    def __init__(self, engines: Sequence[EngineInfo]) -> None:
        self._engines = engines
        self._least = min(engines, key=lambda info: info.max_request_len)

    @property
    def longest_prompt(self) -> int:
        """The longest prompt, in tokens, that leaves room for one response token."""
        return self._least.max_request_len - 1

    def response_limit(self, prompt: Prompt, wanted: int, images: Prompt | None = None) -> int:
        """Returns the response limit of a prompt in tokens: `wanted`, or what the context leaves.

        The prompt is no longer than `longest_prompt`. `images`: the prompt whose images it has, if
        it has none of its own. Raises ConfigError if the KV cache, not the
        context length, is too small for the request.
        """
        left = self._least.max_request_len - len(prompt.prompt_ids)
        capacity = self._least.max_total_num_tokens
        if left < wanted and self._least.max_request_len + KV_LIMIT_SLACK >= capacity:
            raise ConfigError(
                f"sampling.max_new_tokens: {wanted} tokens after the "
                f"{len(prompt.prompt_ids)} of prompt {prompt.prompt_id!r} do not fit into the KV "
                f"cache of engine {self._least.engine_id} ({capacity} tokens)"
            )
        return min(wanted, left - self._kept_for_images(images or prompt, left))

    def _kept_for_images(self, prompt: Prompt, left: int) -> int:
        """Returns the tokens to keep free for the images of a prompt.

        Our plugin lowers a limit to what images leave; stock SGLang refuses the request. So there
        the limit must fit beforehand. 0 if they seem to have no room at all: SGLang decides.
        """
        if not prompt.image_data or self._continue_images():
            return 0
        most = prompt.image_tokens + IMAGE_SLACK * len(prompt.image_data)
        return most if most < left else 0

    def _continue_images(self) -> bool:
        return all(info.continues_images for info in self._engines)

    def allow_images(self, group: Group) -> None:
        """Tells a group whose prompt has images what the engines make of it.

        Raises PromptError if one of them reads no images.
        """
        if not group.prompt.image_data:
            return
        for info in self._engines:
            if not info.reads_images:
                raise PromptError(
                    f"prompt {group.prompt.prompt_id!r}: image_data: engine {info.engine_id} "
                    f"({info.url}) reads no images"
                )
        group.longest = self._least.max_request_len
        group.undivided = not self._continue_images()
