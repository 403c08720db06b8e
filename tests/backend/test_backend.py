"""What a trainer may change in the engines while they generate, over HTTP and from Python alike."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from typing_extensions import override

from seer_sgl.backend import calls
from seer_sgl.backend.calls import limited
from seer_sgl.backend.groups import TrainerGroup
from seer_sgl.backend.memory import require_weights
from seer_sgl.backend.replies import CallResult, EngineReply, EnginesFailed
from seer_sgl.backend.state import FleetState
from seer_sgl.backend.weights import WeightUpdate
from seer_sgl.engine.answers import EngineAnswer
from seer_sgl.engine.client import HttpEngine
from seer_sgl.engine_types import EngineInfo
from seer_sgl.errors import ConfigError, InputError, PromptError, RolloutError, StateError
from seer_sgl.processes.child import LOG_PATH
from seer_sgl.server.control.answers import updated
from seer_sgl.server.prefixes import Prefixes
from seer_sgl.timing import DEFAULT
from tests.fake_sglang import FakeSGLang, serving
from tests.server.generating import LIMIT, PROMPT, SEED, generating
from tests.server.helpers import Fakes, Served, served, tensor_entry, two, under_way, whole
from tests.support.fleets import rolling
from tests.support.infos import info as info_of
from tests.support.waiting import DEADLINE_S, until

from .trainers import DISK, TENSOR, TRAINERS, Trainer


@pytest.fixture(params=TRAINERS)
def trainer(request: pytest.FixtureRequest, it: Served) -> Trainer:
    """A trainer at the server."""
    return TRAINERS[request.param](it)


TENSORS = (tensor_entry("a"), tensor_entry("b"))


def check(reply: Any, fakes: Fakes, *versions: str) -> None:
    """Fails unless a response has the tokens of a plain call, of these versions in turn."""
    assert reply["output_ids"] == whole(SEED, len(PROMPT), fakes[0], LIMIT)
    assert [span["version"] for span in reply["meta_info"]["weight_versions"]] == [*versions]


async def test_what_was_running_continues_after_an_update_with_its_spans(
    trainer: Trainer, it: Served, fakes: Fakes
) -> None:
    running = generating(it)
    await until(lambda: sum(len(fake.seen) for fake in fakes) >= 3)
    assert (await trainer.update("v2")).kind == "ok"
    check(await running, fakes, "v1", "v2")
    assert not any(fake.died for fake in fakes), "an update with requests running ends SGLang"
    assert all(dict(fake.calls)[DISK]["weight_version"] == "v2" for fake in fakes)


async def test_nothing_is_dispatched_between_begin_and_end(
    trainer: Trainer, it: Served, fakes: Fakes
) -> None:
    running = generating(it)
    await until(lambda: bool(fakes[0].seen or fakes[1].seen))
    assert (await trainer.begin()).kind == "ok"
    seen = [len(fake.seen) for fake in fakes]
    for version in (None, "v2"):
        assert (await trainer.update(version, TENSORS)).kind == "ok"
    assert (await trainer.begin()).kind == "wrong"
    assert [len(fake.seen) for fake in fakes] == seen
    assert (await trainer.end()).kind == "ok"
    check(await running, fakes, "v1", "v2")
    assert (await trainer.end()).kind == "wrong"
    assert all(fake.paths().count("/begin_weight_update") == 1 for fake in fakes)


async def test_an_engine_that_missed_an_update_is_stale_until_the_next(
    trainer: Trainer, it: Served, fakes: Fakes
) -> None:
    fakes[1].refused[DISK] = 400
    said = await trainer.update("v2")
    assert said.kind == "ok" and "e1" in said.message, "the fleet serves the new weights"
    assert list(it.service.driver.stale) == ["e1"]
    assert set((await generating(it))["meta_info"]["seer"]["engines"]) == {"e0"}
    _, info = await it.ask("GET", "/server_info")
    assert [each["stale"] is None for each in info["seer"]["engines"]] == [True, False]
    fakes[1].refused.clear()
    assert (await trainer.update("v3")).kind == "ok"
    assert not it.service.driver.stale
    await until(lambda: it.service.serves("e1"))


async def test_an_update_that_every_engine_refuses_changes_nothing(
    trainer: Trainer, it: Served, fakes: Fakes
) -> None:
    for fake in fakes:
        fake.refused[DISK] = 400
    said = await trainer.update("v2")
    assert said.kind == "failed"
    assert "e0: refused" in said.message and "e1: refused" in said.message
    assert not it.service.driver.stale
    check(await generating(it), fakes, "v1")


class LateRelease(FakeSGLang):
    """An engine that releases its memory when it may, and answers then."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()

    @override
    async def release(self, fields: dict[str, Any]) -> Any:
        await self.may.wait()
        return await super().release(fields)


