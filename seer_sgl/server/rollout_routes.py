"""The rollout API: `POST /rollout` and what belongs to it.

`POST /rollout` answers with NDJSON. The first line has `"event": "start"`, the last one `"event":
"end"`. In between, in the order of completion: `group` lines with the group's samples; with
`"stream": "samples"`, `sample` lines, and a `group` line without samples after a group's last one.
A sample has the fields of `samples.jsonl`. A group that was given up has an `error`.

Over-sampling: with `target_groups`, the rollout ends when so many groups are complete, and the
others are aborted. Filtering: `POST /rollout/{id}/reject` takes a delivered group back; another one
counts in its place, and the one nearest to its end goes ahead of the others. Because the stream
ends with the completion of the last group that is needed, a client that filters every group sets
`dynamic_filtering`: then a group counts once `POST /rollout/{id}/accept` names it, and the stream
stays open for the verdicts. A reject may contain more `groups`:

- slime (`over_sampling_batch_size`): send that many groups, with `rollout_batch_size` as the
  target; when a reject answers `missing` > 0, send the next batch with it.
- OpenRLHF, veRL (one prompt in place of each filtered one): send as many groups as the target, and
  one more with each reject.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from seer_sgl.rollout.samples import encode_sample
from seer_sgl.types import Group, Sample

from .errors import Unavailable
from .json import dumps, json_response
from .rollout_body import NDJSON, AcceptBody, RejectBody, decoded, read_rollout
from .rollout_progress import progress, summary
from .rollout_served import ServedRollout
from .rollouts import Rollouts
from .streams import FAILED, streaming

ROLLOUT_HEADER = "X-Seer-Rollout-Id"


def add_rollout_routes(app: web.Application, rollouts: Rollouts) -> None:
    """Adds the routes of the rollout API. At shutdown, every rollout ends."""
    handlers = _Handlers(rollouts)
    app.router.add_post("/rollout", handlers.start)
    app.router.add_get("/rollouts", handlers.list)
    app.router.add_get("/rollout/{id}", handlers.show)
    app.router.add_delete("/rollout/{id}", handlers.abort)
    app.router.add_delete("/journal/{name}", handlers.remove_journal)
    app.router.add_post("/rollout/{id}/accept", handlers.accept)
    app.router.add_post("/rollout/{id}/reject", handlers.reject)

    async def end_all(_: web.Application) -> None:
        rollouts.end_all("the server is shutting down")

    app.on_shutdown.append(end_all)


class _Handlers:
    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts

    async def start(self, http: web.Request) -> web.StreamResponse:
        """Rolls groups out; the response is the stream."""
        return await _stream(http, await self._rollouts.open(await read_rollout(http)))

    async def list(self, _: web.Request) -> web.Response:
        """The rollouts in progress, and the ended ones that are remembered."""
        rollouts = [summary(served) for served in self._rollouts]
        return json_response({"rollouts": rollouts, "journals": self._rollouts.journals})

    async def show(self, http: web.Request) -> web.Response:
        return json_response(progress(self._rollouts.find(http.match_info["id"])))

    async def abort(self, http: web.Request) -> web.Response:
        """Aborts a rollout; its stream delivers the complete groups and ends."""
        served = self._rollouts.find(http.match_info["id"])
        served.finish("aborted")
        return json_response(summary(served))

    async def remove_journal(self, http: web.Request) -> web.Response:
        """Removes the journal of a rollout that is not to continue."""
        name = http.match_info["name"]
        self._rollouts.remove_journal(name)
        return json_response({"removed": name})

    async def accept(self, http: web.Request) -> web.Response:
        body = decoded(await http.read(), AcceptBody)
        served = self._rollouts.find(http.match_info["id"])
        served.accept(str(body.group_id))
        return json_response(_verdict(served))

    async def reject(self, http: web.Request) -> web.Response:
        body = decoded(await http.read(), RejectBody)
        served, replaced_by = await self._rollouts.reject(http.match_info["id"], body)
        return json_response({**_verdict(served), "replaced_by": replaced_by})


def _verdict(served: ServedRollout) -> dict[str, Any]:
    """Returns the state after a verdict. `missing`: groups that the target needs beyond all."""
    tally, target = served.tally, served.tally.target
    counted, unfinished = len(tally.counted), tally.unfinished
    possible = counted + tally.undecided + unfinished
    return {
        "state": served.end or "running",
        "counted": counted,
        "undecided": tally.undecided,
        "unfinished": unfinished,
        "missing": 0 if target is None else max(0, target - possible),
    }


async def _stream(http: web.Request, served: ServedRollout) -> web.StreamResponse:
    headers = {"Content-Type": NDJSON, ROLLOUT_HEADER: served.rollout_id}
    watch = asyncio.create_task(served.watch())
    try:
        async with streaming(http, headers) as response:
            await _write(response, served)
            if served.end == "failed":
                http[FAILED] = Unavailable.status
    finally:
        if FAILED in http:
            served.finish("failed", "the answer broke off because of a defect of the server")
        served.finish("left")  # unless it has ended
        served.drop_events()
        await asyncio.wait({watch})
    return response


async def _write(response: web.StreamResponse, served: ServedRollout) -> None:
    await response.write(_start_line(served))
    served.fill()
    async for event in served.events():
        pieces = _pieces(event, served.options.stream == "groups")
        if _has_experts(event):  # megabytes per sample
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                await response.write(piece)
        for piece in pieces:
            await response.write(piece)
        if isinstance(event, Group):
            served.taken(event)
    await response.write(_end_line(served))


def _start_line(served: ServedRollout) -> bytes:
    return _line(
        event="start",
        rollout_id=served.rollout_id,
        seed=served.seed,
        groups=served.tally.total,
        samples=served.requests,
        target_groups=served.tally.target,
        resumed=served.resumed,
    )


def _end_line(served: ServedRollout) -> bytes:
    """Returns the last line. `group_ids`: the groups that count, in the order of completion."""
    tally = served.tally
    return _line(
        event="end",
        rollout_id=served.rollout_id,
        state=served.end,
        error=served.error,
        groups=len(tally.counted),
        failed_groups=len(tally.failed),
        unfinished_groups=tally.unfinished,
        samples=served.finished_requests,
        generated_tokens=served.totals.tokens,
        group_ids=tally.counted,
    )


def _line(**fields: Any) -> bytes:
    return dumps(fields) + b"\n"


def _has_experts(event: Group | Sample) -> bool:
    samples = [event] if isinstance(event, Sample) else event.samples
    return any(sample.routed_experts is not None for sample in samples)


def _pieces(event: Group | Sample, whole_groups: bool) -> Iterator[bytes]:
    """Yields a line in pieces: one sample each, because a sample can have megabytes."""
    if isinstance(event, Sample):
        yield b'{"event":"sample",' + encode_sample(event)[1:] + b"\n"
        return
    line = dumps({"event": "group", "group_id": event.group_id})
    if event.failure is not None:
        failure = {"kind": event.failure.kind.value, "message": event.failure.message}
        yield line[:-1] + b',"error":' + dumps(failure) + b"}\n"
    elif whole_groups:
        before = line[:-1] + b',"samples":['
        for sample in sorted(event.samples, key=lambda sample: sample.index):
            yield before + encode_sample(sample)
            before = b","
        yield b"]}\n"
    else:
        yield line + b"\n"
