"""The HTTP calls of slime v0.3.1 (commit a6272da), in slime's order, without Ray and GPUs.

A test client: each method names the file and lines of slime whose calls it makes. It tries a server
the way slime will use it, and it keeps every `/generate` for a comparison.
"""

import asyncio
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

Json = dict[str, Any]
FLUSHES = 60
# Parameters of every request (slime/rollout/sglang_rollout.py:95-105).
SAMPLING: Json = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "stop": None,
    "stop_token_ids": None,
    "skip_special_tokens": False,
    "no_stop_trim": True,
    "spaces_between_special_tokens": False,
}
# Arguments of an external engine that slime compares with its own (sglang_engine.py:544-590).
CHECKED = {"enable_memory_saver": False}


@dataclass
class Options:
    """slime's arguments of these names. `seed`: `rollout_seed`; None: without deterministic
    inference. `streaming`: with `sglang_streaming_rollout.generate_streaming`."""

    rollout_batch_size: int
    over_sampling_batch_size: int
    n_samples_per_prompt: int
    rollout_max_response_len: int
    rollout_top_p: float = 1.0
    seed: int | None = 42
    partial_rollout: bool = True
    streaming: bool = False
    abort_retry_s: float = 3.0  # server_control.py:9


@dataclass
class Generated:
    """One `/generate` of a sample: the body, and the tokens and `meta_info` of its answer."""

    sample: "Sample"
    body: Json
    ids: list[int]
    meta: Json


@dataclass(eq=False)
class Sample:
    """What slime keeps of a response (slime/utils/types.py)."""

    index: int
    tokens: list[int]
    log_probs: list[float] = field(default_factory=list)
    response: str = ""
    status: str = "pending"
    reward: float | None = None
    weight_versions: list[str] = field(default_factory=list)

    def append(self, ids: Sequence[int], log_probs: Sequence[float], answer: Json) -> None:
        """Appends the tokens of an answer (types.py:253-416)."""
        meta = answer["meta_info"]
        self.tokens = self.tokens + list(ids)
        self.log_probs += log_probs
        self.response += answer["text"]
        self.weight_versions.append(meta["weight_version"])
        ends = {"length": "truncated", "abort": "aborted", "stop": "completed"}
        self.status = ends[meta["finish_reason"]["type"]]


Group = list[Sample]
Reward = Callable[[Sample], float]