async def test_memory_that_an_engine_may_release_later_is_resumed() -> None:
    fake = LateRelease()
    async with served(fake) as it:
        backend = it.service.backend
        with pytest.raises(EnginesFailed, match="no answer"), limited(0.05):
            await backend.release_memory(["kv_cache"])
        fake.may.set()
        await until(lambda: fake.released)
        assert backend.holds, "nothing is sent to an engine without its memory"
        await backend.resume_memory()
        assert not fake.released and not backend.holds and fake.died is None


class Changed(FakeSGLang):
    """An engine whose updates fail after they have changed its weights, until `fails` is empty."""

    fails = ""

    @override
    async def update(self, fields: dict[str, Any]) -> Any:
        if self.plugin is not None:
            self.plugin["weights"] = "new"
        if self.fails:
            return {"success": False, "message": self.fails}
        return await super().update(fields)


def changed(fails: str, plugin: bool = True) -> list[Changed]:
    """Returns two such engines, with or without the plugin, which reports the weights."""
    reports = [{"version": "1", "missing": [], "instance": name, "weights": "old"} for name in "ab"]
    fakes = [Changed(longest=10_000, plugin=report if plugin else None) for report in reports]
    for fake in fakes:
        fake.fails = fails
    return fakes


@pytest.mark.parametrize("bucketed", [False, True])
async def test_an_update_that_fails_half_way_on_every_engine_leaves_none_that_serves(
    bucketed: bool,
) -> None:
    fakes = changed("The full weights of the ModelRunner are partially updated.", plugin=False)
    update = WeightUpdate.from_distributed(["w"], ["float32"], [[2, 3]], version="v2")
    async with served(*fakes) as it:
        backend = it.service.backend
        if bucketed:
            await backend.begin_update()
        with pytest.raises(EnginesFailed, match="partially updated"):
            await backend.update_weights(update)
        if bucketed:
            with pytest.raises(RolloutError, match="no engine has the new weights; engine e0: "):
                await backend.end_update()
        assert sorted(backend.driver.stale) == ["e0", "e1"]
        assert not backend.holds
        assert not any(map(backend.driver.available, ("e0", "e1")))
        for fake in fakes:
            fake.fails = ""
        await backend.update_weights(update)
        assert not backend.driver.stale
        check(await generating(it), [*fakes], "v2")


@pytest.mark.parametrize(
    ("update", "plugin", "fails"),
    [
        (WeightUpdate.from_disk("new"), True, "Failed to update weights of the draft."),
        (WeightUpdate.from_disk("new"), False, "No such file.\nRolling back to original weights."),
        (WeightUpdate.from_ipc({"cpu": "ipc:///x"}), False, "the sender has left"),
    ],
)
async def test_an_engine_whose_weights_changed_in_an_update_that_failed_does_not_serve(
    update: WeightUpdate, plugin: bool, fails: str
) -> None:
    fakes = changed(fails, plugin)
    async with served(*fakes) as it:
        backend = it.service.backend
        with pytest.raises(EnginesFailed):
            await backend.update_weights(update)
        assert sorted(backend.driver.stale) == ["e0", "e1"]
        for fake in fakes:
            fake.fails = ""
        await backend.update_weights(update)
        assert not backend.driver.stale
        check(await generating(it), [*fakes], "v1")


class WithoutUpdates(FakeSGLang):
    """An engine of a version without a path of updates."""

    @override
    async def update(self, fields: dict[str, Any]) -> Any:
        return web.json_response({"detail": "Not Found"}, status=404)


async def test_an_update_that_no_engine_has_a_path_for_changes_nothing() -> None:
    fakes = [WithoutUpdates(longest=10_000) for _ in range(2)]
    async with served(*fakes) as it:
        backend = it.service.backend
        with pytest.raises(EnginesFailed, match="HTTP 404"):
            await backend.update_weights(WeightUpdate.from_ipc({"cpu": "ipc:///x"}))
        assert not backend.driver.stale
        check(await generating(it), [*fakes], "v1")


