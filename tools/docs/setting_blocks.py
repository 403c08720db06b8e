"""The blocks of docs/benchmark.md on the machine, its noise, SGLang's own speculation, the
simulator and rollouts in a row: a report in, a table out."""

from statistics import median

from seer_sgl.benchmark.arms import BASELINE, SEER

from .tables import (
    Lines,
    Report,
    code,
    decimals,
    gains,
    measured,
    per_seed,
    percent,
    rounds_of,
    seconds,
    spread,
    table,
    values,
)

LEAST_LOADED = "group_least_loaded"  # on this work the same assignment as the baseline's
GREEDY = (  # an arm, and the arm that it is compared with
    ("greedy_ngram", "greedy"),
    ("greedy_seer", "greedy"),
    ("greedy_seer", "greedy_ngram"),
)


def machine(report: Report) -> Lines:
    """Yields the machine, the versions and the work."""
    host, config = report["environment"], report["config"]
    engines, flags = config["engines"], config["engines"]["sglang"]
    rollout, sampling = config["rollout"], config["sampling"]
    gpus = ", ".join(host["gpus"]) or "no GPU"
    installed = {name: version for name, version in host["packages"].items() if version}
    installed.pop("seer-sgl", None)  # the commit says more
    packages = [" ".join(package) for package in installed.items()]
    rows = rounds_of(report)
    seeds = {row.round: row.seed for row in rows}
    in_turn = ", ".join(map(str, dict.fromkeys(seeds.values())))
    identical = min(row.identical_share for row in rows)
    facts = {
        "date, commit": f"{host['date']}, {host['commit']}",
        "machine": f"{host['cpu']}, {host['cores']} cores, {host['memory_gb']} GB, {gpus}",
        "software": ", ".join([f"Python {host['python']}", *packages]),
        "engines": f"{engines['count']}, one core each; {flags['max-total-tokens']:,} KV tokens "
        f"and {flags['max-running-requests']} running requests per engine; {flags['dtype']}",
        "work per rollout": f"{rollout['max_prompts']} prompts x "
        f"{rollout['n_samples_per_prompt']} samples, temperature {sampling['temperature']}, "
        f"at most {sampling['max_new_tokens']:,} tokens, "
        f"chunks of {config['scheduling']['chunk_tokens']}",
        "rounds": f"{len(seeds)}, seeds {in_turn} in turn",
        "identical samples": f"{percent(identical)}, the least of any arm in any round",
    }
    return table(["what", "value"], facts.items())


def noise(report: Report) -> Lines:
    """Yields how far equal rollouts differ."""
    every = rounds_of(report)
    walls = [
        values(rows, arm, "wall_s") for rows in per_seed(every).values() for arm in measured(every)
    ]
    slower = [max(found) / min(found) for found in walls]
    same = f"{code(LEAST_LOADED)} over {code(BASELINE)}: the same assignment on this work"
    return table(
        ["measure", "value"],
        [
            [same, spread(gains(every, LEAST_LOADED))],
            [
                "slower over faster round of one arm and seed: median (least to greatest)",
                spread(slower),
            ],
        ],
    )


def greedy(report: Report) -> Lines:
    """Yields the arms at temperature 0."""
    rows = rounds_of(report)

    def accepted(arm: str, over: str) -> str:
        return decimals(median(values(rows, arm, "accept_length"))) if over == "greedy" else ""

    return table(
        ["arm", "compared with", "gain", "tokens per verified step"],
        [
            [code(arm), code(over), spread(gains(rows, arm, over)), accepted(arm, over)]
            for arm, over in GREEDY
        ],
    )


def predicted(report: Report) -> Lines:
    """Yields what the simulator predicted, beside what was measured."""
    total = ["total, measured", "total, predicted", "error"]
    return table(
        ["arm", *total, "tail, measured", "tail, predicted"],
        [
            [
                code(arm),
                seconds(one["wall_s"]),
                seconds(one["predicted_wall_s"]),
                percent(one["error"]),
                seconds(one["tail_s"]),
                seconds(one["predicted_tail_s"]),
            ]
            for arm, one in report["predicted"]["arms"].items()
        ],
    )


def acceptance(report: Report) -> Lines:
    """Yields the accepted tokens of seer, beside those that the simulator assumes."""
    model = report["predicted"]["speculation"]
    first, *others = model["references"]
    head = [f"model with {first} finished siblings", *others] if others else ["model"]
    length = median(values(rounds_of(report), SEER, "accept_length"))
    return table(
        ["", f"{code(SEER)}, measured: median of all rounds", *head],
        [["tokens per verified step", decimals(length), *map(decimals, model["accept_length"])]],
    )


def soak(report: Report) -> Lines:
    """Yields the range and the drift of rollouts in a row."""
    rollouts, slopes = report["soak"], report["soak_drift"]

    def line(text: str, key: str, form: str, unit: str, slope: str) -> list[str]:
        found = [rollout[key] for rollout in rollouts]
        low, high = format(min(found), form), format(max(found), form)
        return [text, f"{low} to {high} {unit}", f"{slopes[key]:{slope}} {unit}"]

    hits = [rollout["kv_hit_share"] for rollout in rollouts]
    identical = min(rollout["identical_share"] for rollout in rollouts)
    return table(
        ["measure", f"least to greatest of {len(rollouts)} rollouts", "slope per rollout"],
        [
            line("total time", "wall_s", ".1f", "s", "+.2f"),
            [
                "KV of continuations found in a cache",
                f"{percent(min(hits), 1)} to {percent(max(hits), 1)}",
                f"{slopes['kv_hit_share']:+.4f}",
            ],
            line("memory of the driver", "driver_mb", ",.1f", "MB", "+.2f"),
            line("memory of all SGLang servers", "engines_mb", ",.0f", "MB", "+.1f"),
            line("memory of Mooncake, draft hub and router", "others_mb", ",.0f", "MB", "+.1f"),
            ["identical samples", percent(identical), ""],
        ],
    )
