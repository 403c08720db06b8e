"""Weight updates through the server, on fake engines: all engines or stale ones, and never a pause
that stays."""

import asyncio
from typing import Any

import pytest
from typing_extensions import override

from seer_sgl.timing import Timing
from tests.fake_sglang import FakeSGLang
from tests.server.generating import LIMIT, PROMPT, SEED, generating
from tests.server.helpers import Fakes, Served, served, tensor_entry, two, under_way, whole
from tests.support.timing import OVER_JUMPS, QUICK
from tests.support.waiting import outlast, polled, until

DISK, TENSOR = "/update_weights_from_disk", "/update_weights_from_tensor"
DISTRIBUTED = "/update_weights_from_distributed"
INIT_GROUP, DESTROY_GROUP = "/init_weights_update_group", "/destroy_weights_update_group"
A, B = tensor_entry("a"), tensor_entry("b")
NEW = {"model_path": "new", "weight_version": "v2"}
BUCKET: dict[str, Any] = {"serialized_named_tensors": [A, B], "flush_cache": False}


@pytest.mark.parametrize("path", [DISTRIBUTED, TENSOR])
async def test_begin_and_end_are_supplied_around_an_update_that_comes_without(
    path: str, it: Served, fakes: Fakes
) -> None:
    entries = {"serialized_named_tensors": [A, B]} if path == TENSOR else {}
    await it.ok(path, selector="target", weight_version="v2", **entries)
    for fake in fakes:
        update = ["/begin_weight_update", path, "/end_weight_update"]
        assert [path for path in fake.paths() if path != "/flush_cache"] == update
        assert dict(fake.calls)["/begin_weight_update"] == {"selector": "target"}
        assert not fake.in_session


async def test_a_name_does_not_bring_an_engine_back_that_missed_an_update(
    it: Served, fakes: Fakes
) -> None:
    fakes[1].refused[DISK] = 400
    await it.ok(DISK, **NEW)
    assert list(it.service.driver.stale) == ["e1"]
    await it.ok("/update_weight_version", new_version="v3")
    assert fakes[1].weight_version == "v3", "its name is new, its weights are old"
    assert list(it.service.driver.stale) == ["e1"]


async def test_a_name_that_every_engine_refuses_is_not_that_of_the_open_update(
    it: Served, fakes: Fakes
) -> None:
    await it.ok("/begin_weight_update")
    await it.ok(TENSOR, **BUCKET, weight_version="v2")
    for fake in fakes:
        fake.refused["/update_weight_version"] = 400
    assert (await it.post("/update_weight_version", new_version="v3"))[0] == 400
    await it.ok("/end_weight_update")
    assert not it.service.driver.stale


@pytest.mark.parametrize("fault", ["refused", "restarted"])
async def test_an_engine_that_lacks_one_bucket_of_a_pause_is_stale_until_all_weights_come(
    it: Served, fakes: Fakes, fault: str
) -> None:
    bucket = {**BUCKET, "weight_version": "v2"}
    await it.post("/pause_generation", mode="retract")
    await it.ok(TENSOR, **bucket)
    if fault == "refused":
        fakes[1].refused[TENSOR] = 500
        await it.ok(TENSOR, **bucket)
        fakes[1].refused.clear()
    else:
        fakes[1].startup_s += 1  # it has the first weights again
    await it.ok(TENSOR, **bucket)
    assert fakes[1].weight_version == "v2", "its name is new"
    assert list(it.service.driver.stale) == ["e1"]
    await it.post("/continue_generation")
    assert list(it.service.driver.stale) == ["e1"]
    await it.post("/pause_generation", mode="retract")
    await it.ok(TENSOR, **bucket)
    assert not it.service.driver.stale, "the first bucket of another update"


