"""Reads the metrics of a running server."""

import math
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from .helpers import Served


class Scrape(NamedTuple):
    """The samples of one scrape: name and labels of each, and its value."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def __call__(self, name: str, **labels: str) -> float:
        """Returns the value of one series, which must exist."""
        return self.samples[name, frozenset(labels.items())]

    def sum(self, name: str, **labels: str) -> float:
        """Returns the sum of the series that have these labels."""
        wanted = frozenset(labels.items())
        return math.fsum(
            value
            for (other, given), value in self.samples.items()
            if other == name and wanted <= given
        )

    def labels(self) -> dict[str, set[str]]:
        """Returns the names of the labels of each series, by its name."""
        found: dict[str, set[str]] = {}
        for name, given in self.samples:
            found.setdefault(name, set()).update(label for label, _ in given)
        return found


async def scraped(it: Served) -> Scrape:
    async with it.session.get(f"{it.url}/metrics") as reply:
        assert reply.status == 200, await reply.text()
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await reply.text()
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples, f"{key} appears twice"
            samples[key] = sample.value
    return Scrape(samples)
