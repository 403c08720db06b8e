"""New weights through the rollout server under load, on real engines.

Each response must equal two undivided ones: with the old weights up to the update, and with the
new weights from there.
"""

import asyncio
import contextlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from seer_sgl.driver.observer import Observer
from seer_sgl.engine_types import EngineLoad
from tests.e2e.conftest import (
    MODEL,
    SERVER_FLAGS,
    each_rank_on_a_core,
    servers,
    two_urls,
)
from tests.e2e.held_out import prompts
from tests.e2e.served import LIMIT, body, serving
from tests.e2e.undivided import assert_same_but_for_ties, undivided
from tests.e2e.weights import other_weights
from tests.server.helpers import Served
from tests.support.waiting import until

RANKS = each_rank_on_a_core()


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the model with other weights."""
    return other_weights(tmp_path_factory.mktemp("model") / "other")


class Load:
    """Requests that run while the weights change."""

    def __init__(self, it: Served) -> None:
        self._it = it
        self._requests = [body(ids, n) for n, ids in enumerate(prompts(4) * 3)]
        self._before: list[list[int]] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self, url: str) -> None:
        """Starts the requests, and waits until each has tokens. `url`: an engine."""
        self._before = await undivided(url, self._requests)
        generation = self._it.service.generation
        self._tasks = [asyncio.create_task(self._it.generate(**each)) for each in self._requests]
        await until(lambda: generation.in_progress == len(self._tasks))
        answers = list(generation._answers.values())
        await until(lambda: all(each.request and each.request.response_ids for each in answers))

    async def assert_switched(self, url: str, old: str, new: str) -> None:
        """Asserts that each response changed weights once, and its tokens with them.

        `url`: an engine with the new weights.
        """
        replies = await asyncio.gather(*self._tasks)
        rest, after, unchanged = [], [], []
        for request, reply, before in zip(self._requests, replies, self._before, strict=True):
            spans, ids = reply["meta_info"]["weight_versions"], reply["output_ids"]
            assert [span["version"] for span in spans] == [old, new], spans
            at = spans[0]["end"]
            assert (spans[0]["start"], spans[1]["start"], spans[1]["end"]) == (0, at, LIMIT)
            assert ids[:at] == before[:at]
            seed = request["sampling_params"]["sampling_seed"]
            rest.append(body(request["input_ids"] + ids[:at], seed, LIMIT - at))
            after.append(ids[at:])
            unchanged.append(before[at:])
        assert len(after) == 12 and after != unchanged
        # The weights change at other tokens in every run, so there can be near ties behind them.
        await assert_same_but_for_ties(url, rest, after)

    async def assert_ties_alone_may_differ(self, url: str) -> None:
        """Asserts that of three tokens the two with scores 8e-6 apart pass, and the third does not;
        and that a wrong token behind a near tie is found.

        `url`: an engine with the new weights. The place was found when this test failed there.
        """
        number, switched, equal, candidates, rest = 2, 85, 494, (4, 5, 7), 40
        ids = self._requests[number]["input_ids"] + self._before[number][:switched]
        (drawn,) = await undivided(url, [body(ids, number, equal)])
        ids += drawn
        bodies = [body([*ids, token], number, rest) for token in candidates]
        rests = await undivided(url, bodies)
        *tied, wrong = [[token, *later] for token, later in zip(candidates, rests, strict=True)]
        request = body(ids, number, 1 + rest)
        ties = [await assert_same_but_for_ties(url, [request], [ours]) for ours in tied]
        assert sorted(ties) == [0, 1]
        behind = tied[ties.index(1)]
        behind[-1] += 1
        for ours, place in ((wrong, 0), (behind, rest - 1)):
            with pytest.raises(AssertionError, match=f"'equal tokens': {place},"):
                await assert_same_but_for_ties(url, [request], [ours])


class Polls(Observer):
    """Counts the polls that each engine has answered."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    @override
    def loaded(self, engine_id: str, load: EngineLoad, now: float) -> None:
        self.of[engine_id] += 1


async def trained(log: Path, **arguments: Any) -> None:
    with log.open("wb") as output:  # no pipe: torch's shared memory manager would hold it open
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.e2e.trainer", json.dumps(arguments)),
            stdout=output,
            stderr=output,
        )
        assert await process.wait() == 0, f"the trainer failed: {log}"


async def loaded(it: Served) -> str | None:
    """Returns the plugin's name of the weights of all engines, which is the same.

    SGLang's own checksums need CUDA.
    """
    (weights,) = {(await engine.refresh()).weights for engine in it.service.fleet.engines}
    assert weights is not None
    return weights


async def updated(it: Served, model: Path, version: str) -> Any:
    """Updates the weights from a model's folder; returns the answer, whose status must be 200."""
    fields = {"model_path": str(model), "weight_version": version}
    status, answer = await it.post("/update_weights_from_disk", **fields)
    assert status == 200, answer
    return answer


