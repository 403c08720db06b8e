"""The readable forms of the report: a table for a terminal, and report.md."""

from collections.abc import Callable, Sequence
from typing import Any

import yaml
from rich.table import Table

from seer_sgl.sampling import canonical

from .arms import BASELINE

Figures = dict[str, Any]
Column = tuple[str, Callable[[Figures], str]]


def _median(name: str, form: str = ",.0f") -> Callable[[Figures], str]:
    return lambda arm: "" if arm.get(name) is None else format(arm[name], form)


def _spread(name: str, form: str) -> Callable[[Figures], str]:
    """Returns a cell with the median and the range: median (least to greatest)."""

    def cell(arm: Figures) -> str:
        if arm.get(name) is None:
            return ""
        low, high = arm["range"][name]
        return f"{arm[name]:{form}} ({low:{form}} to {high:{form}})"

    return cell


MAIN: Sequence[Column] = (
    ("rounds", _median("rounds", "d")),
    ("tok/s", _spread("throughput_tok_s", ",.0f")),
    ("x baseline", _spread("speedup", ".2f")),
    ("paper", lambda arm: "" if arm["paper"] is None else f"{arm['paper']['throughput']:.2f}"),
    ("x", _spread("gain", ".2f")),
    ("of", lambda arm: arm["compared_with"] or ""),
    ("total s", _spread("wall_s", ".1f")),
    ("tail s", _spread("tail_s", ".1f")),
    ("tail cut", _spread("tail_cut", ".0%")),
    ("paper", lambda arm: "" if arm["paper"] is None else f"{1 - arm['paper']['tail']:.0%}"),
    ("idle", _spread("idle_share", ".0%")),
    ("retractions", _spread("retractions", ",.0f")),
    ("identical", _median("identical_share", ".1%")),
)
WORK: Sequence[Column] = (
    ("idle by engine", lambda arm: "/".join(f"{share:.0%}" for share in arm["idle_by_engine"])),
    ("forward steps", _median("forward_steps")),
    ("accept length", _median("accept_length", ".2f")),
    ("chunks", _median("chunks")),
    ("migrations", _median("migrations")),
    ("pool reads", _median("fetches")),
    ("MB moved", lambda arm: f"{arm['moved_bytes'] / 1e6:,.1f}"),
    ("prefilled", _median("prefilled_tokens")),
    ("recomputed by continuations", _median("recomputed_tokens")),
    ("KV peak", _median("kv_peak", ".0%")),
    ("engines' CPU s", _median("engine_cpu_s", ",.1f")),
    ("of it drafting", _median("drafting_cpu_s", ",.1f")),
    ("driver's CPU s", _median("driver_cpu_s", ".2f")),
    ("CPU s of running routers and pools", _median("other_cpu_s", ".2f")),
)


def arms_table(report: dict[str, Any]) -> Table:
    """Returns a table with one row per arm, for a terminal."""
    table = Table("arm", *(name for name, _ in MAIN))
    for name, arm in report["arms"].items():
        table.add_row(name, *(cell(arm) for _, cell in MAIN))
    return table


def markdown(report: dict[str, Any]) -> str:
    """Returns the text of report.md."""
    arms = report["arms"]
    parts = ["# Benchmark", _environment(report)]
    parts += [_bullets([*report["doubts"], *map(_failure, report["failures"])])]
    described = [f"`{name}`: {arm['description']}" for name, arm in arms.items()]
    parts += ["## Arms", _bullets(described), f"{MEDIANS} {NOTES}", _table(arms, MAIN)]
    parts += ["![Throughput and tail of every arm](arms.png)"]
    parts += ["## Work", _table(arms, WORK)]
    for seed, of_seed in report["seeds"].items():
        parts += [f"## Seed {seed}", _table(of_seed, MAIN)]
    parts += ["## Config", f"```yaml\n{yaml.safe_dump(report['config'], sort_keys=False)}```"]
    return "\n\n".join(part for part in parts if part) + "\n"


MEDIANS = (
    "Figures are medians over all rounds; brackets show the least and the greatest value of any "
    "round. `x baseline`, `x ... of` and `tail cut` are ratios within one round, and their median "
    "is taken over all rounds."
)
NOTES = (
    f"`x baseline`, `tail cut`: against {BASELINE} (greedy arms: `greedy`) in the same round. "
    "`x ... of`: against the named arm. `paper`: the paper's result on Qwen2-VL-72B. `idle`: share "
    "of the time without a request, mean of the engines. `identical`: least share, over all "
    "rounds, of samples that equal those of an unmeasured rollout on plain servers (without plain "
    "servers: of the first arm). `retractions`: number of preemptions. `prefilled`: tokens, "
    "counted again for preempted requests."
)


def _environment(report: dict[str, Any]) -> str:
    machine, config = report["environment"], report["config"]
    packages = ", ".join(f"{name} {v}" for name, v in machine["packages"].items() if v)
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    sampling, rollout = canonical(config["sampling"]), config["rollout"]
    source = config["bench"]["workload"] or rollout["prompts"]
    prompts = f"{rollout['max_prompts'] or 'All'} prompts"
    if config["bench"]["workload"] is None:  # the groups of a trace have their own sizes
        prompts += f" x {rollout['n_samples_per_prompt']}"
    seeds = {row["round"]: row["seed"] for row in report["rounds"]}
    return (
        f"{machine['date']}, commit {machine['commit'] or 'unknown'}; {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['memory_gb']} GB, "
        f"{gpus}; Python {machine['python']}, {packages}.\n\n"
        f"{prompts} of `{source}`, temperature {sampling['temperature']:g}, at most "
        f"{sampling['max_new_tokens']} tokens; "
        f"engines: {_engines(config)}; "
        f"{len(seeds)} rounds, seeds {list(dict.fromkeys(seeds.values()))} in turn."
    )


def _engines(config: dict[str, Any]) -> str:
    engines = config["engines"]
    if engines["launch"] == "external":
        return f"`{config['bench']['urls']}`"
    return f"{engines['count']}, `{engines['sglang']}`"


def _failure(failure: dict[str, Any]) -> str:
    error, _, _ = failure["error"].partition("\n")  # the rest is the end of a log
    return f"`{failure['arm']}` failed in round {failure['round']}, later rounds skip it: {error}"


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(arms: dict[str, Figures], columns: Sequence[Column]) -> str:
    head = ["arm", *(name for name, _ in columns)]
    rows = [[name, *(cell(arm) for _, cell in columns)] for name, arm in arms.items()]
    return table_of(head, rows)


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
