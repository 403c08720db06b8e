"""Descriptions of engines and chunks that need no server."""

from seer_sgl.engine_types import EngineInfo
from seer_sgl.types import Chunk, ChunkFigures, ChunkReply, ChunkResult, Move, Request


def info(engine_id: str) -> EngineInfo:
    return EngineInfo(
        engine_id=engine_id,
        url=f"http://{engine_id}",
        sglang_version="0.5.21",
        model_path="m",
        max_total_num_tokens=200,
        max_running_requests=8,
        max_request_len=194,
        page_size=1,
        radix_cache=True,
        weight_version="1",
        deterministic=True,
        has_tokenizer=True,
        plugin=None,
    )


def chunk_on(
    engine_id: str, request: Request, migrated: bool = False, move: Move = Move.STAY
) -> Chunk:
    return Chunk(
        request=request,
        engine_id=engine_id,
        rid=f"{request.uid}.c1/",
        max_new_tokens=10,
        kv_tokens=request.total_len + 10,
        move=move,
        migrated=migrated,
    )


def landed(chunk: Chunk, reply: ChunkReply, now: float, kv_bytes: int = 0) -> ChunkResult:
    """Returns the result of a chunk with a reply; `kv_bytes`: per token of KV."""
    figures = ChunkFigures.of(chunk, reply, kv_bytes)
    return ChunkResult(chunk=chunk, now=now, reply=reply, figures=figures)