async def test_an_update_before_the_kv_has_its_memory_back_shows_if_it_changed_weights() -> None:
    fakes = changed("Failed to update weights of the draft.")
    async with served(*fakes) as it:
        backend = it.service.backend
        await backend.release_memory()
        await backend.resume_memory(["weights"])
        with pytest.raises(EnginesFailed):
            await backend.update_weights(WeightUpdate.from_disk("new", flush_cache=False))
        assert sorted(backend.driver.stale) == ["e0", "e1"]
        await backend.resume_memory()


@pytest.mark.parametrize("again", [False, True])
async def test_an_update_that_ends_with_a_part_that_every_engine_refuses_is_not_served(
    again: bool, trainer: Trainer, it: Served, fakes: Fakes
) -> None:
    assert (await trainer.begin()).kind == "ok"
    assert (await trainer.update("v2", TENSORS)).kind == "ok"
    for fake in fakes:
        fake.refused[TENSOR] = 500
    assert (await trainer.update("v2", TENSORS)).kind == "failed"
    for fake in fakes:
        fake.refused.clear()
    if again:
        assert (await trainer.update("v2", TENSORS)).kind == "ok"
    said = await trainer.end()
    assert not it.service.backend.holds
    if not again:
        assert said.kind == "wrong" and "no engine has the new weights" in said.message
        assert sorted(it.service.driver.stale) == ["e0", "e1"], "their weights are a mixture"
        assert (await trainer.update("v3")).kind == "ok"
    assert not it.service.driver.stale


async def test_an_engine_that_dies_between_begin_and_end_is_stale(
    trainer: Trainer, it: Served, fakes: Fakes
) -> None:
    assert (await trainer.begin()).kind == "ok"
    fakes[0].died, fakes[0].away = "killed", True
    said = await trainer.update("v2", TENSORS)
    assert said.kind == "ok" and "e0" in said.message
    assert (await trainer.end()).kind == "ok"
    assert list(it.service.driver.stale) == ["e0"]
    assert (await generating(it))["meta_info"]["seer"]["engines"][0] == "e1"


async def test_a_trainer_that_leaves_in_the_middle_of_an_update_leaves_no_hold(
    trainer: Trainer, it: Served, fakes: Fakes
) -> None:
    update, held = await under_way(trainer.update("v2"), *fakes)
    update.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await update
    running = generating(it)
    await until(lambda: it.service.generation.requests)
    # By the reply to a later request the server has read the hang-up.
    assert (await it.ask("GET", "/health"))[0] == 200
    assert it.service.backend.holds, "the update continues"
    assert not any(fake.seen for fake in fakes)
    held.set()
    check(await running, fakes, "v2")
    assert not it.service.backend.holds


async def test_no_engine_joins_in_the_middle_of_an_update(trainer: Trainer, it: Served) -> None:
    async with serving(FakeSGLang()) as url:
        await trainer.begin()
        assert (await trainer.join(url)).kind == "state"
        await trainer.end()
        assert "without a version" in (await trainer.join(url)).message
        assert (await trainer.update("v1")).kind == "ok"
        assert (await trainer.join(url)).kind == "ok"
        assert len(it.service.driver.engines) == 3


async def test_an_engine_that_is_drained_while_it_joins_does_not_stay_in_the_driver(
    monkeypatch: pytest.MonkeyPatch, it: Served
) -> None:
    backend, drains = it.service.backend, list[asyncio.Future[None]]()
    admit, lock = backend._admit, backend._lock

    async def drained(engine: HttpEngine) -> Callable[[], None]:
        accepted = await admit(engine)
        drains.append(backend.drain(engine.info.engine_id))
        await until(lambda: lock._waiters)
        return accepted

    monkeypatch.setattr(backend, "_admit", drained)
    async with serving(FakeSGLang()) as url:
        with pytest.raises(StateError, match="e2 is leaving the fleet"):
            await backend.join(url)
        await drains[0]
    for engines in (backend.driver.engines, [each.info for each in it.service.fleet.engines]):
        assert [info.engine_id for info in engines] == ["e0", "e1"]
    assert not backend.leaving


async def test_weights_that_were_loaded_by_other_means_are_adopted(
    it: Served, fakes: Fakes
) -> None:
    backend = it.service.backend
    fakes[0].weight_version = "v2"  # nobody told e1
    await backend.adopt_weights("v2")
    stale = backend.driver.stale
    assert stale == {"e1": "it reports weights v1 after an update to v2"}
    check(await generating(it), fakes, "v2")