async def test_an_update_whose_buckets_no_engine_has_all_of_fails(it: Served, fakes: Fakes) -> None:
    await it.post("/pause_generation", mode="retract")
    fakes[1].refused[TENSOR] = 500
    await it.ok(TENSOR, **BUCKET)
    fakes[0].refused, fakes[1].refused = fakes[1].refused, {}
    status, answer = await it.post(TENSOR, **BUCKET)
    assert (status, answer["success"]) == (503, False)
    assert answer["message"].startswith("no engine has the new weights; engine e0: ")
    await it.post("/continue_generation")
    assert sorted(it.service.driver.stale) == ["e0", "e1"]


async def test_weights_from_disk_are_whole_also_behind_a_bucket_that_was_missed(
    it: Served, fakes: Fakes
) -> None:
    await it.post("/pause_generation", mode="retract")
    fakes[1].refused[TENSOR] = 500
    await it.ok(TENSOR, serialized_named_tensors=[A, B])
    fakes[1].refused.clear()
    assert list(it.service.driver.stale) == ["e1"]
    await it.ok(DISK, **NEW)
    assert not it.service.driver.stale


@pytest.mark.parametrize("parts", [False, True])
async def test_an_engine_that_is_restarted_before_the_last_has_loaded_is_stale(
    it: Served, fakes: Fakes, parts: bool
) -> None:
    if parts:
        await it.post("/begin_weight_update")
    held = fakes[0].held = asyncio.Event()
    update = asyncio.create_task(it.post(DISK, model_path="new"))
    await until(lambda: fakes[1].weights == "new")
    fakes[1].startup_s += 1  # an update without a version: the name of its weights is the same
    held.set()
    assert (await update)[0] == 200
    if parts:
        await it.post("/end_weight_update")
    assert it.service.driver.stale == {"e1": "it was restarted during a weight update"}


async def test_a_collective_update_does_not_begin_without_an_engine(
    it: Served, fakes: Fakes
) -> None:
    fakes[1].silent.add("/begin_weight_update")
    status, answer = await it.post(DISTRIBUTED, weight_version="v2")
    assert (status, answer["success"]) == (502, False) and "e1" in answer["message"]
    assert DISTRIBUTED not in fakes[0].paths(), "it would wait for e1 for ever"
    assert not fakes[0].in_session
    assert len((await generating(it))["output_ids"]) == LIMIT


OFTEN_READ = Timing(poll_s=0.02, refresh_every_s=0.1)  # the facts about an engine


async def test_after_an_update_without_a_version_no_name_brings_a_restarted_engine_back() -> None:
    fakes = two()
    async with served(*fakes, timing=OFTEN_READ) as it:
        await it.ok(DISK, model_path="new")
        reply = await generating(it)
        assert reply["meta_info"]["weight_version"] == "v1"
        fakes[1].startup_s += 1  # a server restarted has the first weights under the same name
        await until(lambda: not it.service.serves("e1"))
        await polled(fakes[1])
        assert not it.service.serves("e1")
        await it.ok("/update_weight_version", new_version="v2")
        assert list(it.service.driver.stale) == ["e1"], "its name is new, its weights are old"
        await it.ok(DISK, model_path="newer")
        await until(lambda: it.service.serves("e1"))


class SilentOnce(FakeSGLang):
    """A fake that does not answer the first call that ends its pause."""

    silent_once = False

    @override
    async def resume(self, fields: dict[str, Any]) -> Any:
        if not self.silent_once:
            self.silent_once = True
            await asyncio.Event().wait()
        return await super().resume(fields)


async def test_an_update_in_a_pause_waits_for_a_silent_engine_as_long_as_a_pause_does() -> None:
    fake = SilentOnce(transferring=True)
    async with served(fake, timing=OVER_JUMPS) as it:
        await it.post("/pause_generation", mode="retract")
        update = asyncio.create_task(it.post(DISK, **NEW))
        await until(lambda: fake.silent_once)
        await outlast(OVER_JUMPS.quick_call_s)
        await until(update.done, within_s=20.0)  # by default it takes 30 s more
        assert (await update)[0] == 200
        assert (fake.paused, fake.weight_version) == ("retract", "v2")


