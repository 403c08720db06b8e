"""The data-parallel ranks of a server: each is an engine, with one server behind all of them."""

from collections import Counter
from typing import Any

import pytest

from seer_sgl import EnginesFailed, Rollout, TrainerGroup, WeightUpdate
from seer_sgl.engine.client import RANK
from seer_sgl.engine.describe import describe
from seer_sgl.engine.orphans import end_orphans
from seer_sgl.engine.session import open_session
from seer_sgl.errors import EngineStartError, EngineUnavailable, InputError
from tests.fake_sglang import FakeSGLang, serving
from tests.support.fleets import PROMPTS, all_groups, check, rolling

PLUGIN = {"version": "1", "missing": [], "instance": "i", "weights": "w"}
TWO_RANKS: dict[str, Any] = {"dp_size": 2, "plugin": PLUGIN}
BOTH = ["e0.dp0", "e0.dp1"]


class Uneven(FakeSGLang):
    """Other clients use all KV of the second rank. `peaks`: the most requests of each at once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.peaks: Counter[int] = Counter()

    async def _answer(self, *args: Any) -> Any:
        self.peaks |= self.by_rank
        return await super()._answer(*args)

    def _load(self, rank: int) -> dict[str, Any]:
        used = self.max_total_num_tokens if rank else 0
        return {**super()._load(rank), "num_used_tokens": used}


def engines_of(rollout: Rollout) -> list[str]:
    return [engine.info.engine_id for engine in rollout.fleet.engines]


async def test_each_rank_is_described_as_an_engine_in_any_order_of_the_reply() -> None:
    async with serving(FakeSGLang(**TWO_RANKS, tp_size=4)) as url, open_session() as session:
        infos = await describe(session, "e0", url)
    assert [info.engine_id for info in infos] == BOTH
    assert [info.server_id for info in infos] == ["e0", "e0"]
    assert [info.instance for info in infos] == ["i.dp0", "i.dp1"]
    assert [info.ranks for info in infos] == [8, 0], "a trainer counts the ranks of a server once"
    capacities = {info.max_total_num_tokens for info in infos}
    assert capacities == {100_000 - 1}, "the least one, with which both can be restarted"


async def test_a_server_of_one_rank_keeps_its_names() -> None:
    fake = FakeSGLang(plugin=PLUGIN)
    async with serving(fake) as url, open_session() as session:
        (info,) = await describe(session, "e0", url)
    assert (info.engine_id, info.server_id, info.instance, info.ranks) == ("e0", "e0", "i", 1)
    assert info.max_total_num_tokens == 100_000


async def test_ranks_without_the_plugin_are_refused_and_a_missing_one_is_waited_for() -> None:
    class Lacking(FakeSGLang):
        def _state(self, rank: int) -> dict[str, Any]:
            return super()._state(0)

    async with open_session() as session:
        async with serving(FakeSGLang(dp_size=2)) as url:
            with pytest.raises(EngineStartError, match="dp_size 2 without the seer-sgl plugin"):
                await describe(session, "e0", url)
        async with serving(Lacking(**TWO_RANKS)) as url:
            with pytest.raises(EngineUnavailable, match=r"e0\.dp1 .* does not answer"):
                await describe(session, "e0", url)
        async with serving(FakeSGLang(dp_size=2000)) as url:
            with pytest.raises(EngineUnavailable, match=r"<= 1024 - at `\$\.dp_size`"):
                await describe(session, "e0", url)


async def test_requests_go_to_the_ranks_that_the_driver_chose_and_stay_there() -> None:
    fake = FakeSGLang(**TWO_RANKS, delay_s=0.001)
    async with rolling(fake, scheduling={"max_spread": 100}) as rollout:
        assert engines_of(rollout) == BOTH
        check(await all_groups(rollout))
        report = rollout.report()
    calls = Counter(f"e0.dp{call['routed_dp_rank']}" for call in fake.seen)
    assert dict(calls) == {each["engine_id"]: each["chunks"] for each in report["engines"]}
    assert sorted(calls) == BOTH
    ranks: dict[str, set[int]] = {}
    for call in fake.seen:
        request = call["rid"].rpartition(".")[0]
        ranks.setdefault(request, set()).add(call["routed_dp_rank"])
    assert len(ranks) == 4 * len(PROMPTS)
    assert all(len(used) == 1 for used in ranks.values()), "where their KV is"


async def test_a_rank_whose_kv_is_full_takes_one_chunk_while_the_other_serves() -> None:
    fake = Uneven(**TWO_RANKS, delay_s=0.001)
    async with rolling(fake) as rollout:
        for engine in rollout.fleet.engines:
            load = await engine.load()
            assert load.used_tokens == (100_000 if engine.info.dp_rank else 0)
            rollout.driver._loop.loaded(engine.info.engine_id, load)
        check(await all_groups(rollout))
    assert fake.peaks[1] <= 1 < fake.peaks[0]


async def test_a_server_that_dies_takes_all_its_ranks_out() -> None:
    fake, other = FakeSGLang(**TWO_RANKS), FakeSGLang(plugin={**PLUGIN, "instance": "j"})
    fake.prompt_lens = other.prompt_lens
    fake.faults.extend(["ok"] * 6 + ["die"])
    async with rolling(fake, other) as rollout:
        check(await all_groups(rollout))
        states = {state.engine_id: state.available for state in rollout.driver.states()}
        assert states == {"e0.dp0": False, "e0.dp1": False, "e1": True}


async def test_a_server_is_updated_once_and_all_its_ranks_have_the_weights() -> None:
    fake = FakeSGLang(**TWO_RANKS)
    async with rolling(fake) as rollout:
        result = await rollout.backend.update_weights(WeightUpdate.from_disk("new", version="v2"))
        assert result.succeeded == BOTH
        assert fake.paths().count("/update_weights_from_disk") == 1
        versions = {engine.info.weight_version for engine in rollout.fleet.engines}
        assert versions == {"v2"}
        check(await all_groups(rollout))


async def test_a_server_that_does_not_resume_its_memory_serves_with_no_rank() -> None:
    fake = FakeSGLang(**TWO_RANKS)
    async with rolling(fake) as rollout:
        await rollout.backend.release_memory(["kv_cache"])
        fake.silent.add("/resume_memory_occupation")
        with pytest.raises(EnginesFailed):
            await rollout.backend.resume_memory()
        assert sorted(rollout.driver.stale) == BOTH
        assert not any(map(rollout.driver.available, BOTH))


async def test_weights_of_several_copies_come_from_disk_only() -> None:
    fake = FakeSGLang(**TWO_RANKS)
    async with rolling(fake) as rollout:
        line = "engine e0 has dp-size 2 without enable-dp-attention"
        with pytest.raises(InputError, match=f"init_weights_update_group: {line}"):
            await rollout.backend.init_group(TrainerGroup.at("127.0.0.1", 1, world_size=3))
        with pytest.raises(InputError, match=f"update_weights_from_tensor: {line}"):
            await rollout.backend.update_weights(WeightUpdate.from_tensors(["a"], version="v2"))
        assert not fake.calls
        assert not rollout.backend.holds


async def test_ranks_that_share_one_copy_of_the_model_join_a_trainers_group_once() -> None:
    fake = FakeSGLang(**TWO_RANKS, dp_attention=True, tp_size=4)
    async with rolling(fake) as rollout:
        assert [engine.info.ranks for engine in rollout.fleet.engines] == [4, 0]
        await rollout.backend.init_group(TrainerGroup.at("127.0.0.1", 1, world_size=5))
        assert fake.groups == {"weight_update_group": (1, 5)}
        result = await rollout.backend.update_weights(
            WeightUpdate.from_tensors(["a"] * 4, version="v2")
        )
        assert result.succeeded == BOTH
        assert fake.paths().count("/update_weights_from_tensor") == 1


async def test_the_ranks_of_a_server_leave_together() -> None:
    other = FakeSGLang(plugin={**PLUGIN, "instance": "j"})
    async with rolling(FakeSGLang(**TWO_RANKS), other) as rollout:
        first, second = (rollout.backend.drain(engine_id) for engine_id in BOTH)
        assert set(rollout.backend.leaving) == set(BOTH)
        await first
        await second
        assert engines_of(rollout) == ["e1"]
        assert [info.engine_id for info in rollout.driver.engines] == ["e1"]
        assert not rollout.backend.leaving


async def test_the_ranks_of_a_server_join_together() -> None:
    fake = FakeSGLang(**TWO_RANKS)
    async with rolling(FakeSGLang(plugin=PLUGIN)) as rollout, serving(fake) as url:
        for _ in range(2):
            assert (await rollout.backend.join(url)).engine_id == "e1.dp0"
            assert engines_of(rollout) == ["e0", "e1.dp0", "e1.dp1"]
        await rollout.backend.drain("e1.dp1")
        assert engines_of(rollout) == ["e0"]


async def test_a_request_that_passes_through_names_the_rank() -> None:
    heard: list[set[str]] = []

    class Heard(FakeSGLang):
        async def generate(self, http: Any) -> Any:
            heard.append({http.headers.get(name) for name in RANK})
            return await super().generate(http)

    async with rolling(Heard(**TWO_RANKS)) as rollout:
        await end_orphans(rollout.fleet.engines, "dead")
    assert heard[0] == {"0"}
    assert heard[-1] == {"1"}
    assert all(len(values) == 1 for values in heard)


async def test_ranks_that_cannot_join_leave_the_fleet_although_the_undoing_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeSGLang(**TWO_RANKS)
    async with rolling(FakeSGLang(plugin=PLUGIN)) as rollout, serving(fake) as url:
        driver, add = rollout.backend.driver, rollout.backend.driver.add_engine

        def one_only(engine: Any) -> None:
            if engine.info.dp_rank:
                raise InputError("no second rank")
            add(engine)

        async def stuck(engine_id: str) -> None:
            raise InputError(f"{engine_id} does not leave")

        with monkeypatch.context() as patch:
            patch.setattr(driver, "add_engine", one_only)
            patch.setattr(driver, "remove_engine", stuck)
            with pytest.raises(InputError, match="does not leave"):
                await rollout.backend.join(url)
        assert engines_of(rollout) == ["e0"]
