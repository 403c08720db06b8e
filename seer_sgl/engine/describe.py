"""Reads and checks the description of a server, and compares two descriptions of one engine."""

from collections.abc import Sequence

import aiohttp

from seer_sgl.engine_types import EngineInfo, rank_id
from seer_sgl.errors import EngineBroken, EngineStartError, EngineUnavailable
from seer_sgl.link import contract
from seer_sgl.timing import DEFAULT

from . import wire
from .server_calls import ServerCalls, decode_control, one_line

# EngineInfo fields that a trainer may change while the engine runs, or a restart without harm. The
# rollout relies on all the other fields.
MAY_CHANGE = (
    "url",
    "instance",
    "model_path",
    "weight_version",
    "weights",
    "incremental_streaming",
    "sessions",
)
WEIGHTS = ("model_path", "weight_version", "weights")  # the fields that describe the weights


async def describe(
    session: aiohttp.ClientSession,
    server_id: str,
    url: str,
    timeout_s: float = DEFAULT.control_timeout_s,
) -> list[EngineInfo]:
    """Returns the descriptions of a server's engines, one per data-parallel rank.

    They come from its `/server_info` and `/model_info`. `timeout_s`: of each of the two.

    Raises EngineUnavailable if it does not answer like SGLang (yet), EngineBroken if it needs a
    restart, and EngineStartError if its configuration is not supported.
    """
    name = f"engine {server_id} ({url})"
    calls = ServerCalls(session, url, name, server_id)
    body = await calls.call("GET", "/server_info", within_s=timeout_s)
    server = decode_control(body, wire.ServerInfo, f"{name}: not a supported SGLang server")
    model = await calls.get("/model_info", wire.ModelInfo, timeout_s)
    return [described(server, model, server_id, url, rank) for rank in range(server.dp_size)]


def described(
    server: wire.ServerInfo, model: wire.ModelInfo, server_id: str, url: str, dp_rank: int = 0
) -> EngineInfo:
    """Returns the description of one rank in a server's replies. Raises like `describe`."""
    engine_id = rank_id(server_id, dp_rank, server.dp_size)
    name = f"engine {engine_id} ({url})"
    if server.seer is not None:
        raise EngineStartError(f"{name}: a seer-sgl rollout server is no engine")
    if server.disaggregation_mode != "null":
        raise EngineStartError(
            f"{name}: disaggregation-mode {one_line(server.disaggregation_mode)}; an engine "
            "prefills and decodes its requests itself"
        )
    state = server.state(dp_rank)
    if state is None and any(rank_state.seer_sgl for rank_state in server.internal_states):
        raise EngineUnavailable(f"{name}: this rank does not answer", engine_id=engine_id)
    if state is None:
        raise EngineStartError(
            f"{name}: dp_size {server.dp_size} without the seer-sgl plugin; start it with "
            "`seer-sgl engine`, or one server per rank"
        )
    plugin = state.seer_sgl
    reports = [state.seer_sgl for state in server.internal_states]
    problem = contract.problem([report.missing if report else None for report in reports])
    if plugin is not None and problem is not None:  # a stock server needs no plugin
        raise EngineStartError(f"{name}: {problem}")
    pool, draft = plugin.pool if plugin else None, contract.DraftReport()
    if pool is not None and pool.broken is not None:
        raise EngineBroken(f"{name}: {one_line(pool.broken)}", engine_id=engine_id)
    if plugin is not None and plugin.draft != contract.NULL:
        draft = decode_control(
            plugin.draft, contract.DraftReport, f"{name}: the plugin on drafting"
        )
    return EngineInfo(
        engine_id=engine_id,
        url=url,
        sglang_version=server.version,
        model_path=model.model_path,
        max_total_num_tokens=server.kv_tokens(),
        max_running_requests=state.effective_max_running_requests_per_dp,
        max_request_len=server.max_req_input_len,
        page_size=server.page_size,
        radix_cache=not server.disable_radix_cache,
        weight_version=model.weight_version,
        deterministic=server.enable_deterministic_inference,
        has_tokenizer=not server.skip_tokenizer_init,
        plugin=plugin.version if plugin else None,
        instance=plugin.instance if plugin else state.start(),
        weights=plugin.weights if plugin else None,
        vocab_size=plugin.vocab_size if plugin else None,
        pool=pool.namespace if pool else None,
        kv_bytes_per_token=pool.kv_bytes_per_token if pool else 0,
        draft_tokens=draft.draft_tokens,
        pipeline_stages=server.pp_size,
        ranks=server.ranks if dp_rank == 0 else 0,
        dp_rank=dp_rank,
        dp_size=server.dp_size,
        dp_attention=server.enable_dp_attention,
        incremental_streaming=server.incremental_streaming_output,
        sessions=server.enable_session_radix_cache,
        inexact=_inexact(server, plugin),
        off={one_line(name): one_line(why) for name, why in plugin.off.items()} if plugin else {},
        experts=plugin.experts if plugin else None,
        reads_images=model.has_image_understanding,
        continues_images=plugin.images if plugin else False,
    )


def _inexact(server: wire.ServerInfo, plugin: contract.PluginReport | None) -> str | None:
    """Returns the reason why a server's steps may round differently; None if they do not."""
    if plugin is None:
        return "it runs without the seer-sgl plugin"
    if not server.enable_deterministic_inference:
        return "it runs without deterministic inference"
    return None if plugin.inexact is None else one_line(plugin.inexact)


def changes(before: EngineInfo, now: EngineInfo, version: str | None = None) -> list[str]:
    """Returns the differences that keep an engine that comes back from rejoining.

    A server that kept running may have new weights from its trainer. A restarted one must have the
    weights from before, or weight version `version` if that is given.
    """
    changed = [
        name
        for name in EngineInfo.__struct_fields__
        if name not in MAY_CHANGE and getattr(now, name) != getattr(before, name)
    ]
    if now.instance is not None and now.instance == before.instance:
        return changed
    if version is not None and version != before.weight_version:
        if now.weight_version != version:
            changed.append(f"weight_version ({now.weight_version}, not {version})")
        return changed
    if now.model_path != before.model_path:
        changed.append("model_path")
    if now.weight_version != before.weight_version:
        changed.append(f"weight_version ({now.weight_version}, not {before.weight_version})")
    elif None not in (now.weights, before.weights) and now.weights != before.weights:
        changed.append(f"weights under the same weight_version ({now.weight_version})")
    return changed


def only_weights(changed: Sequence[str]) -> bool:
    """Returns whether `changes` found other weights and no other difference."""
    return all(change.startswith(("weight", "model_path")) for change in changed)
