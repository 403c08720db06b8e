"""`ServerMonitor`: the counts of one server, and the registry of its metrics."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from seer_sgl.server.service import Service

from .counts import ServerCounts, clock
from .drafting import DraftReader
from .families import families
from .latency import Latencies
from .snapshot import EngineSnapshot, Snapshot


class ServerMonitor(Collector):
    """Observes all runs of a service from now on, for its metrics and its live page.

    Each server has a registry of its own.
    """

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self.counts = ServerCounts(service.driver.engines, Latencies(self.registry))
        self._service = service
        self._draft_reader = DraftReader(service.fleet)
        self._scraped: Snapshot | None = None
        self.registry.register(self)
        ProcessCollector(namespace="seer", registry=self.registry)
        service.driver.observe(self.counts)

    async def snapshot(self) -> Snapshot:
        service, driver = self._service, self._service.driver
        serving = {state.engine_id for state in driver.states() if state.available}
        drafts = await self._draft_reader.counters(serving)
        infos = {info.engine_id: info for info in driver.engines}
        parts = self.counts.engines
        return Snapshot(
            counts=self.counts,
            engines=[
                EngineSnapshot(infos[state.engine_id], state, parts[state.engine_id])
                for state in driver.states()
                if state.engine_id in infos and state.engine_id in parts
            ],
            drafts=drafts,
            passthrough=service.passthrough.counts,
            open_groups=service.generation.open_groups,
            sessions=len(service.generation.sessions),
            rollouts={served.run.caller: served for served in service.rollouts.in_progress},
            paused=driver.paused,
            now=clock(),
        )

    def close(self) -> None:
        self._draft_reader.close()

    async def metrics(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        self._scraped = await self.snapshot()
        return generate_latest(self.registry)

    @override
    def collect(self) -> Iterator[Metric]:
        """Yields the metrics that are read at the time of a scrape."""
        if self._scraped is not None:
            yield from families(self._scraped)