async def test_an_update_that_would_end_an_engine_paused_in_place_is_refused(
    it: Served, fakes: Fakes
) -> None:
    await it.post("/pause_generation", mode="in_place")
    fakes[0].running += 1  # a passthrough request, which stays on the engine
    status, answer = await it.post(DISK, **NEW)
    assert (status, answer["success"]) == (400, False) and "flush_cache" in answer["message"]
    await it.ok(DISK, **NEW, flush_cache=False)
    fakes[0].running -= 1
    await it.post("/continue_generation")
    assert not any(fake.died for fake in fakes)


async def test_each_engine_has_its_own_rank_offset() -> None:
    fakes = [FakeSGLang(tp_size=2), FakeSGLang(tp_size=3)]
    group = {"master_address": "here", "master_port": 1, "group_name": "g", "backend": "gloo"}
    async with served(*fakes) as it:
        await it.ok(INIT_GROUP, rank_offset=1, world_size=6, **group)
        assert [fake.groups["g"] for fake in fakes] == [(1, 6), (3, 6)]
        assert dict(fakes[1].calls)[INIT_GROUP]["backend"] == "gloo"
        for wrong in ({"rank_offset": 2, "world_size": 6}, {}, {"world_size": "six"}):
            status, answer = await it.post(INIT_GROUP, **wrong, **group)
            assert (status, answer["success"]) == (400, False), answer


async def test_a_collective_update_does_not_begin_without_a_member_of_its_group(
    it: Served, fakes: Fakes
) -> None:
    group = {"group_name": "g", "rank_offset": 1, "world_size": 3}
    await it.ok(INIT_GROUP, **group)
    await it.ask("DELETE", "/workers/e1")
    await until(lambda: len(it.service.fleet.engines) == 1)
    status, answer = await it.post(DISTRIBUTED, group_name="g", weight_version="v2")
    assert (status, answer["success"]) == (409, False) and "e1" in answer["message"]
    assert DISTRIBUTED not in fakes[0].paths(), "it would wait for e1 for ever"
    await it.ok(DESTROY_GROUP, group_name="g")
    group["world_size"] = 2
    await it.ok(INIT_GROUP, **group)
    await it.ok(DISTRIBUTED, group_name="g", weight_version="v2")


async def test_a_group_is_destroyed_although_a_member_was_restarted(
    it: Served, fakes: Fakes
) -> None:
    group = {"group_name": "g", "rank_offset": 1, "world_size": 3}
    await it.ok(INIT_GROUP, **group)
    fakes[1].groups.clear()
    fakes[1].startup_s += 1
    for expected in (200, 400):  # then there is no such group
        status, answer = await it.post(DESTROY_GROUP, group_name="g")
        assert (status, answer["success"]) == (expected, expected == 200), answer
    assert answer["engines"]["e1"]["status"] == 400


async def test_a_group_made_in_an_update_has_the_engines_that_take_part(
    it: Served, fakes: Fakes
) -> None:
    fakes[1].refused["/begin_weight_update"] = 500
    await it.ok("/begin_weight_update")
    group = {"rank_offset": 1, "world_size": 2, "group_name": "g"}
    assert list((await it.ok(INIT_GROUP, **group))["engines"]) == ["e0"]
    answer = await it.ok(DISTRIBUTED, group_name="g", weight_version="v2")
    assert list(answer["engines"]) == ["e0"]
    await it.ok("/end_weight_update")
    assert list(it.service.driver.stale) == ["e1"]


async def test_an_engine_that_is_silent_for_the_timeout_misses_the_update() -> None:
    first, other = two()
    async with served(first, other, timing=OVER_JUMPS) as it:
        other.held = asyncio.Event()
        update = asyncio.create_task(it.post(f"{DISK}?timeout=30", **NEW))
        await until(lambda: first.weights == "new" and other.updating.is_set())
        await polled(first)  # its answer has been read
        await outlast(30.0)
        status, answer = await update
        assert (status, answer["engines"]["e1"]["status"]) == (200, None), answer
        assert list(it.service.driver.stale) == ["e1"]
        for text in ("0", "nan", "soon", "1e9"):
            assert (await it.post(f"{DISK}?timeout={text}", **NEW))[0] == 400


