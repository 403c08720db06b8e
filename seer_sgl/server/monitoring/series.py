"""Builders of metric families."""

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

Labels = tuple[str, ...]
Rows = Iterable[tuple[Labels, float]]  # the values of the labels, and the number


def known(counts: Mapping[str, int], names: Labels) -> Rows:
    """Returns the counts by name, also those that are 0."""
    return [((name,), counts.get(name, 0)) for name in names]


def gauge(name: str, text: str, value: float) -> Metric:
    """Returns a gauge without labels."""
    return gauges(name, text, (), [((), value)])


def gauges(name: str, text: str, labels: Labels, rows: Rows) -> Metric:
    """Returns a gauge with one series per row."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def counters(name: str, text: str, labels: Labels, rows: Rows) -> Metric:
    """Returns a counter with one series per row; its name ends with `_total` in the output."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family
