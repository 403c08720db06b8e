"""Every field with values of every JSON type, against a real engine: none crashes it.

None gets a 5xx either: what SGLang fails with is refused with a reason.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from seer_sgl.rollout.rollout import Rollout
from tests.e2e.conftest import SERVER_FLAGS, external, servers, two_urls
from tests.server.field_values import Json, completions, fields, generate, others, parameters
from tests.server.helpers import Served, served_config
from tests.support.processes import lives

pytestmark = [pytest.mark.own_engines, pytest.mark.long]

AT_ONCE = 8
ENOUGH_S = 60.0  # a request that an engine died of waits for ever


class Asked:
    """The answers by status, and the bodies whose answer was a 5xx or none."""

    def __init__(self, it: Served) -> None:
        self._it = it
        self.statuses: Counter[int] = Counter()
        self.failed: list[tuple[str, Json, str]] = []

    async def ask_all(self, bodies: Iterator[tuple[str, Json]]) -> None:
        """Sends the bodies one after another; shared by several tasks."""
        for path, body in bodies:
            if len(self.failed) > 5:
                return
            await self.ask(path, body)

    async def ask(self, path: str, body: Json) -> None:
        try:
            async with (
                asyncio.timeout(ENOUGH_S),
                self._it.session.post(f"{self._it.url}{path}", json=body) as reply,
            ):
                status, text = reply.status, await reply.text()
        except (TimeoutError, aiohttp.ClientError) as error:
            status, text = 0, repr(error)
        self.statuses[status] += 1
        if status == 0 or status >= 500:
            self.failed.append((path, body, f"{status} {text[:200]}"))
            print(*self.failed[-1], flush=True)


@pytest.mark.parametrize("pairs", [fields, parameters, completions, others])
async def test_no_value_of_any_field_ends_an_engine(
    tmp_path: Path, pairs: Callable[[], Iterator[tuple[str, Json]]]
) -> None:
    urls = two_urls()[:1]
    with servers(urls, [SERVER_FLAGS], tmp_path):
        processes = psutil.Process().children(recursive=True)
        config = external(urls) | {"server": {"port": 0, "group_window_s": 0.0}}
        async with served_config(Rollout(config, gives_up=False)) as it:
            asked, bodies = Asked(it), pairs()
            await asyncio.gather(*(asked.ask_all(bodies) for _ in range(AT_ONCE)))
            print(dict(asked.statuses), "of", asked.statuses.total(), "pairs")
            assert not asked.failed
            assert (await it.generate(**generate({})))["meta_info"]["completion_tokens"] == 3
        assert all(map(lives, processes))