async def test_engines_that_are_all_silent_for_the_timeout_may_have_either_weights() -> None:
    fakes = two()
    async with served(*fakes, timing=OVER_JUMPS) as it:
        update, held = await under_way(it.post(f"{DISK}?timeout=30", **NEW), *fakes)
        await outlast(30.0)
        status, answer = await update
        assert (status, answer["success"]) == (502, False)
        assert sorted(it.service.driver.stale) == ["e0", "e1"]
        held.set()
        await it.ok(DISK, **NEW)
        assert not it.service.driver.stale


class Loading(FakeSGLang):
    """A fake whose scheduler loads weights, and ends if it is paused and has to load others."""

    under_way = asked = 0

    @override
    async def update(self, fields: dict[str, Any]) -> Any:
        self.under_way += 1
        if self.under_way > 1 and self.paused:
            self.died = "InvalidStateError"
        reply = await super().update(fields)
        self.under_way -= 1
        return reply

    @override
    async def server_info(self, http: Any) -> Any:
        self.asked += 1
        if self.under_way and self.held is not None:
            await self.held.wait()
        return await super().server_info(http)


async def test_an_engine_that_still_loads_weights_is_sent_no_others() -> None:
    fake, within_s = Loading(), 30.0
    async with served(fake, timing=Timing(poll_s=3600.0, control_timeout_s=within_s)) as it:
        await it.post("/pause_generation", mode="retract")
        first = it.post(f"{DISK}?timeout={within_s}", **NEW, flush_cache=False)
        update, held = await under_way(first, fake)
        await outlast(within_s)
        assert (await update)[0] == 502
        asked = fake.asked
        again = asyncio.create_task(it.post(DISK, **NEW, flush_cache=False))
        await until(lambda: fake.asked > asked)
        await outlast(within_s)
        for _ in range(3):  # a second update would be there by then
            await it.post("/weights_checker")
        held.set()
        assert (await again)[0] == 200 and fake.died is None
        assert not it.service.backend.state.loading


async def test_engines_whose_proxy_waits_no_longer_may_have_either_weights(
    it: Served, fakes: Fakes
) -> None:
    for fake in fakes:
        fake.refused[DISK] = 504
    assert (await it.post(DISK, model_path="new"))[0] == 504
    assert sorted(it.service.driver.stale) == ["e0", "e1"]


async def test_one_engine_alone_generates_for_a_check_of_its_weights(
    it: Served, fakes: Fakes
) -> None:
    first, other = fakes
    params = {"max_new_tokens": 1, "sampling_seed": SEED}
    body = {"rid": "check", "input_ids": PROMPT, "sampling_params": params}
    status, answer = await it.post("/workers/e1/generate", **body)
    assert (status, len(answer["output_ids"])) == (200, 1), answer
    assert (len(first.seen), len(other.seen)) == (0, 1)
    assert (await it.post("/workers/e9/generate", **body))[0] == 404


async def test_an_engine_is_stopped_only_after_the_update_that_it_takes_part_in(
    it: Served, fakes: Fakes
) -> None:
    update, held = await under_way(it.post(DISK, **NEW), *fakes)
    await it.ask("DELETE", "/workers/e1")
    await until(lambda: len(it.service.driver.engines) == 1)
    assert (await it.ask("GET", "/health"))[0] == 200
    assert len(it.service.fleet.engines) == 2
    held.set()
    assert list((await update)[1]["engines"]) == ["e0", "e1"]
    await until(lambda: len(it.service.fleet.engines) == 1)


async def test_each_engine_gets_the_entries_of_its_ranks() -> None:
    fakes = [FakeSGLang(tp_size=2), FakeSGLang()]
    entries = [tensor_entry(str(i)) for i in range(3)]
    async with served(*fakes) as it:
        await it.ok(TENSOR, serialized_named_tensors=entries)
        sent = [dict(fake.calls)[TENSOR]["serialized_named_tensors"] for fake in fakes]
        assert sent == [entries[:2], entries[2:]]
        status, answer = await it.post(TENSOR, serialized_named_tensors=entries[:2])
        assert (status, answer["success"]) == (400, False)
        assert "2 entries; the fleet has 3 ranks" in answer["message"]


