"""What a chaotic rollout cost, and what is wrong with it. Pure."""

from typing import Any

import msgspec

from seer_sgl.types import Sample
from tests.e2e.compare import difference

from .ledger import Key, unexplained
from .rolling import CHUNK_TOKENS, Chaotic, Rolled


class Verdict(msgspec.Struct):
    """`problems`: a line per broken promise. `costs`: figures against the fault-free run."""

    problems: list[str]
    costs: dict[str, Any]


def judge(undisturbed: Rolled, long: Rolled, chaotic: Chaotic) -> Verdict:
    """Compares a rollout with faults with the undisturbed one. `long`: of its long prompts."""
    rolled = chaotic.rolled
    found, ledger = rolled.report, rolled.ledger
    problems = differences({**undisturbed.samples, **long.samples}, rolled)
    for entry in chaotic.happened:
        if entry.problem is not None:
            problems.append(f"it did not happen: {entry.fault}: {entry.problem}")
    problems += [
        f"a chunk was lost on an undisturbed engine: {lost}"
        for lost in unexplained(ledger.lost_chunks, chaotic.disturbances)
    ]
    problems += [f"chunk {rid} began before the tokens of its request" for rid in ledger.repeated]
    if ledger.in_flight:
        problems.append(f"{len(ledger.in_flight)} chunks never came back")
    lost = len(ledger.lost_chunks)
    if lost != found["lost_chunks"]:
        problems.append(f"{lost} lost chunks, and {found['lost_chunks']} in the report")
    again = sum(chunk.budget for chunk in ledger.lost_chunks)
    if found["wasted_tokens"] > again:
        problems.append(f"{found['wasted_tokens']} wasted tokens, of at most {again}")
    kept = sum(engine["response_tokens"] for engine in found["engines"]) - found["response_tokens"]
    if not 0 <= kept <= lost * CHUNK_TOKENS:
        problems.append(f"{kept} returned tokens are in no sample")
    if found["failed_requests"]:
        problems.append(f"{found['failed_requests']} requests failed")
    return Verdict(problems, costs(undisturbed, rolled, again))


def costs(undisturbed: Rolled, rolled: Rolled, again: int) -> dict[str, Any]:
    """Returns the figures of a rollout with faults against the undisturbed one."""
    found = rolled.report
    names = ("lost_chunks", "retries", "respawns", "wasted_tokens", "failed_requests")
    return {
        "wall_s": found["wall_s"],
        "seconds_lost": round(found["wall_s"] - undisturbed.report["wall_s"], 1),
        "response_tokens": found["response_tokens"],
        **{name: found[name] for name in names},
        "drawn_again_at_most": again,
        "recomputed_tokens": found["recomputed_tokens"],
        "recomputed_tokens_undisturbed": undisturbed.report["recomputed_tokens"],
    }


def differences(undisturbed: dict[Key, Sample], rolled: Rolled) -> list[str]:
    """Returns a line per sample that is missing, doubled, too many, or not the fault-free run's."""
    lines = [f"sample {key} is missing" for key in undisturbed.keys() - rolled.samples.keys()]
    lines += [f"sample {key} is too many" for key in rolled.samples.keys() - undisturbed.keys()]
    lines += [f"sample {key} came twice" for key in rolled.doubled]
    for key in undisturbed.keys() & rolled.samples.keys():
        how = differs(undisturbed[key], rolled.samples[key])
        if how is not None:
            lines.append(f"sample {key}: {how}")
    return sorted(lines)


def differs(whole: Sample, sample: Sample) -> str | None:
    """Returns how a sample differs from the fault-free run's; None if it does not."""
    found = difference(whole, sample)
    if found is None and sample.weight_version != whole.weight_version:
        return f"it is from the weights {sample.weight_version}, not {whole.weight_version}"
    return found
