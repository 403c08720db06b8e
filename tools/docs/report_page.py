"""The page docs/report.md, from the keys of the report and the fields of a sample."""

from collections.abc import Iterator

from seer_sgl.types import Sample

from .report_keys import KEYS
from .sources import field_docs

HEAD = """\
# The report and the samples

`report.json` describes a rollout as a whole, and `samples.jsonl` has one line per sample.
"""
REPORT = """\
## The report

`DIR/report.json` is one JSON object. `Rollout.report()` returns the same object, also while the rollout runs.
Counts are exact; times are seconds of the driver's clock.

| key | meaning |
|---|---|"""
SAMPLES = """
## A sample

`DIR/samples.jsonl` has one JSON object per line, written when the sample finishes.
In Python `group.samples` has the same fields; token ids and log probabilities are `array.array`.

| field | meaning |
|---|---|"""


def text() -> str:
    """Returns the page."""
    return "\n".join([HEAD, REPORT, *_keys(), SAMPLES, *_fields(), ""])


def _keys() -> Iterator[str]:
    for path, meaning in KEYS.items():
        yield f"| `{path}` | {meaning} |"


def _fields() -> Iterator[str]:
    docs = field_docs(Sample)
    for name in Sample.__struct_fields__:
        yield f"| `{name}` | {docs[name]} |"