async def test_every_kind_of_update_has_sglangs_fields(it: Served, fakes: Fakes) -> None:
    backend = it.service.backend
    await backend.init_group(TrainerGroup.at("127.0.0.1", 29500, world_size=3, backend="gloo"))
    await backend.update_weights(
        WeightUpdate.from_distributed(["w"], ["float32"], [[2, 3]], version="v2", flush_cache=False)
    )
    tensors = WeightUpdate.from_tensors(TENSORS, version="v3", selector="draft", flush_cache=None)
    assert tensors.flush_cache, "SGLang's default"
    await backend.update_weights(tensors)
    await backend.update_weights(WeightUpdate.from_ipc({"cpu": "ipc:///x"}, version="v4"))
    await backend.destroy_group()
    for rank, fake in enumerate(fakes, 1):
        calls = dict(fake.calls)
        group = calls["/init_weights_update_group"]
        assert (group["rank_offset"], group["world_size"]) == (rank, 3)
        assert (group["master_port"], group["backend"]) == (29500, "gloo")
        distributed = calls["/update_weights_from_distributed"]
        assert distributed["shapes"] == [[2, 3]] and distributed["flush_cache"] is False
        assert distributed["group_name"] == "weight_update_group"
        assert calls["/begin_weight_update"] == {"selector": "draft"}
        assert calls[TENSOR]["serialized_named_tensors"] == [TENSORS[rank - 1]]
        assert calls["/update_weights_from_ipc"]["zmq_handles"] == {"cpu": "ipc:///x"}
        assert "/destroy_weights_update_group" in calls
        assert fake.weight_version == "v4"


async def test_what_cannot_be_done_says_why_and_changes_nothing(it: Served, fakes: Fakes) -> None:
    backend = it.service.backend
    with pytest.raises(InputError, match="world_size 2 has no room for the 2 ranks"):
        await backend.init_group(TrainerGroup.at("127.0.0.1", 29500, world_size=2))
    with pytest.raises(ConfigError, match="engine e7 is not in the fleet"):
        backend.drain("e7")
    await backend.drain("e1")
    await backend.drain("e0")
    with pytest.raises(RolloutError, match="the fleet has no engine"):
        await backend.pause()
    assert not backend.holds
    assert not any(path.startswith("/update_weights") for fake in fakes for path in fake.paths())


async def test_a_call_continues_when_its_caller_is_cancelled(it: Served, fakes: Fakes) -> None:
    backend = it.service.backend
    update, held = await under_way(backend.update_weights(WeightUpdate.from_disk("new")), *fakes)
    drain = asyncio.ensure_future(backend.drain("e1"))
    flushes = [fake.paths().count("/flush_cache") for fake in fakes]
    flush = asyncio.create_task(backend.flush_cache())
    await asyncio.sleep(0)
    for task in (update, drain, flush):
        task.cancel()
    more = [count + 1 for count in flushes]
    await until(lambda: [fake.paths().count("/flush_cache") for fake in fakes] == more)
    assert backend.holds, "the update continues"
    held.set()
    await until(lambda: not backend.leaving)
    assert [engine.info.engine_id for engine in it.service.fleet.engines] == ["e0"]
    assert [info.engine_id for info in backend.driver.engines] == ["e0"]
    assert not backend.holds


async def test_a_pause_that_fails_holds_nothing(it: Served, fakes: Fakes) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("of the caller")

    backend = it.service.backend
    with pytest.raises(ValueError, match="of the caller"):
        await backend.pause(before=fails)
    assert not backend.holds
    assert not any(fake.paused for fake in fakes)
    await backend.pause()
    assert [fake.paused for fake in fakes] == ["retract", "retract"]
    with pytest.raises(ValueError, match="of the caller"):
        await backend.pause(before=fails)
    assert backend.holds, "the pause of before lasts"
    await backend.resume()
    check(await generating(it), fakes, "v1")


async def test_who_waits_for_a_closed_backend_gets_an_error() -> None:
    fakes = two()
    async with served(*fakes) as it:
        backend = it.service.backend
        update, _ = await under_way(backend.update_weights(WeightUpdate.from_disk("new")), *fakes)
    with pytest.raises(RolloutError, match="the rollout is closed"):
        await update
    with pytest.raises(RolloutError, match="the rollout is closed"):
        await backend.flush_cache()