@pytest.mark.shared_engines
async def test_after_an_update_from_disk_no_token_is_from_the_old_weights(
    engine_urls: list[str], other_model: Path
) -> None:
    async with serving(engine_urls, LIMIT) as it:
        old, load = it.service.version(), Load(it)
        await load.start(engine_urls[0])
        await updated(it, other_model, "new")
        try:
            await load.assert_switched(engine_urls[1], old, "new")
            await load.assert_ties_alone_may_differ(engine_urls[1])
            await loaded(it)
        finally:
            await updated(it, MODEL, old)  # later tests find what was there


@pytest.mark.long
@pytest.mark.shared_engines
@pytest.mark.parametrize("kind", ["distributed", "tensor"])
@pytest.mark.parametrize("session", [False, True])
async def test_after_an_update_by_a_trainer_no_token_is_from_the_old_weights(
    engine_urls: list[str], tmp_path: Path, other_model: Path, kind: str, session: bool
) -> None:
    async with serving(engine_urls, LIMIT) as it:
        old, load = it.service.version(), Load(it)
        await load.start(engine_urls[0])
        try:
            await trained(
                tmp_path / "trainer.log",
                url=it.url,
                model=str(other_model),
                kind=kind,
                ranks=2,
                version="new",
                session=session,
            )
            if session or kind == "tensor":  # else the second bucket is a second update
                await load.assert_switched(engine_urls[1], old, "new")
            from_trainer = await loaded(it)
            await updated(it, other_model, "the same")
            assert await loaded(it) == from_trainer, "the trainer has sent all weights"
        finally:
            await updated(it, MODEL, old)  # later tests find what was there


@pytest.mark.long
@pytest.mark.own_engines
async def test_engines_of_two_ranks_take_part_in_a_trainers_group(
    tmp_path: Path, other_model: Path
) -> None:
    urls = two_urls()
    with servers(urls, [[*SERVER_FLAGS, "--tp-size", "2"]] * 2, tmp_path, RANKS):
        async with serving(urls, LIMIT) as it:
            old, load = it.service.version(), Load(it)
            await load.start(urls[0])
            names = [await loaded(it)]
            sent = (("distributed", "new", other_model), ("tensor", "newer", MODEL))
            for kind, version, model in sent:
                await trained(
                    tmp_path / "trainer.log",
                    url=it.url,
                    model=str(model),
                    kind=kind,
                    ranks=4,
                    version=version,
                    session=True,
                )
                if kind == "distributed":
                    await load.assert_switched(urls[1], old, "new")
                names.append(await loaded(it))
                assert it.service.version() == version
    assert names[0] == names[2] != names[1], "the second update has loaded the first weights again"


@pytest.mark.long
@pytest.mark.own_engines
async def test_an_engine_killed_between_begin_and_end_is_stale_and_the_other_serves(
    tmp_path: Path, other_model: Path
) -> None:
    urls, fresh = two_urls(), two_urls()[0]
    logs = [tmp_path / name for name in ("first", "second", "again", "fresh")]
    for log in logs:
        log.mkdir()
    with (
        servers(urls[1:], [SERVER_FLAGS], logs[1]),
        contextlib.ExitStack() as stack,
    ):
        first = stack.enter_context(contextlib.ExitStack())
        first.enter_context(servers(urls[:1], [SERVER_FLAGS], logs[0]))
        async with serving(urls, LIMIT) as it:
            old, load = it.service.version(), Load(it)
            await load.start(urls[1])
            assert (await it.post("/begin_weight_update"))[0] == 200
            first.close()  # it is killed
            answer = await updated(it, other_model, "new")
            assert answer["engines"]["e0"]["status"] is None, answer
            status, answer = await it.post("/end_weight_update")
            assert status == 200, answer
            assert list(it.service.driver.stale) == ["e0"]
            assert not it.service.backend.holds
            await load.assert_switched(urls[1], old, "new")
            requests = [body(ids, 7, 200) for ids in prompts(4)]
            with servers([fresh], [["--model-path", str(other_model), *SERVER_FLAGS[2:]]], logs[3]):
                expected = await undivided(fresh, requests)
            replies = await asyncio.gather(*(it.generate(**each) for each in requests))
            assert [reply["output_ids"] for reply in replies] == expected
            polls = Polls()
            it.service.driver.observe(polls)
            stack.enter_context(servers(urls[:1], [SERVER_FLAGS], logs[2]))
            await until(lambda: polls.of["e0"] >= 3)
            assert not it.service.serves("e0"), "it has the first weights"
            await updated(it, other_model, "newer")
            await until(lambda: it.service.serves("e0"))
            await loaded(it)
