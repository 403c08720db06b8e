"""Pauses, aborts, memory and the calls to each engine, through the server on fake engines."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from seer_sgl.backend.bodies import ENTRIES
from seer_sgl.backend.replies import read_reply
from tests.fake_sglang import FakeSGLang
from tests.server.generating import LIMIT, PROMPT, SEED, generating
from tests.server.helpers import CHUNK, Fakes, Served, served, two, until_held, whole
from tests.support.bodies import body
from tests.support.timing import OVER_JUMPS, QUICK
from tests.support.waiting import outlast, polled, until

MISSPELLED = "tags: 'weight' is none of kv_cache, weights, cuda_graph"


def is_prefix(reply: dict[str, Any], seed: int, fake: FakeSGLang) -> bool:
    ids = reply["output_ids"]
    return bool(ids == whole(seed, len(PROMPT), fake, LIMIT)[: len(ids)])


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_pause_keeps_tokens_and_continues_with_them(
    mode: str, it: Served, fakes: Fakes
) -> None:
    running = generating(it)
    await until(lambda: sum(len(fake.seen) for fake in fakes) >= 3)
    assert (await it.ok("/pause_generation", mode=mode))["status"] == "ok"
    assert [fake.paused for fake in fakes] == [mode, mode]
    seen = [len(fake.seen) for fake in fakes]
    later = generating(it, seed=3 << 20)
    await until(lambda: it.service.generation.in_progress == 2)
    assert (await it.ask("GET", "/health_generate"))[0] == 200, "a paused server is not ill"
    _, info = await it.ask("GET", "/server_info")
    (hold,) = info["seer"]["held"]
    assert hold["reason"] == "pause_generation"
    assert [len(fake.seen) for fake in fakes] == seen
    assert (await it.post("/pause_generation", mode=mode))[0] == 200, "twice is once"
    assert (await it.ok("/continue_generation"))["status"] == "ok"
    replies = await asyncio.gather(running, later)
    for seed, reply in zip((SEED, 3 << 20), replies, strict=True):
        assert reply["output_ids"] == whole(seed, len(PROMPT), fakes[0], LIMIT)


async def test_a_pause_with_abort_ends_every_call_with_its_tokens(it: Served, fakes: Fakes) -> None:
    running = [generating(it, seed << 20) for seed in range(1, 20)]
    await until(lambda: sum(len(fake.seen) for fake in fakes) >= 60)
    await it.ok("/pause_generation")
    replies = await asyncio.gather(*running)
    later = generating(it)
    await it.post("/continue_generation")
    await later
    for seed, reply in enumerate(replies, 1):
        assert reply["meta_info"]["finish_reason"]["type"] == "abort"
        assert is_prefix(reply, seed << 20, fakes[0])
    assert sum(len(reply["output_ids"]) for reply in replies) > 0


async def test_a_pause_that_an_engine_does_not_answer_is_one_of_the_others(
    it: Served, fakes: Fakes
) -> None:
    fakes[1].silent.add("/pause_generation")
    answer = await it.ok("/pause_generation", mode="retract")
    assert answer["engines"]["e1"]["status"] is None
    fakes[0].refused["/continue_generation"] = 500
    status, answer = await it.post("/continue_generation")
    assert (status, answer["success"]) == (500, False)
    assert not it.service.backend.holds, "the driver continues whatever the engines reply"


async def test_a_pause_that_an_engine_refuses_pauses_none(it: Served, fakes: Fakes) -> None:
    fakes[1].refused["/pause_generation"] = 500
    status, answer = await it.post("/pause_generation", mode="retract")
    assert (status, answer["success"]) == (500, False)
    assert not it.service.backend.holds
    assert [fake.paused for fake in fakes] == [None, None]
    fakes[1].refused.clear()
    await it.ok("/pause_generation", mode="retract")
    fakes[1].refused["/pause_generation"] = 500
    assert (await it.post("/pause_generation", mode="retract"))[0] == 500
    assert it.service.backend.holds, "the pause of before lasts"
    await it.ok("/continue_generation")


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_requests_of_a_paused_engine_can_end_before_they_are_aborted(
    mode: str, it: Served, fakes: Fakes
) -> None:
    last = ["/continue_generation", "/pause_generation"]
    await it.ok("/pause_generation", mode=mode)
    await it.ok("/pause_generation", mode="abort")
    assert [fake.paths()[-2:] for fake in fakes] == [last] * 2, "else SGLang would wait for ever"
    assert it.service.backend.holds and [fake.paused for fake in fakes] == ["abort"] * 2
    await it.ok("/continue_generation")
    await it.ok("/pause_generation", mode=mode)
    await it.ok("/release_memory_occupation", tags=["kv_cache"])
    await it.ok("/pause_generation", mode="abort")
    for fake in fakes:
        assert fake.paths()[-2] == "/release_memory_occupation", "they lack memory to run on"


async def test_an_engine_without_memory_continues_once_it_is_back(it: Served, fakes: Fakes) -> None:
    last = ["/resume_memory_occupation", "/continue_generation"]
    await it.ok("/pause_generation", mode="retract")
    await it.ok("/release_memory_occupation", tags=["kv_cache", "weights"])
    assert (await it.ok("/continue_generation", torch_empty_cache=False))["success"]
    await it.ok("/resume_memory_occupation", tags=["weights"])
    assert [fake.paused for fake in fakes] == ["retract"] * 2, "what waits there has no KV to use"
    await it.ok("/resume_memory_occupation")
    assert [fake.paths()[-2:] for fake in fakes] == [last] * 2
    assert fakes[0].calls[-1][1] == {"torch_empty_cache": False}
    assert (await generating(it, limit=2))["output_ids"]
    await it.ok("/release_memory_occupation", tags=["kv_cache"])
    await it.ok("/continue_generation")
    await it.ok("/pause_generation", mode="retract")
    await it.ok("/resume_memory_occupation")
    assert [fake.paused for fake in fakes] == ["retract"] * 2, "it was paused since"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/weights_checker", {"action": "snapshot"}),
        ("/get_weights_by_name", {"name": "a"}),
        ("/update_weights_from_disk", {"model_path": "new"}),
    ],
)
async def test_released_weights_are_not_used(
    path: str, fields: dict[str, Any], it: Served, fakes: Fakes
) -> None:
    await it.ok("/release_memory_occupation", tags=["weights"])
    await it.ok(path, **fields)  # without a memory saver nothing was released
    for fake in fakes:
        fake.flags["enable_memory_saver"] = True
    calls = [len(fake.calls) for fake in fakes]
    status, answer = await it.post(path, **fields)
    assert (status, answer["success"]) == (409, False)
    assert "engine e0 has released its weights" in answer["message"]
    assert [len(fake.calls) for fake in fakes] == calls
    await it.ok("/resume_memory_occupation")
    await it.ok(path, **fields)


class Hung(FakeSGLang):
    """A fake that answers no pause."""

    async def pause(self, fields: dict[str, Any]) -> Any:
        await asyncio.sleep(3600)


async def test_an_engine_that_hangs_does_not_hold_the_control_plane() -> None:
    fake, hung = FakeSGLang(), Hung()
    async with served(fake, hung, timing=OVER_JUMPS) as it:
        pausing = asyncio.create_task(it.post("/pause_generation", mode="retract"))
        await until(lambda: fake.paused and hung.calls)
        await polled(fake)  # its answer has been read
        await outlast(OVER_JUMPS.quick_call_s)
        status, answer = await pausing
        replies = [answer["engines"][name]["status"] for name in ("e0", "e1")]
        assert (status, replies) == (200, [200, None])
        await it.ok("/continue_generation")


class Checked(FakeSGLang):
    """A fake that counts its health checks."""

    checks = 0

    async def health(self, http: Any) -> Any:
        self.checks += 1
        return await super().health(http)


async def test_a_paused_engine_is_not_checked_by_generating_a_token() -> None:
    fake = Checked()
    async with served(fake, FakeSGLang(), timing=QUICK) as it:
        await it.post("/pause_generation", mode="retract")
        fake.away = True
        await until(lambda: not it.service.serves("e0"))
        fake.away = False
        await polled(fake)
        assert fake.checks == 0
        await it.post("/continue_generation")
        await until(lambda: it.service.serves("e0"))
        assert fake.checks == 1


async def test_aborts_by_name_by_prefix_and_of_all(it: Served, fakes: Fakes) -> None:
    names = ["one", "two.1", "two.2", "three"]
    running = {name: generating(it, rid=name) for name in names}
    await until(lambda: sum(len(fake.seen) for fake in fakes) >= 12)
    for fields in ({}, {"rid": ""}, {"rid": None}, {"rid": "absent"}):
        assert (await it.post("/abort_request", **fields))[1]["aborted"] == 0
    for rid, count in (("one", 1), ("two.", 2)):
        assert (await it.ok("/abort_request", rid=rid))["aborted"] == count
    for name in names[:3]:
        reply = await running[name]
        assert reply["meta_info"]["finish_reason"]["type"] == "abort"
        assert is_prefix(reply, SEED, fakes[0])
    assert not running["three"].done()
    assert (await it.post("/abort_request", abort_all=True))[1]["aborted"] == 1
    await running["three"]
    seen = sum(len(fake.seen) for fake in fakes)
    later = await generating(it, limit=3 * CHUNK)  # it is sent after what would be sent again
    chunks = later["meta_info"]["seer"]["chunks"]
    assert sum(len(fake.seen) for fake in fakes) == seen + chunks, "nothing is sent again"


async def test_the_cache_is_flushed_once_nothing_runs(it: Served, fakes: Fakes) -> None:
    for method in ("GET", "POST"):
        status, answer = await it.ask(method, "/flush_cache?timeout=3")
        assert (status, answer["success"]) == (200, True)
        assert answer["message"].startswith("Cache flushed.")
    running = generating(it)
    await until(lambda: any(fake.running for fake in fakes))
    fakes[0].running += 1
    status, answer = await it.post("/flush_cache")
    fakes[0].running -= 1
    assert (status, answer["success"]) == (400, False) and "e0" in answer["message"]
    await running


class Asked(FakeSGLang):
    """A fake that keeps the addresses of its calls."""

    def app(self) -> web.Application:
        app, self.asked = super().app(), list[str]()

        async def note(http: web.Request, _: Any) -> None:
            self.asked.append(http.path_qs)

        app.on_response_prepare.append(note)
        return app


async def test_a_flush_in_a_pause_waits_for_nothing_that_waits_itself() -> None:
    fake = Asked()
    async with served(fake) as it:
        for wrong in ("nan", "inf", "1e9", "-1"):
            assert (await it.post(f"/flush_cache?timeout={wrong}"))[0] == 400
        await it.ok("/flush_cache?timeout=5")
        await it.ok("/pause_generation", mode="retract")
        await it.ok("/flush_cache?timeout=5")
        flushes = [path for path in fake.asked if path.startswith("/flush_cache")]
        assert flushes == ["/flush_cache?timeout=5", "/flush_cache"]
        await it.ok("/release_memory_occupation", tags=["weights"])
        await it.ok("/continue_generation")
        await it.ok("/flush_cache?timeout=5")
        assert fake.asked[-1] == "/flush_cache", "it continues once its memory is back"
        await it.ok("/resume_memory_occupation")
        await it.ok("/flush_cache?timeout=5")
        assert fake.asked[-1] == "/flush_cache?timeout=5"


async def test_no_tag_of_memory_is_released_or_resumed_twice(it: Served, fakes: Fakes) -> None:
    running = generating(it)
    await until(lambda: sum(len(fake.seen) for fake in fakes) >= 3)
    await it.ok("/resume_memory_occupation")
    for tags in (["kv_cache"], ["kv_cache"], None, []):
        assert (await it.ok("/release_memory_occupation", tags=tags))["success"]
    seen = [len(fake.seen) for fake in fakes]
    for tags in (["weights"], ["weights", "weights"]):
        await it.ok("/resume_memory_occupation", tags=tags)
    assert [len(fake.seen) for fake in fakes] == seen, "without KV nothing is dispatched"
    for _ in range(2):
        await it.ok("/resume_memory_occupation")
    assert len((await running)["output_ids"]) == LIMIT
    for fake in fakes:
        assert fake.died is None and not fake.released
        assert [fields["tags"] for path, fields in fake.calls if "release" in path] == [
            ["kv_cache"],
            ["weights", "cuda_graph"],
        ]


async def test_a_server_that_dispatches_nothing_is_not_ready_and_says_why(it: Served) -> None:
    await it.post("/release_memory_occupation", tags=["weights"])
    status, why = await it.ask("GET", "/ready")
    assert (status, "release_memory_occupation" in str(why)) == (503, True)
    await it.post("/resume_memory_occupation")
    await it.post("/pause_generation", mode="retract")
    status, why = await it.ask("GET", "/ready")
    assert (status, "pause_generation" in str(why)) == (503, True)
    assert (await it.ask("GET", "/health"))[0] == 200
    await it.post("/continue_generation")
    assert await it.ask("GET", "/ready") == (200, None)


async def test_memory_that_one_engine_could_not_release_is_released_by_a_second_call(
    it: Served, fakes: Fakes
) -> None:
    fakes[1].refused["/release_memory_occupation"] = 400
    status, answer = await it.post("/release_memory_occupation", tags=["kv_cache"])
    assert (status, answer["engines"]["e0"]["status"]) == (400, 200)
    fakes[1].refused.clear()
    await it.ok("/release_memory_occupation", tags=["kv_cache"])
    assert [fake.released for fake in fakes] == [{"kv_cache"}, {"kv_cache"}]
    fakes[0].startup_s += 1  # restarted: all its memory is there
    fakes[0].released.clear()
    await it.ok("/resume_memory_occupation")
    assert not it.service.backend.holds
    assert all(fake.died is None for fake in fakes)


async def test_other_calls_go_to_each_engine_as_they_are(it: Served, fakes: Fakes) -> None:
    assert (await it.ok("/load_lora_adapter", lora_name="a", lora_path="b"))["success"]
    assert all(fake.calls[-1][1] == {"lora_name": "a", "lora_path": "b"} for fake in fakes)
    answer = await it.ok("/start_profile", num_steps=3, profile_by_stage=True)
    assert answer["engines"]["e1"] == {"status": 200, "reply": "Start profiling."}
    assert (await it.post("/freeze_gc"))[0] == 404, "the fakes do not have it"
    assert await it.ok("/get_weights_by_name", name="a") == [1.0, 2.0]
    for fake in fakes:
        fake.silent.add("/get_weights_by_name")
    status, answer = await it.post("/get_weights_by_name", name="a")
    assert (status, answer["success"]) == (502, False)


async def test_experts_are_recorded_by_engines_with_a_recorder_only(
    it: Served, fakes: Fakes
) -> None:
    path = "/start_expert_distribution_record"
    assert (await it.post(path))[0] == 404, "the fakes do not have it"
    fakes[0].away = True
    fakes[1].flags["expert_distribution_recorder_mode"] = None
    status, answer = await it.post(path)
    assert (status, answer["success"]) == (400, False)
    assert "engine e1 runs without expert_distribution_recorder_mode" in answer["message"]
    fakes[1].flags["expert_distribution_recorder_mode"] = "stat"
    assert (await it.post(path))[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b'{"message": "\\ud800"}',
        b"[" * 100_000,
        b'{"a": 1' + b"0" * 400 + b"}",
        b"NaN",
        b"<html>",
    ],
)
def test_any_reply_of_an_engine_becomes_json(body: bytes) -> None:
    reply = read_reply(500, body)
    assert not reply.ok and len(reply.message) <= 500


@pytest.mark.parametrize(
    "path",
    [
        "/pause_generation",
        "/abort_request",
        "/release_memory_occupation",
        "/init_weights_update_group",
        "/update_weights_from_disk",
        "/workers",
        "/rollout",
    ],
)
async def test_a_body_that_is_no_object_is_refused_before_any_engine_is_called(
    path: str, it: Served, fakes: Fakes
) -> None:
    bodies = [b"[]", b"{", b'"x"', b"\xff", b"[" * 100_000]
    if path == "/rollout":  # the others may be empty
        bodies += [b"", b'{"groups":' + b"[" * 100_000]
    for sent in bodies:
        async with it.session.post(it.url + path, data=sent) as reply:
            assert reply.status == 400
    assert not any(fake.calls for fake in fakes) and not it.service.backend.holds


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("/pause_generation", {"mode": "gently"}, "mode"),
        ("/pause_generation", {"mode": 7}, "mode"),
        ("/pause_generation", {"mode": []}, "mode"),
        ("/pause_generation", {"mode": {"a": 1}}, "mode"),
        ("/abort_request", {"rid": 3}, "rid"),
        ("/release_memory_occupation", {"tags": "kv_cache"}, "tags"),
        ("/release_memory_occupation", {"tags": ["weight"]}, MISSPELLED),
        ("/resume_memory_occupation", {"tags": ["weight"]}, MISSPELLED),
        ("/update_weights_from_disk", {"weight_version": 3}, "weight_version"),
        ("/update_weights_from_tensor", {"serialized_named_tensors": "a"}, "serialized_named"),
        ("/start_profile", {"profile_by_stage": True}, "num_steps"),
        ("/start_profile", {"profile_by_stage": True, "num_steps": 0}, "num_steps"),
        ("/slow_down", {"forward_sleep_time": 1e300}, "forward_sleep_time"),
        ("/slow_down", {"forward_sleep_time": 10**400}, "forward_sleep_time"),
        ("/slow_down", {"forward_sleep_time": "nan"}, "forward_sleep_time"),
        ("/load_lora_adapter_from_tensors", {"lora_name": "a"}, "serialized_named_tensors: 0"),
        ("/load_lora_adapter_from_tensors", {ENTRIES: ["pickle"]}, "serialized_named_tensors"),
        ("/workers", {"url": "http://nowhere/path"}, "url"),
    ],
)
async def test_a_wrong_field_is_named(
    path: str, fields: dict[str, Any], named: str, it: Served, fakes: Fakes
) -> None:
    status, answer = await it.post(path, **fields)
    assert (status, answer.get("success", False)) == (400, False)
    assert named in answer["error"]["message"]
    assert not any(fake.calls for fake in fakes) and not it.service.backend.holds


async def test_a_request_of_an_engines_own_session_waits_for_the_end_of_a_hold(
    it: Served, fakes: Fakes
) -> None:
    it.service.pinned.add("mine", "e0")
    await it.post("/release_memory_occupation", tags=["kv_cache"])
    request = generating(it, limit=2, session_params={"id": "mine"})
    await until_held(it)
    assert not fakes[0].seen, "it would run on memory that is not there"
    await it.post("/resume_memory_occupation")
    assert (await request)["output_ids"]


async def test_an_engine_restarted_before_an_update_has_no_memory_to_resume(
    it: Served, fakes: Fakes
) -> None:
    await it.ok("/release_memory_occupation", tags=["kv_cache"])
    fakes[1].startup_s += 1
    fakes[1].released.clear()
    await it.ok("/update_weights_from_disk", model_path="new", weight_version="v2")
    await it.ok("/resume_memory_occupation")
    assert not it.service.backend.holds
    assert [fake.died for fake in fakes] == [None, None], "a tag that is there ends SGLang"


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("/release_memory_occupation", "/resume_memory_occupation"),
        ("/begin_weight_update", "/end_weight_update"),
    ],
)
async def test_a_hold_ends_although_the_last_engine_has_left(begin: str, end: str) -> None:
    fake = two()[0]
    async with served(fake) as it:
        url = it.service.fleet.engines[0].info.url
        await it.ok(begin)
        await it.ask("DELETE", "/workers/e0")
        await until(lambda: not it.service.fleet.engines)
        await it.post(end)
        assert not it.service.backend.holds
        assert (await it.post("/workers", url=url))[0] == 202
        assert len((await generating(it))["output_ids"]) == LIMIT


async def test_an_engine_that_cannot_resume_its_memory_ends_the_hold_when_it_leaves(
    it: Served, fakes: Fakes
) -> None:
    await it.post("/release_memory_occupation", tags=["kv_cache"])
    fakes[1].refused["/resume_memory_occupation"] = 500
    assert (await it.post("/resume_memory_occupation"))[0] == 500
    assert it.service.backend.holds, "e1 would generate without its KV"
    await it.ask("DELETE", "/workers/e1")
    assert len((await generating(it))["output_ids"]) == LIMIT


class Refusing(FakeSGLang):
    """A fake that holds the chunks of seed 1, and refuses those of seed 2 once the gate is open."""

    gate: asyncio.Event

    async def _answer(self, http: Any, call: dict[str, Any], fault: str) -> Any:
        if call["sampling_params"]["sampling_seed"] == 2:
            await self.gate.wait()
            return await super()._answer(http, call, "400")
        return await super()._answer(http, call, "ok" if self.gate.is_set() else "stall")


@pytest.mark.process
async def test_an_aborted_request_does_not_begin_again_because_of_a_sibling() -> None:
    fake = Refusing(longest=10_000)
    fake.gate = asyncio.Event()
    async with served(fake) as it:
        first, second = (
            asyncio.create_task(it.post("/generate", **body(seed, rid=f"rid-{seed}", group_id="g")))
            for seed in (1, 2)
        )
        await until(lambda: len(fake.seen) == 2)
        abort = asyncio.create_task(it.post("/abort_request", rid="rid-1"))
        await until(lambda: bool(fake.aborted))
        fake.gate.set()
        assert (await abort)[1]["aborted"] == 1
        _, reply = await first
        assert (await second)[0] == 400
    assert reply["meta_info"]["finish_reason"]["type"] == "abort"
    assert reply["output_ids"] == []
