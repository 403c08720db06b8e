"""The facts that decide the samples of a rollout: what a resume must find again. Pure."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from seer_sgl.engine_types import EngineInfo
from seer_sgl.types import Group, Sampling

from .records import Extended, Header

_canonical = msgspec.json.Encoder(order="sorted").encode


def make_header(
    *,
    rollout_id: str,
    run_id: str,
    seed: int,
    seed_setting: int | None,
    sampling: Sampling,
    engines: Sequence[EngineInfo],
    groups: Sequence[Group],
) -> Header:
    """Returns the facts of a rollout of `groups` on `engines`, which serve the same weights."""
    first = engines[0]
    return Header(
        rollout_id=rollout_id,
        run_id=run_id,
        seed=seed,
        seed_setting=seed_setting,
        sampling=msgspec.to_builtins(sampling),
        model=first.model_path,
        weights=first.weights,
        weight_version=first.weight_version,
        deterministic=all(info.deterministic for info in engines),
        pool=first.pool,
        groups=[digest(group) for group in groups],
        limits=limits_of(groups),
    )


def limits_of(groups: Sequence[Group]) -> list[int]:
    """Returns the most response tokens of each request."""
    return [request.max_response_len for group in groups for request in group.requests]


def digest(group: Group) -> bytes:
    """Returns a digest of what decides a group's samples, and of what identifies them.

    `metadata` is not part of it: it may have no form in bytes, and no sample depends on it.
    """
    content = hashlib.blake2b(digest_size=16)
    for part in (
        group.group_id.encode("utf-8", "surrogatepass"),
        group.prompt.prompt_ids.tobytes(),
        str(len(group.requests)).encode(),
        _canonical(group.sampling),
        *(image.encode() for image in group.prompt.image_data),
    ):
        content.update(len(part).to_bytes(8, "little"))
        content.update(part)
    return content.digest()


def differences(kept: Header, now: Header, groups: Sequence[Group], extend: bool) -> Iterator[str]:
    """Yields what keeps a rollout of `groups` with the facts `now` from continuing with `kept`.

    `extend`: groups behind those of the journal are new prompts.
    """
    yield from _of_sampling(kept.sampling, now.sampling)
    if now.seed_setting not in (None, kept.seed_setting):
        yield _differ("rollout.seed", kept.seed_setting, now.seed_setting)
    for name, before, after in (
        ("weight version", kept.weight_version, now.weight_version),
        ("deterministic inference", kept.deterministic, now.deterministic),
    ):
        if before != after:
            yield _differ(name, before, after)
    if None not in (kept.weights, now.weights):  # the weights themselves, wherever they lie
        if kept.weights != now.weights:
            yield _differ("model weights", kept.weights, now.weights)
    elif kept.model != now.model:
        yield _differ("model", kept.model, now.model)
    yield from _of_prompts(kept, now, groups, extend)


def extended(header: Header, more: Extended) -> Header:
    """Returns the header of a journal to which prompts were added."""
    return msgspec.structs.replace(
        header, groups=header.groups + more.groups, limits=header.limits + more.limits
    )


def _of_sampling(kept: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(kept.keys() | now.keys()):
        if kept.get(name) != now.get(name):
            yield _differ(f"sampling.{name}", kept.get(name), now.get(name))


def _of_prompts(kept: Header, now: Header, groups: Sequence[Group], extend: bool) -> Iterator[str]:
    for number, group in enumerate(groups[: len(kept.groups)]):
        if kept.groups[number] != now.groups[number]:
            yield f"prompt {group.group_id!r} is not the one in the journal (number {number + 1})"
            return
    more = len(now.groups) - len(kept.groups)
    if more < 0:
        yield f"{-more} of its {len(kept.groups)} prompts are missing"
        return
    if more and not extend:
        yield f"{more} prompts are not in it; --extend adds them"
    requests = [request for group in groups for request in group.requests]
    for request, before, after in zip(requests, kept.limits, now.limits, strict=False):
        if before != after:
            what = f"most tokens of sample {request.index} of prompt {request.group.group_id!r}"
            yield _differ(what, before, after)
            return


def _differ(name: str, kept: Any, now: Any) -> str:
    return f"{name}: {kept!r} in the journal, {now!r} now"
