"""The server of an audit: its description, and whether it has the weights of the samples."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from .recorded import RecordedSample


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What an SGLang server reports of itself. None: it does not report that.

    `weights`: a digest of the loaded weights, from the plugin of seer-sgl. `longest`: SGLang
    refuses an input of so many tokens or more.
    """

    url: str
    sglang_version: str
    model_path: str
    weight_version: str
    weights: str | None = None
    deterministic: bool = False
    dtype: str | None = None
    attention_backend: str | None = None
    quantization: str | None = None
    speculative_algorithm: str | None = None
    prefix_cache: bool = True
    longest: int | None = None
    vocab_size: int | None = None
    tp_size: int = 1
    dp_size: int = 1
    plugin: str | None = None

    def description(self) -> str:
        """Returns the description in one line."""
        facts = [
            f"SGLang {self.sglang_version}",
            f"model {self.model_path}",
            f"dtype {self.dtype or 'unknown'}",
            f"attention {self.attention_backend or 'unknown'}",
            "deterministic inference" if self.deterministic else "no deterministic inference",
        ]
        if self.speculative_algorithm is not None:
            facts.append(f"speculation {self.speculative_algorithm}")
        return ", ".join(facts)


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The weights of the samples beside those of the server.

    `versions`: response tokens by weight version; "" counts tokens without one. `digests`: of the
    engines that made the samples, from the report beside them. `other_samples`: samples with tokens
    of another version than the server's. `same_digest`: None if either side has none.
    """

    versions: dict[str, int]
    digests: list[str]
    sglang_versions: list[str]
    other_samples: int
    same_digest: bool | None
    line: str


class ReportedEngine(msgspec.Struct):
    """An engine that made the samples, from the report of their rollout."""

    weights: str | None = None
    sglang_version: str | None = None


def provenance(
    samples: Sequence[RecordedSample], served: ServedModel, made_by: Sequence[ReportedEngine] = ()
) -> Provenance:
    """Returns how the weights of samples and server compare. `made_by`: as far as known."""
    versions: Counter[str] = Counter()
    for sample in samples:
        left = len(sample.response_ids)
        for span in sample.spans:
            tokens = min(left, span.tokens)
            versions[span.version] += tokens
            left -= tokens
        versions[""] += left
    versions += Counter()  # drops zeros
    made_with = [
        {*sample.mixed, *(span.version for span in sample.spans if span.tokens)}
        for sample in samples
    ]
    other = sum(bool(found - {served.weight_version}) for found in made_with)
    known = sorted({engine.weights for engine in made_by if engine.weights})
    same = None if served.weights is None or not known else known == [served.weights]
    return Provenance(
        versions=dict(versions),
        digests=known,
        sglang_versions=sorted({e.sglang_version for e in made_by if e.sglang_version}),
        other_samples=other,
        same_digest=same,
        line=_line(sorted(set[str]().union(*made_with)), other, len(samples), same, served),
    )


def _line(
    versions: Sequence[str], other: int, count: int, same: bool | None, served: ServedModel
) -> str:
    named = ", ".join(repr(version) for version in versions if version)
    digest = {
        None: "no digests to compare",
        True: "equal digests",
        False: "DIFFERENT digests",
    }[same]
    if not named:
        return (
            "weights: the samples name no version, "
            f"the server has {served.weight_version!r}; {digest}"
        )
    if other:
        return (
            f"weights: DIFFERENT: {other} of {count} samples have tokens of other weights "
            f"({named}) than the server's, {served.weight_version!r}; {digest}"
        )
    return f"weights: samples and server have version {served.weight_version!r}; {digest}"
