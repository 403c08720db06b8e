"""Files that are one JSON value: inference-perf's requests, and slime's trace timeline.

inference-perf: `per_request_lifecycle_metrics.json` of `request_lifecycle.per_request`
(inference_perf/reportgen/base.py; `InferenceInfo` in inference_perf/apis/base.py,
kubernetes-sigs/inference-perf 7de5ef2). slime: `*.trace_timeline_cache.json`, which
tools/trace_timeline_viewer.py makes of a debug dump (`_build_cache_data`; attributes of
`build_sglang_meta_trace_attrs` in slime/observability/trace_utils.py, THUDM/slime 624b824).
"""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from seer_sgl.bounds import Natural
from seer_sgl.rollout.jsonl import decoded

from .trace import Imported, TracedResponse


class Usage(msgspec.Struct):
    """What the server counted; inference-perf counts `output_tokens` from the text itself."""

    completion_tokens: Natural | None = None


class ResponseCounts(msgspec.Struct):
    """Tokens of a response."""

    output_tokens: Natural = 0
    server_usage: Usage | None = None


class RequestInfo(msgspec.Struct):
    """Tokens of a request: `input_tokens` is a copy of `request_metrics.text.input_tokens`."""

    response_metrics: ResponseCounts | None = None
    input_tokens: Natural | None = None


class PerfRequest(msgspec.Struct):
    """A request of inference-perf. `request`: its body."""

    request: str
    info: RequestInfo | None = None
    error: Any = None


class SpanAttributes(msgspec.Struct):
    """SGLang's counts, at the end of a span of generation."""

    prompt_tokens: Natural | None = None
    completion_tokens: Natural | None = None


class Attributes(msgspec.Struct):
    """Of a span."""

    end_attrs: SpanAttributes | None = None


class Span(msgspec.Struct):
    """A span or an event."""

    attrs: Attributes | None = None


class TimelineRow(msgspec.Struct):
    """A sample of slime, with its spans in order of their begins."""

    sample_index: int | None
    group_index: int | None
    items: list[Span]


class Timeline(msgspec.Struct):
    """The file of slime's viewer."""

    rows: list[TimelineRow]


def _content(path: Path) -> bytes:
    """Returns a file without the mark that some editors write at the start of UTF-8."""
    return path.read_bytes().removeprefix(codecs.BOM_UTF8)


def read_requests(path: Path, source: str) -> Imported:
    """Returns the responses of inference-perf."""
    decoder = msgspec.json.Decoder(list[PerfRequest])
    requests = decoded(_content(path), f"{source}: {path}", decoder)

    def responses() -> Iterator[TracedResponse]:
        for number, request in enumerate(requests):
            if request.error is not None:
                continue
            info = request.info or RequestInfo()
            counts = info.response_metrics or ResponseCounts()
            counted = counts.server_usage.completion_tokens if counts.server_usage else None
            yield TracedResponse(
                place=f"{source}: {path}: request {number}",
                length=counted or counts.output_tokens,
                group=request.request,
                prompt_tokens=info.input_tokens,
            )

    failed = sum(request.error is not None for request in requests)
    return Imported(
        format="inference-perf's requests",
        responses=responses(),
        assumed=[
            "Requests with equal bodies are a group, and all are sent at the start.",
            *([f"Failed requests, left out: {failed}."] if failed else []),
        ],
    )


def read_timeline(path: Path, source: str) -> Imported:
    """Returns the responses of a trace timeline of slime."""
    decoder = msgspec.json.Decoder(Timeline)
    timeline = decoded(_content(path), f"{source}: {path}", decoder)

    def responses() -> Iterator[TracedResponse]:
        for number, row in enumerate(timeline.rows):
            ends = [span.attrs.end_attrs for span in row.items if span.attrs]
            counted = [end for end in ends if end and end.completion_tokens is not None]
            yield TracedResponse(
                place=f"{source}: {path}: row {number}",
                length=sum(end.completion_tokens or 0 for end in counted),
                group=None if row.group_index is None else str(row.group_index),
                index=row.sample_index,
                prompt_tokens=counted[0].prompt_tokens if counted else None,
            )

    return Imported(
        format="slime's trace timeline",
        responses=responses(),
        assumed=["Tokens of all generations of a sample are one response."],
    )
