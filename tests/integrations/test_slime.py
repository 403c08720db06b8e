"""What slime's calls get from a server of fake engines (integrations/slime/client.py)."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from integrations.slime.client import Options, Sample, Slime
from tests.fake_sglang import FakeSGLang
from tests.server.chat_fake import model_folder
from tests.server.helpers import CHUNK, Served, served, whole
from tests.support.bodies import body
from tests.support.waiting import until

PROMPTS = [[5, 6, 7, group] for group in range(20, 40)]  # equal lengths, as the fakes need
SEED = 47 << 7  # responses of 48 tokens
OPTIONS = Options(
    rollout_batch_size=2,
    over_sampling_batch_size=6,
    n_samples_per_prompt=3,
    rollout_max_response_len=400,
    seed=SEED,
    abort_retry_s=0.02,
)


class Straggling(FakeSGLang):
    """Is slow in every fourth group, from its third chunk on, until the weights are updated.

    `seen_with`: the weight version that a group's first call met, of all engines.
    """

    seen_with: dict[int, str]

    def fault_of(self, call: dict[str, Any]) -> str:
        ids = call["input_ids"]
        first = self.seen_with.setdefault(ids[3], self.weight_version)
        late = len(ids) >= len(PROMPTS[0]) + 2 * CHUNK
        return "slow" if ids[3] % 4 == 1 and late and first == self.weight_version else ""


def engines(kind: type[FakeSGLang] = FakeSGLang) -> list[FakeSGLang]:
    """Returns two engines that run six requests at once."""
    fakes = [kind(longest=1000, max_running_requests=6) for _ in range(2)]
    seen_with: dict[int, str] = {}
    for fake in fakes:
        if isinstance(fake, Straggling):
            fake.seen_with = seen_with
    return fakes


def reward(sample: Sample) -> float:
    """Returns rewards that are equal in every third group."""
    group, place = divmod(sample.index, OPTIONS.n_samples_per_prompt)
    return float(place) if group % 3 else 1.0


@contextlib.asynccontextmanager
async def training(
    folder: Path, *fakes: FakeSGLang, **options: Any
) -> AsyncIterator[tuple[Slime, Served]]:
    """A training of slime on a server of fake engines."""
    async with served(*fakes, model={"path": model_folder(folder)}) as it:
        own = Options(**{**vars(OPTIONS), **options})
        yield Slime(it.session, it.url, it.url, prompts=PROMPTS, reward=reward, options=own), it


async def requests_of(it: Served) -> int:
    async with it.session.get(f"{it.url}/v1/loads?include=core") as reply:
        loads = (await reply.json())["loads"]
    return sum(each["num_running_reqs"] + each["num_waiting_reqs"] for each in loads)


@pytest.mark.parametrize("streaming", [False, True])
async def test_rounds_with_partial_rollouts_keep_every_token(
    tmp_path: Path, streaming: bool
) -> None:
    fakes = engines(Straggling)
    async with training(tmp_path, *fakes, streaming=streaming) as (slime, it):
        await slime.register()
        kept = []
        for version in range(1, 4):
            await slime.update_from_disk(f"/weights/{version}", version)
            kept += await slime.rollout()
            assert await requests_of(it) == 0
        assert it.service.passthrough.counts == {}
    assert len(kept) == 6 and slime.dropped
    assert all(sample.status == "completed" for group in kept for sample in group)
    calls = Counter(call.sample for call in slime.calls)
    continued = [sample for group in kept for sample in group if calls[sample] > 1]
    assert any(len(set(sample.weight_versions)) > 1 for sample in continued)
    for sample in calls:
        ids = sample.tokens[len(PROMPTS[0]) :]
        expected = whole(SEED + sample.index % 3, len(PROMPTS[0]), fakes[0], 1000)
        assert ids == expected if sample.status == "completed" else expected[: len(ids)] == ids
        assert len(sample.log_probs) == len(ids)
    groups = defaultdict(set)
    for call in slime.calls:
        if "seer" in call.meta:  # a stream was not left
            groups[call.sample.index // 3].add(call.meta["seer"]["group"])
    assert all(len(names) == 1 for names in groups.values()), "also of the continued ones"
    assert len(set.union(*groups.values())) == len(groups)


async def test_the_fleet_is_one_engine_of_as_many_ranks_as_all_together(tmp_path: Path) -> None:
    fakes = [FakeSGLang(tp_size=2), FakeSGLang(tp_size=3)]
    async with training(tmp_path, *fakes) as (slime, it):
        assert await slime.register() == {"num_gpus": 5, "tp_size": 5, "pp_size": 1}
        infos = []
        for path in ("/server_info", "/get_server_info"):
            async with it.session.get(it.url + path) as reply:
                infos.append(await reply.json())
        assert infos[0] == infos[1]
        assert "http://{host}:{port}".format_map(infos[0]) == it.url  # miles compares them
        assert [each["ranks"] for each in infos[0]["seer"]["engines"]] == [2, 3]
        await slime.init_group(5, 29500)
    assert [fake.groups["slime-pp_0"] for fake in fakes] == [(1, 6), (3, 6)]


async def test_buckets_of_a_broadcast_come_without_begin_and_end(tmp_path: Path) -> None:
    fakes = engines()
    bucket = {"names": ["w"], "dtypes": ["float32"], "shapes": [[1]]}
    async with training(tmp_path, *fakes) as (slime, it):
        await slime.init_group(2, 29500)
        await slime.update_distributed([bucket, bucket], 3)
        async with it.session.get(f"{it.url}/get_weight_version") as reply:
            assert await reply.json() == {"weight_version": "3"}
    one = ["/begin_weight_update", "/update_weights_from_distributed", "/end_weight_update"]
    expected = ["/pause_generation", "/flush_cache", *one, *one, "/continue_generation"]
    for fake in fakes:
        assert fake.paths()[1:] == expected
        assert fake.weight_version == "3"


async def test_memory_is_released_and_taken_back(tmp_path: Path) -> None:
    fakes = engines()
    async with training(tmp_path, *fakes) as (slime, it):
        await slime.release_and_resume()
        assert not any(fake.released for fake in fakes)
        assert await it.generate(**body(SEED))


async def test_requests_that_wait_in_the_server_are_load_until_they_are_aborted(
    tmp_path: Path,
) -> None:
    fake = FakeSGLang(longest=10_000, max_running_requests=1, delay_s=0.2)
    async with training(tmp_path, fake) as (_, it):
        tasks = [asyncio.create_task(it.generate(**body(SEED + i))) for i in range(3)]
        await until(lambda: fake.running == 1 and it.service.generation.in_progress == 3)
        assert await requests_of(it) == 3
        assert (await it.post("/abort_request", abort_all=True))[1]["aborted"] == 3
        assert await requests_of(it) == 0
        for reply in await asyncio.gather(*tasks):
            assert reply["meta_info"]["finish_reason"]["type"] == "abort"


async def test_the_ids_that_top_p_kept_come_from_one_engine_in_one_answer(tmp_path: Path) -> None:
    fakes = engines()
    async with training(tmp_path, *fakes, rollout_top_p=0.9) as (slime, it):
        await slime.rollout()
        assert set(it.service.passthrough.counts) == {"custom_params"}
    sent = [call for fake in fakes for call in fake.seen]
    assert all(call["sampling_params"]["custom_params"]["return_top_p_token_ids"] for call in sent)