async def test_entries_for_one_engine_go_to_every_engine(it: Served, fakes: Fakes) -> None:
    await it.ok(TENSOR, serialized_named_tensors=[A])
    assert all(dict(fake.calls)[TENSOR]["serialized_named_tensors"] == [A] for fake in fakes)


async def test_requests_end_with_their_tokens_if_an_update_aborts_them(
    it: Served, fakes: Fakes
) -> None:
    running = generating(it)
    await until(lambda: sum(len(fake.seen) for fake in fakes) >= 3)
    await it.post(DISK, **NEW, abort_all_requests=True)
    reply = await running
    assert reply["meta_info"]["finish_reason"]["type"] == "abort"
    ids = reply["output_ids"]
    assert 0 < len(ids) < LIMIT and ids == whole(SEED, len(PROMPT), fakes[0], LIMIT)[: len(ids)]


@pytest.mark.parametrize(
    ("paused", "asked", "ends"),
    [(True, {}, "length"), (False, {}, "abort"), (False, {"abort_all_requests": False}, "length")],
)
async def test_a_new_name_ends_responses_unless_they_are_paused(
    paused: bool, asked: dict[str, bool], ends: str, it: Served, fakes: Fakes
) -> None:
    running = generating(it)
    await until(lambda: sum(len(fake.seen) for fake in fakes) >= 3)
    if paused:
        await it.post("/pause_generation", mode="retract")
    assert (await it.post("/update_weight_version"))[0] == 400
    answer = await it.ok("/update_weight_version", new_version="v2", **asked)
    assert answer["new_version"] == "v2"
    await it.post("/continue_generation")
    reply = await running
    assert reply["meta_info"]["finish_reason"]["type"] == ends
    sent = [dict(fake.calls)["/update_weight_version"]["abort_all_requests"] for fake in fakes]
    assert sent == [ends == "abort"] * 2


async def test_engines_with_different_versions_are_an_error_in_the_log(
    log_lines: list[str],
) -> None:
    fakes = two()
    mixed = "engines serve different weights without an update: e0 v1, e1 mine"
    async with served(*fakes, timing=Timing(poll_s=0.02, mixed_weights_s=0.1)) as it:
        fakes[1].weight_version = "mine"
        await until(lambda: mixed in log_lines)
        await generating(it)
        fakes[0].weight_version = "mine"
        await until(lambda: it.service.version() == "mine")
        await generating(it)
    assert log_lines.count(mixed) == 1


async def test_an_engine_comes_back_with_weights_that_changed_behind_the_servers_back() -> None:
    fakes = two()
    async with served(*fakes, timing=QUICK) as it:
        await it.ok(DISK, **NEW)
        running = generating(it)
        for fake in fakes:
            fake.weight_version = "v3"
        engines = it.service.fleet.engines
        await until(lambda: all(each.info.weight_version == "v3" for each in engines))
        fakes[1].away = True
        await until(lambda: not it.service.serves("e1"))
        fakes[1].away = False
        await until(lambda: it.service.serves("e1"))
        await running
        fakes[1].away = True
        await until(lambda: not it.service.serves("e1"))
        fakes[1].away, fakes[1].startup_s, fakes[1].weight_version = False, 1.0, "v2"
        await polled(fakes[1])
        assert not it.service.serves("e1"), "it was restarted with older weights"


async def test_the_checker_names_the_engine_with_other_weights() -> None:
    fakes = [FakeSGLang() for _ in range(3)]
    async with served(*fakes) as it:
        status, answer = await it.post("/weights_checker", action="checksum")
        assert (status, answer["success"], answer["per_engine_checksum"]) == (200, True, "first")
        assert len(answer["ranks"]) == 3
        fakes[1].weights = "other"
        status, answer = await it.post("/weights_checker")
        assert (status, answer["success"]) == (400, False)
        assert answer["message"] == "engine e1 has other weights than engine e0: other, not first"