async def test_a_close_that_is_cut_short_reminds_nobody_of_a_hold(it: Served) -> None:
    backend = it.service.backend
    await backend.begin_update()
    backend.drain("e1")
    closing = asyncio.create_task(backend.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    (reminder,) = backend.holds._reminders.values()
    assert reminder.cancelled()


async def test_weights_that_no_engine_has_are_not_adopted(it: Served) -> None:
    backend = it.service.backend
    await backend.begin_update()
    with pytest.raises(StateError, match="a weight update is open"):
        await backend.adopt_weights("v2")
    await backend.end_update()
    with pytest.raises(RolloutError, match="no engine has the new weights; engine e0: "):
        await backend.adopt_weights("v2")


async def test_calls_keep_their_order_also_while_tensors_are_checked(
    monkeypatch: pytest.MonkeyPatch, it: Served, fakes: Fakes
) -> None:
    begun, ending = threading.Event(), threading.Event()
    end = it.service.backend.end_update

    def slow(*_: object) -> None:
        begun.set()
        assert ending.wait(DEADLINE_S)

    async def noted(fields: Any) -> CallResult:
        ending.set()
        return await end(fields)

    monkeypatch.setattr(it.service.backend, "end_update", noted)
    monkeypatch.setattr("seer_sgl.server.control.calls.require_loadable", slow)
    await it.post("/begin_weight_update")
    fields = {"serialized_named_tensors": TENSORS, "weight_version": "v2"}
    update = asyncio.create_task(it.post(TENSOR, **fields))
    await until(begun.is_set)
    await it.ok("/end_weight_update")
    assert (await update)[0] == 200
    for fake in fakes:
        paths = [path for path in fake.paths() if path != "/flush_cache"]
        assert paths == ["/begin_weight_update", TENSOR, "/end_weight_update"]


async def test_a_client_that_leaves_has_all_its_aborts_done(it: Served) -> None:
    begun, may, aborted = asyncio.Event(), asyncio.Event(), list[str]()

    async def abort(named: Prefixes) -> int:
        begun.set()
        await may.wait()
        aborted.extend(name for name in "abcd" if named.match(name))
        return len(aborted)

    it.service.abort = abort  # type: ignore[method-assign]
    call = asyncio.create_task(it.post("/abort_request", rid=["a", "b", "c"]))
    await begun.wait()
    call.cancel()
    # By the reply to a later request the server has read the hang-up.
    assert (await it.ask("GET", "/health"))[0] == 200
    may.set()
    await until(lambda: aborted == ["a", "b", "c"])


async def test_an_error_of_the_driver_says_when_to_try_again_and_no_path() -> None:
    error = RolloutError(f"engine e0 ended{LOG_PATH}/home/x/e0.log")
    with pytest.raises(RolloutError, match="engine e0 ended"):  # the server ends with it
        async with served(*two()) as it:
            it.service.driver._end(error)
            async with it.session.post(f"{it.url}/pause_generation", json={}) as reply:
                assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
                assert "/home" not in await reply.text()


async def test_a_refused_run_takes_no_seed() -> None:
    async with rolling(FakeSGLang(), rollout={"seed": 7}) as rollout:
        wrong = {"prompt_ids": [1, 2], "n": 1, "sampling": {"stop": "x"}}
        with pytest.raises(PromptError):
            _ = [group async for group in rollout.run([wrong])]
        _ = [group async for group in rollout.run([{"prompt_ids": [1, 2], "n": 1}])]
        assert rollout.report()["seed"] == 7


def test_an_answer_without_a_message_names_the_engines_that_missed_the_update() -> None:
    replies = {"e0": EngineReply(200, {"success": True, "message": None}), "e1": EngineReply(None)}
    status, answer = updated(CallResult(replies))
    assert (status, answer["success"]) == (200, True)
    assert answer["message"].startswith("Success. 1 of 2 engines failed: e1: ")


class CountedEngine:
    """An engine of which it is counted how often its description is read."""

    def __init__(self, name: str, reads: list[str]) -> None:
        self._info = info_of(name)
        self._reads = reads

    @property
    def info(self) -> EngineInfo:
        self._reads.append(self._info.engine_id)
        return self._info


async def test_many_engines_are_looked_at_once_and_asked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count, reads = 200, list[str]()
    engines: Any = [CountedEngine(f"e{number}", reads) for number in range(count)]
    state = FleetState(cast("Any", SimpleNamespace(engines=engines)), cast("Any", None), DEFAULT)
    at_once = asyncio.Barrier(count)

    async def ask(*_: object, **__: object) -> EngineAnswer:
        await at_once.wait()
        return EngineAnswer(200, "application/json", b"{}")

    monkeypatch.setattr(calls, "ask", ask)
    for engine in engines:
        state.released_by(engine).add("weights")
    async with asyncio.timeout(DEADLINE_S):
        await require_weights(state, engines)
    assert len(reads) < 20 * count
