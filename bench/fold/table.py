"""A table of rollouts that gave engines back, over draws of lengths."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

Line = dict[str, Any]  # of the file (__main__.py)


def by_slack(lines: Iterable[Line], oracle: bool) -> dict[float, list[Line]]:
    """Returns the folded rollouts by planned slack, with the lengths known or not."""
    found: defaultdict[float, list[Line]] = defaultdict(list)
    for line in lines:
        if line["arm"] is not None and line["arm"]["oracle"] == oracle:
            found[line["arm"]["slack"]].append(line)
    return dict(sorted(found.items()))


def by_lengths(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Returns the rollouts by the name of their lengths, in the order of the file."""
    found: defaultdict[str, list[Line]] = defaultdict(list)
    for line in lines:
        found[line["lengths"]].append(line)
    return dict(found)


def percent(values: Sequence[float]) -> str:
    """Returns mean and range as text, in percent."""
    mean, least, most = (
        f"{100 * value:.1f}" for value in (statistics.mean(values), min(values), max(values))
    )
    return f"{mean} %" if len(values) == 1 else f"{mean} % ({least} to {most})"


def table(lines: Sequence[Line]) -> str:
    """Returns a Markdown table: what each kind of lengths gave back, and how much longer it took,
    by planned slack, mean and range of the draws; and the moves and fetched tokens of KV that were
    added, as shares of those without folding."""
    rows = [
        "| lengths | planned slack | draws | bound | known: given back | longer |"
        " not known: given back | longer | moves | fetched |",
        "| --- |" + " --- |" * 9,
    ]
    for name, own in by_lengths(lines).items():
        plain = {line["seed"]: line for line in own if line["arm"] is None}
        known, likely = by_slack(own, True), by_slack(own, False)
        for slack, each in likely.items():
            bound = [plain[line["seed"]]["bound"].get(str(slack)) for line in each]
            cells = [name, f"{100 * slack:.0f} %", str(len(each))]
            cells.append("" if None in bound else percent(bound))
            for arms in (known.get(slack, []), each):
                cells += [
                    percent([line[key] for line in arms]) if arms else ""
                    for key in ("released", "late")
                ]
            cells += [
                percent([line[key] / (plain[line["seed"]][key] or 1) - 1 for line in each])
                for key in ("migrations", "fetched_tokens")
            ]
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)