class Slime:
    """The calls of one training. `router`: `--sglang-router-ip` and port as a URL; `engine`:
    `--rollout-external-engine-addrs` as a URL. `prompts`: token ids, in the order of the data set.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        router: str,
        engine: str,
        *,
        prompts: Sequence[Sequence[int]],
        reward: Reward,
        options: Options,
    ) -> None:
        self._session = session
        self._router = router
        self._engine = engine
        self._prompts = prompts
        self._reward = reward
        self._options = options
        self._buffer: list[Group] = []
        self._groups = 0  # taken from the data set
        self._aborted = False
        self.calls: list[Generated] = []  # every `/generate`
        self.dropped: list[Group] = []  # by the dynamic filter

    async def register(self) -> Json:
        """Detects the engine and registers it with the router; returns the topology.

        external.py:74-157, sglang_engine.py:174-216. Raises ValueError if slime would refuse it.
        """
        info = await self._server_info()
        pp = int(info.get("pp_size") or 1)
        tp = int(info.get("tp_size") or 1)
        gpus = int(info.get("num_gpus") or info.get("num_gpus_per_engine") or tp * pp)
        if info.get("encoder_only") or info.get("disaggregation_mode") in ("prefill", "decode"):
            raise ValueError("not a regular engine")
        wrong = {name: info.get(name) for name, want in CHECKED.items() if info.get(name) != want}
        if wrong:
            raise ValueError(f"arguments differ: {wrong}")
        where = urlsplit(self._engine)
        worker = {"url": f"http://{where.hostname}:{where.port}", "worker_type": "regular"}
        await self._json("POST", f"{self._router}/workers", worker)
        return {"num_gpus": gpus, "tp_size": tp, "pp_size": pp}

    async def rollout(self) -> list[Group]:
        """Returns the groups of one rollout (sglang_rollout.py:372-468).

        Over-sampled groups are aborted at the end; with `partial_rollout` they begin the next one.
        """
        options, data, remaining = self._options, list[Group](), 0
        pendings: set[asyncio.Task[Group]] = set()
        while len(data) < options.rollout_batch_size:
            while remaining < options.rollout_batch_size:
                groups = self._samples(options.over_sampling_batch_size)
                pendings |= {asyncio.create_task(self._group(group)) for group in groups}
                remaining += len(groups)
            done, pendings = await asyncio.wait(pendings, return_when=asyncio.FIRST_COMPLETED)
            for group in (task.result() for task in done):
                if not _differ(group):  # check_reward_nonzero_std, the dynamic filter
                    self.dropped.append(group)
                    remaining -= 1
                elif len(data) < options.rollout_batch_size:
                    data.append(group)
        await self._abort(pendings)
        return sorted(data, key=lambda group: group[0].index)

    async def update_from_disk(self, folder: str, version: int) -> None:
        """A full update from a folder (actor_group.py:226-268)."""
        await self._control("pause_generation", {})
        await self.flush()
        fields = {"model_path": folder, "weight_version": str(version)}
        await self._control("update_weights_from_disk", fields)
        found = await self._json("GET", f"{self._engine}/get_weight_version")
        if found["weight_version"] != str(version):
            raise ValueError(f"weight version {found} after an update to {version}")
        await self._control("continue_generation", {})

    async def update_distributed(self, buckets: Sequence[Json], version: int) -> None:
        """The calls around a broadcast, which the trainer makes itself
        (update_weight_from_distributed.py:103-134, 326-355): no begin, no end."""
        await self._control("pause_generation", {})
        await self.flush()
        for bucket in buckets:
            named = {"group_name": "slime-pp_0", "flush_cache": False}
            fields = {**bucket, **named, "weight_version": str(version)}
            await self._control("update_weights_from_distributed", fields)
        await self._control("continue_generation", {})

    async def init_group(self, gpus: int, port: int) -> Json:
        """Makes the engine join the process group of the trainer, which is rank 0
        (update_weight_from_distributed.py:268-314)."""
        fields = {
            "master_address": "127.0.0.1",
            "master_port": port,
            "rank_offset": 1,
            "world_size": gpus + 1,
            "group_name": "slime-pp_0",
            "backend": "nccl",
        }
        return await self._control("init_weights_update_group", fields)

    async def flush(self) -> None:
        """Drops the engine's cache (sglang_engine.py:287-306)."""
        for _ in range(FLUSHES):
            async with self._session.get(f"{self._engine}/flush_cache") as reply:
                if reply.status == 200:
                    return
            await asyncio.sleep(1)
        raise TimeoutError("Timeout while flushing cache.")

    async def release_and_resume(self) -> None:
        """Releases the memory of the engine and takes it back (sglang_engine.py:345-356)."""
        await self.flush()
        await self._control("release_memory_occupation", {})
        for tags in (["weights"], ["kv_cache", "cuda_graph"]):
            await self._control("resume_memory_occupation", {"tags": tags})

    def _samples(self, count: int) -> list[Group]:
        """Takes groups from the buffer, and the rest from the data set (data_source.py:177-196)."""
        groups, n = self._buffer[:count], self._options.n_samples_per_prompt
        del self._buffer[:count]
        while len(groups) < count:
            prompt, first = self._prompts[self._groups % len(self._prompts)], self._groups * n
            groups.append([Sample(first + place, list(prompt)) for place in range(n)])
            self._groups += 1
        return groups

    async def _group(self, group: Group) -> Group:
        """Generates a group: one request per sample (sglang_rollout.py:222-334)."""
        options = self._options

        async def one(place: int, sample: Sample) -> None:
            if sample.status in ("completed", "truncated"):
                return
            if self._aborted:
                sample.status = "aborted"
                return
            params = SAMPLING | {
                "top_p": options.rollout_top_p,
                "max_new_tokens": options.rollout_max_response_len,
            }
            if options.rollout_top_p != 1.0:
                params["custom_params"] = {"return_top_p_token_ids": True}
            if options.seed is not None:
                params["sampling_seed"] = options.seed + place
            await self._generate(sample, params)
            if sample.status != "aborted" and sample.reward is None:
                sample.reward = self._reward(sample)

        if not self._aborted:
            await asyncio.gather(*(one(place, sample) for place, sample in enumerate(group)))
        return group

    async def _generate(self, sample: Sample, params: Json) -> None:
        """One request (sglang_rollout.py:152-219; the stream: sglang_streaming_rollout.py)."""
        body: Json = {"sampling_params": params, "return_logprob": True}
        if self._options.streaming:
            body["stream"] = True
        body["input_ids"] = sample.tokens
        if self._options.streaming:
            answer = await self._streamed(body)
        else:
            answer = await self._json("POST", f"{self._router}/generate", body)
        found = answer["meta_info"]["output_token_logprobs"]
        ids, log_probs = [each[1] for each in found], [each[0] for each in found]
        self.calls.append(Generated(sample, body, ids, answer["meta_info"]))
        sample.append(ids, log_probs, answer)

    async def _streamed(self, body: Json) -> Json:
        """Returns the newest event; after an abort the one that came next."""
        newest: Json = {}
        async with self._session.post(f"{self._router}/generate", json=body) as reply:
            reply.raise_for_status()
            async for line in reply.content:
                data = line.decode().removeprefix("data:").strip()
                if not line.startswith(b"data:") or data in ("", "[DONE]"):
                    continue
                newest = json.loads(data)
                if self._aborted:
                    break
        if not newest["meta_info"]["finish_reason"]:
            newest["meta_info"]["finish_reason"] = {"type": "abort"}
        return newest

    async def _abort(self, pendings: "set[asyncio.Task[Group]]") -> None:
        """Ends what is left (sglang_rollout.py:337-369)."""
        self._aborted = True
        found = await self._json("GET", f"{self._router}/workers")
        await asyncio.gather(*(self._until_idle(worker["url"]) for worker in found["workers"]))
        for group in await asyncio.gather(*pendings):
            if self._options.partial_rollout:
                self._buffer.append(group)
        self._aborted = False

    async def _until_idle(self, url: str) -> None:
        """Aborts all requests of a server until it has none (server_control.py:43-63)."""
        while True:
            await self._json("POST", f"{url}/abort_request", {"abort_all": True})
            loads = await self._json("GET", f"{url}/v1/loads?include=core")
            if sum(_requests(loads)) <= 0:
                return
            await asyncio.sleep(self._options.abort_retry_s)

    async def _server_info(self) -> Json:
        for path in ("/server_info", "/get_server_info"):
            async with self._session.get(self._engine + path) as reply:
                if reply.status == 200:
                    found: Json = await reply.json()
                    return found
        raise ValueError("no server info")

    async def _control(self, path: str, fields: Json) -> Json:
        """One control call (sglang_engine.py:218-238)."""
        return await self._json("POST", f"{self._engine}/{path}", fields)

    async def _json(self, method: str, url: str, fields: Json | None = None) -> Json:
        """Returns the JSON answer; raises for another status. slime would try 60 times."""
        async with self._session.request(method, url, json=fields) as reply:
            if not reply.ok:
                raise ValueError(f"{method} {url}: HTTP {reply.status}: {await reply.text()}")
            found: Json | None = await reply.json(content_type=None)
        return found or {}


def _requests(load: Any) -> Iterator[int]:
    """Yields the requests of each entry of a load (server_control.py:12-29)."""
    if isinstance(load, dict) and "loads" in load:
        load = load["loads"]
    for entry in load if isinstance(load, list) else [load]:
        yield entry.get("num_running_reqs", 0) + entry.get("num_waiting_reqs", 0)


def _differ(group: Group) -> bool:
    """Returns whether the rewards of a group differ (dynamic_sampling_filters.py:9-15)."""
    return statistics.pstdev(sample.reward or 0.0 for sample in group) > 1e-6
